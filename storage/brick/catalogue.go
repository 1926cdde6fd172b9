package brick

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/database"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// catalogueFilesMax bounds the open tables of the catalogue; beside them pebble has its lock, log and manifest.
const catalogueFilesMax = 24

// catalogueOptions are those of the pebble database.
func catalogueOptions(fs vfs.FS, memBytes int64, log pebble.Logger) *pebble.Options {
	return &pebble.Options{
		FS:                          fs,
		MemTableSize:                uint64(memBytes),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       2,
		FormatMajorVersion:          pebble.FormatValueSeparation, // pinned: a newer program must still open an older one's store on purpose
		Logger:                      log,
		EventListener: &pebble.EventListener{DataCorruption: func(i pebble.DataCorruptionInfo) {
			log.Fatalf("%s is damaged: %v", i.Path, i.Details) // pebble's own message adds pages of stack
		}},
	}
}

// openPebble opens a pebble database, with separate caches.
func openPebble(dir string, o *pebble.Options) (*pebble.DB, error) {
	cache := pebble.NewCache(4 << 20)
	defer cache.Unref()
	files := pebble.NewFileCache(1, catalogueFilesMax)
	defer files.Unref()
	o.Cache, o.FileCache = cache, files
	return database.Open(dir, o)
}

// openCatalogue checks the pebble database below dir against the mirror, the witness and the log directory, without changing a
// byte, and then opens it. A failure pebble calls fatal fences the brick.
func (b *Brick) openCatalogue(dir string) error {
	var metadata watermark
	says, is, err := examine(b.fs, dir, b.set.CatalogueMemBytes, func(k, v []byte) error {
		if b.metadata.keeps(k) {
			metadata.add(k, v)
		}
		return nil
	})
	metadata.seq = is.seq
	if err == nil {
		err = b.compareCatalogue(says, is, metadata)
	}
	if err != nil {
		return b.catalogueDamage(err, dir)
	}
	o := catalogueOptions(b.fs, b.set.CatalogueMemBytes, catalogueLog{b})
	o.EventListener = &pebble.EventListener{BackgroundError: b.catalogueFailed}
	if b.catalogue, err = openPebble(dir, o); err != nil {
		return b.catalogueDamage(err, dir)
	}
	b.commits.mark, b.commits.metadata = is, metadata
	if says.seq == 0 { // a new store, or one from before there were watermarks
		return b.NewBatch().Commit(true)
	}
	return nil
}

// examine reads a whole catalogue without changing it, and returns the claim of its watermark and its actual content. Both are
// zero for a directory without a database.
func examine(fs vfs.FS, dir string, memBytes int64, each func(k, v []byte) error) (says, is watermark, err error) {
	var said collectedLog
	o := catalogueOptions(fs, memBytes, &said)
	o.ReadOnly = true
	db, err := openPebble(dir, o)
	if errors.Is(err, pebble.ErrDBDoesNotExist) {
		return says, is, nil
	}
	if err != nil {
		return says, is, errors.Join(err, said.fatal())
	}
	defer func() { err = errors.Join(err, db.Close(), said.fatal()) }()
	return survey(db, each)
}

// compareCatalogue refuses a catalogue that contradicts its watermark, or that is older than a witness recorded.
func (b *Brick) compareCatalogue(says, is, metadata watermark) error {
	if says.seq > 0 && says != is {
		return fault.Errorf(fault.Corrupt, "it says that it holds %d keys, and holds %d, or others", says.keys, is.keys)
	}
	mirrored, base, end, clean, err := readMirror(b.fs, catalogueMirror, b.mirror.path, b.logID, nil)
	if err != nil {
		return err
	}
	kept, keptBase, keptEnd, keptClean, err := readMirror(b.fs, metadataMirror, b.metadata.path, b.logID, nil)
	if err != nil {
		return err
	}
	for _, w := range []struct {
		witness string
		seq     uint64
	}{{b.witness.path, b.witness.now.catalogue}, {b.mirror.path, mirrored.seq}, {b.metadata.path, kept.seq}} {
		if says.seq < w.seq {
			return fault.Errorf(fault.Corrupt, "it ends at %s, but commit %d was durable, as %s knows", says, w.seq, w.witness)
		}
	}
	if clean && mirrored == says {
		if err := b.mirror.resume(base, end); err != nil {
			b.log.Warn("the mirror of the catalogue cannot be continued; it will be written anew", "error", err)
		}
	}
	if keptClean && kept.keys == metadata.keys && kept.sum == metadata.sum {
		if err := b.metadata.resume(keptBase, keptEnd); err != nil {
			b.log.Warn("the mirror of METADATA cannot be continued; it will be written anew", "error", err)
		}
	}
	return nil
}

