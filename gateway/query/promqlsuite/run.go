//go:build !race

package promqlsuite

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"

	"github.com/spillwaydb/spillway/gateway/query"
)

// envKnown, when set, limits a run to the listed cases, which are expected to fail.
const envKnown = "SPILLWAY_PROMQLSUITE_KNOWN"

// Run runs all scripts on storages that open makes, a fresh one for every script and every clear command. Cases in
// KnownCases are left out, and then run in a separate process, where each must fail.
func Run(t *testing.T, open func(testing.TB) Backend) {
	known := map[string]map[int]string{}
	for _, k := range KnownCases() {
		if known[k.File] == nil {
			known[k.File] = map[int]string{}
		}
		known[k.File][k.Line] = k.Reason
	}
	paths, onlyKnown := Scripts(t), os.Getenv(envKnown) != ""
	if onlyKnown { // the other scripts would load rows, and ask nothing
		paths = slices.DeleteFunc(paths, func(path string) bool { return known[filepath.Base(path)] == nil })
	}
	runScripts(t, paths, open, func(file string, line int) bool {
		_, ok := known[file][line]
		return ok == onlyKnown
	})
	if !onlyKnown {
		checkKnown(t)
	}
}

func runScripts(t *testing.T, paths []string, open func(testing.TB) Backend, keep func(file string, line int) bool) {
	engine := reader(t, nil, experiments).Engine()
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Base(path)
		t.Run(file, func(t *testing.T) {
			script := filter(string(text), func(line int) bool { return keep(file, line) })
			promqltest.RunTestWithStorage(t, script, newComparing(t, engine), func(tb testing.TB) storage.Storage {
				b := open(tb)
				return &adapter{Table: reader(tb, b.Source, experiments).Table(Table), backend: b}
			})
		})
	}
}

// experiments are all allowed: the scripts use them.
var experiments = query.Settings{
	ExperimentalFunctions: true, FillModifiers: true, UnquotedNames: true, DelayedNameRemoval: true,
}

func reader(tb testing.TB, src query.Source, s query.Settings) *query.Reader {
	r, err := query.New(query.Deps{Source: src}, s)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// Scripts returns the paths of the script files, which lie in the prometheus module's folder: they are embedded there, but not exported.
func Scripts(t *testing.T) []string {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/prometheus/prometheus").Output()
	if err != nil {
		t.Fatalf("where is the prometheus module: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "promql/promqltest/testdata/*.test"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s: %v", dir, err)
	}
	return files
}

// filter blanks the eval commands that are not to be kept; line numbers stay. A command ends at an empty line or a
// comment.
func filter(script string, keep func(line int) bool) string {
	lines := strings.Split(script, "\n")
	dropping := false
	for i, l := range lines {
		l = strings.TrimSpace(l)
		switch {
		case l == "" || strings.HasPrefix(l, "#"):
			dropping = false
		case strings.HasPrefix(l, "eval"):
			dropping = !keep(i + 1)
		}
		if dropping {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

// failedLine finds in a test's output the script and the line of a case that failed.
var failedLine = regexp.MustCompile(`--- FAIL: .*/([^/]+\.test)/line_(\d+)/`)

// checkKnown runs KnownCases in another process of this test and wants all to fail.
func checkKnown(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), envKnown+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("every known case passes now: empty known.go\n%s", out)
	}
	failed := map[string]bool{}
	for _, m := range failedLine.FindAllStringSubmatch(string(out), -1) {
		failed[m[1]+":"+m[2]] = true
	}
	for _, k := range KnownCases() {
		if !failed[fmt.Sprintf("%s:%d", k.File, k.Line)] {
			t.Errorf("%s line %d passes now: strike it off known.go (%s)", k.File, k.Line, k.Reason)
		}
	}
}
