package brick

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// A process whose store is fenced ends within two seconds, and most scrapes miss it. It leaves a note (FORMAT.md, FENCED), and the metrics and pages of the processes
// that follow show the fence for a day: age alone puts the note away.
const (
	// NoteFile is its name.
	NoteFile  = "FENCED"
	noteFirst = "spillway fence 1\n"
	noteKeep  = 24 * time.Hour
	reasonMax = 2048 // bytes
	noteMax   = 16 << 10
)

// PastFence says when and why a store was fenced. The zero PastFence: it was not.
type PastFence struct {
	At  time.Time
	Why string
}

// LastFence returns the last fence of the store, of this process or one before, if it is no older than a day.
func (b *Brick) LastFence() PastFence {
	if f := b.lastFence.Load(); f != nil && f.counts(time.Now()) {
		return *f
	}
	return PastFence{}
}

// counts reports whether a fence is young enough to matter. One that is to come was noted by a wrong clock; a small step back of the clock is none.
func (f *PastFence) counts(now time.Time) bool {
	age := now.Sub(f.At)
	return age < noteKeep && age > -time.Hour
}

// text is the content of the note.
func (f *PastFence) text() string {
	why := f.Why
	if len(why) > reasonMax {
		why = strings.ToValidUTF8(why[:reasonMax], "") + " …"
	}
	body := noteFirst + "time " + f.At.UTC().Format(time.RFC3339Nano) + "\nreason " + strconv.Quote(why) + "\n"
	return body + noteSum(body)
}

func noteSum(body string) string {
	return fmt.Sprintf("sum %08x\n", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)))
}

// parseNote reads the content of a note. An error says why it is none.
func parseNote(text string) (f PastFence, err error) {
	i := strings.LastIndex(text, "sum ")
	if i < 0 || text[i:] != noteSum(text[:i]) {
		return f, errors.New("it is damaged: its sum is another, or missing")
	}
	rest, ok := strings.CutPrefix(text[:i], noteFirst)
	if !ok {
		return f, errors.New("it is of another version")
	}
	lines := strings.Split(rest, "\n")
	if len(lines) != 3 || lines[2] != "" {
		return f, fmt.Errorf("it has %d lines, want 2", len(lines)-1)
	}
	at, ok := strings.CutPrefix(lines[0], "time ")
	if f.At, err = time.Parse(time.RFC3339Nano, at); !ok || err != nil {
		return PastFence{}, fmt.Errorf("%q is no time", lines[0])
	}
	why, ok := strings.CutPrefix(lines[1], "reason ")
	if f.Why, err = strconv.Unquote(why); !ok || err != nil {
		return PastFence{}, fmt.Errorf("%q is no reason", lines[1])
	}
	return f, nil
}

// noteFence leaves the note. Without an fsync: that may fail, too, and a kernel drops pages that it did not write; the next process of this machine reads it from memory.
// Where the disk is full, or was mounted read-only after the error, there is no note: the log and the exit code say it alone. A directory that is gone gets none,
// since another's may be in its place.
func (b *Brick) noteFence(f *PastFence, cause error) {
	defer close(b.noted)
	if errors.Is(cause, ErrGone) {
		return
	}
	path := b.fs.PathJoin(b.set.DataDir, NoteFile)
	err := writeNote(b.fs, path+".tmp", f.text())
	if err == nil {
		err = b.fs.Rename(path+".tmp", path)
	}
	if err != nil {
		b.log.Error("the note of the fence could not be written: the metrics of the next process do not show it", "file", path, "error", err)
	}
}

func writeNote(fs vfs.FS, path, text string) error {
	f, err := fs.Create(path, writeCategory)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(text))
	return errors.Join(err, f.Close())
}

// readNote reads the note that a process before left, and removes one that is old. One that cannot be read counts, by the time of its file: there was a fence.
func (b *Brick) readNote(now time.Time) {
	path := b.fs.PathJoin(b.set.DataDir, NoteFile)
	info, err := b.fs.Stat(path)
	if err != nil {
		return // there is none, as nearly always
	}
	f, err := readNote(b.fs, path)
	if err != nil {
		f = PastFence{At: info.ModTime(), Why: fmt.Sprintf("not known: %s cannot be read: %v", path, err)}
	}
	if !f.counts(now) {
		if err := b.fs.Remove(path); err != nil {
			b.log.Warn("the note of an old fence could not be removed", "file", path, "error", err)
		}
		return
	}
	b.lastFence.Store(&f)
	b.log.Warn("the store was fenced after a disk error before this start; docs/runbooks/SpillwayStoreFenced.md", "at", f.At, "reason", f.Why)
}

func readNote(fs vfs.FS, path string) (PastFence, error) {
	f, err := fs.Open(path)
	if err != nil {
		return PastFence{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, noteMax))
	if err = errors.Join(err, f.Close()); err != nil {
		return PastFence{}, fault.Wrap(err, fault.Unavailable, "read it")
	}
	return parseNote(string(text))
}
