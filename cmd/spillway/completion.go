package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCmd prints a script for a shell, which completes commands, flags and the values of flags that are a choice.
type completionCmd struct {
	Shell string `arg:"" help:"bash, zsh or fish." enum:"bash,zsh,fish"`
}

// Run prints the script.
func (c *completionCmd) Run(ctx *kong.Context) error {
	words := completionsOf(ctx.Model.Node, "")
	switch c.Shell {
	case "fish":
		return fishScript(os.Stdout, words)
	case "zsh":
		if _, err := io.WriteString(os.Stdout, "#compdef spillway\nautoload -U +X bashcompinit && bashcompinit\n"); err != nil {
			return err
		}
	}
	return bashScript(os.Stdout, words)
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

// bashScript writes a function for bash' complete -F, which zsh understands too.
func bashScript(w io.Writer, all []completions) error {
	var b strings.Builder
	b.WriteString(`_spillway() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path="" i
  local commands="" flags="" choices="" file=""
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$path ${COMP_WORDS[i]}" in
`)
	for _, of := range all[1:] {
		parent, name := "", of.path
		if i := strings.LastIndexByte(of.path, ' '); i >= 0 {
			parent, name = of.path[:i], of.path[i+1:]
		}
		fmt.Fprintf(&b, "      %q) path=%q ;;\n", parent+" "+name, of.path)
	}
	b.WriteString("    esac\n  done\n  case \"$path\" in\n")
	for _, of := range all {
		fmt.Fprintf(&b, "    %q)\n      commands=%q flags=%q\n      case \"$prev\" in\n", of.path, names(of.commands), names(of.flags))
		for _, f := range of.flags {
			switch {
			case len(f.choices) > 0:
				fmt.Fprintf(&b, "        %s) choices=%q ;;\n", f.word, strings.Join(f.choices, " "))
			case f.file:
				fmt.Fprintf(&b, "        %s) file=1 ;;\n", f.word)
			}
		}
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

// fishScript writes a line of fish' complete for each command and flag.
func fishScript(w io.Writer, all []completions) error {
	var b strings.Builder
	quote := func(s string) string {
		return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
	}
	b.WriteString("function __spillway_at\n  set -l words (string match -v -- '-*' (commandline -opc)[2..])\n  test \"$words[1..(count $argv)]\" = \"$argv\"\nend\ncomplete -c spillway -e\n")
	for _, of := range all {
		at := quote("__spillway_at " + of.path)
		if of.path == "" {
			at = "__fish_use_subcommand"
		}
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
