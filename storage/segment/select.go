package segment

import (
	"cmp"
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// The ways of one read, for a series with rows in three blocks:
//
//	block 0   times: the column as it is cached, shared      values: take(rows × 3 + spare), decoded in place
//	block 1   times: join of both, made once for all         values: decoded behind those of block 0
//	          series with the same columns
//	block 2   times: behind that join, in its memory         values: decoded behind those of block 1
//
// So values are written once, at their final place, and times once for all series that share them.

// arena hands out memory for one group's rows: fresh for ReadNew, where runs live on, the same again for a Cursor.
type arena[T any] struct{ mem, free []T }

// fresh drops the memory handed out before and prepares exactly n.
func (a *arena[T]) fresh(n int) {
	a.mem = make([]T, n)
	a.free = a.mem
}

// again frees everything.
func (a *arena[T]) again() { a.free = a.mem }

// take gives an empty slice with room for n. With reuse it grows so that the next group fits.
func (a *arena[T]) take(n int, reuse bool) []T {
	if n > len(a.free) {
		size := n
		if reuse {
			size = max(n, 2*len(a.mem))
		}
		a.fresh(size)
	}
	out := a.free[:0:n]
	a.free = a.free[n:]
	return out
}

// readState is the memory of one read of groups, pooled in the Cache.
type readState struct {
	key    []byte
	record groupRecord
	block  blockReader
	opened blockReader  // reads a cached one
	b      *blockReader // the one of the two that is read; nil: plain is
	plain  *plainBlock
	only   *plainBlock // the only block of the group being read, if it is kept plain
	times  timesReader

	// Of the group being read.
	want [GroupSeriesMax]int16 // slot → index into runs, -1: not wanted
	of   slots                 // that are wanted, by wantOnly
	runs []rows.Run
	few  bool // of all series of the group; see isFew

	recorded *groupRecord // its record: record, or one of the cache

	values     arena[float64]
	nanos      arena[point.Nanos]
	keep       bool       // runs live on after the group: a ReadNew
	once       bool       // the blocks are not read again soon: those of a Cursor or ReadOnce
	short      bool       // groups of long series end the read with errUneven: that of a Column
	ranked     bool       // runs have the stamp of each row
	number     uint32     // of the block that is read, in its group
	ranks      *openRanks // its ranks, only if ranked; nil: it has none
	rankedRows uint64     // read with ranks of their own
	spare      int        // room behind the values of a series, for rows that the caller appends
	level      int        // blocks of the group read before this one
	places     []wanted
	near       [nearPages]nearPlaces // of the segment being read
	joins      [][joinsKept]join     // by level

	// Of a read behind the rows of other segments; see ReadBehind.
	into    []*rows.Gathered // by index; nil: rows become runs
	group   []wanted         // of the group being read
	lo, hi  point.Nanos
	refused bool
	part    []float64 // a chunk of which a part is in the range

	// The page of times used last.
	pageKey pageKey
	page    [][]point.Nanos
}

// join is a column of times joined from two. Series that were written together share all their columns, so the next
// series of a group need the same joins, block by block.
type join struct {
	before, next, all []point.Nanos
	extended          bool // the memory behind all is in use
}

// joinsKept is how many different columns neighbours may have that are still joined once: those that were written in
// the midst of a flush have a row more or less.
const joinsKept = 4

// join returns before and next as one column, which may be shared and is read only.
func (s *readState) join(before, next []point.Nanos, left int) []point.Nanos {
	for len(s.joins) <= s.level {
		s.joins = append(s.joins, [joinsKept]join{})
	}
	kept := &s.joins[s.level]
	for i := range kept {
		if j := &kept[i]; sameColumn(before, j.before) && sameColumn(next, j.next) {
			return j.all
		}
	}
	// Memory behind a join may be given to one follower only. Two series may share the columns of blocks 0 and 1 and differ in block 2: the
	// second one would overwrite what the first reads, so it copies.
	all := before
	if last := s.lastJoin(before); last != nil && cap(before)-len(before) >= len(next) {
		last.extended = true
	} else {
		all = append(s.nanos.take(len(before)+len(next)*left, !s.keep), before...)
	}
	// The oldest of the four is forgotten; columns that were made stay good, as nothing frees them within a group.
	copy(kept[1:], kept[:])
	kept[0] = join{before: before, next: next, all: append(all, next...)}
	return kept[0].all
}

// lastJoin finds the join at the block before that made a column, if nothing follows it in its memory yet.
func (s *readState) lastJoin(made []point.Nanos) *join {
	if s.level == 0 {
		return nil
	}
	kept := &s.joins[s.level-1]
	for i := range kept {
		if j := &kept[i]; sameColumn(j.all, made) && !j.extended {
			return j
		}
	}
	return nil
}

// again frees the memory handed out for reuse.
func (s *readState) again() {
	s.values.again()
	s.nanos.again()
	clear(s.joins)
}

// sameColumn compares addresses, not times: a file has a column once, and the Cache a page of them.
func sameColumn(a, b []point.Nanos) bool {
	return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0]
}

