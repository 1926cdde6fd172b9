package rpc

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A batch is some series of a select: labels, then columns of times, then columns of values, each column as it lies in
// memory. FORMAT.md draws it.

// Formats of batches. The second has the ranks of rows; it is written only to peers that ask for ranks.
const (
	batchVersion = 1
	batchRanked  = 2
)

const (
	batchLen = 40

	batchGoesOn = 1 << 0 // the first series of the next batch is the rest of this one's last
	batchKnown  = batchGoesOn
)

// A batch is sent when it has so many bytes or series; a series with more rows is sent in pieces.
const (
	batchBytesMax  = 256 << 10
	batchSeriesMax = 4 << 10
	pieceRowsMax   = 32 << 10 // of 16 bytes
)

// Forms of a column of times.
const (
	timesRaw  = 0
	timesRuns = 1
)

// batchWriter fills batches. It keeps scratch memory: pool it, and Reset before use. Of the series it keeps nothing
// after Reset.
type batchWriter struct {
	labels  labelWriter
	series  []byte
	times   []byte
	hists   []byte
	ranks   []byte
	values  []byte
	ranked  bool // set before the first series
	columns int
	last    []point.Nanos // the newest column
	count   int
	packed  []byte
}

func (w *batchWriter) Reset() {
	w.labels.Reset()
	w.series, w.times, w.hists, w.ranks, w.values = w.series[:0], w.times[:0], w.hists[:0], w.ranks[:0], w.values[:0]
	w.columns, w.last, w.count = 0, nil, 0
}

func (w *batchWriter) full() bool {
	return w.count >= batchSeriesMax || len(w.values)+len(w.times)+len(w.hists)+len(w.ranks)+w.labels.bytes >= batchBytesMax
}

// add appends a series, or a piece of one. Times are written once for neighbours that share them.
func (w *batchWriter) add(s *peer.Series) {
	w.labels.add(s.Labels)
	w.count++
	column := 0 // none: the series has only histograms
	if len(s.Times) > 0 {
		if w.columns == 0 || !sameTimes(w.last, s.Times) {
			w.addTimes(s.Times)
			w.columns, w.last = w.columns+1, s.Times
		}
		column = w.columns // counted from 1; always the newest, as times are compared with that alone
	}
	w.series = binary.AppendUvarint(w.series, uint64(column))
	for _, v := range s.Values {
		w.values = binary.LittleEndian.AppendUint64(w.values, math.Float64bits(v))
	}
	w.series = binary.AppendUvarint(w.series, uint64(len(s.Hists)))
	last := point.Nanos(0)
	for _, h := range s.Hists {
		w.hists = binary.AppendVarint(w.hists, h.Time-last)
		w.hists = binary.AppendUvarint(w.hists, uint64(len(h.H)))
		w.hists = append(w.hists, h.H...)
		last = h.Time
	}
	if w.ranked {
		w.addRanks(s)
	}
}

// addRanks writes the ranks of the floats, then of the histograms, as runs. A missing one is 0.
func (w *batchWriter) addRanks(s *peer.Series) {
	rank := func(i int) point.Stamp {
		of := s.Ranks
		if i >= len(s.Times) {
			of, i = s.HistRanks, i-len(s.Times)
		}
		if i >= len(of) {
			return 0
		}
		return of[i]
	}
	last := point.Stamp(0)
	for i, n := 0, len(s.Times)+len(s.Hists); i < n; {
		r, from := rank(i), i
		for i++; i < n && rank(i) == r; {
			i++
		}
		w.ranks = binary.AppendVarint(w.ranks, int64(r-last))
		w.ranks = binary.AppendUvarint(w.ranks, uint64(i-from))
		last = r
	}
}

// sameTimes compares, by address first.
func sameTimes(a, b []point.Nanos) bool {
	return len(a) == len(b) && (&a[0] == &b[0] || slices.Equal(a, b))
}

// addTimes writes a column as it is, or as runs of equal distances where there are at most half as many runs as times.
func (w *batchWriter) addTimes(ts []point.Nanos) {
	w.times = binary.AppendUvarint(w.times, uint64(len(ts)))
	runs := 0
	for i := 1; i < len(ts); i++ {
		if i == 1 || ts[i]-ts[i-1] != ts[i-1]-ts[i-2] {
			runs++
		}
	}
	if runs > len(ts)/2 {
		w.times = append(w.times, timesRaw)
		for _, t := range ts {
			w.times = binary.LittleEndian.AppendUint64(w.times, uint64(t))
		}
		return
	}
	w.times = append(w.times, timesRuns)
	w.times = binary.LittleEndian.AppendUint64(w.times, uint64(ts[0]))
	for i := 1; i < len(ts); {
		step, from := ts[i]-ts[i-1], i
		for i++; i < len(ts) && ts[i]-ts[i-1] == step; {
			i++
		}
		w.times = binary.AppendVarint(w.times, step)
		w.times = binary.AppendUvarint(w.times, uint64(i-from))
	}
}

