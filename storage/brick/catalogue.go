package brick

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// catalogueFilesMax bounds the tables of the catalogue that are open at once; beside them pebble has its lock, log and manifest.
const catalogueFilesMax = 24

// openCatalogue opens the pebble database below dir. A failure pebble calls fatal fences the brick.
func (b *Brick) openCatalogue(dir string) (*pebble.DB, error) {
	cache := pebble.NewCache(4 << 20)
	defer cache.Unref()
	files := pebble.NewFileCache(1, catalogueFilesMax)
	defer files.Unref()
	db, err := pebble.Open(dir, &pebble.Options{
		FS:                          b.fs,
		Cache:                       cache,
		MemTableSize:                uint64(b.set.CatalogueMemBytes),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       2,
		FileCache:                   files,
		FormatMajorVersion:          pebble.FormatValueSeparation, // pinned: a newer program must still open an older one's store on purpose
		Logger:                      catalogueLog{b},
	})
	if err != nil {
		kind := fault.Unavailable
		if errors.Is(err, pebble.ErrCorruption) || pebble.IsCorruptionError(err) {
			kind = fault.Corrupt
		}
		return nil, fault.Wrap(err, kind, "open catalogue %s", dir)
	}
	return db, nil
}

// catalogueLog gives pebble's messages a place. What it calls fatal is a failed write or fsync: final for the brick.
type catalogueLog struct{ b *Brick }

func (l catalogueLog) Infof(format string, args ...any) {
	l.b.log.Debug("catalogue", "detail", slog.AnyValue(lazy{format, args}))
}

func (l catalogueLog) Errorf(format string, args ...any) {
	l.b.log.Warn("catalogue trouble", "detail", slog.AnyValue(lazy{format, args}))
}

func (l catalogueLog) Fatalf(format string, args ...any) {
	l.b.Fence(fmt.Errorf("catalogue: "+format, args...))
}

// lazy formats only what is logged: pebble is talkative.
type lazy struct {
	format string
	args   []any
}

func (l lazy) String() string { return fmt.Sprintf(l.format, l.args...) }

// LogValue implements slog.LogValuer.
func (l lazy) LogValue() slog.Value { return slog.StringValue(l.String()) }

// Get reads a key of the catalogue. The value is the caller's. Errors: Corrupt, Unavailable.
func (b *Brick) Get(key []byte) (value []byte, ok bool, err error) {
	v, c, err := b.catalogue.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, catalogueFault(err, "read", key)
	}
	defer c.Close()
	return slices.Clone(v), true, nil
}

func catalogueFault(err error, verb string, key []byte) error {
	if pebble.IsCorruptionError(err) {
		return fault.Wrap(err, fault.Corrupt, "catalogue: %s %q", verb, key)
	}
	return fault.Wrap(err, fault.Unavailable, "catalogue: %s %q", verb, key)
}

// Scan calls f for each key with the prefix, in order; an empty prefix means all keys. k and v are valid until f
// returns; f may not change the catalogue. An error of f ends the scan and is returned.
func (b *Brick) Scan(prefix []byte, f func(k, v []byte) error) error {
	switch {
	case len(prefix) == 0:
		return b.scan([]byte{ownKeys + 1}, nil, f)
	case prefix[0] == ownKeys:
		return nil // the brick's own
	}
	return b.scan(prefix, prefixEnd(prefix), f)
}

// scan visits the keys in [lo, hi); hi nil: to the last one.
func (b *Brick) scan(lo, hi []byte, f func(k, v []byte) error) error {
	it, err := b.catalogue.NewIter(&pebble.IterOptions{LowerBound: lo, UpperBound: hi})
	if err != nil {
		return catalogueFault(err, "scan from", lo)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		if err := f(it.Key(), it.Value()); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return catalogueFault(err, "scan from", lo)
	}
	return nil
}

// prefixEnd is the first key behind all keys with the prefix; nil: there is none.
func prefixEnd(prefix []byte) []byte {
	end := bytes.TrimRight(prefix, "\xff")
	if len(end) == 0 {
		return nil
	}
	end = slices.Clone(end)
	end[len(end)-1]++
	return end
}

// Batch is changes of the catalogue that become true together. Keys are any bytes that do not begin with a zero; the
// convention is "p/<placement>/…" and "m/…". For one goroutine. Ends with Commit or Close.
type Batch struct {
	b   *Brick
	pb  *pebble.Batch
	err error
}

// NewBatch starts an empty batch.
func (b *Brick) NewBatch() *Batch { return &Batch{b: b, pb: b.catalogue.NewBatch()} }

// Set sets a key; key and value are copied.
func (t *Batch) Set(key, value []byte) {
	if t.check(key) {
		t.set(key, value)
	}
}

// Delete removes a key, there or not.
func (t *Batch) Delete(key []byte) {
	if t.check(key) {
		t.delete(key)
	}
}

func (t *Batch) check(key []byte) bool {
	if len(key) == 0 || key[0] == ownKeys {
		t.err = fault.Errorf(fault.Invalid, "catalogue key %q is empty or begins with a zero byte", key)
	}
	return t.err == nil
}

func (t *Batch) set(key, value []byte) {
	if err := t.pb.Set(key, value, nil); err != nil && t.err == nil {
		t.err = catalogueFault(err, "set", key)
	}
}

func (t *Batch) delete(key []byte) {
	if err := t.pb.Delete(key, nil); err != nil && t.err == nil {
		t.err = catalogueFault(err, "delete", key)
	}
}

// Commit makes the batch true, all of it or nothing, and ends it. With sync it is durable when nil is returned; without,
// it becomes durable with a later one at the latest, and no later commit survives a crash without it. Errors: Invalid
// (a bad key), Unavailable (the brick is fenced; whether the batch survives is open).
func (t *Batch) Commit(sync bool) error {
	defer t.Close()
	if t.err != nil {
		return t.err
	}
	if err := t.b.Err(); err != nil {
		return err
	}
	opt := pebble.NoSync
	if sync {
		opt = pebble.Sync
	}
	if err := t.b.catalogue.Apply(t.pb, opt); err != nil {
		t.b.Fence(err)
	}
	return t.b.Err() // a commit that fails comes back as success and a call of Fatalf
}

// Close ends a batch that is not committed.
func (t *Batch) Close() {
	if t.pb != nil {
		_ = t.pb.Close()
		t.pb = nil
	}
}