// getState returns memory that putState cleaned: it refers to no row and no reader.
func (c *Cache) getState() *readState { return c.scratch.Get().(*readState) }

// arenaKept bounds the memory, in rows, that a pooled state keeps.
const arenaKept = 1 << 19

func (c *Cache) putState(s *readState) {
	clear(s.runs)
	clear(s.joins)
	s.runs, s.pageKey, s.page, s.spare, s.ranked = s.runs[:0], pageKey{}, nil, 0, false
	s.ranks, s.rankedRows = nil, 0
	for i := range s.near {
		s.near[i].page = nil
	}
	s.plain, s.only, s.recorded, s.once, s.short = nil, nil, nil, false, false
	// After a ReadNew the memory belongs to the caller.
	if s.keep || len(s.values.mem) > arenaKept {
		s.values, s.nanos = arena[float64]{}, arena[point.Nanos]{}
	}
	s.block.hists, s.block.histLens = nil, cursor{}
	s.opened.use(&openBlock{})
	c.scratch.Put(s)
}

// wantAll makes every slot of the record wanted.
func (s *readState) wantAll() {
	for i := range s.want {
		s.want[i] = int16(i)
	}
	s.runs = slices.Grow(s.runs[:0], len(s.record.ids))[:len(s.record.ids)]
	clear(s.runs)
}

// wantOnly makes the slots of these places wanted, in their order.
func (s *readState) wantOnly(ps []wanted) {
	for i := range s.want {
		s.want[i] = -1
	}
	s.of = slots{}
	for i, p := range ps {
		s.want[p.at.slot()] = int16(i)
		s.of.add(p.at.slot())
	}
	s.runs = slices.Grow(s.runs[:0], len(ps))[:len(ps)]
	clear(s.runs)
}

// ReadNew calls f with the rows in [lo, hi] of those of the series that have any, in file order, each series once, with its index into ids,
// which may be in any order. They are in new memory: the run's values and histograms belong to f; its times may be shared with other runs and are only
// read. Each run has room for spare more values (rows.Run.Extend). f's error ends the read and is returned as it is.
func (r *Reader) ReadNew(ids []point.DenseID, lo, hi point.Nanos, spare int, f func(i int, run rows.Run) error) error {
	s := r.cache.getState()
	s.keep, s.spare = true, spare
	defer r.cache.putState(s)
	return r.read(s, ids, nil, lo, hi, f)
}

// ReadRanked is ReadNew, and runs have a stamp for each row: its own if the segment has it, else the highest of its chunk.
func (r *Reader) ReadRanked(ids []point.DenseID, lo, hi point.Nanos, spare int, f func(i int, run rows.Run) error) error {
	s := r.cache.getState()
	s.keep, s.ranked, s.spare = true, true, spare
	defer r.cache.putState(s)
	return r.read(s, ids, nil, lo, hi, f)
}

// ReadOnce is ReadNew, or ReadRanked, of rows that are not read again soon: parts that queries use stay in the cache, and of blocks and records none is put there.
func (r *Reader) ReadOnce(ids []point.DenseID, ranked bool, lo, hi point.Nanos, spare int, f func(i int, run rows.Run) error) error {
	s := r.cache.getState()
	s.keep, s.once, s.ranked, s.spare = true, true, ranked, spare
	defer r.cache.putState(s)
	return r.read(s, ids, nil, lo, hi, f)
}

// Memory is reusable memory for rows. For one goroutine. Close it.
type Memory struct {
	cache *Cache
	state *readState
}

// Memory gives memory for reads of segments that share the cache.
func (c *Cache) Memory() *Memory {
	s := c.getState()
	s.keep = false
	return &Memory{c, s}
}

