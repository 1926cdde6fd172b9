package archtest

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// riddles are words that stand where the field's own word is missing, and how many times they may occur: in 1,000 lines of comments (in Prometheus' tsdb, where
// a comment names the caller, the leader or the sender and says what it does, they occur 0.4, 0, 1.4, 6.8 and 0.3 times), in 1,000 words of strings (errors,
// logs, help), and in 1,000 words of the README and docs.
var riddles = []struct {
	name, instead           string
	pattern                 *regexp.Regexp
	comments, strings, docs float64
}{
	{"who", "the caller, the leader, the sender", regexp.MustCompile(`(?i)\b(who|whoever|whom)\b`), 0.5, 0.15, 0.2},
	{"nobody", "no server, no goroutine, all callers", regexp.MustCompile(`(?i)\b(nobody|somebody|everybody|anybody)\b`), 0, 0, 0},
	{"what is", "a noun", regexp.MustCompile(`(?i)\bwhat (is|has|was|are|of|it|they|comes|came|lies|could|must)\b`), 3, 0.8, 4.2},
	{"take", "accept, acquire, use, need, remove, read", regexp.MustCompile(`(?i)\b(take|takes|took|taken|taking)\b`), 5, 3, 1.4},
	{"told", "report, send, notify, receive", regexp.MustCompile(`(?i)\b(tell|tells|told|hear|hears|heard)\b`), 0.6, 0.06, 0.06},
}

// text counts riddles in comments, strings or documents.
type text struct {
	size  int // lines or words
	found []int
}

func (x *text) add(s string, size int) {
	if x.size += size; x.found == nil {
		x.found = make([]int, len(riddles))
	}
	for i := range riddles {
		x.found[i] += len(riddles[i].pattern.FindAllString(s, -1))
	}
}

var word = regexp.MustCompile(`[A-Za-z]+`)

func words(s string) int { return len(word.FindAllString(s, -1)) }

// hold compares the counts with their bounds.
func (x *text) hold(t *testing.T, where, unit string, least int, bound func(i int) float64) {
	t.Helper()
	if x.size < least {
		t.Fatalf("only %d %s of %s were seen", x.size, unit, where)
	}
	for i, r := range riddles {
		if got := 1000 * float64(x.found[i]) / float64(x.size); got > bound(i) {
			t.Errorf("%q and its like occur %.2f times in 1,000 %s of %s, want %.2f at most: write %s instead", r.name, got, unit, where, bound(i), r.instead)
		} else {
			t.Logf("%s: %q: %.2f", where, r.name, got)
		}
	}
}

// TestCommentsAndStringsAreInPlainWords counts words, not sentences: after a rise the new comments and messages are to be read again.
func TestCommentsAndStringsAreInPlainWords(t *testing.T) {
	var comments, literals text
	for _, p := range repository(t) {
		for _, f := range p.files {
			if ast.IsGenerated(f.tree) || p.path == "cmd/archtest" && f.name == "words_test.go" {
				continue
			}
			for _, group := range f.tree.Comments {
				for _, c := range group.List {
					comments.add(c.Text, strings.Count(c.Text, "\n")+1)
				}
			}
			if f.test {
				continue
			}
			ast.Inspect(f.tree, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					literals.add(l.Value, words(l.Value))
				}
				return true
			})
		}
	}
	comments.hold(t, "comments", "lines", 10_000, func(i int) float64 { return riddles[i].comments })
	literals.hold(t, "strings", "words", 50_000, func(i int) float64 { return riddles[i].strings })
}

// notNames are words of no field: a name has the field's own, such as unplaced, owner, notified, cached, running, abort.
var notNames = "homeless whose whom told tells hear hears heard hearing unheard usual usually doom doomed nobody somebody everybody anybody"

// oddNames lists what a file declares under a name with one of notNames, or under the name like.
func oddNames(tree *ast.File) (odd []string) {
	declared := func(ids ...*ast.Ident) {
		for _, id := range ids {
			for _, word := range nameWords(id.Name) {
				if id.Name == "like" || matchAny(notNames, word) {
					odd = append(odd, id.Name)
					break
				}
			}
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			declared(n.Name)
		case *ast.TypeSpec:
			declared(n.Name)
		case *ast.ValueSpec:
			declared(n.Names...)
		case *ast.Field:
			declared(n.Names...)
		case *ast.AssignStmt:
			for _, x := range n.Lhs {
				if id, ok := x.(*ast.Ident); ok && n.Tok == token.DEFINE {
					declared(id)
				}
			}
		}
		return true
	})
	return odd
}

// nameWords cuts a name where a word begins with a capital, and gives the words in small letters.
func nameWords(name string) []string {
	return strings.Fields(strings.ToLower(capital.ReplaceAllString(name, " $1")))
}

var capital = regexp.MustCompile(`([A-Z]+[a-z0-9]*)`)

// TestNamesAreTheFields: names of product code have no word that only this repository would use for the thing.
func TestNamesAreTheFields(t *testing.T) {
	for _, p := range repository(t) {
		for _, f := range p.files {
			if f.test || ast.IsGenerated(f.tree) {
				continue
			}
			for _, name := range oddNames(f.tree) {
				t.Errorf("%s/%s: %s is no name of the field", p.path, f.name, name)
			}
		}
	}
}

// TestNamesOfTestsReportAndReceive: in names of tests, too, servers send, report and receive.
func TestNamesOfTestsReportAndReceive(t *testing.T) {
	for _, p := range repository(t) {
		for _, f := range p.files {
			for _, d := range f.tree.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || !f.test || fn.Recv != nil {
					continue
				}
				for _, word := range nameWords(fn.Name.Name) {
					if matchAny("tell tells told hear hears heard", word) {
						t.Errorf("%s/%s: %s says %q: write send, show, report, receive or distinguish", p.path, f.name, fn.Name.Name, word)
					}
				}
			}
		}
	}
}

func TestOddNamesAreSeen(t *testing.T) {
	p, err := parse("x", map[string]string{"x.go": `package x
		type unheardOf struct{ likely, like int }
		const bytesUsual = 1
		func heardOf(whose int) { told, unusual := 1, 2; shearing := 3 }
		func (u unheardOf) TellNobody() {}`})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(oddNames(p.files[0].tree), " "); got != "unheardOf like bytesUsual heardOf whose told TellNobody" {
		t.Errorf("seen: %s", got)
	}
}

// TestDocumentsAreInPlainWords does the same for pages that users read. docs/proofs are records of measurements.
func TestDocumentsAreInPlainWords(t *testing.T) {
	var names []string
	for _, pattern := range []string{"docs/*.md", "docs/runbooks/*.md"} {
		more, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, more...)
	}
	var pages text
	for _, name := range append(names, filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md"), filepath.Join(root, "SECURITY.md")) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		pages.add(string(b), words(string(b)))
	}
	pages.hold(t, "README and docs", "words", 20_000, func(i int) float64 { return riddles[i].docs })
}