// catalogueDamage gives an error of opening the catalogue its kind, and names the remedy.
func (b *Brick) catalogueDamage(err error, dir string) error {
	var errno syscall.Errno
	if fault.Is(err, fault.Unavailable) || errors.As(err, &errno) && !oserror.IsNotExist(err) && errno != syscall.EIO {
		return fault.Wrap(fault.OneLine(err), fault.Unavailable, "open catalogue %s", dir)
	}
	return fault.Wrap(fault.OneLine(err), fault.Corrupt, "the catalogue %s is damaged: some of its entries are lost, and with them the knowledge of which rows there are. Nothing was changed. "+
		"Run `spillway repair --data-dir %s --dry-run` to see what can be rebuilt, and without --dry-run to do it", dir, b.set.DataDir)
}

// collectedLog keeps the messages that pebble calls fatal while it only reads.
// Without it a damaged file would end the process, as pebble's default for Fatalf does.
type collectedLog struct{ errs []error }

func (*collectedLog) Infof(string, ...any)  {}
func (*collectedLog) Errorf(string, ...any) {}

func (l *collectedLog) Fatalf(format string, args ...any) {
	l.errs = append(l.errs, fault.Errorf(fault.Corrupt, format, args...))
}

func (l *collectedLog) fatal() error { return errors.Join(l.errs...) }

// catalogueFailed is called for flushes and compactions of the catalogue that fail. Pebble retries them at once and for ever, at
// the cost of a processor; a disk that accepts no more writes, or a damaged table, does not recover by retrying.
func (b *Brick) catalogueFailed(err error) {
	if errors.Is(err, vfs.ErrUnsupported) {
		return
	}
	b.Fence(fault.Annotate(fault.OneLine(err), "catalogue: a flush or compaction failed"))
}

// catalogueLog receives pebble's messages. A message that pebble calls fatal is a failed write or fsync: final for the brick.
type catalogueLog struct{ b *Brick }

func (l catalogueLog) Infof(format string, args ...any) {
	l.b.log.Debug("catalogue", "detail", slog.AnyValue(lazy{format, args}))
}

func (l catalogueLog) Errorf(format string, args ...any) {
	l.b.log.Warn("the catalogue reports an error", "detail", slog.AnyValue(lazy{format, args}))
}

func (l catalogueLog) Fatalf(format string, args ...any) {
	l.b.Fence(fault.OneLine(fmt.Errorf("catalogue: "+format, args...)))
}

// lazy formats only logged messages: pebble is talkative.
type lazy struct {
	format string
	args   []any
}

func (l lazy) String() string { return fmt.Sprintf(l.format, l.args...) }

// LogValue implements slog.LogValuer.
func (l lazy) LogValue() slog.Value { return slog.StringValue(l.String()) }

// Get reads a key of the catalogue. The caller owns the value. Errors: Corrupt, Unavailable.
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

// catalogueFault gives an error of pebble its Kind.
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

// A commit, and the lock that orders it:
//
//	Commit ─▶ commits.Lock: old values of the keys ─▶ watermark ─▶ pebble, without waiting ─▶ queues of the mirrors ─▶ Unlock
//	       ─▶ SyncWait, shared with other commits ─▶ committed: mirrors, witness ─▶ METADATA: fsync of its mirror ─▶ nil
//
// The order of watermarks is that of pebble's log, since both are assigned under one lock. Nothing is written to mirror or witness before the
// fsync: a power cut that undoes a commit must not leave a copy that names it, which would be reported as damage.

// Batch is a set of changes of the catalogue that are applied together. Keys are any bytes that do not begin with a zero; the
// convention is "p/<placement>/…" and "m/…". For one goroutine. Ends with Commit or Close.
type Batch struct {
	b       *Brick
	changes []change
	err     error
}

// NewBatch starts an empty batch.
func (b *Brick) NewBatch() *Batch { return &Batch{b: b} }

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

