package brick

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestNothingIsAckedInADirectoryThatIsGone: the directory of a running process was removed, moved away or replaced by a copy, or its log was. Its files were open, so writes and fsyncs
// went on without an error, and all rows that were acked from then on were lost with the process.
func TestNothingIsAckedInADirectoryThatIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		befalls func(data, log string) error
		says    string
	}{
		"removed":              {func(data, _ string) error { return os.RemoveAll(data) }, "is gone"},
		"moved away":           {func(data, _ string) error { return os.Rename(data, data+".old") }, "is gone"},
		"its log removed":      {func(_, log string) error { return os.RemoveAll(log) }, "is gone"},
		"its catalogue":        {func(data, _ string) error { return os.Rename(filepath.Join(data, catalogueDir), data+".c") }, "is gone"},
		"replaced by a copy":   {func(data, _ string) error { return copied(data) }, "another file"},
		"a copy of a log file": {func(_, log string) error { return copiedFile(newest(log)) }, "another file"},
		"the newest log file":  {func(_, log string) error { return os.Remove(newest(log)) }, "the newest log file"},
		"an empty one instead": {func(data, _ string) error { return errFirst(os.Rename(data, data+".old"), os.Mkdir(data, 0o755)) }, "is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			set := Settings{DataDir: filepath.Join(t.TempDir(), "data"), LogDir: filepath.Join(t.TempDir(), "log"), FileBytesMax: fileBytesMin}
			b, _ := open(t, vfs.Default, set)
			for i := range uint64(100) {
				put(t, b, 1, seq(i+1), 100)
			}
			b.checkPlaces()
			if err := b.Err(); err != nil {
				t.Fatalf("nothing befell it: %v", err)
			}
			b.runner.stop() // its look once a second could come between two steps
			if err := c.befalls(set.DataDir, set.LogDir); err != nil {
				t.Fatal(err)
			}
			b.checkPlaces()
			_, err := b.Append(1, 1, seq(101), []byte("x"))
			wantKind(t, err, fault.Unavailable, c.says)
			if !errors.Is(err, ErrGone) {
				t.Errorf("not ErrGone: %v", err)
			}
			if !strings.Contains(err.Error(), set.DataDir) {
				t.Errorf("it does not name the directory: %v", err)
			}
			_ = b.Close()
		})
	}
}

func errFirst(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// copied puts a copy of a directory in its place.
func copied(dir string) error {
	if err := os.CopyFS(dir+".copy", os.DirFS(dir)); err != nil {
		return err
	}
	return errFirst(os.Rename(dir, dir+".old"), os.Rename(dir+".copy", dir))
}

func copiedFile(file string) error {
	text, err := os.ReadFile(file)
	return errFirst(err, os.WriteFile(file+".copy", text, 0o644), os.Rename(file+".copy", file))
}

// TestTheBrickLooksForItsDirectory does so by itself.
func TestTheBrickLooksForItsDirectory(t *testing.T) {
	set := Settings{DataDir: filepath.Join(t.TempDir(), "data"), LogDir: filepath.Join(t.TempDir(), "log"), FileBytesMax: fileBytesMin}
	b, _ := open(t, vfs.Default, set)
	if err := os.Rename(set.DataDir, set.DataDir+".old"); err != nil {
		t.Fatal(err)
	}
	<-b.Fenced()
	if err := b.Err(); !errors.Is(err, ErrGone) {
		t.Errorf("fenced by %v", err)
	}
	_ = b.Close()
}

// newest is the log file that is written: the rows are too few for a second one.
func newest(log string) string {
	files, _ := filepath.Glob(filepath.Join(log, "*.log"))
	return files[len(files)-1]
}
