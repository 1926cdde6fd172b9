package topology

import (
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// LoadAt describes the partitions that hold a moment, as smear.Rule.Wanted expects them: the narrowest counts. Where there is none yet, it is the partition
// that rows would make. Bytes and Rate are not known.
func (m *Map) LoadAt(at point.Nanos, servers int) smear.Load {
	l := smear.Load{Servers: servers}
	for _, p := range m.Overlapping(at, at) {
		if p.State == Unload {
			continue
		}
		if w := Width(p); l.Columns == 0 || w < l.Width {
			l.Width = w
		}
		l.Columns++
	}
	if l.Columns == 0 {
		l.Width, l.Columns = point.Nanos(m.Config.PartitionWidth), max(len(m.RangesAt(at)), 1)
	}
	return l
}

// Width is the time that a partition covers; the highest int64 where it is more.
func Width(p *Partition) point.Nanos {
	if w := p.TimeHi - p.TimeLo; w > 0 {
		return w
	}
	return 1<<63 - 1 // from the lowest int64 on, or nearly
}
