package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/database"
	"github.com/spillwaydb/spillway/protocols/fault"
)

const (
	rowPrefix = "r/"
	revKey    = "rev"

	filesMax = 8 // tables open at once; they are read at the start only

	// roomMin must be free before the database is opened for writing: its log is allocated in steps of a memtable,
	// and a start writes a manifest, a log and the content of the last log.
	roomMin = 8 << 20
)

// Store is a coord.Store on a directory that no other process uses meanwhile.
type Store struct {
	*coord.Rows

	// Constant after Open.
	fs   vfs.FS
	dir  string
	log  *slog.Logger
	lock *pebble.Lock

	// Owned by persist, which coord.Rows calls one at a time, and by Open and Close.
	db      *pebble.DB // nil: not open for writing
	witness *witness

	frozen atomic.Pointer[string] // why nothing is changed any more

	failed chan struct{} // closed by the first failure
	why    error         // good once failed is closed
	fail   sync.Once
	closed sync.Once
}

var _ coord.Store = (*Store)(nil)

// Open opens or makes the store in dir. The directory above dir is there, and durable. Errors are Unavailable (the directory is in use, or the disk does not work) or
// Corrupt (rows that were durable cannot be read). The database is changed only after all rows were read.
func Open(fs vfs.FS, dir string, log *slog.Logger) (_ *Store, err error) {
	s := &Store{fs: fs, dir: dir, log: log, failed: make(chan struct{})}
	defer func() {
		if err != nil {
			_ = s.release() // it can only fail for the same reason
		}
	}()
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return nil, s.fault(err, "make the directory")
	}
	if err := syncDir(fs, fs.PathDir(dir)); err != nil { // also one that is there: the process that made it may have ended before its name was durable
		return nil, s.fault(err, "make the directory durable")
	}
	if s.lock, err = pebble.LockDirectory(dir, fs); err != nil {
		return nil, database.LockError(err, fs.PathJoin(dir, "LOCK"), dir+" is in use by another process; stop it", "start it as the user who owns "+dir+", or give that directory to its user")
	}
	rows, rev, err := s.read()
	if err != nil {
		return nil, err
	}
	if s.witness, err = openWitness(fs, dir); err != nil {
		return nil, err
	}
	if err := s.witness.check(rows, rev); err != nil {
		return nil, err
	}
	if err := s.hasRoom(); err != nil {
		log.Error("the coordination rows are read-only", "reason", err)
	} else if err := s.write(); err != nil {
		return nil, err
	}
	s.Rows = coord.NewRows(rows, rev, s.persist)
	return s, nil
}

// Freeze ends changes for good: every Commit is Unavailable with the reason. For a store that was opened on a file system that forgets.
func (s *Store) Freeze(why string) { s.frozen.Store(&why) }

// Failed is closed when the store can no longer make anything durable. The process should end: Err says why.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err is why the store failed; nil while it has not.
func (s *Store) Err() error {
	select {
	case <-s.failed:
		return s.why
	default:
		return nil
	}
}

// failWith fails the store: no transaction becomes durable any more.
func (s *Store) failWith(err error) {
	s.fail.Do(func() {
		s.why = s.fault(err, "writing")
		close(s.failed)
	})
}

// fault gives an error of the disk or of pebble its Kind, and says in one line how to proceed.
func (s *Store) fault(err error, verb string) error {
	if err == nil {
		return nil
	}
	if k := fault.KindOf(err); k != fault.Internal {
		return fault.Wrap(err, k, "coordination rows in %s", s.dir)
	}
	var errno syscall.Errno
	kind, todo := fault.Corrupt, "restore the directory from a backup"
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		kind, todo = fault.Unavailable, "make room on the disk and restart"
	case errors.As(err, &errno) && errno != syscall.ENOENT:
		kind, todo = fault.Unavailable, "check the device, then restart"
	}
	return fault.Wrap(fault.OneLine(err), kind, "coordination rows in %s: %s failed; %s", s.dir, verb, todo)
}

// open opens the database. Whatever pebble does about unreadable files, this returns.
func (s *Store) open(readOnly bool) (*pebble.DB, error) {
	files := pebble.NewFileCache(1, filesMax)
	defer files.Unref()
	return database.Open(s.dir, &pebble.Options{
		FS:                 s.fs,
		Lock:               s.lock,
		ReadOnly:           readOnly,
		FileCache:          files,
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       1 << 20,
		Logger:             quiet{s},
		EventListener:      &pebble.EventListener{BackgroundError: s.failWith}, // pebble would try again at once, and for ever
	})
}

