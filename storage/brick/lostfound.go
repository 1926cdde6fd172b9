package brick

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Files that a start finds and the catalogue does not list are put aside, never deleted: they may hold the last copy of rows
// that lost their entry. An operator can look at them; after LostFoundKeep they are removed.
//
//	DataDir/lost+found/20261122T034500.000000001Z~segments~00000000000000ca     its old path, and the time of the move
const (
	lostFoundDir = "lost+found"
	// lostFoundOwn is added to the name where lost+found may not be written: mke2fs makes one that is root's alone, and a disk may be mounted at the data directory.
	lostFoundOwn  = ".spillway"
	lostFoundTime = "20060102T150405.000000000Z"
	lostFoundSep  = "~"

	lostFoundPeriod = time.Hour

	lostFoundDo = "Nothing is deleted; docs/runbooks/SpillwayLostAndFound.md says what to do with it"
)

// lostFoundFirst is before the first program that put files aside. An earlier time is that of a clock that was not set yet, at which starts put files aside.
func lostFoundFirst() time.Time { return time.Unix(0, point.ClockFirst) }

// LostFound counts the files in lost+found.
type LostFound struct {
	Entries int
	Bytes   int64
}

func (b *Brick) lostFoundDir() string { return b.fs.PathJoin(b.set.DataDir, lostFoundDir) }

// PutAside moves a file or directory of the data directory to lost+found, durably, and logs it. why completes "…: ".
func (b *Brick) PutAside(path, why string) error { return b.putAsideIn(b.lostFoundDir(), path, why) }

func (b *Brick) putAsideIn(dir, path, why string) error {
	err := b.moveAside(dir, path, why)
	if errors.Is(err, os.ErrPermission) {
		return b.moveAside(dir+lostFoundOwn, path, why)
	}
	return err
}

func (b *Brick) moveAside(dir, path, why string) error {
	if err := MakeDir(b.fs, dir); err != nil {
		return err
	}
	name := strings.Trim(strings.TrimPrefix(path, b.set.DataDir), "/")
	to := b.fs.PathJoin(dir, time.Now().UTC().Format(lostFoundTime)+lostFoundSep+strings.ReplaceAll(name, "/", lostFoundSep))
	n, size := weigh(b.fs, path)
	// One rename on one device: a crash leaves the file at one of the two places.
	err := b.fs.Rename(path, to)
	if err == nil {
		err = errors.Join(SyncDir(b.fs, dir), SyncDir(b.fs, b.fs.PathDir(path)))
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "put %s aside", path)
	}
	b.lost.Lock()
	b.lost.found.Entries++
	b.lost.found.Bytes += size
	b.lost.Unlock()
	b.log.Error("put aside: "+why+". "+lostFoundDo, "from", path, "to", to, "files", n, "bytes", size)
	return nil
}

// PutLogAside writes the live records of a placement without an owner to a file in lost+found, and then drops them from the log:
// they would keep its files for ever. The file has the format of the log: FORMAT.md.
func (b *Brick) PutLogAside(p point.PlacementID) error {
	name := time.Now().UTC().Format(lostFoundTime) + lostFoundSep + "log" + lostFoundSep + p.String()
	dir := b.lostFoundDir()
	f, err := b.createAside(dir, name)
	if errors.Is(err, os.ErrPermission) {
		dir += lostFoundOwn
		f, err = b.createAside(dir, name)
	}
	if err != nil {
		return err
	}
	path := b.fs.PathJoin(dir, name)
	size, records := int64(0), 0
	// The file is durable before Drop frees the records: a crash between leaves both, and the next start puts them aside again.
	err = b.Replay(p, point.Serial{}, func(s point.Serial, rec []byte) error {
		h := header{kind: kindFrame, placement: p, serial: s}
		body := append(h.append(nil), rec...)
		head := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
		head = binary.LittleEndian.AppendUint32(head, crc32.Checksum(body, castagnoli))
		n, err := f.Write(append(head, body...))
		size, records = size+int64(n), records+1
		return err
	})
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = SyncDir(b.fs, dir)
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "write %s", path)
	}
	b.lost.Lock()
	b.lost.found.Entries++
	b.lost.found.Bytes += size
	b.lost.Unlock()
	b.log.Error("put aside: log records of a placement that the catalogue does not know. "+lostFoundDo,
		"placement", p, "to", path, "records", records, "bytes", size)
	return b.Drop(p)
}

func (b *Brick) createAside(dir, name string) (vfs.File, error) {
	if err := MakeDir(b.fs, dir); err != nil {
		return nil, err
	}
	path := b.fs.PathJoin(dir, name)
	f, err := b.fs.Create(path, writeCategory)
	return f, fault.Wrap(err, fault.Unavailable, "create %s", path)
}

