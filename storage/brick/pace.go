package brick

import (
	"slices"
	"time"
)

// pace is how long fsyncs of the common log last of late: the median of the newest seconds in which one ended or ran, each with the mean of its fsyncs. A second counts once,
// so that a few slow fsyncs weigh as much as the many fast ones that would have had room in their time; and a single slow one, as when a large file is written beside the log, changes
// nothing. If the median of the newest three is lower, it is that. An fsync that is still running counts as one that ends now; one that has been running for paceHung is the pace,
// whatever came before it: a disk that hangs ends no fsync.
//
// Where little is written, quick seconds count however old they are, so that the disks of servers at rest can be compared with one that hangs. Slow ones do not: instead the disk is
// probed, each second until it is quick (probe), by a mark in the log, where the pace is asked for.
//
// It is a machine without a clock: times are those since any moment.
type pace struct {
	seconds [paceSeconds]paceSecond // the newest last; the first are empty at the beginning
	running []time.Duration         // when each fsync that has not ended began: one, or two while a file ends
}

type paceSecond struct {
	at    int64 // since that moment
	total time.Duration
	n     int
}

const (
	// paceSeconds are the seconds that count. Larger: a disk that turns slow is noticed later.
	paceSeconds = 10
	// paceMin is from how many of them the pace is known.
	paceMin = 5
	// paceNewest of them must be as slow: a disk that stalled for some seconds, and is well, is not slow for as long again.
	paceNewest = 3
	// paceAge is how old a second may be that is not quick. Larger: servers to which little is written have a pace too, and it is one of long ago.
	paceAge = 15
	// paceQuick is below what a second is quick.
	paceQuick = 100 * time.Millisecond
	// paceHung is from when on an fsync that has not ended is the pace. Smaller: leases move for a stall of some seconds that is over by then.
	paceHung = 5 * time.Second
)

func (p *pace) began(now time.Duration) { p.running = append(p.running, now) }

func (p *pace) ended(start, now time.Duration) {
	if i := slices.Index(p.running, start); i >= 0 {
		p.running = slices.Delete(p.running, i, i+1)
	}
	p.note(start, now)
}

// note counts an fsync in the second of its end, and in those before in which it ran and none ended.
func (p *pace) note(start, end time.Duration) {
	newest := func() *paceSecond { return &p.seconds[paceSeconds-1] }
	last := int64(end / time.Second)
	for s := max(int64(start/time.Second), last-paceSeconds); s <= last; s++ {
		if newest().n > 0 && s <= newest().at {
			continue
		}
		copy(p.seconds[:], p.seconds[1:])
		*newest() = paceSecond{at: s}
		if s < last {
			newest().total, newest().n = end-start, 1
		}
	}
	newest().total += end - start
	newest().n++
}

// typical is the median; 0: it is not known.
func (p *pace) typical(now time.Duration) time.Duration {
	seen := pace{seconds: p.seconds}
	for _, start := range p.running {
		if now-start >= time.Second {
			seen.note(start, now)
		}
	}
	var means []time.Duration
	for _, s := range seen.seconds {
		if s.n > 0 && (s.mean() < paceQuick || int64(now/time.Second)-s.at < paceAge) {
			means = append(means, s.mean())
		}
	}
	if d := p.longest(now); d >= paceHung {
		return d
	}
	if len(means) < paceMin {
		return 0
	}
	newest := slices.Clone(means[len(means)-paceNewest:])
	return max(min(lowerMedian(means), lowerMedian(newest)), 1)
}

func (s paceSecond) mean() time.Duration { return s.total / time.Duration(s.n) }

// longest is how long the oldest fsync that has not ended has been running; 0: none runs.
func (p *pace) longest(now time.Duration) (d time.Duration) {
	for _, start := range p.running {
		d = max(d, now-start)
	}
	return d
}

// probe reports whether the disk is to be probed if nothing is written to it: too little is known of it, or it was slow a moment ago.
func (p *pace) probe() bool {
	return slices.ContainsFunc(p.seconds[paceSeconds-paceMin:], func(s paceSecond) bool { return s.n == 0 || s.mean() >= paceQuick })
}

func lowerMedian(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[(len(all)-1)/2]
}
