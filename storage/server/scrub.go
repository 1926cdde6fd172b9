package server

import (
	"cmp"
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
)

// The scrub reads the segments again and again, slowly, so that a failing disk is noticed while a backup or a replica
// still has the lost rows, and not only by the query that needs them.
//
//	pass: every segment that there is when it begins, by placement and id ─▶ CheckSegment ─▶ whole, or its partition damaged
//	                 └─ where it is ─▶ catalogue, every half a minute ─▶ the next process goes on there

// scrubKey is the catalogue's key for the progress of the scrub.
const scrubKey = "m/scrub"

const (
	scrubSavePeriod = 30 * time.Second
	// scrubOpenBytes is the cost of opening a file, so that a million small ones are no burden either.
	scrubOpenBytes = 16 << 10
	// scrubSlow is how long reading a piece may last before the disk counts as busy with more important work.
	scrubSlow = 20 * time.Millisecond
	// scrubYield is how many times longer a busy server's scrub waits.
	scrubYield = 8
)

// scrubState is the progress that the catalogue keeps.
type scrubState struct {
	Began time.Time `json:"began"` // of the current pass, or of the last one
	Ended time.Time `json:"ended"` // of the last whole pass
	// At is the last segment that was checked; zero: no segment of this pass.
	At scrubPlace `json:"at"`
	// Damaged are checked first by the next process, so that it reports the damage again within seconds.
	Damaged []scrubPlace `json:"damaged,omitempty"`
}

// scrubPlace names a segment.
type scrubPlace struct {
	Placement point.PlacementID `json:"placement"`
	Segment   point.SegmentID   `json:"segment"`
}

func (a scrubPlace) compare(b scrubPlace) int {
	return cmp.Or(cmp.Compare(a.Placement, b.Placement), cmp.Compare(a.Segment.Epoch, b.Segment.Epoch), cmp.Compare(a.Segment.Seq, b.Segment.Seq))
}

// Scrub is the progress as operators see it.
type Scrub struct {
	PassBegan      time.Time // zero: none yet
	PassEnded      time.Time // the last that was whole; zero: none yet
	Segments       int       // of the current pass
	Checked        int       // of those
	BytesPerSecond int64     // the bound
	DamageSeen     int       // segments found damaged by this process
}

// scrubber is owned by its goroutine.
// The goroutine of scrub alone touches it; requests for the progress read a copy (scrubShown), which it writes under a
// lock.
type scrubber struct {
	s     *Server
	state scrubState
	saved time.Time
	pace  pacer
}

// scrub runs until ctx ends.
func (s *Server) scrub(ctx context.Context) error {
	if s.settings.NoScrub {
		return nil
	}
	c := &scrubber{s: s, pace: pacer{rate: float64(s.settings.ScrubBytesPerSecond)}}
	c.load()
	c.again(ctx)
	for ctx.Err() == nil {
		if wait := c.due(time.Now()); wait > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(wait + rand.N(wait/10+1)):
			}
			continue
		}
		c.pass(ctx)
	}
	c.save()
	return nil
}

// load reads the progress of an earlier process. If that cannot be read, the scrub starts from the beginning.
func (c *scrubber) load() {
	b, ok, err := c.s.deps.Brick.Get([]byte(scrubKey))
	if err == nil && ok {
		err = json.Unmarshal(b, &c.state)
	}
	if err != nil {
		c.s.deps.Log.Warn("how far the scrub was cannot be read; it begins anew", "error", err)
		c.state = scrubState{}
	}
}

// save stores the progress. It need not be durable at once: checking a segment twice does no harm.
func (c *scrubber) save() {
	b, err := json.Marshal(c.state)
	if err == nil && c.s.deps.Brick.Err() == nil {
		t := c.s.deps.Brick.NewBatch()
		t.Set([]byte(scrubKey), b)
		err = t.Commit(false)
	}
	if err != nil {
		c.s.deps.Log.Warn("how far the scrub is cannot be noted", "error", err)
	}
	c.saved = time.Now()
}

// due returns how long to wait before a pass begins, or goes on.
func (c *scrubber) due(now time.Time) time.Duration {
	if c.state.At != (scrubPlace{}) || c.state.Began.IsZero() {
		return 0 // a pass is under way, or none ever began
	}
	wait := c.s.settings.ScrubPeriod - now.Sub(c.state.Began)
	return min(wait, c.s.settings.ScrubPeriod) // a clock that was set back
}

// again checks the segments that were damaged before: a segment may have been restored; if not, its partition is not read from now on.
// The list is emptied first, and check fills it with those that are damaged still.
func (c *scrubber) again(ctx context.Context) {
	before := c.state.Damaged
	c.state.Damaged = nil
	for _, t := range c.s.scrubTargets() {
		if slices.Contains(before, t.place) {
			c.check(ctx, t)
		}
	}
	c.s.showScrub(func(v *Scrub) {
		v.PassBegan, v.PassEnded, v.BytesPerSecond = c.state.Began, c.state.Ended, c.s.settings.ScrubBytesPerSecond
	})
}

