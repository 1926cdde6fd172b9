package forward

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/share"
)

// A series that is written to uses memory in the dictionary, the index and a head: 700 bytes. All tables share one number
// of them (package share). Beyond it, series that are new to their dictionary are refused: their rows are Invalid, with the
// reason; the rows of their siblings and of all series that have a number are kept.
//
// A dictionary that follows another keeps the other's booked series, so that a table's series stay admitted: that many of
// its first series are admitted unasked. After a while the unused part is released: those series are gone. Where a table
// within its share had to be refused, a table above its share gets a new dictionary with no more than its share.

// seriesBook is one dictionary's bookings of the series that all tables share.
type seriesBook struct {
	mu       sync.Mutex
	credit   int64 // booked before it began
	admitted int64
	refused  bool        // some series was
	next     *seriesBook // of the dictionary that follows; nil: none does
	ended    bool        // it books nothing any more
}

// admit admits one more series to a dictionary of that weight, if its bookings or mayGrow allow it. One of long labels
// counts as several series when the next one comes. It is called under the dictionary's lock.
func (b *seriesBook) admit(m *share.Member, weight int, mayGrow func() bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	next := max(b.admitted, int64(weight)) + 1
	if next > b.credit {
		if !m.Admits() || !mayGrow() {
			b.refused = true
			return false
		}
		n := next - max(b.admitted, b.credit)
		m.Add(n)
		if b.next != nil { // batches that began with this dictionary still add series: what follows releases them, or has them too
			b.next.lend(m, n)
		}
	}
	b.admitted = next
	return true
}

// lend gives the dictionary n more booked series, or the last that follows it.
func (b *seriesBook) lend(m *share.Member, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.next != nil:
		b.next.lend(m, n)
	case b.ended:
		m.Add(-n)
	default:
		b.credit = max(b.credit, b.admitted) + n
	}
}

// follow returns the book of the dictionary that follows, which has the bookings of this one, or only most of them.
func (b *seriesBook) follow(m *share.Member, most int64) *seriesBook {
	b.mu.Lock()
	defer b.mu.Unlock()
	booked := max(b.credit, b.admitted)
	b.next = &seriesBook{credit: min(booked, most)}
	m.Add(b.next.credit - booked)
	return b.next
}

// trim releases the bookings of series that did not come again. Those of a dictionary that is followed are not its own any more.
func (b *seriesBook) trim(m *share.Member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if idle := b.credit - b.admitted; idle > 0 && b.next == nil {
		m.Add(-idle)
		b.credit = b.admitted
	}
}

// end releases all bookings, for good.
func (b *seriesBook) end(m *share.Member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.Add(-max(b.credit, b.admitted))
	b.credit, b.admitted, b.ended = 0, 0, true
}

func (b *seriesBook) hasRefused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused
}

// previous is the dictionary before, of a table at its maximum of series: for a while its series come before others, or
// every new dictionary would admit a random part of all that are sent.
type previous struct {
	series int
	again  int // of them that are in the new one; guarded by the lock of that
}

// prefer keeps the series of old in front of others in g, which follows it.
func (t *Table) prefer(g *generation, old *point.Dict) {
	if t.limits == nil {
		return
	}
	if most := t.limits.ActiveSeriesMax(); most > 0 && old.Len() >= most {
		g.dict.Follow(old)
		g.prev.Store(&previous{series: old.Len()})
	}
}

// preferTime is the duration of that preference: a live sender has sent by then.
func (s *Settings) preferTime() time.Duration { return s.GenerationAgeMin / 2 }

// newSeries is a dictionary's guard: the table's own limits, then the limit that all tables share.
func (t *Table) newSeries(g *generation, known int, again bool) error {
	if t.ended.Load() {
		return t.errDropped()
	}
	p := g.prev.Load()
	if t.limits != nil {
		t.series.SetWeight(t.limits.Weight())
		reserved := 0
		if p != nil && !again {
			reserved = p.series - p.again
		}
		if err := t.limits.NewSeries(known, reserved); err != nil {
			return err
		}
	}
	if g.book.admit(t.series, g.dict.Weight(), t.mayGrow) {
		if p != nil && again {
			p.again++
		}
		return nil
	}
	if t.ended.Load() { // meanwhile: its book admits nothing, and its share is not used up
		return t.errDropped()
	}
	t.f.metrics.refusedSeries.Inc()
	if t.series.Used() < t.series.Fair() {
		t.f.wanted.Store(time.Now().UnixNano())
	}
	return t.tooMany
}

