package forward

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/pace"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A partition costs a head, a segment and a catalogue entry even if it is almost empty, and a request of a few kilobytes
// can name thousands of days. So each request makes a bounded number of new ones and each table a bounded number a second;
// rows of existing partitions are kept all the same, and the sender is asked to send again. Each time more of its
// partitions exist, so a backfill of years goes through at the rate of the table.

// fresh counts the partitions that a write may still make.
type fresh struct {
	left     int // of its own bound
	made     int
	deferred int // rows without a partition, to be made later
	full     int // rows without a partition, because the table has reached its maximum
}

// allow cuts the times of missing partitions, the newest first, to those that may be made now. The partition of now is
// always made: present measurements must not wait for writes of last year's.
func (w *attempt) allow(times []point.Nanos, c topology.Config, now time.Time) []point.Nanos {
	always := 0
	lo, hi := c.Aligned(w.t.f.deps.Clock.now())
	for _, at := range times {
		if at >= lo && at < hi {
			always = 1
		}
	}
	asked := min(len(times)-always, w.fresh.left)
	got := w.t.pace.Take(now, asked)
	w.fresh.left -= got
	out := make([]point.Nanos, 0, got+always)
	for _, at := range times {
		if at >= lo && at < hi {
			out = append(out, at)
		} else if got > 0 {
			out = append(out, at)
			got--
		}
	}
	w.fresh.made += len(out)
	return out
}

// err is the error of a write that kept all rows except those that wait for their partitions.
func (f *fresh) err(set *Settings, table string) error {
	if f.full > 0 {
		return fault.Errorf(fault.Unavailable, "%d rows have times without a partition, and table %q has %d partitions, the most that rows can make: "+
			"they are taken once unused partitions are merged or old ones are dropped, which the master does. Check these timestamps; a larger partition width or a "+
			"shorter retention makes fewer partitions. All other rows of the request are kept; send it again", f.full, table, set.PartitionsMax)
	}
	if f.deferred == 0 {
		return nil
	}
	return fault.Errorf(fault.Throttled, "%d rows need partitions of table %q that do not exist yet: a request makes at most %d and a table %d a second. "+
		"This one made %d, and all its other rows are kept; send it again",
		f.deferred, table, set.NewPartitionsPerWrite, set.NewPartitionsPerSecond, f.made)
}

func (s *Settings) newPace() *pace.Bucket {
	return pace.New(float64(s.NewPartitionsPerSecond), newPartitionsBurst*s.NewPartitionsPerWrite)
}

// newPartitionsBurst is how many writes' worth of partitions a table makes at once.
const newPartitionsBurst = 4
