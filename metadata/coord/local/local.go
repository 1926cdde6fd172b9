// Package local is the coordination store of one process: rows in a pebble database of its own, fsynced at every
// transaction, so that a process that needs no neighbours needs no etcd.
//
//	key "r/" + row key   value: revision (8 bytes, big endian) + row value
//	key "rev"            value: the highest revision given (8 bytes, big endian)
package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/fault"
)

const (
	rowPrefix = "r/"
	revKey    = "rev"

	filesMax = 8 // tables open at once; they are read at the start only
)

// Store is a coord.Store on a directory that no other process uses meanwhile.
type Store struct {
	*coord.Rows
	db     *pebble.DB
	closed sync.Once
}

var _ coord.Store = (*Store)(nil)

// Open opens or makes the store in dir. Errors are Unavailable (the directory is in use or does not work) or Corrupt.
func Open(fs vfs.FS, dir string, log *slog.Logger) (*Store, error) {
	files := pebble.NewFileCache(1, filesMax)
	defer files.Unref()
	db, err := pebble.Open(dir, &pebble.Options{
		FS:                 fs,
		FileCache:          files,
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       1 << 20,
		Logger:             quiet{log},
	})
	if err != nil {
		kind := fault.Unavailable
		if errors.Is(err, pebble.ErrCorruption) {
			kind = fault.Corrupt
		}
		return nil, fault.Wrap(err, kind, "open coordination rows in %s", dir)
	}
	s := &Store{db: db}
	rows, rev, err := s.load()
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.Rows = coord.NewRows(rows, rev, s.persist)
	return s, nil
}

func (s *Store) load() ([]coord.Row, coord.Revision, error) {
	it, err := s.db.NewIterWithContext(context.Background(), nil)
	if err != nil {
		return nil, 0, fault.Wrap(err, fault.Unavailable, "read coordination rows")
	}
	var rows []coord.Row
	var rev coord.Revision
	for it.First(); it.Valid(); it.Next() {
		key, value := string(it.Key()), it.Value()
		if len(value) < 8 {
			return nil, 0, errors.Join(fault.Errorf(fault.Corrupt, "coordination row %q has %d bytes", key, len(value)), it.Close())
		}
		r := coord.Revision(binary.BigEndian.Uint64(value))
		rev = max(rev, r)
		if key != revKey {
			rows = append(rows, coord.Row{Key: key[len(rowPrefix):], Value: append([]byte(nil), value[8:]...), Revision: r})
		}
	}
	if err := it.Close(); err != nil {
		return nil, 0, fault.Wrap(err, fault.Corrupt, "read coordination rows")
	}
	return rows, rev, nil
}

func (s *Store) persist(rev coord.Revision, writes []coord.Write) error {
	b := s.db.NewBatch()
	defer b.Close()
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
	s.closed.Do(func() { err = errors.Join(s.Rows.Close(), s.db.Close()) })
	return err
}

// quiet passes pebble's log on: its info lines are our debug lines.
type quiet struct{ log *slog.Logger }

func (q quiet) Infof(format string, args ...any) {
	q.log.Debug("pebble", "message", sprintf(format, args))
}
func (q quiet) Errorf(format string, args ...any) {
	q.log.Error("pebble", "message", sprintf(format, args))
}
func (q quiet) Fatalf(format string, args ...any) {
	fault.Bug("coordination rows: %s", sprintf(format, args))
}

func sprintf(format string, args []any) string { return fmt.Sprintf(format, args...) }
