package runner

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/staging"
)

// A file of the log, from its beginning to its end (the bytes: storage/staging/FORMAT.md):
//
//	beginLocked: create, magic, sync the directory ─▶ current: append, sync … ─▶ full after a sync: sync, close ─▶ ended
//	                                                                                                                │ oldest, and live == 0
//	                                                                                                                ▼
//	                                                                                                             removed

// fileBytesMax is where a file of the journal ends, at the latest: as small files as make the log follow the frames that are held.
const fileBytesMax = 16 << 20

// filesOfMax is how many files the frames that are held fill at most, one after the other.
const filesOfMax = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	fileSuffix    = ".staged"
	damagedSuffix = ".damaged"
	asideSuffix   = ".aside"
)

// journal is the log of staged frames: files that are appended to, and removed from the oldest on once no frame in them is held. A failed
// fsync ends it: nothing more is acked until the process starts again.
type journal struct {
	// Constant.
	fs       vfs.FS
	dir      string
	log      *slog.Logger
	bytesMax int64 // of a file
	lost     bool  // records may be missing: a file was damaged, or ended within one, or the witness says that more was durable
	witness  *witness

	// Two locks, so that records are appended (mu, some microseconds; for the first of a file its name is fsynced) while an fsync runs (syncing, milliseconds): the
	// writers that come meanwhile wait for syncing, and the next of them syncs for all. An append acquires mu alone.
	// Neither is held together with Store.mu.
	syncing sync.Mutex // held for an fsync, and to end a file; acquired before mu
	synced  uint64     // records; guarded by syncing
	removed bool       // files, since the directory was synced last; guarded by syncing

	mu struct {
		sync.Mutex
		files   []*file // oldest first
		current vfs.File
		next    uint64 // number of the next file
		written uint64 // records
		failed  error
	}
}

type file struct {
	number uint64
	bytes  int64
	sum    uint32 // CRC-32C of its bytes; of the file that is written to
	// Each record of a frame that is not replaced or forgotten counts 1 in the file that it lies in, so a file with
	// live 0 has nothing that a start needs.
	live int // frames held
}

func (j *journal) path(number uint64, suffix string) string {
	return j.fs.PathJoin(j.dir, fmt.Sprintf("%016x%s", number, suffix))
}

// openJournal reads all files. restore is called for each frame, and forget for each that is forgotten, in the order of the log.
func openJournal(fs vfs.FS, dir string, log *slog.Logger, heldMax int64, restore func(r *staging.Record, in *file) error, forget func(staging.ID)) (*journal, error) {
	j := &journal{fs: fs, dir: dir, log: log, bytesMax: min(heldMax/filesOfMax, fileBytesMax)}
	err := fs.MkdirAll(dir, 0o755)
	if err == nil {
		err = brick.SyncDir(fs, cmp.Or(fs.PathDir(dir), "."))
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "make %s", dir)
	}
	names, err := fs.List(dir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "list %s", dir)
	}
	if j.witness, err = openWitness(fs, dir, log); err != nil {
		return nil, err
	}
	if newest, writes := j.witness.read.Newest(); writes > 0 {
		j.mu.next = newest.Number + 1 // its mark is of that file, also when the file is gone
	}
	slices.Sort(names)
	var there []uint64
	for _, name := range names {
		n, suffix, ok := numberOf(name)
		if !ok {
			continue
		}
		if suffix == fileSuffix {
			there = append(there, n)
		}
		// The damaged file's own name still exists beside the link until tidy removes it; only that one is read.
		if suffix == damagedSuffix { // its number is not used again: nothing could be kept under the same name
			j.mu.next = max(j.mu.next, n+1)
			continue
		}
		if before := len(j.mu.files) - 1; before >= 0 && j.mu.files[before].number+1 != n {
			j.sayGap(j.mu.files[before].number, n)
		}
		f := &file{number: n}
		if err := j.read(f, restore, forget); err != nil {
			return nil, err
		}
		j.mu.files = append(j.mu.files, f)
		j.mu.next = max(j.mu.next, n+1)
	}
	j.sayMissing(j.witness.read.Missing(there))
	return j, j.syncLast()
}

// syncLast makes the newest file durable as it was read: a process that was killed may not have synced it, and a record
// in it that replaces an acked one, as after a deletion, frees the file of that one.
func (j *journal) syncLast() error {
	if len(j.mu.files) == 0 {
		return nil
	}
	path := j.path(j.mu.files[len(j.mu.files)-1].number, fileSuffix)
	f, err := j.fs.Open(path)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	return fault.Wrap(err, fault.Unavailable, "sync %s", path)
}

// numberOf parses the name of a file of the log, or of one that is kept.
func numberOf(name string) (n uint64, suffix string, ok bool) {
	for _, suffix := range []string{fileSuffix, damagedSuffix} {
		if digits, found := strings.CutSuffix(name, suffix); found {
			n, err := strconv.ParseUint(digits, 16, 64)
			return n, suffix, err == nil && name == fmt.Sprintf("%016x%s", n, suffix)
		}
	}
	return 0, "", false
}