// check refuses keys that are the brick's own. The error is sticky: Commit returns it.
func (t *Batch) check(key []byte) bool {
	if len(key) == 0 || key[0] == ownKeys {
		t.err = fault.Errorf(fault.Invalid, "catalogue key %q is empty or begins with a zero byte", key)
	}
	return t.err == nil
}

func (t *Batch) set(key, value []byte) {
	t.changes = append(t.changes, change{key: slices.Clone(key), value: slices.Clone(value)})
}

func (t *Batch) delete(key []byte) {
	t.changes = append(t.changes, change{key: slices.Clone(key), deleted: true})
}

// commits orders the commits of a brick: each raises the watermark by its changes.
type commits struct {
	sync.Mutex
	mark watermark // of the newest commit, durable or not
	// metadata is that of the keys that the mirror of METADATA holds.
	metadata watermark
	durable  atomic.Uint64 // the newest commit that is certainly durable
}

// last returns the newest commit.
func (c *commits) last() uint64 {
	c.Lock()
	defer c.Unlock()
	return c.mark.seq
}

// Commit applies the batch, whole or not at all, and ends it. With sync it is durable when nil is returned; without, it becomes
// durable with a later one at the latest, and no later commit survives a crash without it. Errors: Invalid (a bad key), Corrupt
// (the catalogue cannot be read), Unavailable (the brick is fenced; the batch may or may not survive).
func (t *Batch) Commit(sync bool) error {
	defer t.Close()
	if t.err != nil {
		return t.err
	}
	if err := t.b.Err(); err != nil {
		return err
	}
	if err := t.b.errFrozen(); err != nil {
		return err
	}
	pb, seq, err := t.apply(sync)
	if err != nil {
		return err
	}
	if sync {
		// Waiting is outside of the lock, so that commits share fsyncs.
		if err := pb.SyncWait(); err != nil {
			t.b.Fence(err)
		}
	}
	_ = pb.Close()
	if err := t.b.Err(); err != nil { // a commit that fails may come back as success and a call of Fatalf
		return err
	}
	if sync {
		t.b.committed(seq)
		if len(t.b.metadata.of(t.changes)) > 0 {
			if err := t.b.metadata.sync(); err != nil {
				t.b.log.Warn("the mirror of METADATA could not be written; it will be written anew", "error", err)
			}
		}
	}
	return nil
}

// apply passes the batch and its resulting watermark to pebble.
func (t *Batch) apply(sync bool) (_ *pebble.Batch, _ uint64, err error) {
	b := t.b
	changes := distinct(t.changes)
	b.commits.Lock()
	defer b.commits.Unlock()
	// The sum of the old value is subtracted, so it is read: mostly from the memtable.
	mark, err := b.commits.mark.after(changes, b.Get)
	if err != nil {
		return nil, 0, err
	}
	kept := b.metadata.of(changes)
	metadata, err := b.commits.metadata.after(kept, b.Get)
	if err != nil {
		return nil, 0, err
	}
	metadata.seq = mark.seq
	pb := b.catalogue.NewBatch()
	for _, c := range changes {
		if c.deleted {
			err = errors.Join(err, pb.Delete(c.key, nil))
		} else {
			err = errors.Join(err, pb.Set(c.key, c.value, nil))
		}
	}
	if err = errors.Join(err, pb.Set(watermarkKey(), mark.append(nil), nil)); err != nil {
		return nil, 0, fault.Wrap(errors.Join(err, pb.Close()), fault.Internal, "catalogue batch")
	}
	if sync {
		err = b.catalogue.ApplyNoSyncWait(pb, pebble.Sync)
	} else {
		err = b.catalogue.Apply(pb, pebble.NoSync)
	}
	if err != nil {
		b.Fence(err)
		return nil, 0, b.Err()
	}
	b.commits.mark, b.commits.metadata = mark, metadata
	b.mirror.queue(mark, changes)
	if len(kept) > 0 {
		b.metadata.queue(metadata, kept)
	}
	return pb, mark.seq, nil
}

// committed notes that the catalogue is durable up to commit seq.
func (b *Brick) committed(seq uint64) {
	for {
		was := b.commits.durable.Load()
		if seq <= was || b.commits.durable.CompareAndSwap(was, seq) {
			break
		}
	}
	b.mirror.durable(seq)
	b.metadata.durable(seq)
	b.witness.note(testimony{log: position(b.synced.Load()), catalogue: seq})
}

// Close ends a batch that is not committed.
func (t *Batch) Close() { t.changes = nil }
