package runner

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// ofMetric asks for the series of a metric, and of a host unless that is "". Taken counts the bytes that are booked for frames before they are decoded.
func ofMetric(metric, host string, taken *int64) *Query {
	q := &Query{Table: "t", Lo: math.MinInt64, Hi: math.MaxInt64, Labels: []Label{{point.MetricName, metric}}, Match: func(l point.Labels) bool {
		return l.Get(point.MetricName) == metric && (host == "" || l.Get("host") == host)
	}, Take: func(n int64) error {
		*taken += n
		return nil
	}}
	if host != "" {
		q.Labels = append(q.Labels, Label{"host", host})
	}
	return q
}

// metricsFrame has a row of each of so many hosts for a metric.
func metricsFrame(n, metric, hosts int) (*peer.Staging, *frame.Frame) {
	g := &frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: point.Stamp(n+1) << 10}
	for i := range hosts {
		g.Defs = append(g.Defs, point.MakeLabels(point.MetricName, fmt.Sprint("m", metric), "host", fmt.Sprint("h", i), "dc", fmt.Sprint("d", i%3)))
		g.IDs, g.Times, g.Values = append(g.IDs, point.DenseID(i)), append(g.Times, point.Nanos(n)), append(g.Values, float64(i))
	}
	return &peer.Staging{Do: peer.Stage, Nonce: uint64(n), Holders: []string{"a"}}, g
}

// TestNoStagedRowIsMissedByWhatReadsRemember: whatever was read, deleted and staged before, a read that names labels returns the rows that one without them returns.
func TestNoStagedRowIsMissedByWhatReadsRemember(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	random := rand.New(rand.NewPCG(7, 7))
	rows, skipped := 0, 0
	for n := range 200 {
		of, g := metricsFrame(n, random.IntN(9), 1+random.IntN(40))
		h.must(s.Stage(t.Context(), "t", 1, of, g))
		metric, host := fmt.Sprint("m", random.IntN(10)), ""
		if random.IntN(2) == 0 {
			host = fmt.Sprint("h", random.IntN(45))
		}
		var taken, all int64
		if random.IntN(20) == 0 {
			h.must(s.Delete(t.Context(), ofMetric(metric, host, &taken)))
			continue
		}
		got, err := s.Read(ofMetric(metric, host, &taken))
		h.must(err)
		q := ofMetric(metric, host, &all)
		q.Labels = nil
		want, err := s.Read(q)
		h.must(err)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("after %d frames, of %s %s: %v, want %v", n, metric, host, got, want)
		}
		for i := range want {
			rows += len(want[i].Times)
		}
		if taken < all/2 {
			skipped++
		}
	}
	if rows == 0 || skipped < 50 {
		t.Errorf("%d rows were read; %d reads decoded less than half", rows, skipped)
	}
	if held, kept := s.mu.machine.Bytes(), s.Bytes(); kept <= held || kept > held+held/filterShare+8*200 {
		t.Errorf("%d bytes of frames, %d with what reads keep of them", held, kept)
	}
	for _, f := range s.overlapping("t", math.MinInt64, math.MaxInt64, nil) {
		h.must(s.Forget(f.ID))
	}
	if n := s.Bytes(); n != 0 {
		t.Errorf("no frame is held, and %d bytes are booked", n)
	}
	h.must(s.Close())
}

// TestAReadDecodesNoFrameWithoutItsMetricTwice: the first read of a metric that is not there decodes all frames, the second none.
func TestAReadDecodesNoFrameWithoutItsMetricTwice(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	for n := range 50 {
		of, g := metricsFrame(n, n%5, 30)
		h.must(s.Stage(t.Context(), "t", 1, of, g))
	}
	var first, second int64
	for _, taken := range []*int64{&first, &second} {
		all, err := s.Read(ofMetric("absent", "", taken))
		h.must(err)
		if len(all) > 0 {
			t.Fatal(all)
		}
	}
	if first == 0 || second != 0 {
		t.Errorf("the first read decoded %d bytes, the second %d", first, second)
	}
	h.must(s.Close())
}

// BenchmarkReadStaged reads one metric of twenty, and one host of it, where 30 s of smeared rows wait: 1,200 frames of 667 rows.
func BenchmarkReadStaged(b *testing.B) {
	h := newHouse(&testing.T{})
	s := h.open(staging.Settings{})
	for n := range 1200 {
		of, g := metricsFrame(n, n%20, 667)
		if err := s.Stage(b.Context(), "t", 1, of, g); err != nil {
			b.Fatal(err)
		}
	}
	for _, c := range []struct{ name, metric, host string }{{"metric", "m7", ""}, {"host", "m7", "h77"}, {"absent", "x", ""}} {
		for _, named := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/named=%v", c.name, named), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					var taken int64
					q := ofMetric(c.metric, c.host, &taken)
					if !named {
						q.Labels = nil
					}
					if _, err := s.Read(q); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkFilterOf is what the first read of a frame pays beyond decoding it.
func BenchmarkFilterOf(b *testing.B) {
	_, g := metricsFrame(1, 1, 667)
	encoded := int64(len(encode(g)))
	for b.Loop() {
		filterOf(g, encoded)
	}
}
