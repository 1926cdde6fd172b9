package segment

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// devops is a load like that of a fleet's agents: hosts × 101 metrics, 10 s apart; of each ten metrics four are integer
// walks in 0..100, three counters, two percentages with one or two decimals, one constant. jitter shifts a host's
// scrapes by up to so many milliseconds.
func devops(hosts, samples, jitter int) *source {
	const metrics = 101
	rng := rand.New(rand.NewPCG(7, 7))
	s := &source{meta: Meta{Table: "default", Partition: 1, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
	times := make([][]point.Nanos, hosts)
	for h := range hosts {
		for i := range samples {
			t := point.Nanos(1_700_000_000e9) + int64(i)*10e9
			if jitter > 0 {
				t += rng.Int64N(int64(jitter)+1) * 1e6
			}
			times[h] = append(times[h], t)
		}
		for m := range metrics {
			s.defs = append(s.defs, definition{point.DenseID(h*metrics + m), point.MakeLabels(
				"__name__", fmt.Sprintf("metric_%03d", m), "arch", "x64", "datacenter", fmt.Sprintf("eu-west-1%c", 'a'+h%3),
				"hostname", fmt.Sprintf("host_%d", h), "os", "Ubuntu16.10", "rack", fmt.Sprint(h%100), "region", "eu-west-1",
				"service", fmt.Sprint(h%20), "team", "LON")})
		}
	}
	for m := range metrics {
		for h := range hosts {
			r := rows.Run{Times: times[h], Values: walk(rng, m%10, samples), StampLo: point.Stamp(h / 20 << 20), StampHi: point.Stamp(h/20<<20 + 1e9)}
			s.add(point.DenseID(h*metrics+m), r)
		}
	}
	return s
}

func walk(rng *rand.Rand, kind, n int) []float64 {
	out := make([]float64, n)
	v := math.Floor(rng.Float64() * 100)
	for i := range out {
		switch {
		case kind < 4:
			v = min(100, max(0, v+rng.NormFloat64()))
			out[i] = math.Floor(v)
		case kind < 7:
			v += math.Floor(math.Abs(50 + 5*rng.NormFloat64()))
			out[i] = v
		case kind == 7:
			v = min(100, max(0, v+rng.NormFloat64()))
			out[i] = math.Round(v*10) / 10
		case kind == 8:
			v = min(100, max(0, v+rng.NormFloat64()))
			out[i] = math.Round(v*100) / 100
		default:
			out[i] = v
		}
	}
	return out
}

func (s *source) rows() (n int) {
	for _, r := range s.runs {
		n += r.Len()
	}
	return n
}