// Reset invalidates all rows that were read into the memory.
func (m *Memory) Reset() { m.state.again() }

// Close returns the memory to the pool.
func (m *Memory) Close() {
	m.cache.putState(m.state)
	m.state = nil
}

// ReadInto is ReadNew into m, which is of the reader's cache. Runs stay good until m is reset. at has the places of the series, if it is not nil: as Find gave them.
func (r *Reader) ReadInto(m *Memory, ids []point.DenseID, at []Place, lo, hi point.Nanos, spare int, f func(i int, run rows.Run) error) error {
	m.state.spare = spare
	return r.read(m.state, ids, at, lo, hi, f)
}

// read goes through the file once: places come in file order, so that the wanted series of a group are decoded together, from blocks that are read once,
// and groups without any are not touched. f gets a group's rows when all of it is decoded: a damaged block ends the read before a part of its group was used.
func (r *Reader) read(s *readState, ids []point.DenseID, at []Place, lo, hi point.Nanos, f func(i int, run rows.Run) error) error {
	if r.info.Rows == 0 || lo > hi || hi < r.info.TimeLo || lo > r.info.TimeHi {
		return nil
	}
	t, err := &tableIter{r: r, lazy: true}, error(nil)
	if at != nil {
		s.places = inFileOrder(given(ids, at, s.places[:0]))
	} else if err = s.findPlaces(t, ids); err != nil {
		_ = t.close()
		return err
	}
	for places := s.places; len(places) > 0; {
		n := 1
		for n < len(places) && places[n].at.group() == places[0].at.group() {
			n++
		}
		err = r.readGroup(t, s, places[:n], lo, hi)
		if err == nil && f != nil {
			err = hand(places[:n], s.runs, lo, hi, f)
		}
		if err != nil {
			_ = t.close()
			return err
		}
		places = places[n:]
	}
	return t.close()
}

// hand cuts runs to the range and calls f: blocks have rows before and after it.
func hand(ps []wanted, runs []rows.Run, lo, hi point.Nanos, f func(int, rows.Run) error) error {
	for i, p := range ps {
		runs[i].Cut(lo, hi)
		if runs[i].Len() == 0 {
			continue
		}
		if err := f(int(p.index), runs[i]); err != nil {
			return err
		}
	}
	return nil
}

// wanted is the place of a requested series, and its index.
type wanted struct {
	placed
	index int32
}

// given appends the places of the series that have rows, as they are known.
func given(ids []point.DenseID, at []Place, out []wanted) []wanted {
	for i, p := range at {
		if p > noRows {
			out = append(out, wanted{placed{ids[i], place(p - noRows - 1)}, int32(i)})
		}
	}
	return out
}

// inFileOrder sorts places, without doubles. Series that were written as neighbours are neighbours in the file: ids in label order have rising places.
func inFileOrder(all []wanted) []wanted {
	for i := 1; i < len(all); i++ {
		if all[i-1].at >= all[i].at {
			slices.SortFunc(all, func(a, b wanted) int { return cmp.Compare(a.at, b.at) })
			return slices.CompactFunc(all, func(a, b wanted) bool { return a.at == b.at })
		}
	}
	return all
}

// Whole returns how many of the series, from least to most, to read together so that no group is opened once for them
// and again for the next ones: the rest if it is no more than most, else up to where the last group begins.
func (r *Reader) Whole(ids []point.DenseID, least, most int) (int, error) {
	if len(ids) <= most {
		return len(ids), nil
	}
	if err := r.acquire(); err != nil {
		return 0, err
	}
	defer func() { _ = r.release() }()
	t, err := r.iter()
	if err != nil {
		return 0, err
	}
	n, last := most, int64(-1)
	from := least - 1
	err = r.eachPlace(t, ids[from:most+1], func(i int, at place) {
		if g := int64(at.group()); g != last {
			if i > 0 {
				n = from + i
			}
			last = g
		}
	})
	if cerr := t.close(); err == nil {
		err = cerr
	}
	return n, err
}

// failed is the error that ended a walk; nil when it ended at the end.
func (t *tableIter) failed() error {
	if t.it == nil || t.err != nil {
		return t.err
	}
	if err := t.it.Error(); err != nil {
		t.err = diskError(err, t.r.path)
	}
	return t.err
}