// errDropped is the answer to writes that began before the table was dropped.
func (t *Table) errDropped() error {
	return fault.Errorf(fault.Unavailable, "table %q was dropped; send again", t.name)
}

// errTooMany is the answer to a new series beyond a table's share. It is made once: a flood would make millions.
func errTooMany(table string, pool *share.Pool) error {
	return fault.Errorf(fault.Invalid, "table %q has as many active series as its share of the %d that there is memory for: new ones are refused until some are gone (storage.memory_bytes, intake.series_max)",
		table, pool.Most())
}

// mayGrow is false for a table that has its share while others were lately refused theirs.
func (t *Table) mayGrow() bool {
	return t.series.Used() < t.series.Fair() || isDue(time.Now().UnixNano(), t.f.wanted.Load()+int64(t.f.settings.GenerationAgeMin), int64(t.f.settings.GenerationAgeMin))
}

// crowds reports whether the table holds more than its share since a table within its own was refused.
func (t *Table) crowds(since time.Time) bool {
	return t.series.Used() > t.series.Fair() && t.f.wanted.Load() > since.UnixNano()
}

// aging goes through the tables again and again, so that the dictionaries of those without writers end in time too. Each request ages one
// table along: none waits for the streams of thousands that are closed.
type aging struct {
	due atomic.Int64 // unix nanoseconds

	mu   sync.Mutex
	left []*Table // of this round; guarded by mu
}

// next returns a table whose dictionary should be looked at; nil: none is due.
func (a *aging) next(f *Forwarder) *Table {
	now, age := time.Now(), int64(f.settings.GenerationAgeMin)
	if !isDue(now.UnixNano(), a.due.Load(), age) || !a.mu.TryLock() {
		return nil
	}
	defer a.mu.Unlock()
	if len(a.left) == 0 {
		if !isDue(now.UnixNano(), a.due.Load(), age) { // another request ended the round
			return nil
		}
		f.mu.RLock()
		a.left = slices.Collect(maps.Values(f.mu.tables))
		f.mu.RUnlock()
	}
	last := len(a.left) - 1
	if last < 0 {
		return nil
	}
	t := a.left[last]
	a.left[last], a.left = nil, a.left[:last]
	if last == 0 {
		a.due.Store(now.Add(f.settings.GenerationAgeMin).UnixNano())
	}
	return t
}

// inherit gives the book of the dictionary that follows g.
func (t *Table) inherit(g *generation) *seriesBook {
	most := int64(math.MaxInt64)
	if t.crowds(g.born) {
		most = t.series.Fair()
	}
	return g.book.follow(t.series, most)
}

// turnDue reports whether a new dictionary follows g: by age, or because there is little room and series that are gone may
// be the reason. If all of them are active the new one is as full as the old one at once, so g stays for a while, and
// further series are refused.
func (t *Table) turnDue(g *generation, age time.Duration) bool {
	set, pool := &t.f.settings, t.f.series
	if age <= set.GenerationAgeMin {
		return false
	}
	g.book.trim(t.series)
	switch {
	case age > set.GenerationAge, g.book.hasRefused(), g.dict.Weight() > set.GenerationSeriesMax/10*9, t.crowds(g.born):
		return true
	case pool.Used() > pool.Most()/3*2 && t.series.Used() > t.series.Fair()/2:
		return true
	case t.limits == nil:
		return false
	}
	most := t.limits.ActiveSeriesMax() // as many as it may have: some of them may be gone
	return most > 0 && g.dict.Len() >= most
}

// OnSeriesGrowth registers grows, which is called with the coming value of Series each time before a series is added.
func (f *Forwarder) OnSeriesGrowth(grows func(to int64)) { f.series.OnGrowth(grows) }

// Series is how many series all tables hold of those that there is memory for.
func (f *Forwarder) Series() int64 { return f.series.Used() }
