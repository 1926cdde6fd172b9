package segment

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	sstblock "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Reader reads one segment file. Safe for concurrent use, also with Close: calls under way finish, later ones are
// Unavailable. A reader keeps in memory only its part of the Cache, and between reads a file descriptor only if the
// Cache allows it: see files.go.
//
// Errors of all methods: Corrupt (checksum or form; the message names file and key), Unavailable (closed, disk).
//
// Life: Open reads the header once. Each read acquires the file, which may open it, walks with a tableIter where the Cache lacks parts, and releases. Close
// forbids new reads; the last of Close and the reads under way closes the file and frees the cache's part.
type Reader struct {
	// Constant after Open.
	fs    vfs.FS
	path  string
	info  Info
	cache *Cache
	opts  sstable.ReaderOptions // with a part of the block cache that stays while the file is closed and opened again
	evict func()                // empties that part
	free  func()                // gives it back

	file   atomic.Pointer[file] // the open file; nil while it is closed. Replaced under opening
	closed atomic.Bool
	spans  atomic.Pointer[[]span] // of groups; nil: not read yet

	opening  sync.Mutex // held while the file is opened or closed; acquired before the cache's lock
	modified time.Time  // of the file when it was opened last; guarded by opening

	cached *cached // its newest part in the Cache, which links to the others; guarded by the Cache's lock
}

// Open opens a finished segment and compares its size and header with want, the catalogue's description. A want of size
// 0 compares nothing: for tools. The whole-file checksum is Verify's affair. Errors: Corrupt (also when the file is
// missing: it has to be fetched again), Invalid (format version), Unavailable.
func Open(fs vfs.FS, path string, want Info, cache *Cache) (*Reader, error) {
	r := &Reader{fs: fs, path: path, info: want, cache: cache}
	r.opts, r.evict, r.free = cache.options()
	if err := r.acquire(); err != nil {
		// A failed load has left no file: Close then frees the part of the cache at once.
		_ = r.Close()
		return nil, err
	}
	r.info = r.file.Load().info
	return r, r.release()
}

// Info describes the segment: the header, size, and the checksum that Open was given.
func (r *Reader) Info() Info { return r.info }

// Close ends reading. The file is closed when the reads that have begun are done.
func (r *Reader) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	r.opening.Lock()
	f := r.file.Load()
	if f != nil {
		r.cache.forgetFile(f)
	}
	r.opening.Unlock()
	if f == nil {
		r.end()
		return nil
	}
	return r.release()
}

// end gives back the reader's part of the cache.
func (r *Reader) end() {
	r.cache.forget(r)
	r.free()
}

// diskError gives an error of the file system or of pebble its Kind, and the file's name. An error with a Kind keeps it.
func diskError(err error, path string) error {
	if err == nil {
		return nil
	}
	kind := fault.KindOf(err)
	switch {
	case pebble.IsCorruptionError(err), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), vfsNotExist(err):
		kind = fault.Corrupt
	case kind == fault.Internal:
		kind = fault.Unavailable
	}
	return fault.Wrap(err, kind, "segment %s", path)
}

func vfsNotExist(err error) bool { return errors.Is(err, os.ErrNotExist) }

// corrupt adds the key to an error.
func (r *Reader) corrupt(key []byte, err error) error {
	return diskError(fault.Annotate(err, "key %q", key), r.path)
}

// tableIter walks over keys and values; a thin cover that gives errors their Kind. Values are valid until it moves.
// An error ends the walk, and close returns it. Each walk must be closed: it pins a block of the cache.
type tableIter struct {
	r    *Reader
	it   sstable.Iterator // nil: it has not begun
	lazy bool             // it acquires the file when it begins, and releases it when it is closed
	key  []byte
	val  []byte
	err  error
}

// begin makes a walk that lazily did not begin yet.
func (t *tableIter) begin() bool {
	if t.it != nil {
		return true
	}
	if t.err = t.r.acquire(); t.err != nil {
		return false
	}
	began, err := t.r.iter()
	if err != nil {
		t.err = err
		_ = t.r.release()
		return false
	}
	t.it = began.it
	return true
}

// iter begins a walk; the caller has acquired the file, and releases it after close.
func (r *Reader) iter() (*tableIter, error) {
	return r.iterOf(r.file.Load().sst)
}

func (r *Reader) iterOf(sst *sstable.Reader) (*tableIter, error) {
	it, err := sst.NewIter(sstblock.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		return nil, diskError(err, r.path)
	}
	return &tableIter{r: r, it: it}, nil
}

// seek moves to the first key at or after k; false at the end or on an error.
func (t *tableIter) seek(k []byte) bool {
	if t.lazy && !t.begin() {
		return false
	}
	kv := t.it.SeekGE(k, 0)
	if kv == nil || t.err != nil {
		return false
	}
	t.key = kv.K.UserKey
	t.val, _, t.err = kv.Value(nil)
	return t.err == nil
}

