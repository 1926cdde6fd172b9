package runner

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/storage/staging"
)

// Kinds of files in the directory of staged frames.
const (
	FileOfLog   = "log"     // frames that wait, and that some were forwarded
	FileDamaged = "damaged" // of the log, kept for a person
	FileAside   = "aside"   // a frame that its leader refused for good, kept for a person
	FileWitness = "witness" // of how much of each file of the log was durable
	FileMissing = "missing" // of the log, named by the witness alone
	FileUnknown = "unknown"
)

// Checked is one file of the directory, as Check found it.
type Checked struct {
	Name   string
	Kind   string
	Bytes  int
	Frames int // that wait; in a file that is kept for a person: that can be read
	Rows   int // of them
	// Gap: the log's file before this one is missing. A file may be torn at a byte, or have an error there.
	Gap  bool
	Torn bool
	At   int
	Err  error
	// Lost: the witness says that more was durable, or something else.
	Lost error
}

// check reads files as openJournal does, and changes none.
// Unlike openJournal it has no Store: it keeps only which file a frame lies in and how many rows it has, so that a log
// of gigabytes is checked in the memory of one file. The decoder and the frame are reused for each record: nothing of
// them is kept.
type check struct {
	decoder frame.Decoder
	frame   frame.Frame
	held    map[staging.ID]waiting
}

type waiting struct {
	in   *Checked
	rows int
}

// Check decodes every frame of a directory that no process uses, without changing it. Errors are Unavailable: the directory or a file cannot be
// read. Damage is in the list.
func Check(fs vfs.FS, dir string) ([]*Checked, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "list %s", dir)
	}
	slices.Sort(names)
	w, err := readWitness(fs, fs.PathJoin(dir, staging.WitnessFile))
	if err != nil {
		return nil, err
	}
	c := check{held: map[staging.ID]waiting{}}
	var there []uint64
	var all []*Checked
	last := uint64(0)
	for _, name := range names {
		f := &Checked{Name: name, Kind: FileUnknown}
		all = append(all, f)
		n, suffix, numbered := numberOf(name)
		switch {
		case numbered && suffix == fileSuffix:
			// Numbers are given without gaps and files go from the oldest on, so a gap behind the first file means a
			// file that was lost. last is 0 before the first file.
			f.Kind, f.Gap = FileOfLog, last != 0 && last != n
			last, there = n+1, append(there, n)
		case numbered:
			f.Kind = FileDamaged
		case path.Ext(name) == asideSuffix:
			f.Kind = FileAside
		case name == staging.WitnessFile:
			if f.Kind = FileWitness; w.Damaged > 0 {
				f.Err = fault.Errorf(fault.Corrupt, "%d of its places cannot be read", w.Damaged)
			}
			continue
		default:
			continue
		}
		b, err := readAll(fs, fs.PathJoin(dir, name))
		if err != nil {
			return nil, fault.Wrap(err, fault.Unavailable, "read %s", name)
		}
		f.Bytes = len(b)
		c.read(f, b)
		if f.Kind == FileOfLog {
			f.Lost = w.Examine(n, b)
		}
	}
	for _, n := range w.Missing(there) {
		all = append(all, &Checked{Name: fmt.Sprintf("%016x%s", n, fileSuffix), Kind: FileMissing})
	}
	// Only now: a later file may forget a frame of an earlier one, or replace it.
	for w := range maps.Values(c.held) {
		w.in.Frames, w.in.Rows = w.in.Frames+1, w.in.Rows+w.rows
	}
	return all, nil
}

func (c *check) read(f *Checked, b []byte) {
	held := c.held
	if f.Kind != FileOfLog { // its frames are not held: they are counted, and no more
		held = map[staging.ID]waiting{}
	}
	f.At, f.Torn, f.Err = staging.EachRecord(b, func(r *staging.Record) error {
		if r.Forget {
			delete(held, r.Frame.ID)
			return nil
		}
		if err := c.decoder.Decode(r.Body, &c.frame); err != nil {
			return err
		}
		if err := r.Frame.Measure(&c.frame); err != nil {
			return err
		}
		held[r.Frame.ID] = waiting{f, r.Frame.Rows}
		return nil
	})
	if f.Kind == FileOfLog {
		return
	}
	for _, w := range held {
		f.Frames, f.Rows = f.Frames+1, f.Rows+w.rows
	}
}