// readGroup fills s.runs with the rows of the places, all of one group, from the blocks that overlap [lo, hi].
func (r *Reader) readGroup(t *tableIter, s *readState, ps []wanted, lo, hi point.Nanos) error {
	number := ps[0].at.group()
	record, err := r.recordOf(t, s, number, len(ps))
	if err != nil {
		return err
	}
	s.recorded = record
	if s.short && record.rows() >= chunkRowsKept*len(record.ids) {
		return errUneven
	}
	for _, p := range ps {
		if p.at.slot() >= len(record.ids) || record.ids[p.at.slot()] != p.id {
			return r.corrupt(s.key, errForm("record of a group: another series lies at the place"))
		}
	}
	s.group = ps
	if s.only != nil && s.into != nil {
		s.gatherPlain(s.only, 1)
		return nil
	}
	s.wantOnly(ps)
	s.few = isFew(len(ps), len(record.ids))
	// Block ranges rise in lo, not in hi: rates of a group's series may differ. Blocks are cut off at the front up to the first that
	// reaches lo; blocks behind it that end before lo are read for nothing, and Cut removes their rows.
	blocks, first := record.blocks, 0
	for len(blocks) > 0 && blocks[len(blocks)-1].lo > hi {
		blocks = blocks[:len(blocks)-1]
	}
	for len(blocks) > 0 && blocks[0].hi < lo {
		blocks, first = blocks[1:], first+1
	}
	for i, b := range blocks {
		s.level, s.number = i, uint32(first+i)
		if err := r.takeBlock(t, s, pageKey{r, number, blockPage, b.lo}, b.rows, len(blocks)-i); err != nil {
			return err
		}
	}
	return nil
}

// recordOf returns the record of a group of which so many series are wanted. One whose blocks are kept open is kept too: where both are, nothing of the file
// is read, nor walked over. s.only is the only block of the group if it is plain.
func (r *Reader) recordOf(t *tableIter, s *readState, number uint32, wanted int) (*groupRecord, error) {
	k := pageKey{reader: r, group: number, page: recordPage}
	s.key = keyOfGroup(s.key, number, kindRecord)
	s.only = nil
	if isFew(wanted, GroupSeriesMax) {
		if p, ok := r.cache.page(k); ok {
			return p.record, nil
		}
	} else if !s.ranked {
		if p, ok := r.cache.page(onlyKey(r, number)); ok && p.record != nil {
			s.only = p.plain
			return p.record, nil
		}
	}
	if !t.find(s.key) {
		return nil, r.missing(t, s.key)
	}
	if err := s.record.parse(t.val); err != nil {
		return nil, r.corrupt(s.key, err)
	}
	if !s.once && isFew(wanted, len(s.record.ids)) {
		r.cache.putRecord(k, s.record.clone())
	}
	return &s.record, nil
}

// missing is the error of a key that must be there: that of the walk, if it failed, else Corrupt.
func (r *Reader) missing(t *tableIter, key []byte) error {
	if err := t.failed(); err != nil {
		return err
	}
	return r.corrupt(key, errForm("table: the key is missing"))
}

// openBlock finds block k in the cache or opens it. Of a block of which few series are wanted these are kept open: decompressing it is most of the work, and a
// query for some hosts is usually repeated. Where others are wanted while those are kept, the next query may be for others again: then all of it is kept.
// One of short chunks of which many are wanted is kept with its values, if there is room.
func (r *Reader) openBlock(t *tableIter, s *readState, k pageKey, rows int) error {
	s.plain = nil
	switch {
	case s.once:
		return r.loadBlock(t, s, k, rows)
	case s.only != nil:
		s.b, s.plain = nil, s.only
		return nil
	}
	of, plain, only := s.of, plainKey(k), len(s.recorded.blocks) == 1
	if only {
		plain = onlyKey(r, k.group)
	}
	if s.few {
		if p, ok := r.cache.page(k); ok {
			if p.block.of.hasAll(&of) {
				s.opened.use(p.block)
				s.b = &s.opened
				return nil
			}
			of = everySlot
		}
	}
	if p, ok := r.cache.page(plain); ok && !s.ranked {
		s.b, s.plain = nil, p.plain
		return nil
	}
	if err := r.loadBlock(t, s, k, rows); err != nil {
		return err
	}
	if (!s.few || of == everySlot) && !s.ranked && s.block.short() {
		bytes := s.block.plainBytes()
		if !s.few && !r.cache.admits(bytes) {
			return nil
		}
		if p := r.plain(s); p != nil {
			s.b, s.plain = nil, p
			var record *groupRecord
			if only {
				record = s.recorded.clone()
			}
			r.cache.putPlain(plain, k, p, record, bytes)
		}
		return nil
	}
	if !s.few {
		return nil
	}
	if b := s.block.keep(of); b != nil {
		r.cache.putBlock(k, b)
		s.opened.use(b)
		s.b = &s.opened
	}
	return nil
}

