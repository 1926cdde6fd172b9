package segment

import (
	"slices"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// Writer makes one segment file. Not for concurrent use. After the first error every call returns it, and only Abort is useful. Memory: the
// group under construction, a page of definitions, the postings while definitions come in, 8 bytes a series, 40 bytes a distinct column of
// times, and the exemplars.
//
//	Create ─▶ Define* ─▶ Add* ─▶ (EndRows ─▶) AddExemplars* ─▶ Finish ─▶ Info        Abort at any time gives up
//	          'a', then 'b'  'c' group by group   'e'         'p' 'r' 's' 'z', publish
//
// Keys are written in rising order, as an sstable asks for, so the order of calls is that of the file.
type Writer struct {
	fs   vfs.FS
	path string
	info Info
	file *hashedFile
	sst  *sstable.Writer
	err  error

	pack   *packer // nil once Finish or Abort gave it back
	value  []byte  // scratch
	keyBuf []byte

	// Until the first Add.
	page      []definition
	prev      point.Labels // of the last definition
	pageBytes int
	lastDef   int64 // id of the last definition, -1: none
	postings  postings
	defined   bool // postings are written

	// From the first Add on.
	group   group
	columns columnIndexes
	values  valueEncoder
	placed  []placed
	series  *roaring.Bitmap

	exemplars    []exemplarRecord
	rowsEnded    bool  // exemplars are written as they come
	lastExemplar int64 // id of the last that was written, -1: none
}

type exemplarRecord struct {
	id    point.DenseID
	value []byte
}

// TempSuffix marks a file that Finish has not published; a process that finds one at start may delete it.
const TempSuffix = ".tmp"

// hashedFile is the sstable's output file: it sums and counts the bytes written. Finish makes it durable.
type hashedFile struct {
	f    vfs.File
	sum  *xxhash.Digest
	size int64
	buf  []byte // pebble writes small pieces: they are gathered
}

const fileBuffer = 256 << 10

func (h *hashedFile) Write(p []byte) error {
	_, _ = h.sum.Write(p) // never fails
	h.size += int64(len(p))
	if len(h.buf)+len(p) > fileBuffer {
		if err := h.flush(); err != nil {
			return err
		}
	}
	// It would fill the buffer alone: h.buf is empty here.
	if len(p) >= fileBuffer {
		_, err := h.f.Write(p)
		return err
	}
	h.buf = append(h.buf, p...)
	return nil
}

func (h *hashedFile) flush() error {
	_, err := h.f.Write(h.buf)
	h.buf = h.buf[:0]
	return err
}

// Finish and Abort are called by pebble when its writer is closed. The fsync is publish's.
func (h *hashedFile) Finish() error { return h.flush() }

func (h *hashedFile) Abort() {}

// tableFormat is pinned: the bytes depend on it. Its footer has a checksum, unlike those before it.
const tableFormat = sstable.TableFormatPebblev6

// Create starts the segment file that will be called path; until Finish it is path + ".tmp". An old file of that name
// is overwritten. Errors: Unavailable (the file cannot be made).
func Create(fs vfs.FS, path string, m Meta, s Settings) (*Writer, error) {
	// The old file is one of a try that failed, or of a process that died before the rename: nothing refers to it.
	f, err := fs.Create(path+TempSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "create segment %s", path)
	}
	if s.BytesPerSync <= 0 {
		s.BytesPerSync = 1 << 20
	}
	f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: s.BytesPerSync})
	file := &hashedFile{f: f, sum: xxhash.New()}
	// The caller goes on with its own.
	m.Ends = slices.Clone(m.Ends)
	return &Writer{
		fs: fs, path: path, file: file,
		info:    Info{Meta: m, FormatVersion: m.formatVersion()},
		pack:    packers.Get().(*packer),
		lastDef: -1, postings: postings{names: map[string]map[string]*runs{}},
		columns: columnIndexes{times: newColumnIndex(), ranks: newColumnIndex()}, series: roaring.New(),
		sst: sstable.NewWriter(file, sstable.WriterOptions{
			// A block of ours is a block of pebble's: reading one reads nothing else.
			BlockSize: 8 << 10, IndexBlockSize: 64 << 10,
			Compression: sstable.NoCompression, TableFormat: tableFormat, DisableValueBlocks: true,
		}),
	}, nil
}

// put adds a key. Its error is Unavailable, and sticky: a file with a gap is never published.
func (w *Writer) put(key, value []byte) error {
	if w.err == nil {
		if err := w.sst.Set(key, value); err != nil {
			w.err = fault.Wrap(err, fault.Unavailable, "write segment %s", w.path)
		}
	}
	return w.err
}

