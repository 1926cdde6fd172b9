package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// completed are words of a line behind `spillway`, and the words that may follow: of a choice, all of them.
var completed = map[string]string{
	"table cr":                  "create",
	"export --format ":          "blocks json line openmetrics prometheus",
	"query up --st":             "--start --step",
	"completion --he":           "--help",
	"partition prohi":           "prohibit",
	"standalone --web.config.f": "--web.config.file",
	"--url x table lis":         "list",
	"table create se":           "", // set is a command of table, and create has none
}

// TestCompletion asks the shells themselves, each of which the test skips where it is not installed.
func TestCompletion(t *testing.T) {
	p := processtest.New(t)
	lines := slices.Sorted(maps.Keys(completed))
	for i := range lines {
		lines[i] = "spillway " + lines[i]
	}
	for shell, ask := range map[string]func(t *testing.T, bin, script string, lines []string) []string{"bash": askBash, "zsh": askZsh, "fish": askFish} {
		t.Run(shell, func(t *testing.T) {
			script, _ := p.Must(0, "completion", shell)
			bin, err := exec.LookPath(shell)
			if err != nil {
				t.Skipf("%s is not installed, so that its script was made and not run; on Debian: apt-get install %s", shell, shell)
			}
			file := mustWrite(t, p.Dir, script)
			if out, err := exec.Command(bin, "-n", file).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for i, words := range ask(t, bin, file, lines) {
				got := strings.Fields(words)
				slices.Sort(got)
				if want := completed[strings.TrimPrefix(lines[i], "spillway ")]; strings.Join(got, " ") != want {
					t.Errorf("%q completes to %q, want %q", lines[i], got, want)
				}
			}
		})
	}
}

// said runs a shell in a directory without files, which nothing completes to then, and returns its proposals for each line.
func said(t *testing.T, lines []string, bin string, args ...string) []string {
	t.Helper()
	c := exec.Command(bin, append(args, lines...)...)
	c.Dir = t.TempDir()
	c.Env = append(os.Environ(), "HOME="+c.Dir)
	out, err := c.CombinedOutput()
	answers := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if err != nil || len(answers) != len(lines) {
		t.Fatalf("%v: %d answers to %d lines\n%s", err, len(answers), len(lines), out)
	}
	return answers
}

func askBash(t *testing.T, bin, script string, lines []string) []string {
	t.Helper()
	const ask = `source "$0"; for line; do IFS=' '; COMP_WORDS=($line); [[ $line == *' ' ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); IFS=$' \t\n'; _spillway; echo "${COMPREPLY[@]}"; done`
	return said(t, lines, bin, "-c", ask, script)
}

func askFish(t *testing.T, bin, script string, lines []string) []string {
	t.Helper()
	const ask = `source $argv[1]; for line in $argv[2..]; set -l found (complete -C $line | string replace -r '\t.*' ''); echo "$found"; end`
	return said(t, lines, bin, "--no-config", "-c", ask, script)
}

// zshAsks types each line into an interactive zsh, with the script in a directory of fpath, as packages install it, and presses Tab once. All
// that fits is inserted into the line, which a key writes into a file.
const zshAsks = `
zmodload zsh/zpty
dir=${0:h}
zpty shell $1 -f -i
zpty -w shell "fpath=($dir \$fpath); autoload -Uz compinit; compinit -u -D; zstyle ':completion:*' completer _all_matches _complete; zstyle ':completion:*' insert true; show() { print -r -- \$BUFFER >$dir/line.new; mv $dir/line.new $dir/line; zle kill-buffer }; zle -N show; bindkey '^X' show; print -r -- rea''dy"
zpty -r -m shell out '*ready*'
for line in ${@:2}; do
	zpty -w -n shell "$line"$'\t\x18'
	for i in {1..600}; do [[ -e $dir/line ]] && break; sleep 0.05; done
	cat $dir/line
	rm $dir/line
done
`

func askZsh(t *testing.T, bin, script string, lines []string) []string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Rename(script, filepath.Join(dir, "_spillway")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "asks"), []byte(zshAsks), 0o600); err != nil {
		t.Fatal(err)
	}
	answers := said(t, lines, bin, "-f", filepath.Join(dir, "asks"), bin)
	for i, line := range answers {
		if line == lines[i] {
			answers[i] = "" // nothing fits
			continue
		}
		typed := lines[i][:strings.LastIndexByte(lines[i], ' ')+1] // the typed part of the last word is replaced
		found, ok := strings.CutPrefix(line, typed)
		if !ok {
			t.Fatalf("%q became %q", lines[i], line)
		}
		answers[i] = found
	}
	return answers
}