// isFew reports whether so few of a group's series are wanted that its record and blocks are kept.
func isFew(wanted, all int) bool { return 4*wanted <= all }

func (r *Reader) loadBlock(t *tableIter, s *readState, k pageKey, rows int) error {
	s.key = keyBlock(s.key, k.group, k.at)
	if !t.find(s.key) {
		return r.missing(t, s.key)
	}
	s.b = &s.block
	r.cache.opened.blocks.Add(1)
	r.cache.opened.bytes.Add(int64(len(t.val)))
	if err := s.block.open(t.val, k.group, r.cache.decoder); err != nil {
		return r.corrupt(s.key, err)
	}
	if s.block.rows != rows {
		return r.corrupt(s.key, errForm("block: its rows are not as many as the group's record says"))
	}
	return nil
}

// takeBlock appends the wanted chunks of a block to s.runs. left is the number of blocks still to come with this one:
// memory for a series' rows is allocated once.
func (r *Reader) takeBlock(t *tableIter, s *readState, k pageKey, total, left int) error {
	if err := r.openBlock(t, s, k, total); err != nil {
		return err
	}
	b := s.b
	if b == nil {
		return r.takePlain(s, s.plain, left)
	}
	if s.ranked {
		if err := r.openRanks(s, k.group); err != nil {
			return err
		}
	}
	// One allocation for all series of the group: an estimate, as take allocates where it is too little.
	if s.keep && s.level == 0 {
		s.values.fresh(s.wantedFloats(left))
	}
	for i := range b.chunks {
		ch := &b.chunks[i]
		var err error
		// A slot that the group's record does not have is passed over, as only a malformed file has one.
		if w := s.want[ch.slot]; w < 0 || int(w) >= len(s.runs) {
			err = b.skip(i)
		} else if s.into != nil {
			err = r.addChunk(s, i, s.into[s.group[w].index], left)
		} else {
			err = r.takeChunk(s, i, &s.runs[w], left)
		}
		if err != nil {
			return r.corrupt(s.key, err)
		}
	}
	return nil
}

// wantedFloats is how much memory the wanted series need if each of the blocks that are left is like the first.
func (s *readState) wantedFloats(left int) (n int) {
	for i := range s.b.chunks {
		if ch := &s.b.chunks[i]; s.want[ch.slot] >= 0 && ch.form != formHist {
			n += ch.rows*left + s.spare
		}
	}
	return n
}

// takeChunk decodes chunk i behind the rows of run. The first chunk of a run shares its column of times.
func (r *Reader) takeChunk(s *readState, i int, run *rows.Run, left int) error {
	ch := &s.b.chunks[i]
	ts, err := r.column(s, ch.times)
	if err != nil {
		return err
	}
	if len(ts) != ch.rows {
		return errForm("block: a chunk and its times differ in length")
	}
	run.Cover(ch.lo, ch.hi)
	if s.ranked {
		if err := r.rank(s, i, run); err != nil {
			return err
		}
	}
	if ch.form == formHist {
		if n := len(run.Hists); n > 0 && run.Hists[n-1].Time >= ts[0] {
			return errForm("block: times of a series do not rise")
		}
		hs, err := s.b.histograms(i, ts, true)
		run.Hists = append(run.Hists, hs...)
		return err
	}
	place, err := s.place(ts, run, left)
	if err == nil {
		s.b.values(i, place)
	}
	return err
}

// place appends times to a run, and returns the place of their values behind those that it has: in memory taken for all of its blocks.
func (s *readState) place(ts []point.Nanos, run *rows.Run, left int) ([]float64, error) {
	n, more := len(run.Times), len(ts)
	switch {
	case n == 0:
		run.Times = ts
		run.Reserve(s.values.take(more*left+s.spare, !s.keep))
	case run.Times[n-1] >= ts[0]:
		return nil, errForm("block: times of a series do not rise")
	default:
		run.Times = s.join(run.Times, ts, left)
	}
	return run.Extend(more, more*(left-1)+s.spare), nil
}