// pack compresses the labels and returns the length of the batch; append then appends so many bytes.
func (w *batchWriter) pack() int {
	w.packed = appendS2(w.packed[:0], w.labels.b)
	return batchLen + len(w.packed) + len(w.series) + len(w.times) + len(w.hists) + len(w.ranks) + len(w.values)
}

func (w *batchWriter) append(dst []byte, flags byte) []byte {
	version := byte(batchVersion)
	if w.ranked {
		version = batchRanked
	}
	dst = append(dst, version, flags, 0, 0)
	for _, n := range [...]int{w.count, w.columns, len(w.labels.b), len(w.packed), len(w.series), len(w.times), len(w.hists), len(w.values), len(w.ranks)} {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(n))
	}
	dst = append(dst, w.packed...)
	dst = append(dst, w.series...)
	dst = append(dst, w.times...)
	dst = append(dst, w.hists...)
	dst = append(dst, w.ranks...)
	return append(dst, w.values...)
}

// batchReader reads batches. It keeps scratch memory; the zero value is ready.
type batchReader struct {
	labels labelReader
	body   []byte
	cols   [][]point.Nanos
}

// batchHead is the beginning of a batch.
type batchHead struct {
	ranked                                                              bool
	flags                                                               byte
	count, columns, labels, packed, series, times, hists, values, ranks int
}

func decodeBatchHead(b []byte) (h batchHead, err error) {
	if len(b) < batchLen {
		return h, fault.Errorf(fault.Corrupt, "a batch of %d bytes, its header has %d", len(b), batchLen)
	}
	if b[0] != batchVersion && b[0] != batchRanked || b[1]&^batchKnown != 0 || b[2]|b[3] != 0 {
		return h, fault.Errorf(fault.Corrupt, "a batch begins with % x; known are versions %d and %d", b[:4], batchVersion, batchRanked)
	}
	h.flags, h.ranked = b[1], b[0] == batchRanked
	u := func(i int) int { return int(binary.LittleEndian.Uint32(b[4+4*i:])) }
	h.count, h.columns, h.labels, h.packed, h.series, h.times, h.hists, h.values, h.ranks = u(0), u(1), u(2), u(3), u(4), u(5), u(6), u(7), u(8)
	switch {
	case batchLen+h.packed+h.series+h.times+h.hists+h.ranks+h.values != len(b):
		return h, fault.Errorf(fault.Corrupt, "a batch of %d bytes whose parts do not fill it", len(b))
	// Memory is allocated by these numbers, so each is checked against the bytes that have come: a series needs at least two, and a column of times belongs to
	// a series.
	case h.count > h.series/2 || h.count > labelSetsMax || h.columns > h.count || h.values%8 != 0 || h.ranks > 0 && !h.ranked:
		return h, fault.Errorf(fault.Corrupt, "a batch of %d series and %d columns does not fit its %d bytes", h.count, h.columns, len(b))
	}
	return h, nil
}

