package completion

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// Command prints a script for a shell, which completes commands, flags and the values of flags that are a choice.
type Command struct {
	Shell string `arg:"" help:"bash, zsh or fish." enum:"bash,zsh,fish"`
}

// Run prints the script.
func (c *Command) Run(ctx *kong.Context) error {
	script := map[string]func(io.Writer, []completions) error{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[c.Shell]
	return script(os.Stdout, completionsOf(ctx.Model.Node, ""))
}

// completions are the words that may follow a command.
type completions struct {
	path     string // "", "table", "table create"
	commands []completion
	flags    []completion
}

type completion struct {
	word, help string
	file       bool     // a flag whose value is a file or directory
	choices    []string // a flag whose value is one of these
	switches   bool     // a flag without a value
}

// completionsOf walks through the commands.
func completionsOf(n *kong.Node, path string) (all []completions) {
	of := completions{path: path}
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			c := completion{word: "--" + f.Name, help: f.Help, file: f.Tag.Type == "path", switches: f.IsBool()}
			if f.Enum != "" {
				c.choices = slices.DeleteFunc(f.EnumSlice(), func(s string) bool { return s == "" })
			}
			of.flags = append(of.flags, c)
		}
	}
	for _, child := range n.Children {
		if child.Type != kong.CommandNode || child.Hidden {
			continue
		}
		of.commands = append(of.commands, completion{word: child.Name, help: child.Help})
		all = append(all, completionsOf(child, strings.TrimSpace(path+" "+child.Name))...)
	}
	return append([]completions{of}, all...)
}

func names(list []completion) string {
	words := make([]string, len(list))
	for i, c := range list {
		words[i] = c.word
	}
	return strings.Join(words, " ")
}

// bashScript writes a function for bash' complete -F.
func bashScript(w io.Writer, all []completions) error {
	var b strings.Builder
	b.WriteString(`_spillway() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path="" i
  local commands="" flags="" choices="" file=""
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$path ${COMP_WORDS[i]}" in
`)
	for _, of := range all[1:] {
		fmt.Fprintf(&b, "      %q) path=%q ;;\n", step(of.path), of.path)
	}
	b.WriteString("    esac\n  done\n  case \"$path\" in\n")
	for _, of := range all {
		fmt.Fprintf(&b, "    %q)\n      commands=%q flags=%q\n      case \"$prev\" in\n", of.path, names(of.commands), names(of.flags))
		valueCases(&b, of.flags, strconv.Quote)
		b.WriteString("        *) ;;\n      esac ;;\n")
	}
	b.WriteString(`  esac
  if [[ -n $choices ]]; then
    COMPREPLY=($(compgen -W "$choices" -- "$cur"))
  elif [[ -n $file || $cur != -* && -z $commands ]]; then
    COMPREPLY=($(compgen -f -- "$cur"))
  elif [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  else
    COMPREPLY=($(compgen -W "$commands" -- "$cur"))
  fi
}
complete -o filenames -F _spillway spillway
`)
	_, err := io.WriteString(w, b.String())
	return err
}

// zshScript writes a function of zsh' own completion, with the help of each word. The file works both ways: sourced, and in a directory
// of fpath, where compinit loads it at the first completion, which must already be answered.
func zshScript(w io.Writer, all []completions) error {
	var b strings.Builder
	b.WriteString("#compdef spillway\n_spillway() {\n  local at='' file='' i\n  local -a commands flags choices\n  for ((i = 2; i < CURRENT; i++)); do\n    case \"$at ${words[i]}\" in\n")
	for _, of := range all[1:] {
		fmt.Fprintf(&b, "      %s) at=%s ;;\n", singleQuoted(step(of.path)), singleQuoted(of.path))
	}
	b.WriteString("    esac\n  done\n  case \"$at\" in\n")
	described := func(list []completion) string {
		words := make([]string, len(list))
		for i, c := range list {
			words[i] = singleQuoted(c.word + ":" + strings.ReplaceAll(c.help, `\`, `\\`))
		}
		return strings.Join(words, " ")
	}
	for _, of := range all {
		fmt.Fprintf(&b, "    %s)\n      commands=(%s)\n      flags=(%s)\n      case \"${words[CURRENT-1]}\" in\n", singleQuoted(of.path), described(of.commands), described(of.flags))
		valueCases(&b, of.flags, func(words string) string { return "(" + words + ")" })
		b.WriteString("      esac ;;\n")
	}
	b.WriteString(`  esac
  if (( $#choices )); then
    compadd -- $choices
  elif [[ -n $file || $PREFIX != -* && $#commands == 0 ]]; then
    _files
  elif [[ $PREFIX == -* ]]; then
    _describe -o flag flags
  else
    _describe command commands
  fi
}
if [[ $funcstack[1] == _spillway ]]; then
  _spillway "$@"
else
  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
  compdef _spillway spillway
fi
`)
	_, err := io.WriteString(w, b.String())
	return err
}

// valueCases writes a case for bash or zsh for each flag with choices or a file as its value. list formats a list of words for the shell.
func valueCases(b *strings.Builder, flags []completion, list func(words string) string) {
	for _, f := range flags {
		switch {
		case len(f.choices) > 0:
			fmt.Fprintf(b, "        %s) choices=%s ;;\n", f.word, list(strings.Join(f.choices, " ")))
		case f.file:
			fmt.Fprintf(b, "        %s) file=1 ;;\n", f.word)
		}
	}
}

// singleQuoted is a word in the quotes in which bash and zsh replace nothing.
func singleQuoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// step is a command's path with a space before its last word: what a walk along the words has come by, and the word that leads to it.
func step(path string) string {
	i := max(0, strings.LastIndexByte(path, ' '))
	return path[:i] + " " + strings.TrimPrefix(path[i:], " ")
}

// fishScript writes a line of fish' complete for each command and flag, which holds at one command.
func fishScript(w io.Writer, all []completions) error {
	var b strings.Builder
	quote := func(s string) string {
		return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
	}
	b.WriteString("function __spillway_at\n  set -l at ''\n  for word in (commandline -opc)[2..]\n    switch \"$at $word\"\n")
	for _, of := range all[1:] {
		fmt.Fprintf(&b, "      case %s\n        set at %s\n", quote(step(of.path)), quote(of.path))
	}
	b.WriteString("    end\n  end\n  test \"$at\" = \"$argv\"\nend\ncomplete -c spillway -e\n")
	for _, of := range all {
		at := quote("__spillway_at " + of.path)
		for _, c := range of.commands {
			fmt.Fprintf(&b, "complete -c spillway -f -n %s -a %s -d %s\n", at, c.word, quote(c.help))
		}
		for _, f := range of.flags {
			fmt.Fprintf(&b, "complete -c spillway -n %s -l %s -d %s", at, strings.TrimPrefix(f.word, "--"), quote(f.help))
			switch {
			case len(f.choices) > 0:
				fmt.Fprintf(&b, " -x -a %s", quote(strings.Join(f.choices, " ")))
			case !f.switches:
				b.WriteString(" -r")
			}
			b.WriteByte('\n')
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
