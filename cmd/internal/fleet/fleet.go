package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
)

// kind is how a Field moves from scrape to scrape.
type kind uint8

const (
	walk    kind = iota // integer 0…100, a step of -2…2
	counter             // integer, rising by 0…200
	big                 // integer around 10^10, a step of ±10^6: bytes of memory
	percent             // float 0…100 with two decimals
	fixed               // never changes
)

// Field is one column of a Measurement.
type Field struct {
	Name string
	kind kind
}

// Measurement is a group of fields that share one line of line protocol.
type Measurement struct {
	Name   string
	tag    string // an own tag, or ""
	Fields []Field
}

// devops is the shape of one host: 101 fields, as in the time-series benchmark suite's devops use case.
func devops() []Measurement {
	n := func(prefix string, count int, k kind) []Field {
		fs := make([]Field, count)
		for i := range fs {
			fs[i] = Field{prefix + strconv.Itoa(i), k}
		}
		return fs
	}
	named := func(k kind, names ...string) []Field {
		fs := make([]Field, len(names))
		for i, name := range names {
			fs[i] = Field{name, k}
		}
		return fs
	}
	join := func(parts ...[]Field) []Field {
		var all []Field
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	return []Measurement{
		{"cpu", "", named(walk, "usage_user", "usage_system", "usage_idle", "usage_nice", "usage_iowait", "usage_irq", "usage_softirq", "usage_steal", "usage_guest", "usage_guest_nice")},
		{"diskio", "serial", named(counter, "reads", "writes", "read_bytes", "write_bytes", "read_time", "write_time", "io_time")},
		{"disk", "path", join(named(fixed, "total", "inodes_total"), named(big, "free", "used"), named(percent, "used_percent"), named(walk, "inodes_free", "inodes_used"))},
		{"kernel", "", join(named(fixed, "boot_time"), named(counter, "interrupts", "context_switches", "processes_forked", "disk_pages_in", "disk_pages_out"))},
		{"mem", "", join(named(fixed, "total"), named(big, "available", "used", "free", "cached", "buffered"), named(percent, "used_percent", "available_percent", "buffered_percent"))},
		{"net", "interface", join(named(counter, "bytes_sent", "bytes_recv", "packets_sent", "packets_recv"), named(walk, "err_in", "err_out", "drop_in", "drop_out"))},
		{"nginx", "port", join(named(counter, "accepts", "handled", "requests"), named(walk, "active", "reading", "waiting", "writing"))},
		{"postgresl", "", join(n("counter_", 10, counter), n("gauge_", 6, walk))},
		{"redis", "port", join(n("counter_", 14, counter), n("gauge_", 12, walk), n("fixed_", 5, fixed))},
	}
}

// series is one column of one host.
type series struct {
	kind  kind
	value float64
}

// next moves the series by one scrape.
func (s *series) next(r *rand.Rand) float64 {
	switch s.kind {
	case walk:
		s.value = min(100, max(0, s.value+float64(r.IntN(5)-2)))
	case counter:
		s.value += float64(r.IntN(201))
	case big:
		s.value = max(0, s.value+float64(r.IntN(2_000_001)-1_000_000))
	case percent:
		s.value = min(100, max(0, math.Round((s.value+r.Float64()*2-1)*100)/100))
	}
	return s.value
}

// Host is one machine of the fleet.
type Host struct {
	Tags   [][2]string // sorted by name
	series [][]series  // by Measurement, by Field
}

// Fleet is all hosts and the shape they share.
type Fleet struct {
	Shape []Measurement
	Hosts []Host
	Rand  *rand.Rand
	made  int
}

// New makes hosts with the same rows for the same seed.
func New(hosts int, seed uint64) *Fleet {
	f := &Fleet{Shape: devops(), Rand: rand.New(rand.NewPCG(seed, 1))}
	for range hosts {
		f.Hosts = append(f.Hosts, f.newHost())
	}
	return f
}

func (f *Fleet) newHost() Host {
	r, i := f.Rand, f.made
	f.made++
	regions := []string{"eu-central-1", "eu-west-1", "us-east-1", "us-west-2", "ap-northeast-1", "sa-east-1"}
	region := regions[r.IntN(len(regions))]
	h := Host{Tags: [][2]string{
		{"arch", []string{"x64", "x86"}[r.IntN(2)]},
		{"datacenter", region + string(rune('a'+r.IntN(3)))},
		{"hostname", fmt.Sprintf("host_%d", i)},
		{"os", []string{"Ubuntu15.10", "Ubuntu16.04LTS", "Ubuntu16.10"}[r.IntN(3)]},
		{"rack", strconv.Itoa(r.IntN(100))},
		{"region", region},
		{"service", strconv.Itoa(r.IntN(20))},
		{"service_environment", []string{"production", "staging", "test"}[r.IntN(3)]},
		{"service_version", strconv.Itoa(r.IntN(2))},
		{"team", []string{"CHI", "LON", "NYC", "SF"}[r.IntN(4)]},
	}}
	for _, m := range f.Shape {
		ss := make([]series, len(m.Fields))
		for j, fd := range m.Fields {
			ss[j] = series{fd.kind, f.start(fd.kind)}
		}
		h.series = append(h.series, ss)
	}
	return h
}

func (f *Fleet) start(k kind) float64 {
	switch k {
	case counter:
		return float64(f.Rand.IntN(1_000_000))
	case big:
		return 1e10 + float64(f.Rand.IntN(1_000_000_000))
	case fixed:
		return float64(f.Rand.IntN(1 << 30))
	}
	return float64(f.Rand.IntN(100))
}

// Churn replaces a share of the hosts by new ones.
func (f *Fleet) Churn(share float64) {
	for i := range f.Hosts {
		if f.Rand.Float64() < share {
			f.Hosts[i] = f.newHost()
		}
	}
}

// Each moves all series of a host by one scrape.
func (f *Fleet) Each(h *Host, row func(m *Measurement, fd *Field, v float64)) {
	for i := range f.Shape {
		m := &f.Shape[i]
		for j := range m.Fields {
			row(m, &m.Fields[j], h.series[i][j].next(f.Rand))
		}
	}
}

// Fields counts the series of one host.
func (f *Fleet) Fields() int {
	n := 0
	for _, m := range f.Shape {
		n += len(m.Fields)
	}
	return n
}
