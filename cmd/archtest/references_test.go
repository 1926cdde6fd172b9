package archtest

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	mechanism = regexp.MustCompile(`\bC(?:0[1-9]|[1-9][0-9]|1[0-4][0-9])\b`)
	promise   = regexp.MustCompile(`\bI[0-9]\b`)
	testName  = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]{6,}\b`)
	testFunc  = regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?((?:Test|Fuzz|Benchmark)\w+)`)
	pageLink  = regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)
	section   = regexp.MustCompile(`\b(?:DESIGN|CONTRACTS|PROOFS|MECHANISMS|STYLE)(?:\.md)?,?\s(?:§|[A-Z]\.?[0-9])`)
)

// TestReferencesLeadSomewhere: a comment or document that names a mechanism (C08), a promise (I3) or a section must name one that a reader
// finds in this repository.
func TestReferencesLeadSomewhere(t *testing.T) {
	texts, err := trackedTexts()
	if err != nil {
		t.Skip("the list of files is not to be had: ", err) // a tree without version control
	}
	mechanisms, promises := texts["docs/mechanisms.md"], texts["docs/design.md"]
	if len(mechanism.FindAllString(mechanisms, -1)) < 140 {
		t.Fatal("docs/mechanisms.md lists fewer than 140 mechanisms")
	}
	for name, text := range texts {
		for _, broken := range brokenReferences(text, mechanisms, promises) {
			t.Errorf("%s: %s leads nowhere", name, broken)
		}
	}
}

// brokenReferences gives the references of a text that the lists of mechanisms and promises do not have.
func brokenReferences(text, mechanisms, promises string) (broken []string) {
	for _, c := range mechanism.FindAllString(text, -1) {
		if !regexp.MustCompile(`(?m)^\|[C0-9, ]*` + c + `\b`).MatchString(mechanisms) {
			broken = append(broken, c)
		}
	}
	for _, i := range promise.FindAllString(text, -1) {
		if !strings.Contains(promises, "- **"+i+" ") {
			broken = append(broken, i)
		}
	}
	return append(broken, section.FindAllString(text, -1)...)
}

func TestBrokenReferencesAreSeen(t *testing.T) {
	mechanisms, promises := "| C08 | swap | so |\n| C76, C77 | both | so |\n", "- **I1 An ack means what it says.**"
	for text, want := range map[string]int{
		"as C08 says":                         0,
		"C77, I1":                             0,
		"C09":                                 1,
		"I2 and C10":                          2,
		"see DESIGN §5.5":                     1,
		"at the end of a line (DESIGN\n§5.5)": 1,
		"the matrix, CONTRACTS D.9":           1,
		"DESIGN.md says why":                  0,
		"of C (the language), I5x":            0,
	} {
		if got := brokenReferences(text, mechanisms, promises); len(got) != want {
			t.Errorf("%q: %q, want %d", text, got, want)
		}
	}
}

// TestNamedTestsAndPagesExist: where a comment or document names a test as its proof, the test is there, or several begin so; a link between
// documents leads to a file or folder.
func TestNamedTestsAndPagesExist(t *testing.T) {
	texts, err := trackedTexts()
	if err != nil {
		t.Skip("the list of files is not to be had: ", err) // a tree without version control
	}
	report(t, deadNames(texts))
	for name, text := range texts {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, link := range pageLink.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, path.Dir(name), link[1])); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", name, link[1])
			}
		}
	}
}

// deadNames lists the names of tests in comments and documents that no test of texts has, nor begins with.
func deadNames(texts map[string]string) (dead []string) {
	var tests []string
	for _, text := range texts {
		for _, f := range testFunc.FindAllStringSubmatch(text, -1) {
			tests = append(tests, f[1])
		}
	}
	slices.Sort(tests)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		for line := range strings.Lines(texts[name]) {
			if path.Ext(name) == ".go" {
				var comment bool
				if _, line, comment = strings.Cut(line, "//"); !comment {
					continue
				}
			}
			for _, test := range testName.FindAllString(line, -1) {
				if i, _ := slices.BinarySearch(tests, test); i == len(tests) || !strings.HasPrefix(tests[i], test) {
					dead = append(dead, name+": "+test+" is no test")
				}
			}
		}
	}
	return dead
}

func TestDeadNamesAreSeen(t *testing.T) {
	got := deadNames(map[string]string{
		"a_test.go": "// TestRowsAreKept: as it says.\nfunc TestRowsAreKeptTwice(t *testing.T) {\n\tx := \"TestOfNothing\" // TestRowsWereLost\n}\n",
		"a.md":      "See TestRowsAreKeptTwice, BenchmarkAppendAll; Testing is no name.",
	})
	if want := []string{"a.md: BenchmarkAppendAll is no test", "a_test.go: TestRowsWereLost is no test"}; !slices.Equal(got, want) {
		t.Errorf("seen: %q", got)
	}
}

// trackedTexts gives the Go files and documents under version control by name.
func trackedTexts() (map[string]string, error) {
	list, err := gitLs()
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for name := range strings.Lines(list) {
		name = strings.TrimSpace(name)
		if ext := path.Ext(name); ext != ".go" && ext != ".md" || strings.Contains(name, "/node_modules/") || strings.HasPrefix(name, "cmd/archtest/references_test") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		texts[name] = string(text)
	}
	return texts, nil
}