// column finds a column of times. Shared and read-only; its capacity is its length.
func (r *Reader) column(s *readState, at columnRef) ([]point.Nanos, error) {
	k := pageKey{reader: r, group: at.group, page: at.page}
	if s.pageKey != k {
		cols, err := r.timesPage(s, k)
		if err != nil {
			return nil, err
		}
		s.pageKey, s.page = k, cols
	}
	if int(at.index) >= len(s.page) {
		return nil, errForm("reference to a column of times")
	}
	return s.page[at.index], nil
}

// timesPage returns the columns of a page, from the cache or decoded into memory of their own.
func (r *Reader) timesPage(s *readState, k pageKey) (cols [][]point.Nanos, err error) {
	if cols, ok := r.cache.times(k); ok {
		return cols, nil
	}
	found, err := r.get(keyTimes(nil, k.group, k.page), func(v []byte) error {
		cols, err = s.times.open(v, r.cache.decoder)
		return err
	})
	if err == nil && !found {
		err = errForm("reference to a page of times")
	}
	if err != nil {
		return nil, err
	}
	r.cache.putTimes(k, cols)
	return cols, nil
}

// Cursor walks over all rows of a segment in group order, a group in memory at a time. Compaction reads many segments
// with one Cursor each. For one goroutine. Close it.
// A Cursor holds its file open until Close, and the rows of one group in memory: 2^20 and those of the last series at most.
type Cursor struct {
	r  *Reader
	t  *tableIter
	s  *readState
	at int // of the group's series

	number uint32 // of the next group
	err    error
}

// Cursor begins a walk; call Next first.
func (r *Reader) Cursor() (*Cursor, error) {
	if err := r.acquire(); err != nil {
		return nil, err
	}
	t, err := r.iter()
	if err != nil {
		_ = r.release()
		return nil, err
	}
	s := r.cache.getState()
	s.keep, s.once = false, true
	return &Cursor{r: r, t: t, s: s, at: -1}, nil
}

// Next moves to the next series that has rows; false at the end or on an error.
func (c *Cursor) Next() bool {
	if c.err != nil {
		return false
	}
	c.at++
	for c.at >= len(c.s.runs) {
		if !c.nextGroup() {
			return false
		}
	}
	return true
}

// At gives the series and its rows. The run is read only and valid until Next or Close.
func (c *Cursor) At() (point.DenseID, rows.Run) { return c.s.record.ids[c.at], c.s.runs[c.at] }

// Close ends the walk; also before its end.
func (c *Cursor) Close() error {
	if c.t == nil {
		return nil
	}
	err := c.t.close()
	c.t = nil
	c.r.cache.putState(c.s)
	c.s = nil
	_ = c.r.release()
	return err
}

// nextGroup decodes the next group into the memory of the one before, whose runs end with that. It checks that each series has rows: the
// writer adds none without.
func (c *Cursor) nextGroup() bool {
	s := c.s
	s.key = keyOfGroup(s.key, c.number, kindRecord)
	s.runs = s.runs[:0]
	if !c.t.find(s.key) {
		c.err = c.t.failed()
		return false
	}
	if err := s.record.parse(c.t.val); err != nil {
		c.err = c.r.corrupt(s.key, err)
		return false
	}
	s.wantAll()
	s.few = false
	s.again()
	for i, b := range s.record.blocks {
		s.level, s.number = i, uint32(i)
		if c.err = c.r.takeBlock(c.t, s, pageKey{c.r, c.number, blockPage, b.lo}, b.rows, len(s.record.blocks)-i); c.err != nil {
			return false
		}
	}
	for i := range s.runs {
		if s.runs[i].Len() == 0 {
			c.err = c.r.corrupt(s.key, errForm("group: a series without rows"))
			return false
		}
	}
	c.number++
	c.at = 0
	return true
}

// each walks to the end, and closes the cursor.
func (c *Cursor) each(f func(id point.DenseID, run rows.Run) error) error {
	for c.Next() {
		if err := f(c.At()); err != nil {
			_ = c.Close()
			return err
		}
	}
	err := c.Close()
	if c.err != nil {
		err = c.err
	}
	return err
}