func (t *tableIter) next() bool {
	kv := t.it.Next()
	if kv == nil || t.err != nil {
		return false
	}
	t.key = kv.K.UserKey
	t.val, _, t.err = kv.Value(nil)
	return t.err == nil
}

// find moves to key k; false when there is none.
func (t *tableIter) find(k []byte) bool { return t.seek(k) && string(t.key) == string(k) }

// close keeps the first error of the walk.
func (t *tableIter) close() error {
	if t.it == nil {
		return t.err
	}
	if t.lazy {
		defer func() { _ = t.r.release() }()
	}
	if err := t.it.Close(); t.err == nil {
		t.err = diskError(err, t.r.path)
	}
	return t.err
}

// get calls f with the value of a key; found is false when there is none.
func (r *Reader) get(key []byte, f func(value []byte) error) (found bool, err error) {
	if err := r.acquire(); err != nil {
		return false, err
	}
	defer func() { _ = r.release() }()
	t, err := r.iter()
	if err != nil {
		return false, err
	}
	return t.get(key, f)
}

// get is Reader.get, and ends the walk.
func (t *tableIter) get(key []byte, f func(value []byte) error) (found bool, err error) {
	if found = t.find(key); found {
		if err := f(t.val); err != nil && t.err == nil {
			t.err = t.r.corrupt(key, err)
		}
	}
	return found, t.close()
}

// each calls f with every key that begins with a letter, and its value.
func (r *Reader) each(letter byte, f func(key, value []byte) error) error {
	if err := r.acquire(); err != nil {
		return err
	}
	defer func() { _ = r.release() }()
	t, err := r.iter()
	if err != nil {
		return err
	}
	for ok := t.seek([]byte{letter}); ok && t.key[0] == letter; ok = t.next() {
		if err := f(t.key, t.val); err != nil {
			_ = t.close()
			return err
		}
	}
	return t.close()
}

// SeriesIDs gives the ids that have rows here. The bitmap belongs to the caller.
func (r *Reader) SeriesIDs() (ids *roaring.Bitmap, err error) {
	found, err := r.get([]byte{keySeries}, func(v []byte) error {
		ids, err = parseSeries(v, r.cache.decoder)
		return err
	})
	if err == nil && !found {
		err = r.corrupt([]byte{keySeries}, errForm("table: no set of series"))
	}
	return ids, err
}

// EachDefinition calls f with every series that has its labels here, in rising order of ids. f's error ends the walk
// and is returned as it is.
func (r *Reader) EachDefinition(f func(id point.DenseID, l point.Labels) error) error {
	return r.eachDefinition(parseDefinitions, f)
}

// LendDefinitions is EachDefinition with labels that are valid until f returns, at a third of the cost.
func (r *Reader) LendDefinitions(f func(id point.DenseID, l point.Labels) error) error {
	var m definitionsMemory
	return r.eachDefinition(m.parse, f)
}

func (r *Reader) eachDefinition(parse func([]byte, *zstd.Decoder) ([]definition, error), f func(id point.DenseID, l point.Labels) error) error {
	return r.each(keyDefinitions, func(key, value []byte) error {
		defs, err := parse(value, r.cache.decoder)
		if err != nil {
			return r.corrupt(key, err)
		}
		for _, d := range defs {
			if err := f(d.id, d.labels); err != nil {
				return err
			}
		}
		return nil
	})
}

// ExemplarIDs gives the ids that have exemplars here. The bitmap belongs to the caller.
func (r *Reader) ExemplarIDs() (*roaring.Bitmap, error) {
	ids := roaring.New()
	if r.info.Exemplars == 0 {
		return ids, nil
	}
	return ids, r.each(keyExemplars, func(key, _ []byte) error {
		if len(key) != 5 {
			return r.corrupt(key, errForm("key of exemplars"))
		}
		ids.Add(binary.BigEndian.Uint32(key[1:]))
		return nil
	})
}

// Exemplars calls f with the exemplars in [lo, hi] of each of the series that has any; ids rise strictly. The rows
// belong to f.
func (r *Reader) Exemplars(ids []point.DenseID, lo, hi point.Nanos, f func(id point.DenseID, ex []point.ExemplarRow) error) error {
	if r.info.Exemplars == 0 {
		return nil
	}
	var key []byte
	for _, id := range ids {
		var ex []point.ExemplarRow
		key = key32(key, keyExemplars, uint32(id))
		if _, err := r.get(key, func(v []byte) (err error) {
			ex, err = parseExemplars(v, r.cache.decoder)
			return err
		}); err != nil {
			return err
		}
		for len(ex) > 0 && ex[0].Time < lo {
			ex = ex[1:]
		}
		for len(ex) > 0 && ex[len(ex)-1].Time > hi {
			ex = ex[:len(ex)-1]
		}
		if len(ex) == 0 {
			continue
		}
		if err := f(id, ex); err != nil {
			return err
		}
	}
	return nil
}
