package segment

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
)

// words cuts data into little-endian words, at most max.
func words(data []byte, max int) (ws []uint64) {
	for len(data) >= 8 && len(ws) < max {
		ws = append(ws, binary.LittleEndian.Uint64(data))
		data = data[8:]
	}
	return ws
}

func appendFloats(vs ...float64) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	return b
}

// FuzzValues: any doubles come back bit by bit. Each word is one value; with decimals > 0 words become decimals first, so
// that the fuzzer finds its way into the integer forms.
func FuzzValues(f *testing.F) {
	f.Add(appendFloats(oddValues...), uint8(0))
	f.Add(appendFloats(1, 2, 3, 4.5, math.NaN(), 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17), uint8(0))
	f.Add(appendFloats(5, 1, 2, 3, 1<<40, 12), uint8(3))
	c := newDecoder()
	f.Fuzz(func(t *testing.T, data []byte, decimals uint8) {
		ws := words(data, chunkRowsMax)
		if len(ws) == 0 {
			return
		}
		vs := make([]float64, len(ws))
		for i, w := range ws {
			vs[i] = math.Float64frombits(w)
			if decimals > 0 {
				vs[i] = float64(int64(w)>>(w%64)) / pow10[decimals%(scaleMax+1)]
			}
		}
		var b block
		var e valueEncoder
		b.addFloats(chunk{rows: len(vs)}, vs, &e)
		b.addFloats(chunk{slot: 1, rows: 1}, vs[:1], &e) // a neighbour in the same planes
		var r blockReader
		check(t, r.open(b.pack(nil, 0, newPacker()), 0, c))
		got := make([]float64, len(vs))
		r.values(0, got)
		for i := range vs {
			if math.Float64bits(got[i]) != math.Float64bits(vs[i]) {
				t.Fatalf("value %d: %x (%v), want %x (%v)", i, math.Float64bits(got[i]), got[i], ws[i], vs[i])
			}
		}
		r.values(1, got[:1])
		if math.Float64bits(got[0]) != math.Float64bits(vs[0]) {
			t.Fatalf("the neighbour's value is %v, want %v", got[0], vs[0])
		}
	})
}

// FuzzTimes: any strictly rising times come back. Words are distances, shifted right by shift and scaled by unit.
func FuzzTimes(f *testing.F) {
	f.Add(int64(1_700_000_000e9), appendFloats(1, 1, 1), uint8(40), uint8(2))
	f.Add(int64(math.MinInt64), []byte("\x00\x00\x00\x00\x00\x00\x00\x7f\x00\x00\x00\x00\x00\x00\x00\x7f"), uint8(0), uint8(0))
	f.Add(int64(-3), appendFloats(1, 2, 3, 4, 5, 6), uint8(54), uint8(3))
	c := newDecoder()
	f.Fuzz(func(t *testing.T, from int64, data []byte, shift, unit uint8) {
		ts := []point.Nanos{from}
		for _, w := range words(data, chunkRowsMax-1) {
			last := ts[len(ts)-1]
			if next := last + int64(w>>(shift%64)*units[unit%4]); next > last {
				ts = append(ts, next)
			}
		}
		var p timesPage
		p.add(ts)
		p.add(ts[len(ts)/2:])
		var r timesReader
		cols, err := r.open(p.pack(nil, newPacker()), c)
		check(t, err)
		if !slices.Equal(cols[0], ts) || !slices.Equal(cols[1], ts[len(ts)/2:]) {
			t.Fatalf("got %v, want %v", cols, ts)
		}
	})
}

