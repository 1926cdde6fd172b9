package forward

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestPiecesFitIntoFrames cuts batches of any mixture and looks at each piece as the server will: as one frame that brings
// all its series along. Nothing may be lost, doubled or reordered by the cutting.
func TestPiecesFitIntoFrames(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		d, b, longest := mixture(rng)
		rows, bytes := 1+rng.IntN(50), 200+rng.IntN(20_000)
		rest := pieces{ids: b.IDs, times: b.Times, values: b.Values, hists: b.Hists, exemplars: b.Exemplars}
		var got peer.Insert
		for rest.len() > 0 {
			var in peer.Insert
			rest.first(&in, rows)
			shorten(&in, bytes, longest, d)
			n := len(in.IDs) + len(in.Hists) + len(in.Exemplars)
			if n == 0 || n > rows {
				t.Fatalf("round %d: a piece of %d rows, want 1 to %d", round, n, rows)
			}
			if size := frameBytes(&in, d); size > bytes && n > 1 {
				t.Fatalf("round %d: a piece of %d rows makes a frame of %d bytes, want at most %d", round, n, size, bytes)
			}
			got.IDs, got.Times, got.Values = append(got.IDs, in.IDs...), append(got.Times, in.Times...), append(got.Values, in.Values...)
			got.Hists, got.Exemplars = append(got.Hists, in.Hists...), append(got.Exemplars, in.Exemplars...)
			rest.drop(&in)
		}
		want := peer.Insert{IDs: b.IDs, Times: b.Times, Values: b.Values, Hists: b.Hists, Exemplars: b.Exemplars}
		if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
			t.Fatalf("round %d: the pieces are\n%.300s\nthe batch is\n%.300s", round, g, w)
		}
	}
}

// mixture makes a batch of floats, histograms and exemplars with labels that are mostly short and sometimes very long.
func mixture(rng *rand.Rand) (*point.Dict, *point.Batch, int) {
	d := point.NewDict(0)
	b := &point.Batch{Dict: d}
	longest := 0
	id := func() point.SeriesID {
		l := point.MakeLabels(point.MetricName, "m", "x", strings.Repeat("y", rng.IntN(20)), "i", fmt.Sprint(rng.IntN(30)))
		if rng.IntN(20) == 0 {
			l = point.MakeLabels(point.MetricName, "m", "x", strings.Repeat("z", rng.IntN(10_000)))
		}
		longest = max(longest, len(l))
		n, err := d.InternLabels(l, d.Hash([]byte(l)))
		if err != nil {
			panic(err)
		}
		return n
	}
	for range rng.IntN(150) {
		b.Append(id(), rng.Int64(), rng.Float64())
	}
	for range rng.IntN(50) {
		b.Hists = append(b.Hists, point.HistRow{ID: id(), Time: rng.Int64(), H: make([]byte, rng.IntN(3000))})
	}
	for range rng.IntN(50) {
		b.Exemplars = append(b.Exemplars, point.ExemplarRow{ID: id(), Time: rng.Int64(), Labels: point.Labels(strings.Repeat("e", rng.IntN(3000)))})
	}
	return d, b, longest
}

// frameBytes is the size, before compression, of the frame that a piece becomes in a partition without any of its series.
func frameBytes(in *peer.Insert, d *point.Dict) int {
	f := frame.Frame{Kind: frame.Rows, Times: in.Times, Values: in.Values}
	dense := map[point.SeriesID]point.DenseID{}
	id := func(s point.SeriesID) point.DenseID {
		n, ok := dense[s]
		if !ok {
			n = point.DenseID(len(dense))
			dense[s] = n
			f.Defs = append(f.Defs, d.Labels(s))
		}
		return n
	}
	for _, s := range in.IDs {
		f.IDs = append(f.IDs, id(s))
	}
	for _, h := range in.Hists {
		f.Hists = append(f.Hists, frame.HistRow{ID: id(h.ID), Time: h.Time, H: h.H})
	}
	for _, e := range in.Exemplars {
		f.Exemplars = append(f.Exemplars, frame.ExemplarRow{ID: id(e.ID), Time: e.Time, Value: e.Value, Labels: e.Labels})
	}
	var enc frame.Encoder
	return int(binary.LittleEndian.Uint32(enc.Append(nil, &f)[52:])) // where protocols/frame/FORMAT.md has it
}
