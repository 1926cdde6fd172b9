package frame_test

import (
	"fmt"
	"math"
	"math/rand"
	"strconv"
	"strings"

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

// shape is one host's report, in its order: the 101 fields of the time-series benchmark suite's devops use case,
// group by group. Some groups have a tag of their own.
var shape = []struct{ group, tag, fields string }{
	{"cpu", "", "usage_user usage_system usage_idle usage_nice usage_iowait usage_irq usage_softirq usage_steal usage_guest usage_guest_nice"},
	{"diskio", "serial", "reads writes read_bytes write_bytes read_time write_time io_time"},
	{"disk", "path", "total inodes_total free used used_percent inodes_free inodes_used"},
	{"kernel", "", "boot_time interrupts context_switches processes_forked disk_pages_in disk_pages_out"},
	{"mem", "", "total available used free cached buffered used_percent available_percent buffered_percent"},
	{"net", "interface", "bytes_sent bytes_recv packets_sent packets_recv err_in err_out drop_in drop_out"},
	{"nginx", "port", "accepts handled requests active reading waiting writing"},
	{"postgresl", "", numbered("counter_", 10) + numbered("gauge_", 6)},
	{"redis", "port", numbered("counter_", 14) + numbered("gauge_", 12) + numbered("fixed_", 5)},
}

// numbered gives "counter_0 counter_1 … ".
func numbered(prefix string, n int) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, "%s%d ", prefix, i)
	}
	return s.String()
}

// definitions gives the labels of all series of so many hosts, in the order of their numbers: hostname, nine tags more, and
// the metric name.
func definitions(hosts int) []point.Labels {
	rng := rand.New(rand.NewSource(2))
	one := func(of ...string) string { return of[rng.Intn(len(of))] }
	var all []point.Labels
	for h := range hosts {
		region := one("eu-central-1", "eu-west-1", "us-east-1", "us-west-2", "ap-northeast-1", "sa-east-1")
		tags := []string{
			"arch", one("x64", "x86"), "datacenter", region + one("a", "b", "c"), "hostname", fmt.Sprintf("host_%d", h),
			"os", one("Ubuntu15.10", "Ubuntu16.04LTS", "Ubuntu16.10"), "rack", strconv.Itoa(rng.Intn(100)), "region", region,
			"service", strconv.Itoa(rng.Intn(20)), "service_environment", one("production", "staging", "test"),
			"service_version", strconv.Itoa(rng.Intn(2)), "team", one("CHI", "LON", "NYC", "SF"),
		}
		for _, g := range shape {
			for _, field := range strings.Fields(g.fields) {
				pairs := append([]string{point.MetricName, g.group + "_" + field}, tags...)
				if g.tag != "" {
					pairs = append(pairs, g.tag, g.tag+"-0")
				}
				all = append(all, point.MakeLabels(pairs...))
			}
		}
	}
	return all
}

// steady is a frame of one later scrape of hosts, with no new series.
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