// FuzzRanks: any ranks come back. Words are ranks, shifted right by shift, each added to the one before if sum.
func FuzzRanks(f *testing.F) {
	f.Add(appendFloats(1, 1, 1), uint8(40), true)
	f.Add(appendFloats(1, -1, 1e300, 5), uint8(0), false)
	f.Add(appendFloats(3, 2, 1), uint8(54), true)
	d := newDecoder()
	f.Fuzz(func(t *testing.T, data []byte, shift uint8, sum bool) {
		var rs []point.Stamp
		for i, w := range words(data, chunkRowsMax) {
			rs = append(rs, point.Stamp(w>>(shift%64)))
			if sum && i > 0 {
				rs[i] += rs[i-1]
			}
		}
		if len(rs) < 2 {
			return
		}
		var p ranksPage
		p.add(rs)
		p.add(rs[len(rs)-2:])
		chunks := []chunk{{ranked: true}, {}, {ranked: true, ranks: columnRef{group: 3, page: 7, index: 255}}}
		o, err := parseRanks(p.pack(nil, chunks, 9, newPacker()), 9, d)
		check(t, err)
		if !slices.Equal(o.columns[0].ranks, rs) || !slices.Equal(o.columns[1].ranks, rs[len(rs)-2:]) {
			t.Fatalf("got %v, want %v", o.columns, rs)
		}
		if want := (rankRef{true, chunks[2].ranks}); len(o.refs) != 3 || !o.refs[0].ranked || o.refs[1].ranked || o.refs[2] != want {
			t.Fatalf("references %v", o.refs)
		}
	})
}

// FuzzRecords: for any bytes of a record its parser returns, and allocates no more memory than the format allows.
func FuzzRecords(f *testing.F) {
	s := withRanks(small())
	var g group
	var e valueEncoder
	cols := columnIndexes{times: newColumnIndex(), ranks: newColumnIndex()}
	for _, id := range s.order {
		r := s.runs[id]
		g.add(id, &r, cols, &e)
	}
	pk := newPacker()
	f.Add(uint8(0), g.record(nil))
	for _, b := range g.blocks[:g.used] {
		f.Add(uint8(1), b.pack(nil, 0, pk))
		f.Add(uint8(2), b.page.pack(nil, pk))
		f.Add(uint8(8), b.ranks.pack(nil, b.chunks, 0, pk))
	}
	f.Add(uint8(3), packDefinitions(nil, s.defs, pk))
	p := postings{names: map[string]map[string]*runs{}}
	for _, d := range s.defs {
		p.add(d.id, d.labels, 0)
	}
	check(f, p.write(func(key, value []byte) error {
		kind := uint8(5)
		if len(key) == 1 {
			kind = 4
		}
		f.Add(kind, slices.Clone(value))
		return nil
	}, pk))
	f.Add(uint8(6), packExemplars(s.exemplars[12], pk))
	f.Add(uint8(7), appendHeader(nil, &Info{Meta: s.meta, FormatVersion: s.meta.formatVersion()}))
	deleted := described().meta
	f.Add(uint8(7), appendHeader(nil, &Info{Meta: deleted, FormatVersion: deleted.formatVersion()}))
	f.Add(uint8(9), appendRanked(nil, &Info{Rows: 9, RankedRows: 9, RankBytes: 500}))
	d := newDecoder()
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		switch kind % 10 {
		case 0:
			_ = new(groupRecord).parse(b)
		case 1:
			consumeBlock(b)
		case 2:
			cols, _ := new(timesReader).open(b, d)
			for _, c := range cols {
				if !slices.IsSorted(c) {
					t.Fatal("times do not rise")
				}
			}
		case 3:
			_, _ = parseDefinitions(b, d)
		case 4:
			_, _, _ = parseNames(nil, b, d)
		case 5:
			_ = eachPosting(b, d, func(string, cursor) bool { return true })
		case 6:
			_, _ = parseExemplars(b, d)
		case 7:
			_, _ = parseHeader(b)
		case 8:
			_, _ = parseRanks(b, 1<<20, d)
		case 9:
			_ = (&Info{Rows: 1 << 20}).parseRanked(b)
		}
	})
}

// consumeBlock opens a block and reads every chunk, as a scan does.
func consumeBlock(b []byte) {
	d := newDecoder()
	defer d.Close()
	var r blockReader
	if r.open(b, 1<<20, d) != nil {
		return
	}
	for i := range r.chunks {
		ch := &r.chunks[i]
		if ch.form != formHist {
			r.values(i, make([]float64, ch.rows))
		} else if _, err := r.histograms(i, make([]point.Nanos, ch.rows), true); err != nil {
			return
		}
	}
}
