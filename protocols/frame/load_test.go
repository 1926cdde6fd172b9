package frame_test

import (
	"fmt"
	"math"
	"math/rand"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

const (
	interval = 10_000_000_000 // 10 s
	newYear  = 1_767_225_600_000_000_000
)

// devops is a load like that of hosts that report 101 metrics every 10 s: walks of small whole numbers, counters of
// different size, and a few percentages with a fraction. Series are numbered host by host.
type devops struct {
	rng     *rand.Rand
	values  []float64
	now     int64
	jitter  int64 // of each host's time, nanoseconds
	doubles bool  // every value is a double that needs all its bits
}

const devopsMetrics = 101

func newDevops(hosts int) *devops {
	l := &devops{rng: rand.New(rand.NewSource(1)), values: make([]float64, hosts*devopsMetrics), now: newYear}
	for i := range l.values {
		switch m := i % devopsMetrics; {
		case m < 60:
			l.values[i] = float64(l.rng.Intn(101))
		case m < 97:
			l.values[i] = math.Floor(math.Pow(10, 2+float64(m%9)) * l.rng.Float64())
		default:
			l.values[i] = math.Round(l.rng.Float64()*1e4) / 100
		}
	}
	return l
}

// scrape appends the next rows of the hosts [from, to) to f.
func (l *devops) scrape(f *frame.Frame, from, to int) {
	for h := from; h < to; h++ {
		t := l.now
		if l.jitter > 0 {
			t += l.rng.Int63n(l.jitter) / 1e6 * 1e6
		}
		for i := h * devopsMetrics; i < (h+1)*devopsMetrics; i++ {
			l.step(i)
			f.IDs = append(f.IDs, point.DenseID(i))
			f.Times = append(f.Times, t)
			f.Values = append(f.Values, l.values[i])
		}
	}
}

func (l *devops) step(i int) {
	v := &l.values[i]
	switch m := i % devopsMetrics; {
	case l.doubles:
		*v = l.rng.NormFloat64() * 100
	case m < 60: // TSBS' clamped walk
		*v = min(max(*v+math.Round(l.rng.NormFloat64()), 0), 100)
	case m < 97:
		*v += math.Floor(math.Pow(10, float64(m%4)) * l.rng.Float64() * 5)
	default:
		*v = math.Round(min(max(*v+l.rng.NormFloat64(), 0), 100)*100) / 100
	}
}

// labels gives the labels of the series i.
func (l *devops) labels(i int) point.Labels {
	host, metric := i/devopsMetrics, i%devopsMetrics
	return point.MakeLabels(
		"__name__", fmt.Sprintf("group%d_field_%d", metric/10, metric%10),
		"hostname", fmt.Sprintf("host_%d", host), "region", "eu-central-1", "datacenter", "eu-central-1a",
		"rack", fmt.Sprint(host%97), "os", "Ubuntu16.04LTS", "arch", "x64", "team", "SF",
		"service", fmt.Sprint(host%19), "service_version", "1", "service_environment", "production",
	)
}

// steady is a frame of one later scrape of hosts, all of whose series are known.
func (l *devops) steady(hosts int) *frame.Frame {
	var f frame.Frame
	l.scrape(&f, 0, hosts)
	l.now += interval
	f.Reset()
	l.scrape(&f, 0, hosts)
	f.Kind, f.FirstDef = frame.Rows, point.DenseID(len(l.values))
	f.Serial, f.Prev = point.Serial{Epoch: 3, Seq: 1001}, point.Serial{Epoch: 3, Seq: 1000}
	f.Stamp = point.Stamp(l.now)
	return &f
}

// backfill is a frame of several rows of each series of the hosts, series by series, oldest first.
func (l *devops) backfill(hosts, rows int) *frame.Frame {
	f := &frame.Frame{Kind: frame.Rows, FirstDef: point.DenseID(len(l.values)), Stamp: newYear}
	for i := range hosts * devopsMetrics {
		for k := range rows {
			l.step(i)
			f.IDs = append(f.IDs, point.DenseID(i))
			f.Times = append(f.Times, l.now+int64(k)*interval)
			f.Values = append(f.Values, l.values[i])
		}
	}
	return f
}
