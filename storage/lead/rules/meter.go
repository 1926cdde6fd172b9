package rules

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
)

// meter smooths the rows a second of the partitions that are led here. A partition begins anew with each lease: the first look only notes the count, the second
// has the rate of the time between, and each later one moves the rate by its part of meterOver. So the new server knows the load of a lead that was handed over
// after two looks.
type meter struct {
	at    Time
	parts map[lease.Partition]*metered

	// As of the last look; known from the second on.
	known bool
	hot   []lease.LedRows
	rest  int64
}

// metered is one partition.
type metered struct {
	rows  uint64 // as of the last look
	rate  float64
	since Time
}

const (
	// MeterEvery is how often the rows are counted.
	MeterEvery = 5 * time.Second
	// meterOver is the time over which rates are smoothed: a batch that comes once in a while is no load.
	meterOver = 30 * time.Second
)

// count looks at the rows of all partitions that accepted any.
func (m *meter) count(now Time, all []Count, leads func(lease.Partition) bool, hotRows float64) {
	took := now - m.at
	if m.known = m.parts != nil; m.known && took <= 0 {
		return
	}
	next := make(map[lease.Partition]*metered, len(m.parts))
	for _, c := range all {
		if !leads(c.Partition) {
			continue
		}
		x := m.parts[c.Partition]
		switch {
		case x == nil || c.Rows < x.rows:
			x = &metered{since: now}
		case x.since == m.at:
			x.rate = float64(c.Rows-x.rows) / took.Seconds()
		default:
			x.rate += (float64(c.Rows-x.rows)/took.Seconds() - x.rate) * (1 - math.Exp(-float64(took)/float64(meterOver)))
		}
		x.rows = c.Rows
		next[c.Partition] = x
	}
	m.at, m.parts = now, next
	m.rank(hotRows)
}

// rank lists the busiest partitions, and adds the others.
func (m *meter) rank(hotRows float64) {
	m.hot = nil
	rest := int64(0) // in thousandths: whole numbers, so that the order does not matter
	for id, x := range m.parts {
		if x.rate >= hotRows {
			m.hot = append(m.hot, lease.LedRows{Partition: id, Rows: int64(x.rate), For: m.at - x.since})
		} else {
			rest += int64(x.rate * 1000)
		}
	}
	slices.SortFunc(m.hot, func(a, b lease.LedRows) int {
		return cmp.Or(cmp.Compare(b.Rows, a.Rows), compare(a.Partition, b.Partition))
	})
	for _, x := range m.hot[min(len(m.hot), lease.HotMax):] {
		rest += x.Rows * 1000
	}
	m.hot = slices.Clip(m.hot[:min(len(m.hot), lease.HotMax)])
	m.rest = rest / 1000
}

// leads reports whether a partition is led here.
func (m *Machine) leads(id lease.Partition) bool {
	p := m.parts[id]
	return p != nil && p.leading
}