// weigh counts the files at or below path, and their bytes.
func weigh(fs vfs.FS, path string) (files int, bytes int64) {
	st, err := fs.Stat(path)
	if err != nil {
		return 0, 0
	}
	if !st.IsDir() {
		return 1, st.Size()
	}
	names, _ := fs.List(path)
	for _, name := range names {
		n, size := weigh(fs, fs.PathJoin(path, name))
		files, bytes = files+n, bytes+size
	}
	return files, bytes
}

// LostFound reports the contents of lost+found.
func (b *Brick) LostFound() LostFound {
	b.lost.Lock()
	defer b.lost.Unlock()
	return b.lost.found
}

// lostFoundDirs are the places for such files: log files stay on their device.
func (b *Brick) lostFoundDirs() []string {
	return []string{b.lostFoundDir(), b.lostFoundDir() + lostFoundOwn, b.logLostFound(), b.logLostFound() + lostFoundOwn}
}

// logLostFound is on the device of the log, since a rename cannot leave it.
func (b *Brick) logLostFound() string { return b.fs.PathJoin(b.set.LogDir, lostFoundDir) }

// putLogFileAside is PutAside for a file of the log. The directory log/ of a store may be a device of its own, which its path does not show.
func (b *Brick) putLogFileAside(path, why string) error {
	if b.set.LogDir == b.fs.PathJoin(b.set.DataDir, "log") {
		if err := b.PutAside(path, why); !errors.Is(err, syscall.EXDEV) {
			return err
		}
	}
	return b.putAsideIn(b.logLostFound(), path, why)
}

// steady says whether the wall clock may be believed: for a day it went as fast as the clock that nothing sets. So a clock that is
// wrong at boot, or jumps, deletes nothing.
type steady struct {
	since, looked time.Time // by the clock that nothing sets
	wall          time.Time // at looked
}

func newSteady(now time.Time) *steady { return &steady{since: now, looked: now, wall: now.Round(0)} }

// steadySlack is by how much a wall clock may be corrected between two looks.
const steadySlack = time.Minute

// steadyLeast is for how long a wall clock that may be believed went as fast as the clock that nothing sets.
const steadyLeast = 24 * time.Hour

// look gives the wall clock's reading at a time, and returns for how long it has gone steadily.
func (s *steady) look(now, wall time.Time) time.Duration {
	if (wall.Sub(s.wall) - now.Sub(s.looked)).Abs() > steadySlack {
		s.since = now
	}
	s.looked, s.wall = now, wall
	return now.Sub(s.since)
}

// countLostFound counts the files there, and removes those older than LostFoundKeep if the wall clock may be believed: it has gone steadily for so long. One that was
// never set may begin at another time at each boot: by that one files are as old as it has gone steadily, at most.
func (b *Brick) countLostFound(now time.Time, steadily time.Duration) {
	expire := steadily > steadyLeast
	var found LostFound
	for _, dir := range b.lostFoundDirs() {
		names, err := b.fs.List(dir)
		if err != nil {
			continue // there is none
		}
		for i, name := range names {
			path := b.fs.PathJoin(dir, name)
			at, rest, _ := strings.Cut(name, lostFoundSep)
			since, err := time.Parse(lostFoundTime, at)
			age := now.Sub(since)
			if expire && err == nil && since.Before(lostFoundFirst()) && !now.Before(lostFoundFirst()) { // its time begins now, by a clock that was set
				dated := b.fs.PathJoin(dir, now.Add(time.Duration(i)).UTC().Format(lostFoundTime)+lostFoundSep+rest)
				if err := b.fs.Rename(path, dated); err == nil {
					path = dated
				}
				age = 0
			}
			if now.Before(lostFoundFirst()) {
				age = min(age, steadily)
			}
			if expire && err == nil && b.set.LostFoundKeep > 0 && age > b.set.LostFoundKeep {
				_, size := weigh(b.fs, path)
				if err := b.fs.RemoveAll(path); err == nil || oserror.IsNotExist(err) {
					b.log.Warn("removed from lost+found: its time is over", "path", path, "bytes", size, "kept", b.set.LostFoundKeep)
					continue
				}
			}
			_, size := weigh(b.fs, path)
			found.Entries, found.Bytes = found.Entries+1, found.Bytes+size
		}
	}
	b.lost.Lock()
	b.lost.found = found
	b.lost.Unlock()
}

// String is for the log and for `spillway doctor`.
func (f LostFound) String() string {
	return fmt.Sprintf("%d entries of %d bytes in lost+found", f.Entries, f.Bytes)
}