// pass checks the remaining segments of a pass.
func (c *scrubber) pass(ctx context.Context) {
	if c.state.At == (scrubPlace{}) {
		c.state.Began, c.state.Damaged = time.Now(), nil
	}
	targets := c.s.scrubTargets()
	first := slices.IndexFunc(targets, func(t scrubTarget) bool { return t.place.compare(c.state.At) > 0 })
	if first < 0 {
		first = len(targets)
	}
	for i := first; i < len(targets); i++ {
		c.s.showScrub(func(v *Scrub) { v.PassBegan, v.Segments, v.Checked = c.state.Began, len(targets), i })
		if c.check(ctx, targets[i]); ctx.Err() != nil {
			return
		}
		// The place, not an index: segments come and go during a pass of days, and the next process has others. One
		// that is made below this place meanwhile is checked in the next pass.
		c.state.At = targets[i].place
		if time.Since(c.saved) > scrubSavePeriod {
			c.save()
		}
	}
	c.state.At, c.state.Ended = scrubPlace{}, time.Now()
	c.s.metrics.scrubPasses.Inc()
	c.s.showScrub(func(v *Scrub) { v.PassEnded, v.Segments, v.Checked = c.state.Ended, len(targets), len(targets) })
	c.save()
}

// check checks one segment, at the pace of the scrub.
func (c *scrubber) check(ctx context.Context, t scrubTarget) {
	began := time.Now()
	pace := func(bytes int) error {
		now := time.Now()
		busy := now.Sub(began) > scrubSlow || c.s.HeadLoad() > 0.5
		if busy {
			c.s.metrics.scrubYields.Inc()
		}
		c.s.metrics.scrubBytes.Add(float64(bytes))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(c.pace.wait(now, bytes, busy)):
		}
		began = time.Now()
		return nil
	}
	if pace(scrubOpenBytes) != nil {
		return
	}
	found, err := t.p.CheckSegment(ctx, t.place.Segment, pace)
	if err != nil && ctx.Err() == nil {
		c.s.metrics.failures.WithLabelValues("scrub").Inc()
		id := t.p.Identity()
		c.s.deps.Log.Warn("a segment could not be checked; the next pass does", "table", id.Table, "partition", id.Partition, "segment", t.place.Segment, "error", err)
	}
	if found == partition.NotChecked {
		return
	}
	c.s.metrics.scrubSegments.Inc()
	if found == partition.FoundDamaged && !slices.Contains(c.state.Damaged, t.place) {
		c.state.Damaged = append(c.state.Damaged, t.place)
		c.s.metrics.scrubDamaged.Inc()
		c.s.showScrub(func(v *Scrub) { v.DamageSeen++ })
		c.save()
	}
}

// scrubTarget is a segment and where it lies.
type scrubTarget struct {
	p     *partition.Partition
	place scrubPlace
}

// scrubTargets lists all segments, by placement and id.
func (s *Server) scrubTargets() (out []scrubTarget) {
	for _, t := range s.tables() {
		for _, p := range t.all() {
			for _, g := range p.Segments() {
				out = append(out, scrubTarget{p, scrubPlace{p.Identity().Placement, g.ID}})
			}
		}
	}
	slices.SortFunc(out, func(a, b scrubTarget) int { return a.place.compare(b.place) })
	return out
}

func (s *Server) showScrub(change func(*Scrub)) {
	s.scrubShown.Lock()
	defer s.scrubShown.Unlock()
	change(&s.scrubShown.Scrub)
}

// Scrub returns the progress of the check of all segments.
func (s *Server) Scrub() Scrub {
	s.scrubShown.Lock()
	defer s.scrubShown.Unlock()
	return s.scrubShown.Scrub
}

// pacer spreads bytes over time; its only state is its fields.
type pacer struct {
	rate float64   // bytes a second
	free time.Time // when the bytes read so far are paid for
}

// wait is how long to wait after bytes were read. Time that went by unused is not saved up.
func (p *pacer) wait(now time.Time, bytes int, busy bool) time.Duration {
	cost := time.Duration(float64(bytes) / p.rate * float64(time.Second))
	if busy {
		cost *= scrubYield
	}
	if p.free.Before(now) {
		p.free = now
	}
	// Bytes that are read before earlier ones are paid for wait for both: so the mean never exceeds the rate. Example:
	// at 1 MiB/s, pieces of 1 MiB read at 0 s and 0.2 s wait until 1 s and 2 s.
	p.free = p.free.Add(cost)
	return p.free.Sub(now)
}
