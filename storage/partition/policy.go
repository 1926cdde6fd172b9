package partition

import (
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Settings are numbers a user sets.
type Settings struct {
	// HeadBytesMax is the memory at which head rows are flushed, in bytes. Default 64 MiB, or 300 bytes per active series if that
	// is more. Larger: fewer and better compressed segments, more memory, longer recovery.
	HeadBytesMax int64
	// FlushAge is how long a row may lie in the head before it is flushed. Default 1 h. Larger: longer recovery.
	FlushAge time.Duration
	// FlushIdle is how long a head without new rows waits before it is flushed. Default 10 min. That of a partition of at most ten
	// minutes with a time range that has passed waits for a thirtieth of it.
	FlushIdle time.Duration
	// MinorsMax is how many minors may lie above a major before some are folded into one, or all into a new major; 8 at most in a
	// partition of less than 32 MiB. Default 12. Larger: less written, slower reads.
	MinorsMax int
	// SeriesMax bounds the series of one partition. Default 20,000,000.
	SeriesMax int
	// QuietAfter is how long a series has no rows before it leaves the memory of a partition that still gets rows of others; it
	// may be twice as long. Default 1 h. Smaller: less memory where series come and go; a series that returns is looked up again.
	QuietAfter time.Duration
	// QuietSeriesMin is how many series must have been quiet before they leave memory. Default 4096.
	QuietSeriesMin int
	// WarmSeriesMax is the number of series up to which a partition has all of them in memory from its first row on; a larger one
	// has only series with new rows. Default 1,000,000. Larger: a start needs more memory; smaller: queries that find series of
	// today read definitions.
	WarmSeriesMax int
	// CompactBytes is about the memory of a compaction for the labels of the series that it writes next, or an eighth of all
	// labels if that is more; and for the rows that it reads together, or those of one series. Default 64 MiB. Smaller: definitions and blocks are
	// read more often (major.go).
	CompactBytes int
	// ExactRanksFor is how long after a row was received segments keep its rank. Default 72 h. Until then a row that another server ordered, and that comes late, is
	// compared with the rank of each row of its time; after it with the highest of a chunk of up to 512 rows of the series, so that an overwrite staged or on its way
	// for longer may lose to the older value. Larger: more bytes on disk for that time.
	ExactRanksFor time.Duration
}

// SetDefaults fills the zero fields.
func (s *Settings) SetDefaults() {
	if s.HeadBytesMax == 0 {
		s.HeadBytesMax = 64 << 20
	}
	if s.FlushAge == 0 {
		s.FlushAge = time.Hour
	}
	if s.FlushIdle == 0 {
		s.FlushIdle = 10 * time.Minute
	}
	if s.MinorsMax == 0 {
		s.MinorsMax = 12
	}
	if s.ExactRanksFor == 0 {
		s.ExactRanksFor = 72 * time.Hour
	}
	if s.CompactBytes == 0 {
		s.CompactBytes = 64 << 20
	}
	if s.QuietAfter == 0 {
		s.QuietAfter = time.Hour
	}
	if s.QuietSeriesMin == 0 {
		s.QuietSeriesMin = 4096
	}
	if s.WarmSeriesMax == 0 {
		s.WarmSeriesMax = 1_000_000
	}
	if s.SeriesMax == 0 {
		s.SeriesMax = 20_000_000
	}
}

// ranksFrom is the lowest rank that a compaction at a time keeps.
func (s *Settings) ranksFrom(now point.Nanos) point.Stamp {
	return rank.At(now - int64(s.ExactRanksFor))
}

// ranksFrom is the lowest rank that a compaction keeps when it is now by our own clock. Where the servers' clocks say an
// earlier time, that counts: a rank that is left out because a clock is ahead is lost, and with it an overwrite that is still
// staged; one that is kept because a clock is behind goes with a later compaction.
func (p *Partition) ranksFrom(now time.Time) point.Stamp {
	at := now.UnixNano()
	if p.deps.Now != nil {
		at = min(at, p.deps.Now())
	}
	return p.settings.ranksFrom(at)
}

// bytesPerSeries is the head memory per series before a flush pays in a partition with many series: 64 bytes of state and some
// blocks for each. With less, the limit would be reached after a row or two (storage/head/DESIGN.md).
const bytesPerSeries = 300

// HeadShape is the flush policy's input: the active head, and the one before it if that could not be flushed.
type HeadShape struct {
	Frames    int
	Bytes     int64
	Series    int
	Born      time.Time // first frame
	LastWrite time.Time
	Rows      int
	Passed    bool // the partition is narrow, and its time has passed
	Copied    bool // followers receive its frames

	Stuck   bool      // a head waits and no flush of it is under way: it failed, or another placement led when the head was frozen
	RetryAt time.Time // not before, after failures
	Follows bool      // its leader flushes
}

// flushable reports whether there is something to flush and a flush may be tried.
func (h *HeadShape) flushable(now time.Time) bool {
	return (h.Frames > 0 || h.Stuck) && !h.Follows && !now.Before(h.RetryAt)
}

// Reason is why work is due; "" when it is not.
type Reason string

// Reasons to flush.
const (
	NotDue   Reason = ""
	BySize   Reason = "size"
	ByAge    Reason = "age"
	ByIdle   Reason = "idle"
	ByMemory Reason = "memory" // the server's budget for all heads is used up
	ByLog    Reason = "log"    // the head pins an old log file
	ByStop   Reason = "stop"   // a clean shutdown leaves nothing to replay
	ByDelete Reason = "delete" // rows must be in segments before they can be deleted
	ByRetry  Reason = "retry"  // the last flush failed
	ByCopies Reason = "copies" // followers have many rows in their logs alone
)

// wanted reports whether a caller waits for the flush, and has no later try: it waits for a placement that is away until that comes back or is
// taken off the list. Any other flush is tried again, and would keep those of other partitions waiting.
func (r Reason) wanted() bool { return r == ByDelete || r == ByRequest || r == ByStop }

// Reasons to compact.
const (
	ByCount     Reason = "count"     // too many minors to read
	ByDeletions Reason = "deletions" // too many to apply at every read, or deleted rows still use space
	ByClosing   Reason = "closing"   // no more rows come
	ByRanks     Reason = "ranks"     // ranks of rows are older than they are kept, and use space
	ByRequest   Reason = "request"
)

// headLimit is the size at which a head is flushed.
func (s *Settings) headLimit(h HeadShape) int64 {
	return max(s.HeadBytesMax, bytesPerSeries*int64(h.Series))
}

// FlushDue returns why the head should be flushed now. While a compaction runs, a flush waits until the head is half as large
// again, or four times as old: segments flushed meanwhile have to be written once more, the last of them while no flush can begin.
func (s *Settings) FlushDue(now time.Time, h HeadShape, compacting bool) Reason {
	limit := s.headLimit(h)
	patience := time.Duration(1)
	if compacting {
		limit += limit / 2
		patience = compactingPatience
	}
	switch {
	case !h.flushable(now):
		return NotDue
	case h.Stuck:
		return ByRetry
	case h.Bytes >= limit:
		return BySize
	case h.Copied && h.Rows >= copiedRowsMax:
		return ByCopies
	case now.Sub(h.Born) >= patience*s.FlushAge:
		return ByAge
	case now.Sub(h.LastWrite) >= patience*s.FlushIdle, h.Passed && now.Sub(h.LastWrite) >= s.narrowIdle():
		return ByIdle
	}
	return NotDue
}

// compactingPatience is how many times longer than otherwise a row may lie in the head while a compaction of the partition runs.
const compactingPatience = 4

// narrowIdle is how long a narrow partition, once its time has passed, waits for more rows before it is flushed and cools. Its
// successor fills up meanwhile; staged rows arrive without such gaps.
func (s *Settings) narrowIdle() time.Duration { return s.FlushIdle / narrowIdleShare }

const (
	narrowIdleShare = 30
	// rewarmedMost bounds how much longer a narrow partition stays warm each time that rows come to it after it had cooled: twice as
	// long, since its series are read back from its segments then.
	rewarmedMost = 8
)

// copiedRowsMax is how many rows a head with followers holds. Followers apply rows late (late.go), and drop those unread that a segment
// has: if the head were as large as memory allows, they would apply rows only to bound how many are late.
const copiedRowsMax = 6 << 20

// Chain is the compaction policy's input: the segments.
type Chain struct {
	Segments  []segment.Info // oldest first
	Deletions int            // the most that have to be applied to one of them
	Clean     bool           // a caller asked that deleted rows be removed
	Wanted    bool           // a caller asked for a major
	// DeletionBytes are those of the matchers of all deletions that have to be applied, of each segment.
	DeletionBytes int
	// Closed says that the partition's time has passed and its head is empty; Idle for how long it got no rows.
	Closed bool
	Idle   time.Duration
	// OldRanks are the bytes of the ranks of rows in segments of which all rows are older than ranks are kept.
	OldRanks int64
}

// CompactDue returns why segments should be folded, and the index of the first of them: all newer ones are folded with it. 0: all, into one major.
//
// Minors are folded when there are too many to read, fewer of them in a small partition, from the one on where it costs least (cheapest): each byte is rewritten three
// or four times then, however many flushes there are (DESIGN.md, Bytes written).
// A partition that gets no more rows is folded once for good. Late rows start this again, so it waits for a day without any, unless
// they weigh enough to pay for the rewriting.
func (s *Settings) CompactDue(c *Chain) (why Reason, first int) {
	var major, minors int64
	n, most := 0, s.MinorsMax
	for _, g := range c.Segments {
		if g.Major {
			major = g.Size
		} else {
			minors += g.Size
			n++
		}
	}
	if major+minors < smallPartition {
		most = min(most, smallMinorsMax)
	}
	closing := c.Closed && c.Idle >= s.FlushIdle && (closingShare*minors >= major || c.Idle >= closingIdle)
	switch {
	case c.Deletions > 0 && c.Clean, c.Wanted && len(c.Segments) > 0:
		return ByRequest, 0
	case c.Deletions >= deletionsWorth, c.DeletionBytes >= deletionsBytesMax/2:
		return ByDeletions, 0
	case closing && n > 0:
		return ByClosing, 0
	case n >= most:
		return ByCount, c.cheapest()
	case closing && c.Deletions > 0:
		return ByDeletions, 0
	case closing && c.Idle >= closingIdle && c.OldRanks > 0 && ranksShare*c.OldRanks >= major+minors:
		return ByRanks, 0
	}
	return NotDue, 0
}

// cheapest returns the index of the segment from which on folding is worth most: that with the fewest bytes for the cube of the number of segments that folding saves. Of flushes of one size it makes
// larger minors of a few, then of a dozen, and so on, each from several of the size below. With the square or the fourth power it costs the same, with the number itself twice as much, since the newest two or three are then
// folded too often.
func (c *Chain) cheapest() (first int) {
	var bytes, least float64
	for i := len(c.Segments) - 1; i >= 0; i-- {
		bytes += float64(c.Segments[i].Size)
		saved := float64(len(c.Segments) - 1 - i)
		if cost := bytes / (saved * saved * saved); saved == 1 || saved > 1 && cost <= least {
			first, least = i, cost
		}
	}
	return first
}

const (
	// smallMinorsMax is how many minors lie above the major before some are folded while all segments together are smaller than smallPartition: writing a byte
	// of these once more costs little beside what each segment costs a query.
	smallMinorsMax = 8
	smallPartition = 32 << 20
	// closingShare of the major is the weight that minors of a closed partition need to be folded before closingIdle.
	closingShare = 16
	closingIdle  = 24 * time.Hour
	// ranksShare is the share of the bytes that old ranks must have for a closed partition to be written once more without them. Those of larger requests have less, and stay.
	ranksShare = 20
	// deletionsWorth is how many deletions reads apply before a compaction removes the rows; deletionsMax is how many may wait.
	deletionsWorth = 32
	deletionsMax   = 1024
	// deletionsBytesMax is how many bytes of matchers may wait. The entry with all of them is written at each deletion, and at each flush, while the
	// commits of all partitions wait: 40 of 60 kB in 10 segments made it 23 MB. From half of that a compaction is due.
	deletionsBytesMax = 1 << 20
)

// backoff is the pace of retries: after a failure 1 s, then twice as long each time, at most a minute.
type backoff struct {
	failures int
	until    time.Time
	since    time.Time // of the first failure
	err      error     // the last one
}

const (
	retryFirst = time.Second
	retryMost  = time.Minute
)

// note records the outcome of a try. A cancelled one does not count.
func (b *backoff) note(now time.Time, err error) {
	switch {
	case err == nil:
		*b = backoff{}
	case !fault.Is(err, fault.Canceled):
		if b.failures == 0 {
			b.since = now
		}
		b.until = now.Add(min(retryMost, retryFirst<<min(b.failures, 16)))
		b.failures, b.err = b.failures+1, err
	}
}