func (w *Writer) invalid(format string, args ...any) error {
	if w.err == nil {
		w.err = fault.Annotate(fault.Errorf(fault.Invalid, format, args...), "segment %s", w.path)
	}
	return w.err
}

// Define adds the labels of a series, in rising order of ids, before the first Add. Errors: Invalid (order, labels),
// Unavailable (disk).
func (w *Writer) Define(id point.DenseID, l point.Labels) error {
	switch {
	case w.err != nil:
		return w.err
	case w.defined:
		return w.invalid("series %d is defined after rows were added", id)
	case int64(id) <= w.lastDef:
		return w.invalid("series %d is defined after series %d", id, w.lastDef)
	case id == 1<<32-1:
		return w.invalid("series id %d is out of range", id)
	}
	shared := sharedRest(w.prev, l)
	if !validShared(l, shared) {
		return w.invalid("series %d has labels that are not canonical", id)
	}
	w.lastDef, w.prev = int64(id), l
	w.postings.add(id, l, shared)
	w.info.Definitions++
	w.page = append(w.page, definition{id, l})
	w.pageBytes += len(l)
	if len(w.page) == pageDefinitions || w.pageBytes >= pageLabelBytes {
		return w.flushDefinitions()
	}
	return nil
}

func (w *Writer) flushDefinitions() error {
	if len(w.page) == 0 {
		return w.err
	}
	w.value = packDefinitions(w.value[:0], w.page, w.pack)
	w.keyBuf = key32(w.keyBuf, keyDefinitions, uint32(w.page[0].id))
	// The labels are not kept alive by the scratch.
	clear(w.page)
	w.page, w.pageBytes = w.page[:0], 0
	return w.put(w.keyBuf, w.value)
}

// endDefinitions writes the definitions that Define collected and frees them.
func (w *Writer) endDefinitions() error {
	if w.defined || w.err != nil {
		return w.err
	}
	w.defined = true
	if err := w.flushDefinitions(); err != nil {
		return err
	}
	err := w.postings.write(w.put, w.pack)
	w.postings = postings{}
	return err
}

// Add writes all rows of one series: floats, histograms or both, times strictly rising. Series come in the order in
// which queries should find them together, each once, in any order of ids. r is only read during the call. A run
// without rows is passed over. Errors: Invalid (form of the run), TooLarge (a histogram), Unavailable (disk).
func (w *Writer) Add(id point.DenseID, r *rows.Run) error {
	if r.Len() == 0 || w.endDefinitions() != nil {
		return w.err
	}
	if w.rowsEnded {
		return w.invalid("rows of series %d are added after the end of rows", id)
	}
	if err := w.checkRun(id, r); err != nil {
		return err
	}
	w.cover(r)
	w.placed = append(w.placed, placed{id, makePlace(w.group.number, len(w.group.ids))})
	w.group.add(id, r, w.columns, &w.values)
	if w.group.stray {
		return w.invalid("series %d has ranks outside of its stamps from %d to %d", id, r.StampLo, r.StampHi)
	}
	if w.group.full() {
		return w.flushGroup()
	}
	return nil
}

// checkRun refuses what a reader could not read, here where the rows still are in the head and the log. Histograms above the bound were once written, into
// segments that no query could read and no compaction fold.
// The id is noted last: a run that is refused leaves no trace. After an error no call is useful anyway, but the message should be right.
func (w *Writer) checkRun(id point.DenseID, r *rows.Run) error {
	if (r.Ranks != nil || r.HistRanks != nil) && !r.Ranked() {
		return w.invalid("series %d has %d rows and %d histograms, with %d and %d ranks", id, len(r.Times), len(r.Hists), len(r.Ranks), len(r.HistRanks))
	}
	if len(r.Times) != len(r.Values) {
		return w.invalid("series %d has %d times and %d values", id, len(r.Times), len(r.Values))
	}
	if r.StampLo > r.StampHi {
		return w.invalid("series %d has stamps from %d down to %d", id, r.StampLo, r.StampHi)
	}
	for i := 1; i < len(r.Times); i++ {
		if r.Times[i] <= r.Times[i-1] {
			return w.invalid("series %d: time %d follows %d", id, r.Times[i], r.Times[i-1])
		}
	}
	for i := range r.Hists {
		if i > 0 && r.Hists[i].Time <= r.Hists[i-1].Time {
			return w.invalid("series %d: histogram at %d follows %d", id, r.Hists[i].Time, r.Hists[i-1].Time)
		}
		if n := len(r.Hists[i].H); n > HistogramBytesMax {
			w.err = fault.Errorf(fault.TooLarge, "segment %s: series %d has a histogram of %d bytes, at most %d are taken", w.path, id, n, HistogramBytesMax)
			return w.err
		}
	}
	if w.group.number >= groupsMax-1 {
		w.err = fault.Errorf(fault.TooLarge, "segment %s has more than %d groups of series", w.path, groupsMax)
		return w.err
	}
	if !w.series.CheckedAdd(uint32(id)) {
		return w.invalid("series %d is added twice", id)
	}
	return nil
}

