package process

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/brick"
)

// apart refuses a directory of backups among the files of the process. The name LOCK there is the store's: a lock of POSIX belongs to a process,
// and the end of a backup would release it, so that a second process could open the store. Pruning, too, is for a directory of backups alone.
// Errors: Invalid.
func (c *config) apart(field string, at backup.Place) error {
	dir, ok := at.(backup.Dir)
	if !ok {
		return nil
	}
	for key, own := range map[string]string{"data_dir": c.DataDir, "storage.log_dir": c.Storage.LogDir} {
		if own != "" && (inside(dir.Path, own) || inside(own, filepath.Join(dir.Path, backup.SegmentsDir))) {
			way := "name a directory outside of it"
			if field == "from" { // the backups are there already
				way = fmt.Sprintf("move the backups out of %s first, or stop the process and use `spillway restore --from %s --data-dir NEW`", own, dir)
			}
			return fault.Errorf(fault.Invalid, "%s: %s cannot hold backups, as %s (%s) holds the files of the process; %s", field, dir, key, own, way)
		}
	}
	return nil
}

// inside reports whether a path, which need not exist, is a directory or lies in it, whatever links lead there.
func inside(path, dir string) bool {
	top, err := os.Stat(dir)
	if err != nil {
		return false // what does not exist holds nothing
	}
	path, err = filepath.Abs(existing(path))
	if err != nil {
		return false
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	for {
		if at, err := os.Stat(path); err == nil && os.SameFile(at, top) {
			return true
		}
		up := filepath.Dir(path)
		if up == path {
			return false
		}
		path = up
	}
}

// notBackups refuses to begin a store in a directory of backups: it would be empty, as if the restore had lost everything. Errors: Invalid,
// Unavailable.
func (c *config) notBackups(fs vfs.FS) error {
	if there, err := brick.Exists(fs, c.DataDir); err != nil || there {
		return nil // opening the store reports the error
	}
	held, err := backup.Held(fs, c.DataDir)
	if err != nil || !held {
		return err
	}
	return terminal.UsageError{Err: fault.Errorf(fault.Invalid, "%s holds backups and no store; `spillway restore --from %[1]s --data-dir NEW` makes a store of the newest, and --data-dir NEW starts it", c.DataDir)}
}
