package limits

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Table is the state of one table that exists. Safe for concurrent use; a nil Table has no limits and counts nothing.
type Table struct {
	// Constant after it was made.
	name     string
	registry *Registry

	force    atomic.Pointer[tableForce]
	counts   counts
	series   atomic.Int64 // active now
	requests atomic.Int64 // under way
	queries  queries

	mu struct {
		sync.Mutex
		samples, bytes, newSeries bucket
	}

	view view // guarded by the registry's lock
}

// tableForce is the limits in force for one table.
type tableForce struct {
	Values
	// A flood of new series must not cost a text each.
	seriesFull, seriesFast *Refusal
}

// counts only grow.
type counts struct {
	samples, bytes, series, requests, queries atomic.Int64

	refused        [modes][limitsNum]atomic.Int64 // requests, series or queries
	refusedSamples [modes][limitsNum]atomic.Int64 // where their number was known
}

// mode says whether a limit refused something, or would have.
type mode int

const (
	enforced mode = iota
	dryRun
	modes
)

var modeNames = [modes]string{"enforced", "dry_run"}

func newTable(r *Registry, name string, v *Values) *Table {
	t := &Table{name: name, registry: r}
	t.set(v)
	return t
}

// set puts limits in force. The buckets keep their contents.
func (t *Table) set(v *Values) {
	f := &tableForce{Values: *v}
	f.seriesFull = refusal(t.name, ActiveSeries, fault.Invalid, 0,
		"%d series are active, the most it may have; samples of others are not taken until some are gone", v.ActiveSeries)
	f.seriesFast = refusal(t.name, NewSeriesPerSecond, fault.Throttled, time.Second,
		"it may have %d new series a second and has more; send again later", v.NewSeriesPerSecond)
	t.force.Store(f)
	t.queries.set(int64(v.QueryConcurrency))
}

// Values are the limits in force.
func (t *Table) Values() Values {
	if t == nil {
		return Values{}
	}
	return t.force.Load().Values
}

// Weight is how often the table counts among those that share memory.
func (t *Table) Weight() int64 { return max(1, int64(t.Values().Weight)) }

// LabelLimits are the limits of labels, for a dictionary.
func (t *Table) LabelLimits() point.LabelLimits {
	v := t.Values()
	return point.LabelLimits{Count: int(v.LabelsPerSeries), NameBytes: int(v.LabelNameBytes), ValueBytes: int(v.LabelValueBytes), DryRun: v.DryRun}
}

// LabelsRefused counts series that exceed the limits of labels.
func (t *Table) LabelsRefused(series int) {
	if t == nil {
		return
	}
	t.counts.refused[t.mode()][Labels].Add(int64(series))
}

func (t *Table) mode() mode {
	if t.force.Load().DryRun {
		return dryRun
	}
	return enforced
}

// Refused counts a refusal by a limit: once, and the samples where their number is given. In dry run it counts them as
// such.
func (t *Table) Refused(l Limit, samples int) {
	if t == nil {
		return
	}
	m := t.mode()
	t.counts.refused[m][l].Add(1)
	t.counts.refusedSamples[m][l].Add(int64(samples))
}

// refuse counts a refusal, which is nil in dry run.
func (t *Table) refuse(f *tableForce, r *Refusal) error {
	t.Refused(r.Limit, 0)
	if f.DryRun {
		return nil
	}
	return r
}

