package verify

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/storage/partition"
	stagings "github.com/spillwaydb/spillway/storage/staging/runner"
)

// Kinds of files with rows outside of log and segments, and of those that hold none.
const (
	KindStaged   = "staged rows"
	KindSurplus  = "surplus rows"
	KindLetters  = "dead letters"
	kindLeftover = "leftover"
	KindOther    = "other"
)

// StagedDir is the directory of staged frames, in data_dir.
const StagedDir = "staging"

// DeadLetters begins the names of the files of records of Kafka that were put aside, where settings name no other.
const DeadLetters = "kafka-dead-letters"

const (
	doLeftover = "nothing: it is removed, or written anew, when it is needed"
	doStaged   = "start the server: it keeps the file under another name, forwards what is before the damage, and is staged the rest again by the other holders"
	doTorn     = "start the server: what an unacked record had is not missed, and the other holders stage again here what is"
	doShort    = "start the server: the other holders stage again here what it lacks; rows that no other server holds are lost. See whether the disk is failing"
	doWitness  = "nothing: it is written anew while rows are staged; see whether the disk is failing"
	doKept     = "its other holders staged the rest again; remove it when no row is missed"
	doAside    = "the log of that time says why; its rows were acked and are nowhere else: mend the cause and write them again, then remove it"
	doSurplus  = "keep it: it may hold acked rows that no other copy has. Restore it from a backup, or write the rows of its time again; a start leaves it where it is, and says so"
	doForeign  = "move it, with the server stopped, into the directory of a placement of its own partition"
	doLetters  = "look at it, and at the records in Kafka while they are there; a start appends to it"
)

// isStore reports whether there is anything that a storage server or a standalone process would open: a gateway has its caches alone.
func (v *Verification) isStore() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, f := range v.Files {
		switch f.Kind {
		case "identity", "log", "catalogue", "coordination", "segment", KindSurplus, KindStaged, "witness", "mirror", "restore":
			return true
		}
	}
	return false
}

// stagedRows reads every record of the log of staged rows, as a start does.
func (v *Verification) stagedRows() {
	dir := filepath.Join(v.dir, StagedDir)
	if _, err := os.Stat(dir); err != nil {
		return
	}
	files, err := stagings.Check(vfs.Default, dir)
	if err != nil {
		v.say(filepath.Join(dir, "(log)"), FileDamaged, err.Error(), "mend the disk, then verify again")
		return
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name)
		rows := fmt.Sprintf("%d rows in %d frames", f.Rows, f.Frames)
		damage := fmt.Sprintf("%v; %s before it can be read", f.Err, rows)
		switch {
		case f.Kind == stagings.FileUnknown:
			v.say(path, fileUnused, "no log of staged rows; nothing reads it", "look at it")
		case f.Kind == stagings.FileDamaged:
			v.say(path, fileUnused, fmt.Sprintf("a damaged log of staged rows that a start kept, with %s up to byte %d of %d", rows, f.At, f.Bytes), doKept)
		case f.Kind == stagings.FileAside && (f.Err != nil || f.Torn):
			v.say(path, FileDamaged, fmt.Sprintf("a frame that its leader refused for good cannot be read at byte %d of %d (%v)", f.At, f.Bytes, f.Err), doRestore)
		case f.Kind == stagings.FileAside:
			v.say(path, FileSuspect, rows+" that their leader refused for good", doAside)
		case f.Kind == stagings.FileWitness && f.Err != nil:
			v.say(path, FileSuspect, f.Err.Error(), doWitness)
		case f.Kind == stagings.FileWitness:
			v.found(path, "how much of each log of staged rows was durable")
		case f.Err != nil:
			v.say(path, FileDamaged, damage, doStaged)
		case f.Lost != nil:
			v.say(path, FileDamaged, fmt.Sprintf("%v; %s can be read", f.Lost, rows), doShort)
		case f.Kind == stagings.FileMissing:
			v.say(path, FileDamaged, "a log of staged rows that was durable is missing", doShort)
		case f.Torn:
			v.say(path, FileSuspect, fmt.Sprintf("it ends within the record at byte %d of %d; %s before it wait for their leaders", f.At, f.Bytes, rows), doTorn)
		case f.Gap:
			v.say(path, FileDamaged, "the log of staged rows before it is missing", doStaged)
		default:
			v.found(path, rows+" wait for their leaders")
		}
		if f.Kind == stagings.FileOfLog {
			v.staged += f.Rows
		}
	}
}

// surplusRows reads the rows that copies set aside when they followed another leader.
func (v *Verification) surplusRows() {
	for name, f := range v.Files {
		if f.Kind != KindSurplus {
			continue
		}
		path := v.path(name)
		c, err := partition.CheckSurplus(vfs.Default, path)
		if err != nil {
			v.say(path, FileDamaged, err.Error(), doSurplus)
			continue
		}
		v.surplus += c.Rows
		if v.aside == nil {
			v.aside = map[string]partition.SurplusContent{}
		}
		v.aside[path] = c
		v.found(path, fmt.Sprintf("%d rows in %d frames of partition %d of table %q that its leader may not have: a start hands them over; %d deletions are left out", c.Rows, c.Frames, c.Partition, c.Table, c.Deletions))
	}
}

// misplaced notes the surplus files in the directory of a placement that are of another partition than it: a start refuses them.
func (v *Verification) misplaced(of *partition.Identity) {
	for path, c := range v.aside {
		if filepath.Base(filepath.Dir(path)) != of.Placement.String() || c.Table == of.Table && c.Partition == of.Partition {
			continue
		}
		v.surplus -= c.Rows
		delete(v.aside, path)
		v.say(path, FileDamaged, fmt.Sprintf("%d rows of partition %d of table %q, in the directory of partition %d of table %q: a start refuses them",
			c.Rows, c.Partition, c.Table, of.Partition, of.Table), doForeign)
	}
}

// letters reads a file of dead letters.
func (v *Verification) letters(path string) {
	n, err := kafka.CheckLetters(path)
	what := fmt.Sprintf("%d records of Kafka that could not be written", n)
	if err != nil {
		v.say(path, FileSuspect, fmt.Sprintf("%v; %s are whole", err, what), doLetters)
		return
	}
	v.found(path, what)
}

// found records the content of a whole file.
func (v *Verification) found(path, what string) {
	f := v.file(path)
	v.mu.Lock()
	defer v.mu.Unlock()
	if f.State == FileOK {
		f.What = what
	}
}

// printOutside prints the rows outside of log and segments: they are lost with the store.
func (v *Verification) printOutside(w io.Writer, kinds map[string]int) {
	if v.staged > 0 {
		fmt.Fprintf(w, "%d rows are staged for their leaders: a start forwards them\n", v.staged)
	}
	if v.surplus > 0 {
		fmt.Fprintf(w, "%d rows are set aside for the leaders of their partitions: a start hands them over\n", v.surplus)
	}
	if n := kinds[KindOther]; n > 0 {
		fmt.Fprintf(w, "%d files are of no kind that Spillway makes, and were not looked at: --all names them\n", n)
	}
}
