package verify

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestADirectoryThatIsNoStoreIsSaidToBeNone: all of it was walked first, which of a host's root lasts for minutes, and the exit code was that of a store that
// is in use.
func TestADirectoryThatIsNoStoreIsSaidToBeNone(t *testing.T) {
	within := func(names ...string) string {
		dir := t.TempDir()
		for _, name := range names {
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	for name, dir := range map[string]string{
		"empty":           within(),
		"not there":       filepath.Join(t.TempDir(), "nowhere"),
		"of backups":      within("20261130T214452.125Z.backup", "LOCK", "segments/a.seg"),
		"of a person":     within("letters/a.txt", "settings.yaml", "LOCK", "lost+found/x"),
		"of a host's log": within("log/syslog", "log/journal.log", "lib/a/b/c"),
	} {
		v := &Verification{dir: dir, Files: map[string]*File{}}
		if err := v.find(); !errors.As(err, new(noStoreError)) || !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
		if len(v.Files) > 0 {
			t.Errorf("%s: %d files were looked at", name, len(v.Files))
		}
		if err := (&Command{DataDir: dir, Quiet: true}).Run(); !errors.Is(err, exitNoStore) {
			t.Errorf("%s: %v, want exit code %d", name, err, exitNoStore)
		}
	}
	if exitNoStore == exitUnseen || exitNoStore == terminal.Broken || exitNoStore == terminal.Degraded {
		t.Error("the exit code says something else, too")
	}
	// A store that lacks some of its files is examined.
	for _, left := range []string{"STORE", "segments/0000000000000001/a.seg", "log/0000000001.log", "log/STORE", "catalogue/MANIFEST-000001", "staging/x", "cluster/map", "kafka-dead-letters-1", "WITNESS", "catalogue.mirror"} {
		v := &Verification{dir: within(left), Files: map[string]*File{}}
		if err := v.find(); err != nil || v.Files[left] == nil {
			t.Errorf("%s: %v, files %v", left, err, v.Files)
		}
	}
}
