package segment

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// source is the input of a test: definitions, then series in group order, then exemplars.
type source struct {
	meta      Meta
	defs      []definition
	order     []point.DenseID
	runs      map[point.DenseID]rows.Run
	exemplars map[point.DenseID][]point.ExemplarRow
}

func (s *source) add(id point.DenseID, r rows.Run) {
	if s.runs == nil {
		s.runs = map[point.DenseID]rows.Run{}
	}
	s.order = append(s.order, id)
	s.runs[id] = r
}

func (s *source) write(t testing.TB, fs vfs.FS, path string) Info {
	t.Helper()
	w, err := Create(fs, path, s.meta, Settings{})
	check(t, err)
	for _, d := range s.defs {
		check(t, w.Define(d.id, d.labels))
	}
	for _, id := range s.order {
		r := s.runs[id]
		check(t, w.Add(id, &r))
	}
	for _, id := range s.order {
		check(t, w.AddExemplars(id, s.exemplars[id]))
	}
	info, err := w.Finish()
	check(t, err)
	return info
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openCache(t testing.TB, size int64) *Cache {
	c := NewCache(size)
	t.Cleanup(c.Close)
	return c
}

func openSegment(t testing.TB, fs vfs.FS, path string, info Info, c *Cache) *Reader {
	t.Helper()
	r, err := Open(fs, path, info, c)
	check(t, err)
	t.Cleanup(func() { check(t, r.Close()) })
	return r
}

// equalRun compares bits, not values: NaN payloads and -0 count.
func equalRun(t testing.TB, name any, got, want rows.Run) {
	t.Helper()
	if !slices.Equal(got.Times, want.Times) {
		t.Fatalf("series %v: times\n got %v\nwant %v", name, got.Times, want.Times)
	}
	for i := range want.Values {
		if g, w := math.Float64bits(got.Values[i]), math.Float64bits(want.Values[i]); g != w {
			t.Fatalf("series %v: value %d is %x, want %x", name, i, g, w)
		}
	}
	if len(got.Values) != len(want.Values) || !slices.EqualFunc(got.Hists, want.Hists, equalHist) {
		t.Fatalf("series %v: %d values and %d histograms, want %d and %d, or other bytes", name,
			len(got.Values), len(got.Hists), len(want.Values), len(want.Hists))
	}
}

func equalHist(a, b peer.Hist) bool { return a.Time == b.Time && string(a.H) == string(b.H) }

// small has a bit of everything: two blocks a group, jitter, stale markers, doubles, histograms, exemplars.
func small() *source {
	rng := rand.New(rand.NewPCG(1, 2))
	s := &source{
		meta: Meta{Table: "default", Partition: 7, ID: point.SegmentID{Epoch: 3, Seq: 9}, Base: point.SegmentID{Epoch: 3, Seq: 4},
			Ends: []point.EpochEnd{{Epoch: 2, Seq: 100}, {Epoch: 3, Seq: 250}}},
		exemplars: map[point.DenseID][]point.ExemplarRow{},
	}
	hosts := []string{"lech", "inn", "isar"}
	metrics := []string{"cpu", "disk", "mem", "requests"}
	for h, host := range hosts {
		for m, metric := range metrics {
			id := point.DenseID(10 + h*len(metrics) + m)
			s.defs = append(s.defs, definition{id, point.MakeLabels("__name__", metric, "host", host, "region", "eu")})
		}
	}
	for m := range metrics {
		for h := range hosts {
			s.add(point.DenseID(10+h*len(metrics)+m), smallRun(rng, m, h))
		}
	}
	s.exemplars[12] = []point.ExemplarRow{{Time: 1_700_000_000e9, Value: 0.25, Labels: point.MakeLabels("__name__", "x", "trace_id", "abc")}}
	return s
}

func smallRun(rng *rand.Rand, metric, host int) rows.Run {
	r := rows.Run{StampLo: point.Stamp(1000 + host), StampHi: point.Stamp(2000 + metric)}
	n := []int{40, 600, 25, 30}[metric]
	v := 50.0
	for i := range n {
		t := point.Nanos(1_700_000_000e9) + int64(i)*10e9
		if metric == 2 {
			t += rng.Int64N(15) * 1e6
		}
		v += math.Round(rng.NormFloat64() * 3)
		x := []float64{v, float64(i * 1000), math.Sqrt(v*v + 0.5), v / 100}[metric]
		if i == 7 {
			x = math.Float64frombits(point.StaleNaN)
		}
		if metric == 3 && i%10 == 9 {
			r.Hists = append(r.Hists, peer.Hist{Time: t, H: []byte{1, byte(i), byte(host), 4, 5, 6}})
			continue
		}
		r.Times, r.Values = append(r.Times, t), append(r.Values, x)
	}
	return r
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	{
		fs := vfs.NewMem()
		s := small()
		info := s.write(t, fs, "seg")
		r := openSegment(t, fs, "seg", info, openCache(t, 0))
		check(t, r.Verify())

		var order []point.DenseID
		check(t, r.Scan(func(id point.DenseID, run rows.Run) error {
			order = append(order, id)
			equalRun(t, id, run, s.runs[id])
			if run.StampLo != s.runs[id].StampLo || run.StampHi != s.runs[id].StampHi {
				t.Errorf("series %d: stamps %d..%d", id, run.StampLo, run.StampHi)
			}
			return nil
		}))
		if !slices.Equal(order, s.order) {
			t.Errorf("group order %v, want %v", order, s.order)
		}
		var defs []definition
		check(t, r.EachDefinition(func(id point.DenseID, l point.Labels) error {
			defs = append(defs, definition{id, l})
			return nil
		}))
		if !slices.Equal(defs, s.defs) {
			t.Errorf("definitions %v, want %v", defs, s.defs)
		}
		defs = defs[:0]
		check(t, r.LendDefinitions(func(id point.DenseID, l point.Labels) error {
			defs = append(defs, definition{id, point.Labels(strings.Clone(string(l)))})
			return nil
		}))
		if !slices.Equal(defs, s.defs) {
			t.Errorf("definitions that are lent: %v, want %v", defs, s.defs)
		}
		if !slices.Equal(r.Info().Ends, s.meta.Ends) || r.Info().Rows != info.Rows || r.Info().Base != s.meta.Base {
			t.Errorf("header %+v, written %+v", r.Info(), info)
		}
		var ex []point.ExemplarRow
		check(t, r.Exemplars(s.order, math.MinInt64, math.MaxInt64, func(id point.DenseID, e []point.ExemplarRow) error {
			ex = append(ex, e...)
			return nil
		}))
		if !slices.Equal(ex, s.exemplars[12]) {
			t.Errorf("exemplars %v", ex)
		}
	}
}