// decode reads a batch into new memory that stays valid; nothing of b is kept. goesOn: the last series continues in the
// next batch. Errors are Corrupt.
func (r *batchReader) decode(b []byte) (out []peer.Series, goesOn bool, err error) {
	h, err := decodeBatchHead(b)
	if err != nil {
		return nil, false, err
	}
	b = b[batchLen:]
	cut := func(n int) []byte { part := b[:n:n]; b = b[n:]; return part }
	packed, series, times, hists, ranks, raw := cut(h.packed), cut(h.series), cut(h.times), cut(h.hists), cut(h.ranks), b
	if r.body, err = unpack(r.body, packed, uint32(h.labels)); err != nil {
		return nil, false, err
	}
	if h.count > len(r.body) { // a label set has a byte at least
		return nil, false, errLabels
	}
	if err := r.columns(times, h.columns, h.values/8); err != nil {
		return nil, false, err
	}
	values := make([]float64, h.values/8)
	for i := range values {
		values[i] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:]))
	}
	if len(hists) > 0 {
		hists = slices.Clone(hists) // one piece of memory for all histograms of the batch
	}
	out = make([]peer.Series, h.count)
	r.labels.reset(r.body)
	var hs []peer.Hist
	for i := range out {
		s := &out[i]
		if s.Labels, err = r.labels.read(); err != nil {
			return nil, false, err
		}
		var column, n uint64
		if column, series = uvarint(series); column > uint64(len(r.cols)) || series == nil {
			return nil, false, errBatch
		}
		if column > 0 {
			s.Times = r.cols[column-1]
			if len(values) < len(s.Times) {
				return nil, false, errBatch
			}
			s.Values, values = values[:len(s.Times):len(s.Times)], values[len(s.Times):]
		}
		if n, series = uvarint(series); series == nil || n > uint64(len(hists)/2) {
			return nil, false, errBatch
		}
		if n > 0 {
			hs = make([]peer.Hist, n)
			if hists, err = readHists(hs, hists); err != nil {
				return nil, false, err
			}
			s.Hists = hs
		}
		if h.ranked {
			if ranks, err = readRanks(s, ranks); err != nil {
				return nil, false, err
			}
		}
	}
	if len(r.labels.b)+len(series)+len(hists)+len(ranks)+len(values) > 0 {
		return nil, false, errBatch
	}
	clear(r.cols) // the scratch memory must not keep the answer alive
	return out, h.flags&batchGoesOn != 0, nil
}

var errBatch = fault.Errorf(fault.Corrupt, "a batch is malformed")

// uvarint cuts a number; rest is nil when there is none.
func uvarint(b []byte) (v uint64, rest []byte) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil
	}
	return v, b[n:len(b):len(b)]
}

func readHists(hs []peer.Hist, b []byte) ([]byte, error) {
	last := point.Nanos(0)
	for i := range hs {
		step, n := binary.Varint(b)
		if n <= 0 {
			return nil, errBatch
		}
		length, rest := uvarint(b[n:])
		if rest == nil || length > uint64(len(rest)) {
			return nil, errBatch
		}
		last += step
		hs[i] = peer.Hist{Time: last, H: rest[:length:length]}
		b = rest[length:]
	}
	return b, nil
}

// readRanks reads the ranks of a series' rows, which are there already.
func readRanks(s *peer.Series, b []byte) ([]byte, error) {
	all := make([]point.Stamp, len(s.Times)+len(s.Hists))
	last := point.Stamp(0)
	for i := 0; i < len(all); {
		step, k := binary.Varint(b)
		if k <= 0 {
			return nil, errBatch
		}
		n, rest := uvarint(b[k:])
		if rest == nil || n == 0 || n > uint64(len(all)-i) {
			return nil, errBatch
		}
		last += point.Stamp(step)
		for end := i + int(n); i < end; i++ {
			all[i] = last
		}
		b = rest
	}
	floats := len(s.Times)
	s.Ranks, s.HistRanks = all[:floats:floats], all[floats:]
	return b, nil
}

// columns reads the columns of times. For each time of a column some series has a value, so all columns together have at most as many times as there are
// values, rows. Without that bound a run of a few bytes could ask for memory of any size.
func (r *batchReader) columns(b []byte, n, rows int) error {
	r.cols = r.cols[:0]
	for range n {
		length, rest := uvarint(b)
		if len(rest) == 0 || length == 0 || length > uint64(rows) {
			return errBatch
		}
		rows -= int(length)
		form := rest[0]
		b = rest[1:]
		if len(b) < 8 || form == timesRaw && uint64(len(b)) < 8*length {
			return errBatch
		}
		ts := make([]point.Nanos, length)
		var err error
		switch form {
		case timesRaw:
			for i := range ts {
				ts[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
			}
			b = b[8*length:]
		case timesRuns:
			b, err = readRuns(ts, b)
		default:
			err = errBatch
		}
		if err != nil {
			return err
		}
		r.cols = append(r.cols, ts)
	}
	if len(b) > 0 {
		return errBatch
	}
	return nil
}

func readRuns(ts []point.Nanos, b []byte) ([]byte, error) {
	ts[0] = int64(binary.LittleEndian.Uint64(b))
	b = b[8:]
	for i := 1; i < len(ts); {
		step, k := binary.Varint(b)
		if k <= 0 {
			return nil, errBatch
		}
		n, rest := uvarint(b[k:])
		if rest == nil || n == 0 || n > uint64(len(ts)-i) {
			return nil, errBatch
		}
		for end := i + int(n); i < end; i++ {
			ts[i] = ts[i-1] + step
		}
		b = rest
	}
	return b, nil
}
