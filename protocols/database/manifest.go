package database

import (
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// isManifest reports whether a file lists the tables, or names the file that does.
func isManifest(name string) bool {
	base := filepath.Base(name)
	return strings.HasPrefix(base, "MANIFEST-") || strings.HasPrefix(base, "marker.manifest.")
}

// manifest is such a file that was made. An edit that fails while the database is in use is reported as fatal, and is a success to Pebble, as are
// those that follow it, of which nothing is written. Pebble would undo the flush or compaction, and a compaction that ends beside it then finds the
// books of level 0 out of step, at which it panics. On the disk nothing is missing: no table and no log is deleted after a fatal
// error, and the next start reads from the logs the changes that the last edit lacks.
type manifest struct {
	vfs.File
	a    *attempt
	name string
}

// createManifest makes one by do, which sets file.
func createManifest(a *attempt, name string, file *vfs.File, do func() error) (vfs.File, error) {
	made := false
	err := edit(a, name, "creation", func() error {
		err := do()
		made = err == nil
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case !made:
		return lostFile(name), nil
	}
	return &manifest{*file, a, name}, nil
}

// edit makes a change by do. Errors are those of a database that is being opened.
func edit(a *attempt, name, verb string, do func() error) error {
	failed := false
	err := a.change(func() error {
		err := do()
		failed = err != nil
		return err
	})
	switch {
	case err == nil:
		return nil
	case failed && a.now() == opening:
		return err
	case failed && a.now() != ended:
		a.Fatalf("%s of %s: %v", verb, filepath.Base(name), err)
	}
	return nil
}

// Write implements vfs.File.
func (m *manifest) Write(p []byte) (int, error) {
	err := edit(m.a, m.name, "a write", func() error {
		_, err := m.File.Write(p)
		return err
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Sync implements vfs.File.
func (m *manifest) Sync() error { return edit(m.a, m.name, "an fsync", m.File.Sync) }

// SyncData implements vfs.File.
func (m *manifest) SyncData() error { return edit(m.a, m.name, "an fsync", m.File.SyncData) }

// SyncTo implements vfs.File.
func (m *manifest) SyncTo(length int64) (full bool, err error) {
	full = true
	err = edit(m.a, m.name, "an fsync", func() (err error) {
		full, err = m.File.SyncTo(length)
		return err
	})
	return full && err == nil, err
}
