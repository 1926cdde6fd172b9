package credentials

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestCertsAreNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	f := func(want string, days int, hosts ...string) {
		t.Helper()
		before, _ := os.ReadDir(dir)
		_, err := (&Certs{OutDir: dir, Storage: hosts, Days: days}).Make()
		after, _ := os.ReadDir(dir)
		if want == "" && err != nil || want != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) || len(before) != len(after)) {
			t.Errorf("%q: %v, %d files before, %d after; want %q", hosts, err, len(before), len(after), want)
		}
	}
	f("", 730, "a", "::1")
	for _, name := range []string{"ca.crt", "ca.key", "a.crt", "a.key", "--1.crt"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	f("a.crt exists", 730, "b", "a")
	f("move it and its key away", 730, "a")
	for _, name := range []string{"a.crt", "a.key"} { // a renewal
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(t.TempDir(), name)); err != nil {
			t.Fatal(err)
		}
	}
	f("", 730, "a")
	f("", 30, "b")
	f("taken", 30, "ca")
	f("taken", 30, "c", "c")
	f("neither a name nor", 30, "../c")
	f("neither a name nor", 30, "*.example")
	f("good until", 20*365, "d")
	f("at least one", 0, "d")
	f("at least one", 1)
	f("neither a name nor", 30, "e=*.example")
	f("neither a name nor", 30, "e=")
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	f("one is missing", 30, "d")
}

func TestCertsAreGoodForTwoYears(t *testing.T) {
	dir := t.TempDir()
	c := Certs{OutDir: dir, Storage: []string{"a"}, Days: 730, now: func() time.Time { return time.Now().AddDate(-3, 0, 0) }}
	if _, err := c.Make(); err != nil {
		t.Fatal(err)
	}
	ca, err := c.readAuthority(caName)
	if err != nil || time.Until(ca.cert.NotAfter) < 6*365*24*time.Hour {
		t.Errorf("the authority: %v, %v", ca.cert, err)
	}
}
