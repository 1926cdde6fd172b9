package brick

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// metrics are the metrics of a brick. No labels.
type metrics struct {
	appendedRecords prometheus.Counter
	appendedBytes   prometheus.Counter
	rewrittenBytes  prometheus.Counter
	fsyncs          prometheus.Histogram

	opened time.Time
	mu     struct {
		sync.Mutex // guards this struct, for a moment at both ends of each fsync
		pace       pace
		begun      uint64        // fsyncs
		took       time.Duration // of those that have ended
		hung       time.Duration // how long the longest was seen to run of those that run, or ran since none did; 0: none was reported
		asked      time.Duration // when Fsync was called last
	}
	alarm     *time.Timer             // FsyncHung after the first of the fsyncs that run began; nil: nothing is reported
	recovered func(ran time.Duration) // called when none runs any more and one was reported

	reg prometheus.Registerer
	all []prometheus.Collector
}

func newMetrics() *metrics {
	return &metrics{
		opened:          time.Now(),
		appendedRecords: prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_brick_appended_records_total", Help: "Records appended to the common log."}),
		appendedBytes:   prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_brick_appended_bytes_total", Help: "Bytes of records appended to the common log, without headers."}),
		rewrittenBytes:  prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_brick_rewritten_bytes_total", Help: "Log bytes copied forward so that old files could go."}),
		fsyncs: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "spillway_brick_fsync_seconds", Help: "Duration of fsyncs of the common log; its count is their number.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 18), // 50 µs … 6.5 s
		}),
	}
}

// fsyncBegins measures an fsync of the common log, until fsyncEnds with its result. Neither allocates.
func (m *metrics) fsyncBegins() (start time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	start = time.Since(m.opened)
	m.mu.pace.began(start)
	m.mu.begun++
	if m.alarm != nil && len(m.mu.pace.running) == 1 {
		m.alarm.Reset(FsyncHung)
	}
	return start
}

func (m *metrics) fsyncEnds(start time.Duration) {
	now := time.Since(m.opened)
	m.fsyncs.Observe((now - start).Seconds())
	if ran := m.note(start, now); ran > 0 {
		m.recovered(ran)
	}
}

// note counts an fsync that has ended. It returns for how long one ran that was reported, once none runs any more.
func (m *metrics) note(start, now time.Duration) (recovered time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.pace.ended(start, now)
	m.mu.took += now - start
	if m.mu.hung > 0 {
		m.mu.hung = max(m.mu.hung, now-start)
	}
	if m.alarm != nil && len(m.mu.pace.running) == 0 {
		m.alarm.Stop()
		recovered, m.mu.hung = m.mu.hung, 0
	}
	return recovered
}

// Fsync is how long an fsync of the common log lasts: the median of the last ten seconds in which there were any (pace.go). 0: there were too few of late.
func (b *Brick) Fsync() time.Duration {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	now := time.Since(b.m.opened)
	b.m.mu.asked = now
	return b.m.mu.pace.typical(now)
}

// Fsyncs counts the fsyncs of the common log that have begun since Open. took is their time together; one that has not ended lasts until now.
func (b *Brick) Fsyncs() (begun uint64, took time.Duration) {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	now := time.Since(b.m.opened)
	took = b.m.mu.took
	for _, start := range b.m.mu.pace.running {
		took += now - start
	}
	return b.m.mu.begun, took
}

// register registers the metrics of b. A second brick in the same registry is refused, as Invalid.
func (m *metrics) register(reg prometheus.Registerer, b *Brick) error {
	if reg == nil {
		return nil
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	m.reg = reg
	var err error
	for _, c := range []prometheus.Collector{
		m.appendedRecords, m.appendedBytes, m.rewrittenBytes, m.fsyncs,
		gauge("spillway_brick_log_files", "Files of the common log.", func() float64 { return float64(b.Usage().Files) }),
		gauge("spillway_brick_log_bytes", "Bytes of the common log's files.", func() float64 { return float64(b.Usage().Bytes) }),
		gauge("spillway_brick_log_live_bytes", "Bytes of the common log that some placement still needs.", func() float64 { return float64(b.Usage().Live) }),
		gauge("spillway_brick_fsync_running_seconds", "How long the oldest fsync of the common log that has not ended has been running; 0: none runs.", func() float64 { return b.FsyncRunning().Seconds() }),
		gauge("spillway_brick_in_flight_bytes", "Bytes appended and not yet fsynced.", func() float64 { return float64(b.InFlight()) }),
		gauge("spillway_brick_fenced", "1 after a disk error: nothing is acknowledged any more.", func() float64 { return gauge01(b.Err() != nil) }),
		gauge("spillway_brick_last_fence_timestamp_seconds", lastFenceHelp, func() float64 {
			if f := b.LastFence(); !f.At.IsZero() {
				return float64(f.At.UnixMilli()) / 1000
			}
			return 0
		}),
		gauge("spillway_brick_lost_found_entries", "Files and directories that no catalogue entry names, put aside in lost+found.", func() float64 { return float64(b.LostFound().Entries) }),
		gauge("spillway_brick_lost_found_bytes", "Bytes in lost+found.", func() float64 { return float64(b.LostFound().Bytes) }),
		gauge("spillway_brick_free_bytes", "Free bytes where data and log lie, the lesser of both, and those of spillway_brick_dropped_bytes; NaN: not known.", b.freeBytes),
		gauge("spillway_brick_dropped_bytes", "Bytes of dropped partitions that are still on the disk. They are removed slowly, so that writers do not wait, and at once where room is short.", func() float64 { return float64(b.DroppedBytes()) }),
		gauge("spillway_brick_read_only", "1 while too little disk space is free.", func() float64 { ro, _ := b.ReadOnly(); return gauge01(ro) }),
	} {
		if rerr := reg.Register(c); rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		m.all = append(m.all, c)
	}
	if err != nil {
		m.unregister()
	}
	return fault.Wrap(err, fault.Invalid, "brick metrics")
}

func (m *metrics) unregister() {
	for _, c := range m.all {
		m.reg.Unregister(c)
	}
	m.all = nil
}

const lastFenceHelp = "When a failed write or fsync last fenced the store, of this process or one before, as its note in the data directory says; 0: not within a day."

func gauge01(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
