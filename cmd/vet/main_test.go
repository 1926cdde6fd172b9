package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// faults is a module with planted faults. A comment in the line of each, want, names its analyzers.
const faults = "testdata/faults"

// asCommand is set where the test program is the command.
const asCommand = "SPILLWAY_TEST_VET"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// Before there was this command, go vet and staticcheck together reported the same of each line.
func TestPlantedFaultsAreFound(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "./...")
	cmd.Dir, cmd.Env = faults, append(os.Environ(), asCommand+"=1", "STATICCHECK_CACHE="+t.TempDir())
	text, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("%v; want exit code 1\n%s", err, text)
	}
	form := regexp.MustCompile(`^(\S+:\d+):\d+: .* \((\w+)\)$`)
	var got []string
	for f := range strings.Lines(string(bytes.TrimSpace(text))) {
		if strings.HasPrefix(f, "\t") {
			continue // what the finding before refers to
		}
		m := form.FindStringSubmatch(strings.TrimSpace(f))
		if m == nil {
			t.Fatalf("no finding: %s", f)
		}
		got = append(got, m[1]+" "+m[2])
	}
	want := wanted(t)
	slices.Sort(got)
	for _, f := range want {
		if !slices.Contains(got, f) {
			t.Errorf("not found: %s", f)
		}
	}
	for _, f := range got {
		if !slices.Contains(want, f) {
			t.Errorf("found, and not planted: %s", f)
		}
	}
	if len(want) < 30 {
		t.Errorf("only %d planted faults", len(want))
	}
}

// wanted returns what the comments of the planted faults want: "use/use.go:12 SA4006".
func wanted(t *testing.T) (want []string) {
	t.Helper()
	names, err := filepath.Glob(faults + "/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		for n := 1; lines.Scan(); n++ {
			_, analyzers, _ := strings.Cut(lines.Text(), "// want ")
			for _, a := range strings.Fields(analyzers) {
				want = append(want, fmt.Sprintf("%s:%d %s", strings.TrimPrefix(name, faults+"/"), n, a))
			}
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return want
}
