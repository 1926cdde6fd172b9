package process

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/overlay"
)

// A store is opened for writing only if there is room for the writes of a start: the catalogue's manifest, log and
// tables, a new log file. Reading does not need it, so without room the store is opened on an overlay, which keeps the
// writes of the start in memory, and is frozen: queries are answered, writes get 503 and the reason. When there is room,
// the store is closed, the overlay is dropped, and the store is opened again on the disk.
//
//	free ≥ startRoom ─▶ open on the disk ─▶ brick: read-only below storage.free_bytes_min
//	free < startRoom ─▶ open on an overlay, freeze ─▶ serve reads ─▶ free ≥ startAgain ─▶ close ─┐
//	        ▲───────────────────────────────────────────────────────────────────────────────────┘
//
// A file system can have bytes and room for no file more (inodes). A start makes some ten files.
const (
	startRoom  = 16 << 20
	startAgain = startRoom + startRoom/4 // or it would open and close in turn
	roomPeriod = time.Second

	startFiles      = 64
	startFilesAgain = startFiles + startFiles/4
)

// errRoom ends the life of a frozen store.
var errRoom = fault.Errorf(fault.Unavailable, "there is room again")

// shortOfRoom returns an error text that names a directory with less than need free, or room for fewer files; "": there
// is none, or it is not known.
func (c *config) shortOfRoom(need, files uint64) string {
	for _, dir := range []string{c.DataDir, c.Storage.LogDir} {
		if dir == "" {
			continue
		}
		u, err := vfs.Default.GetDiskUsage(existing(dir))
		if err == nil && u.AvailBytes < need {
			return fmt.Sprintf("the store is read-only: %d KiB are free in %s, and it can be opened for writing with %d KiB; make room there, and it takes writes again",
				u.AvailBytes>>10, dir, need>>10)
		}
		if f := brick.FilesOf(existing(dir)); f.Fewer(files) {
			return fmt.Sprintf("the store is read-only: the file system of %s has room for %d more files, whatever their size (df -i); "+
				"remove files there, and it takes writes again", dir, f.Free)
		}
	}
	return ""
}

// existing is the directory, or the nearest above it that exists.
func existing(dir string) string {
	for {
		up := filepath.Dir(dir)
		if _, err := vfs.Default.Stat(dir); err == nil || up == dir {
			return dir
		}
		dir = up
	}
}

// overlaid is a file system that changes nothing on the disk, but acquires its locks.
type overlaid struct{ *overlay.FS }

// Lock implements vfs.FS.
func (o overlaid) Lock(name string) (io.Closer, error) {
	if _, err := vfs.Default.Stat(name); err != nil {
		return o.FS.Lock(name) // a directory that is not there yet
	}
	return vfs.Default.Lock(name)
}

// untilRoom is an actor that ends with errRoom when the store can be opened for writing.
func (c *config) untilRoom(ctx context.Context) error {
	for c.shortOfRoom(startAgain, startFilesAgain) != "" {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(roomPeriod):
		}
	}
	return errRoom
}

// awaitRoom waits until the store can be opened for writing: where there is none yet.
func (c *config) awaitRoom(ctx context.Context, log *slog.Logger) error {
	for tries := 0; ; tries++ {
		why := c.shortOfRoom(startRoom, startFiles)
		if why == "" {
			return nil
		}
		if tries%60 == 0 {
			log.Error("the disk is full; waiting for room", "reason", why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(roomPeriod):
		}
	}
}