// RanksFrom makes the writer keep the ranks of rows only in chunks with a row of this rank or a higher one: before the first Add. Without a call it keeps all that
// runs have. A row without one counts as the highest rank of its chunk.
func (w *Writer) RanksFrom(s point.Stamp) { w.columns.ranksFrom = s }

// cover widens the file's ranges to a run that has rows.
func (w *Writer) cover(r *rows.Run) {
	lo, hi, _ := r.Bounds()
	i := &w.info
	if i.Rows == 0 {
		i.TimeLo, i.TimeHi, i.StampLo, i.StampHi = lo, hi, r.StampLo, r.StampHi
	}
	i.TimeLo, i.TimeHi = min(i.TimeLo, lo), max(i.TimeHi, hi)
	i.StampLo, i.StampHi = min(i.StampLo, r.StampLo), max(i.StampHi, r.StampHi)
	i.Rows += uint64(r.Len())
	i.Series++
}

// flushGroup writes the group under construction: record, pages of times, blocks.
func (w *Writer) flushGroup() error {
	g := &w.group
	if len(g.ids) == 0 {
		return w.err
	}
	w.value = g.record(w.value[:0])
	w.keyBuf = keyOfGroup(w.keyBuf, g.number, kindRecord)
	_ = w.put(w.keyBuf, w.value) // sticky
	for j, b := range g.blocks[:g.used] {
		if b.page.count > 0 {
			w.value = b.page.pack(w.value[:0], w.pack)
			w.keyBuf = keyTimes(w.keyBuf, g.number, uint32(j))
			_ = w.put(w.keyBuf, w.value)
		}
	}
	for _, b := range g.blocks[:g.used] {
		w.value = b.pack(w.value[:0], g.number, w.pack)
		w.keyBuf = keyBlock(w.keyBuf, g.number, b.lo)
		_ = w.put(w.keyBuf, w.value)
	}
	w.putRanks()
	g.next()
	return w.err
}

// putRanks writes the ranks of the rows of the group; none where no run had them. An error is sticky.
func (w *Writer) putRanks() {
	g := &w.group
	w.info.RankedRows += uint64(g.rankedRows)
	for j, b := range g.blocks[:g.used] {
		if b.ranked {
			w.value = b.ranks.pack(w.value[:0], b.chunks, g.number, w.pack)
			w.info.RankBytes += uint64(len(w.value))
			w.keyBuf = keyRanks(w.keyBuf, g.number, uint32(j))
			_ = w.put(w.keyBuf, w.value)
		}
	}
}

// EndRows is called after the last Add by a caller that adds exemplars in rising order of ids from here on: they are written at once and not
// held in memory until Finish. The file is the same.
func (w *Writer) EndRows() error {
	if err := w.endDefinitions(); err != nil {
		return err
	}
	if err := w.flushGroup(); err != nil {
		return err
	}
	w.rowsEnded, w.lastExemplar = true, -1
	return w.putExemplars()
}

// AddExemplars writes the exemplars of one series, once a series, before Finish. They are held in memory until then, or until EndRows.
// Errors: Invalid (not in order of time, labels; after EndRows not in order of ids), TooLarge (more than 16 MiB for one series).
func (w *Writer) AddExemplars(id point.DenseID, ex []point.ExemplarRow) error {
	if len(ex) == 0 || w.err != nil {
		return w.err
	}
	size := 0
	for i := range ex {
		if i > 0 && ex[i].Time < ex[i-1].Time || !ex[i].Labels.Valid() {
			return w.invalid("series %d: exemplar %d is out of order or has labels that are not canonical", id, i)
		}
		size += exemplarBytes(&ex[i])
	}
	if size > exemplarsMax {
		w.err = fault.Errorf(fault.TooLarge, "segment %s: series %d has %d bytes of exemplars, at most %d are taken", w.path, id, size, exemplarsMax)
		return w.err
	}
	w.info.Exemplars += uint64(len(ex))
	w.exemplars = append(w.exemplars, exemplarRecord{id, packExemplars(ex, w.pack)})
	if w.rowsEnded {
		return w.putExemplars()
	}
	return nil
}

