package segment

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// arena hands out memory of one group's rows: fresh for Read, whose runs live on, the same again for a Cursor.
type arena[T any] struct{ mem, free []T }

// fresh forgets what was handed out and prepares exactly n.
func (a *arena[T]) fresh(n int) {
	a.mem = make([]T, n)
	a.free = a.mem
}

// again takes everything back.
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
	times  timesReader

	// Of the group being read.
	want [groupSeriesMax]int16 // slot → index into runs, -1: not wanted
	runs []rows.Run

	values arena[float64]
	nanos  arena[point.Nanos]
	keep   bool // runs live on after the group: a Read

	// The page of times used last.
	pageKey pageKey
	page    [][]point.Nanos
}

func (c *Cache) getState() *readState { return c.scratch.Get().(*readState) }

// arenaKept bounds the rows whose memory a pooled state may hold on to.
const arenaKept = 1 << 18

func (c *Cache) putState(s *readState) {
	clear(s.runs)
	s.runs, s.pageKey, s.page = s.runs[:0], pageKey{}, nil
	if s.keep || len(s.values.mem) > arenaKept {
		s.values, s.nanos = arena[float64]{}, arena[point.Nanos]{}
	}
	s.block.hists, s.block.histLens = nil, cursor{}
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
func (s *readState) wantOnly(ps []placed) {
	for i := range s.want {
		s.want[i] = -1
	}
	for i, p := range ps {
		s.want[p.at.slot()] = int16(i)
	}
	s.runs = slices.Grow(s.runs[:0], len(ps))[:len(ps)]
	clear(s.runs)
}

// Read calls f with the rows in [lo, hi] of those of the series that have any, in file order, each series once. ids may
// be in any order. The run's values and histograms belong to f; its times may be shared with other runs and are only
// read. f's error ends the read and is returned as it is.
func (r *Reader) Read(ids []point.DenseID, lo, hi point.Nanos, f func(id point.DenseID, run rows.Run) error) error {
	if r.info.Rows == 0 || lo > hi || hi < r.info.TimeLo || lo > r.info.TimeHi {
		return nil
	}
	if err := r.acquire(); err != nil {
		return err
	}
	defer func() { _ = r.release() }()
	t, err := r.iter()
	if err != nil {
		return err
	}
	places, err := r.places(t, ids)
	if err != nil {
		_ = t.close()
		return err
	}
	s := r.cache.getState()
	s.keep = true
	defer r.cache.putState(s)
	for len(places) > 0 {
		n := 1
		for n < len(places) && places[n].at.group() == places[0].at.group() {
			n++
		}
		err = r.readGroup(t, s, places[:n], lo, hi)
		if err == nil {
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

func hand(ps []placed, runs []rows.Run, lo, hi point.Nanos, f func(point.DenseID, rows.Run) error) error {
	for i, p := range ps {
		runs[i].Cut(lo, hi)
		if runs[i].Len() == 0 {
			continue
		}
		if err := f(p.id, runs[i]); err != nil {
			return err
		}
	}
	return nil
}

// places finds where the series lie, in file order, without doubles and without series that have no rows here.
func (r *Reader) places(t *tableIter, ids []point.DenseID) ([]placed, error) {
	if !slices.IsSorted(ids) {
		ids = slices.Clone(ids)
		slices.Sort(ids)
	}
	out := make([]placed, 0, len(ids))
	var key []byte
	for len(ids) > 0 {
		page, n := uint32(ids[0])/pagePlaces, 0
		key = key32(key, keyPlace, page)
		held := t.find(key)
		for ; n < len(ids) && uint32(ids[n])/pagePlaces == page; n++ {
			if !held || n > 0 && ids[n] == ids[n-1] {
				continue
			}
			at, ok, err := lookupPlace(t.val, ids[n])
			if err != nil {
				return nil, r.corrupt(key, err)
			}
			if ok {
				out = append(out, placed{ids[n], at})
			}
		}
		if err := t.failed(); err != nil {
			return nil, err
		}
		ids = ids[n:]
	}
	slices.SortFunc(out, func(a, b placed) int { return int(int64(a.at) - int64(b.at)) })
	return out, nil
}

// failed is the error that ended a walk; nil when it ended at the end.
func (t *tableIter) failed() error {
	if err := t.it.Error(); err != nil && t.err == nil {
		t.err = diskError(err, t.r.path)
	}
	return t.err
}

// readGroup fills s.runs with the rows of the places, all of one group, from the blocks that overlap [lo, hi].
func (r *Reader) readGroup(t *tableIter, s *readState, ps []placed, lo, hi point.Nanos) error {
	number := ps[0].at.group()
	s.key = keyOfGroup(s.key, number, kindRecord)
	if !t.find(s.key) {
		return r.missing(t, s.key)
	}
	if err := s.record.parse(t.val); err != nil {
		return r.corrupt(s.key, err)
	}
	for _, p := range ps {
		if p.at.slot() >= len(s.record.ids) || s.record.ids[p.at.slot()] != p.id {
			return r.corrupt(s.key, errForm("record of a group: another series lies at the place"))
		}
	}
	s.wantOnly(ps)
	blocks := s.record.blocks
	for len(blocks) > 0 && blocks[len(blocks)-1].lo > hi {
		blocks = blocks[:len(blocks)-1]
	}
	for i, b := range blocks {
		if b.hi < lo {
			continue
		}
		s.key = keyBlock(s.key, number, b.lo)
		if !t.find(s.key) {
			return r.missing(t, s.key)
		}
		if err := r.takeBlock(s, t.val, number, b.rows, len(blocks)-i); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reader) missing(t *tableIter, key []byte) error {
	if err := t.failed(); err != nil {
		return err
	}
	return r.corrupt(key, errForm("table: the key is missing"))
}

// takeBlock appends the wanted chunks of a block to s.runs. left is the number of blocks still to come with this one:
// memory for a series' rows is taken once.
func (r *Reader) takeBlock(s *readState, value []byte, number uint32, total, left int) error {
	b := &s.block
	if err := b.open(value, number, r.cache.decoder); err != nil {
		return r.corrupt(s.key, err)
	}
	if b.rows != total {
		return r.corrupt(s.key, errForm("block: its rows are not as many as the group's record says"))
	}
	if s.keep && left == 1 {
		s.values.fresh(s.wantedFloats())
	}
	for i := range b.chunks {
		ch := &b.chunks[i]
		var err error
		if w := s.want[ch.slot]; w < 0 || int(w) >= len(s.runs) {
			err = b.skip(i)
		} else {
			err = r.takeChunk(s, i, &s.runs[w], left)
		}
		if err != nil {
			return r.corrupt(s.key, err)
		}
	}
	return nil
}

func (s *readState) wantedFloats() (n int) {
	for i := range s.block.chunks {
		if ch := &s.block.chunks[i]; s.want[ch.slot] >= 0 && ch.form != formHist {
			n += ch.rows
		}
	}
	return n
}

// takeChunk decodes chunk i behind the rows of run. The first chunk of a run shares its column of times.
func (r *Reader) takeChunk(s *readState, i int, run *rows.Run, left int) error {
	ch := &s.block.chunks[i]
	ts, err := r.column(s, ch.times)
	if err != nil {
		return err
	}
	if len(ts) != ch.rows {
		return errForm("block: a chunk and its times differ in length")
	}
	if run.Len() == 0 {
		run.StampLo, run.StampHi = ch.lo, ch.hi
	}
	run.StampLo, run.StampHi = min(run.StampLo, ch.lo), max(run.StampHi, ch.hi)
	if ch.form == formHist {
		if n := len(run.Hists); n > 0 && run.Hists[n-1].Time >= ts[0] {
			return errForm("block: times of a series do not rise")
		}
		hs, err := s.block.histograms(i, ts, true)
		run.Hists = append(run.Hists, hs...)
		return err
	}
	return s.takeFloats(i, ts, run, left)
}

func (s *readState) takeFloats(i int, ts []point.Nanos, run *rows.Run, left int) error {
	n, more := len(run.Times), len(ts)
	switch {
	case n == 0:
		run.Times, run.Values = ts, s.values.take(more*left, !s.keep)
	case run.Times[n-1] >= ts[0]:
		return errForm("block: times of a series do not rise")
	default:
		if cap(run.Times) == n { // still the shared column
			run.Times = append(s.nanos.take(n+more*left, !s.keep), run.Times...)
		}
		run.Times = append(run.Times, ts...)
		run.Values = slices.Grow(run.Values, more)
	}
	run.Values = run.Values[:n+more]
	s.block.values(i, run.Values[n:])
	return nil
}

// column finds a column of times. Shared and read-only; its capacity is its length.
func (r *Reader) column(s *readState, at columnRef) ([]point.Nanos, error) {
	k := pageKey{r, at.group, at.page}
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

// Cursor walks over all rows of a segment in group order, a group in memory at a time: what compaction reads, from many
// segments at once. For one goroutine. Close it.
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
	s.keep = false
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

// Err is why Next ended early.
func (c *Cursor) Err() error { return c.err }

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
	s.values.again()
	s.nanos.again()
	for i, b := range s.record.blocks {
		s.key = keyBlock(s.key, c.number, b.lo)
		if !c.t.find(s.key) {
			c.err = c.r.missing(c.t, s.key)
			return false
		}
		if c.err = c.r.takeBlock(s, c.t.val, c.number, b.rows, len(s.record.blocks)-i); c.err != nil {
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

// Scan calls f with all rows, series by series in group order, a group in memory at a time. The run is read only and
// valid during the call. f's error ends the scan and is returned as it is.
func (r *Reader) Scan(f func(id point.DenseID, run rows.Run) error) error {
	c, err := r.Cursor()
	if err != nil {
		return err
	}
	for c.Next() {
		if err := f(c.At()); err != nil {
			_ = c.Close()
			return err
		}
	}
	err = c.Close()
	if c.err != nil {
		err = c.err
	}
	return err
}
