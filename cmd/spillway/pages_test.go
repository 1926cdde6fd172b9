package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// Every command that a page shows is one that the program understands: no flag is misspelt, none is gone.
func TestEveryCommandThatAPageShowsIsUnderstood(t *testing.T) {
	processtest.NoSettings(t)
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	runbooks, err := filepath.Glob("../../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	understood := 0
	for _, page := range append(append(pages, runbooks...), "../../README.md") {
		lines := processtest.Scripts(t, page)
		for _, s := range processtest.Consoles(t, page) {
			lines = append(lines, s.Command)
		}
		lines = append(lines, inline(t, page)...)
		for _, line := range lines {
			for _, args := range spillwayCalls(line) {
				understood++
				c := newCLI()
				k, err := kong.New(&c, kong.Name("spillway"), kong.Writers(io.Discard, io.Discard))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := parse(k, kong.HelpOptions{}, args); err != nil {
					t.Errorf("%s: %s\n%v", filepath.Base(page), line, err)
				}
			}
		}
	}
	if understood < 60 {
		t.Errorf("only %d commands were found", understood)
	}
}

// inline finds the commands in the text of a page that are given with a flag, or with a name in capitals in the place of a word: `spillway server remove NAME --reason smaller`.
// Others only name a command, and those with an ellipsis leave something out.
func inline(t *testing.T, page string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	prose := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(string(text), "")
	for _, m := range regexp.MustCompile("`(spillway [^`]+)`").FindAllStringSubmatch(prose, -1) {
		command := strings.NewReplacer("\n", " ", "<", "", ">", "", " PARTITION ", " p7 ", " P ", " p7 ", "spillway <command>", "spillway table").Replace(m[1])
		if whole := regexp.MustCompile(` (--[a-z]|[A-Z]{2})`).MatchString(command); whole && !strings.ContainsAny(command, "…[|") {
			all = append(all, command)
		}
	}
	return all
}

// spillwayCalls are the arguments of each call of the program in a line of a shell.
func spillwayCalls(line string) (all [][]string) {
	var words []string
	flush := func() {
		for len(words) > 0 && strings.Contains(words[0], "=") && !strings.HasPrefix(words[0], "-") {
			words = words[1:] // VARIABLE=value
		}
		if len(words) > 0 && (words[0] == "spillway" || words[0] == "bin/spillway") {
			all = append(all, words[1:])
		}
		words = nil
	}
	word, quote, some := "", rune(0), false
	toFile := false // the next word is the file of a redirection
	end := func() {
		if some && !toFile {
			words = append(words, word)
		}
		toFile = toFile && !some
		word, some = "", false
	}
	for _, c := range line + "\n" {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word += string(c)
		case c == '\'' || c == '"':
			quote, some = c, true
		case c == ' ' || c == '\n':
			end()
		case c == '|' || c == ';' || c == '&' || c == '(' || c == ')':
			end()
			flush()
			toFile = false
		case c == '>' || c == '<':
			if some && strings.Trim(word, "0123456789") == "" {
				word, some = "", false // 2>
			}
			end()
			toFile = true
		default:
			word, some = word+string(c), true
		}
	}
	end()
	flush()
	return all
}

func TestSpillwayCalls(t *testing.T) {
	for line, want := range map[string]string{
		`spillway table list`:                        "[table list]",
		`A=b spillway query 'sum(x)' --table "a b"`:  "[query sum(x) --table a b]",
		`echo x | spillway write && spillway doctor`: "[write] [doctor]",
		`source <(spillway completion bash)`:         "[completion bash]",
		`spillway table list -o json >out 2>&1`:      "[table list -o json]",
		`curl http://x/spillway`:                     "",
	} {
		var got []string
		for _, args := range spillwayCalls(line) {
			got = append(got, "["+strings.Join(args, " ")+"]")
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %s", line, got, want)
		}
	}
}