// putExemplars writes the exemplars that are held.
func (w *Writer) putExemplars() error {
	slices.SortStableFunc(w.exemplars, func(a, b exemplarRecord) int { return int(int64(a.id) - int64(b.id)) })
	for _, x := range w.exemplars {
		if int64(x.id) <= w.lastExemplar {
			return w.invalid("exemplars of series %d are added twice, or after those of series %d", x.id, w.lastExemplar)
		}
		w.lastExemplar = int64(x.id)
		if err := w.put(key32(w.keyBuf, keyExemplars, uint32(x.id)), x.value); err != nil {
			return err
		}
	}
	clear(w.exemplars)
	w.exemplars = w.exemplars[:0]
	return nil
}

// Finish publishes the file: bytes fsynced, file renamed, directory fsynced, in this order (I7). After an error no file
// has the final name, or a whole file has it; call Abort. Errors: Invalid, TooLarge, Unavailable.
func (w *Writer) Finish() (Info, error) {
	if w.err == nil {
		w.err = w.writeTail()
	}
	if w.err != nil {
		return Info{}, w.err
	}
	w.err = w.publish()
	if w.err != nil {
		return Info{}, w.err
	}
	w.givePacker()
	w.info.Size, w.info.Checksum = w.file.size, w.file.sum.Sum64()
	info := w.info
	w.err = fault.Errorf(fault.Internal, "segment %s is finished", w.path)
	return info, nil
}

// writeTail writes the parts that are complete only now: places, counts, the set of series, and the header with them all.
func (w *Writer) writeTail() error {
	if !w.rowsEnded {
		if err := w.EndRows(); err != nil {
			return err
		}
	}
	if err := writePlaces(w.placed, w.put); err != nil {
		return err
	}
	if w.info.RankedRows > 0 {
		if err := w.put([]byte{keyRanked}, appendRanked(nil, &w.info)); err != nil {
			return err
		}
	}
	if err := w.put([]byte{keySeries}, packSeries(w.series, w.pack)); err != nil {
		return err
	}
	header := appendHeader(nil, &w.info)
	if len(header) > headerMax {
		return w.invalid("a header of %d bytes, at most %d are taken", len(header), headerMax)
	}
	return w.put([]byte{keyHeader}, header)
}

// publish: what a crash leaves after each step.
//
//	sst.Close     path.tmp, of any content: a start deletes it; the rows are still in the log, or in the segments that are compacted
//	Sync          the same, whole
//	Rename        one of the two names, whichever of them the directory kept: under the final name the bytes are whole, as they were synced before
//	syncDir       the final name. Only now may the catalogue name the segment
//
// Before the catalogue names it nothing depends on the file, and a start treats it as one that is not needed. After a failed Sync the file is
// given up and not synced again: the kernel may have dropped the pages that it could not write.
func (w *Writer) publish() error {
	err := w.sst.Close()
	w.sst = nil
	if err == nil {
		err = w.file.f.Sync()
	}
	if cerr := w.file.f.Close(); err == nil {
		err = cerr
	}
	w.file.f = nil
	if err == nil {
		err = w.fs.Rename(w.path+TempSuffix, w.path)
	}
	if err == nil {
		err = syncDir(w.fs, w.fs.PathDir(w.path))
	}
	return fault.Wrap(err, fault.Unavailable, "publish segment %s", w.path)
}

// syncDir makes a rename in the directory durable.
func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

func (w *Writer) givePacker() {
	if w.pack != nil {
		packers.Put(w.pack)
		w.pack = nil
	}
}

// Abort gives up and removes the unfinished file. After a Finish that succeeded it does nothing.
func (w *Writer) Abort() error {
	w.givePacker()
	if w.sst != nil {
		_ = w.sst.Close() // ends its goroutine; its output is deleted
		w.sst = nil
	}
	if w.file.f != nil {
		_ = w.file.f.Close()
		w.file.f = nil
	}
	// Finish has published it: the file has its final name.
	if w.info.Size > 0 {
		return nil
	}
	if w.err == nil {
		w.err = fault.Errorf(fault.Canceled, "segment %s was given up", w.path)
	}
	err := w.fs.Remove(w.path + TempSuffix)
	if err != nil && !vfsNotExist(err) {
		return fault.Wrap(err, fault.Unavailable, "remove unfinished segment %s", w.path)
	}
	return nil
}