// read gives the rows and the highest revision. It changes nothing on disk.
func (s *Store) read() ([]coord.Row, coord.Revision, error) {
	db, err := s.open(true)
	if errors.Is(err, pebble.ErrDBDoesNotExist) {
		return nil, 0, nil // the witness shows whether it did
	}
	if err == nil {
		err = s.Err() // pebble reports fatal errors by the log
	}
	if err != nil {
		return nil, 0, s.fault(err, "reading")
	}
	rows, rev, err := s.load(db)
	return rows, rev, errors.Join(err, s.fault(db.Close(), "closing"))
}

func (s *Store) load(db *pebble.DB) (rows []coord.Row, rev coord.Revision, err error) {
	it, err := db.NewIterWithContext(context.Background(), nil)
	if err != nil {
		return nil, 0, s.fault(err, "reading")
	}
	for it.First(); it.Valid() && err == nil; it.Next() {
		key, value := string(it.Key()), it.Value()
		if key != revKey && len(key) < len(rowPrefix) || len(value) < 8 {
			err = fmt.Errorf("row %q has %d bytes", key, len(value))
			break
		}
		r := coord.Revision(binary.BigEndian.Uint64(value))
		rev = max(rev, r)
		if key != revKey {
			rows = append(rows, coord.Row{Key: key[len(rowPrefix):], Value: append([]byte(nil), value[8:]...), Revision: r})
		}
	}
	err = errors.Join(err, it.Close())
	if err == nil {
		err = s.Err() // the same again, as a message
	}
	return rows, rev, s.fault(err, "reading")
}

// hasRoom returns an error with the free and the needed bytes when the disk is too full to open the database for writing.
func (s *Store) hasRoom() error {
	u, err := s.fs.GetDiskUsage(s.dir)
	if err != nil || u.AvailBytes >= roomMin {
		return nil // unknown: try it
	}
	return fault.Errorf(fault.Unavailable, "%d KiB are free for the coordination rows in %s, at least %d must be; make room there", u.AvailBytes>>10, s.dir, roomMin>>10)
}

// write opens the database for writing.
func (s *Store) write() (err error) {
	if s.db, err = s.open(false); err == nil {
		err = s.Err()
	}
	if err != nil {
		return s.fault(err, "opening for writing")
	}
	return s.fault(s.witness.create(), "writing the witness")
}

// persist makes a transaction durable.
func (s *Store) persist(rev coord.Revision, writes []coord.Write) error {
	if err := s.Err(); err != nil {
		return err
	}
	if why := s.frozen.Load(); why != nil {
		return fault.Errorf(fault.Unavailable, "%s", *why)
	}
	if s.db == nil {
		if err := s.hasRoom(); err != nil {
			return err
		}
		if err := s.write(); err != nil {
			s.failWith(err)
			return err
		}
		s.log.Info("the coordination rows take changes again")
	}
	if err := s.apply(rev, writes); err != nil {
		s.failWith(err)
		return s.Err()
	}
	if err := s.Err(); err != nil { // a commit that fails comes back as success, and as a message
		return err
	}
	if err := s.witness.note(rev, writes); err != nil {
		s.failWith(err)
	}
	return s.Err()
}

func (s *Store) apply(rev coord.Revision, writes []coord.Write) error {
	b := s.db.NewBatch()
	defer func() { _ = b.Close() }()
	head := binary.BigEndian.AppendUint64(nil, uint64(rev))
	if err := b.Set([]byte(revKey), head, nil); err != nil {
		return err
	}
	for _, w := range writes {
		key := []byte(rowPrefix + w.Key)
		var err error
		if w.Delete {
			err = b.Delete(key, nil)
		} else {
			err = b.Set(key, append(head[:8:8], w.Value...), nil)
		}
		if err != nil {
			return err
		}
	}
	return b.Commit(pebble.Sync)
}

// Close ends watches and closes the files. Closing twice is fine.
func (s *Store) Close() (err error) {
	s.closed.Do(func() { err = errors.Join(s.Rows.Close(), s.release()) })
	return err
}

func (s *Store) release() (err error) {
	if s.db != nil {
		err = s.fault(s.db.Close(), "closing")
	}
	s.db = nil
	if s.witness != nil {
		err = errors.Join(err, s.fault(s.witness.close(), "closing the witness"))
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	s.lock = nil
	return err
}

// quiet passes pebble's log on: its info lines are our debug lines, and its fatal errors end the store, not
// the process.
type quiet struct{ s *Store }

func (q quiet) Infof(format string, args ...any) {
	q.s.log.Debug("pebble", "message", fmt.Sprintf(format, args...))
}

func (q quiet) Errorf(format string, args ...any) {
	q.s.log.Warn("coordination rows trouble", "message", fault.OneLine(fmt.Errorf(format, args...)).Error())
}

func (q quiet) Fatalf(format string, args ...any) {
	for _, a := range args {
		if err, ok := a.(error); ok { // keeps its Kind
			q.s.failWith(err)
			return
		}
	}
	q.s.failWith(fmt.Errorf(format, args...))
}