// begin counts a request as under way and checks the limits that can be checked before its body is read. overdrawn is true
// in dry run, when the samples would be refused; their number shows later.
func (t *Table) begin(now time.Time) (overdrawn bool, err error) {
	f := t.force.Load()
	under := t.requests.Add(1)
	defer func() {
		if err != nil {
			t.requests.Add(-1)
		}
	}()
	if most := int64(f.RequestConcurrency); most > 0 && under > most {
		r := refusal(t.name, RequestConcurrency, fault.Throttled, time.Second, "%d of its write requests are under way, the most it may have", most)
		if err := t.refuse(f, r); err != nil {
			return false, err
		}
	}
	if rate := f.BytesPerSecond; rate > 0 {
		if wait, empty := t.empty(&t.mu.bytes, now, float64(rate), burstOf(rate, f.BytesBurst)); empty {
			r := refusal(t.name, BytesPerSecond, fault.Throttled, wait, "it may send %d bytes a second and sends more; come again in %v", rate, shortly(wait))
			if err := t.refuse(f, r); err != nil {
				return false, err
			}
		}
	}
	if rate := f.SamplesPerSecond; rate > 0 {
		if wait, empty := t.empty(&t.mu.samples, now, float64(rate), burstOf(rate, f.SamplesBurst)); empty {
			if !f.DryRun {
				return false, t.refuse(f, refusal(t.name, SamplesPerSecond, fault.Throttled, wait, "it may send %d samples a second and sends more; come again in %v", rate, shortly(wait)))
			}
			overdrawn = true
		}
	}
	return overdrawn, nil
}

func (t *Table) empty(b *bucket, now time.Time, rate, burst float64) (time.Duration, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b.fill(now, rate, burst)
	return b.empty(rate)
}

// enter counts a request that is under way, and charges for the bytes it says it has.
func (t *Table) enter(bytes int64) {
	t.counts.requests.Add(1)
	t.chargeBytes(bytes)
}

// chargeBytes subtracts bytes from the rate; a negative number is a refund.
func (t *Table) chargeBytes(n int64) {
	f := t.force.Load()
	if rate := f.BytesPerSecond; rate > 0 && n != 0 {
		t.take(&t.mu.bytes, time.Now(), float64(rate), burstOf(rate, f.BytesBurst), float64(n))
	}
}

func (t *Table) chargeSamples(n int64) {
	f := t.force.Load()
	if rate := f.SamplesPerSecond; rate > 0 && n > 0 {
		t.take(&t.mu.samples, time.Now(), float64(rate), burstOf(rate, f.SamplesBurst), float64(n))
	}
}

func (t *Table) take(b *bucket, now time.Time, rate, burst, n float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b.fill(now, rate, burst)
	b.take(n)
}

// NewSeries asks for a place for one more series, under the lock of a dictionary that has known series and holds reserved
// places for others. Errors: Invalid (the maximum is reached; this does not pass), Throttled (too many are new).
func (t *Table) NewSeries(known, reserved int) error {
	if t == nil {
		return nil
	}
	f := t.force.Load()
	if most := int64(f.ActiveSeries); most > 0 && int64(known+reserved) >= most {
		if err := t.refuse(f, f.seriesFull); err != nil {
			return err
		}
	}
	if f.NewSeriesPerSecond > 0 && t.tooFast(f) {
		if err := t.refuse(f, f.seriesFast); err != nil {
			return err
		}
	}
	t.counts.series.Add(1)
	t.series.Store(int64(known) + 1)
	return nil
}

// tooFast charges a new series to their rate, unless it is too many.
func (t *Table) tooFast(f *tableForce) bool {
	now := time.Now()
	if now.Sub(t.registry.started) < time.Duration(t.registry.force.Load().settings.NewSeriesGrace) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b, rate := &t.mu.newSeries, f.NewSeriesPerSecond
	b.fill(now, float64(rate), max(burstOf(rate, f.NewSeriesBurst), b.level)) // more than the burst: Renumbered gave it
	if _, empty := b.empty(float64(rate)); empty {
		return true
	}
	b.take(1)
	return false
}

// Renumbered says that a dictionary that knew so many series is followed by an empty one, to which all will be new: they
// are not counted against the rate of new series.
func (t *Table) Renumbered(known int) {
	if t == nil {
		return
	}
	t.series.Store(0)
	f := t.force.Load()
	if f.NewSeriesPerSecond == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b, rate := &t.mu.newSeries, f.NewSeriesPerSecond
	b.fill(time.Now(), float64(rate), burstOf(rate, f.NewSeriesBurst))
	b.level += float64(known)
}

// ActiveSeriesMax is how many series a dictionary of this table may hold; 0: as many as there is room for.
func (t *Table) ActiveSeriesMax() int {
	if v := t.Values(); !v.DryRun {
		return int(v.ActiveSeries)
	}
	return 0
}