// read reads one file to its end, or to the first record that is damaged. The last record of a file that was written when the process was killed may
// end early, and was never acked; it is reported to a person, as a disk that lost an acked end leaves the same where the witness lacks the last second. Anything else is damage, an end that
// the witness misses too: the file is kept for a person to look at, and the frames behind it are at their other holders.
func (j *journal) read(f *file, restore func(*staging.Record, *file) error, forget func(staging.ID)) error {
	path := j.path(f.number, fileSuffix)
	b, err := readAll(j.fs, path)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "read %s", path)
	}
	f.bytes = int64(len(b))
	at, torn, err := staging.EachRecord(b, func(r *staging.Record) error {
		if r.Forget {
			forget(r.Frame.ID)
			return nil
		}
		return restore(r, f)
	})
	if err = errors.Join(err, j.witness.read.Examine(f.number, b)); err != nil {
		// What follows the damage is skipped, and the start goes on: refusing it would keep the whole frames of this
		// server from their leaders.
		return j.keepDamaged(f, err)
	}
	if torn {
		j.sayTorn(f, at)
	}
	return nil
}

// sayMissing logs that files are gone that were durable and not removed.
func (j *journal) sayMissing(numbers []uint64) {
	for _, n := range numbers {
		j.lost = true
		j.log.Warn("a log of staged frames is missing: the disk lost it, a person removed it, or the power failed within a second of its removal; frames in it are read from their other holders, which stage them here again",
			"file", j.path(n, fileSuffix))
	}
}

// sayTorn logs that a file ends within the record at a byte.
func (j *journal) sayTorn(f *file, at int) {
	j.lost = true
	j.log.Warn("a log of staged frames ends within a record: the process was killed while it wrote it, or the disk lost the end of the file",
		"file", j.path(f.number, fileSuffix), "at", at, "bytes_not_read", f.bytes-int64(at))
}

// sayGap logs that files between two are not there: files are removed from the oldest on.
func (j *journal) sayGap(before, after uint64) {
	j.lost = true
	j.log.Warn("logs of staged frames are missing: the disk lost them, or a person removed them; frames in them are read from their other holders, which stage them here again",
		"before", j.path(before, fileSuffix), "after", j.path(after, fileSuffix))
}

// keepDamaged links a damaged file under another name, which nothing removes.
// A hard link, made durable before tidy may remove the first name. An earlier start may have made it already.
func (j *journal) keepDamaged(f *file, why error) error {
	j.lost = true
	path, kept := j.path(f.number, fileSuffix), j.path(f.number, damagedSuffix)
	j.log.Error("a log of staged frames is damaged: frames behind the damage are read from their other holders, which stage them here again", "file", path, "kept_as", kept, "error", why)
	if err := j.fs.Link(path, kept); err != nil && !oserror.IsExist(err) {
		return fault.Wrap(err, fault.Unavailable, "keep the damaged log %s", path)
	}
	return fault.Wrap(brick.SyncDir(j.fs, j.dir), fault.Unavailable, "keep the damaged log %s", path)
}

func readAll(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

// append writes a record, and returns its file and number. sync makes it durable.
// frames is 1 for a record of a frame, which counts in its file at once: tidy must not remove the file before the
// caller has entered the frame in Store.held. rec may be reused when it returns.
func (j *journal) append(rec []byte, frames int) (in *file, seq uint64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.failed != nil {
		return nil, 0, j.mu.failed
	}
	if j.mu.current == nil {
		if err := j.beginLocked(); err != nil {
			return nil, 0, err
		}
	}
	in = j.mu.files[len(j.mu.files)-1]
	sum := crc32.Update(in.sum, castagnoli, rec) // before Write, which may change the bytes
	if _, err := j.mu.current.Write(rec); err != nil {
		return nil, 0, j.failLocked(err) // half of it may be there: nothing can follow it
	}
	in.bytes += int64(len(rec))
	in.sum = sum
	in.live += frames
	j.mu.written++
	return in, j.mu.written, nil
}

// beginLocked begins a file. The name is durable before any record in it is acked: a power cut could else remove a whole
// file with synced records. A crash before the sync leaves an empty file or one with part of its magic, which counts as
// torn.
func (j *journal) beginLocked() error {
	f, err := j.fs.Create(j.path(j.mu.next, fileSuffix), vfs.WriteCategoryUnspecified)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "begin a log of staged frames")
	}
	_, err = f.Write([]byte(staging.FileMagic))
	if err == nil {
		j.witness.begin()
		j.witness.syncRemovals()
		err = brick.SyncDir(j.fs, j.dir)
	}
	if err != nil {
		return j.failLocked(errors.Join(err, f.Close()))
	}
	j.mu.files = append(j.mu.files, &file{number: j.mu.next, bytes: int64(len(staging.FileMagic)), sum: crc32.Checksum([]byte(staging.FileMagic), castagnoli)})
	j.mu.current = f
	j.mu.next++
	return nil
}

// failLocked ends the log for good. After a failed fsync the kernel may have dropped the dirty pages and report success
// the next time, so a retry would ack rows that are not on the disk.
func (j *journal) failLocked(err error) error {
	if j.mu.failed == nil {
		j.mu.failed = fault.Wrap(err, fault.Unavailable, "the log of staged frames failed; it takes none until the server is started anew")
		j.log.Error("the log of staged frames failed", "error", err)
	}
	return j.mu.failed
}

// sync returns when the record is durable. One fsync serves all that wait.
func (j *journal) sync(seq uint64) error {
	j.syncing.Lock()
	defer j.syncing.Unlock()
	if j.synced >= seq {
		return nil
	}
	j.mu.Lock()
	// All records up to target are in current: endLocked syncs a file before another one begins, and sets synced.
	f, target, err := j.mu.current, j.mu.written, j.mu.failed
	var m staging.Mark
	if err == nil {
		m = j.markLocked()
	}
	j.mu.Unlock()
	if err != nil {
		return err
	}
	if err := f.SyncData(); err != nil { // with the length of the file, which reading needs
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.failLocked(err)
	}
	j.synced = target
	j.witness.durable(m)
	return j.endFull()
}

// markLocked returns the mark of the newest file as far as it is written, for the witness once that is durable.
func (j *journal) markLocked() staging.Mark {
	f := j.mu.files[len(j.mu.files)-1]
	return staging.Mark{Number: f.number, Bytes: uint64(f.bytes), Sum: f.sum, First: j.mu.files[0].number}
}

// settle makes all records durable, and that files are gone: no frame that was forgotten comes back after a crash.
// A removed file can come back with a power cut until its directory is synced, and with it frames whose forget lay in
// that file too.
func (j *journal) settle() error {
	j.mu.Lock()
	seq, err := j.mu.written, j.mu.failed
	j.mu.Unlock()
	if err == nil {
		err = j.sync(seq)
	}
	if err != nil {
		return err
	}
	j.syncing.Lock()
	defer j.syncing.Unlock()
	if !j.removed {
		return nil
	}
	j.witness.syncRemovals()
	if err := brick.SyncDir(j.fs, j.dir); err != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.failLocked(err)
	}
	j.removed = false
	return nil
}

// endFull ends the current file if it is full; syncing is held.
func (j *journal) endFull() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.failed != nil || j.mu.files[len(j.mu.files)-1].bytes < j.bytesMax {
		return j.mu.failed
	}
	return j.endLocked()
}

// endLocked syncs and closes the current file; syncing is held too.
func (j *journal) endLocked() error {
	if j.mu.current == nil {
		return nil
	}
	// Sync, not SyncData: the file is not written again, and this is the last chance to see an error of the disk.
	err := j.mu.current.Sync()
	if err = errors.Join(err, j.mu.current.Close()); err != nil {
		return j.failLocked(err)
	}
	j.mu.current = nil
	j.synced = j.mu.written
	j.witness.durable(j.markLocked())
	return nil
}

// tidy removes files from the oldest on while no frame in them is held. The last one goes when idle is set.
//
// A record that forgets a frame lies in the same file as the frame, or in a later one: it never goes before the frame.
// Removals are not synced here: a file that a power cut brings back has frames that are forwarded once more, which
// changes nothing; settle makes removals durable where it would, before a deletion ends or an announcement is
// withdrawn.
func (j *journal) tidy(idle bool) error {
	j.syncing.Lock()
	defer j.syncing.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.failed != nil {
		return nil
	}
	for len(j.mu.files) > 0 && j.mu.files[0].live == 0 {
		last := len(j.mu.files) == 1 && j.mu.current != nil
		if last && !idle {
			return nil
		}
		if last {
			if err := j.endLocked(); err != nil {
				return err
			}
		}
		j.witness.removing(j.mu.files[0].number + 1)
		if err := j.fs.Remove(j.path(j.mu.files[0].number, fileSuffix)); err != nil && !oserror.IsNotExist(err) {
			return fault.Wrap(err, fault.Unavailable, "remove a log of staged frames")
		}
		j.removed = true
		j.mu.files = j.mu.files[1:]
	}
	return nil
}

// release records that a frame in a file is not held any more. It reports whether tidy would remove a file.
// The caller must have made the record that replaces the frame's durable before, or logged that it is forgotten.
func (j *journal) release(in *file) (free bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	in.live--
	return j.mu.files[0].live == 0 && (len(j.mu.files) > 1 || j.mu.current == nil)
}

// bytes is the size of all files.
func (j *journal) bytes() (n int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, f := range j.mu.files {
		n += f.bytes
	}
	return n
}

func (j *journal) close() error {
	j.syncing.Lock()
	defer j.syncing.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.failed != nil {
		if j.mu.current != nil {
			_ = j.mu.current.Close()
		}
		return j.witness.close()
	}
	err := j.endLocked()
	j.mu.failed = fault.Errorf(fault.Unavailable, "the server is stopping")
	return errors.Join(err, j.witness.close())
}
