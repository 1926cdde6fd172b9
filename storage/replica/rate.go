package replica

import (
	"slices"
	"time"
)

// Rate decides how fast a server copies: as fast as its setting allows while fsyncs of its log last as long as without copying, slower while
// they last longer. All rows wait for those fsyncs, so they show what copying costs writers, whatever is short: the disk, its queue or the CPU.
//
//	bytes copied, fsyncs below twice the baseline  the rate rises by 1/32 of the setting
//	bytes copied, fsyncs longer                    it falls in proportion, by 1/8 to 1/2, down to 1/8 of the setting
//	nothing copied                                 it falls by 1/32 of the setting, down to 1/8: so a copy begins slowly
//
// This is additive increase, multiplicative decrease. The baseline is the median of the newest 40 means of steps without copying. Where the
// rate has been the lowest for two seconds, such steps count, too: rows come faster than before, the disk is slower, or the server never had
// a quiet moment, and that becomes the baseline.
type Rate struct {
	most, least float64
	now         float64
	last        Work
	rested      bool // nothing was copied in the step before
	lowest      int  // steps in a row in which bytes were copied at the lowest rate
	means       []time.Duration
}

// Work is what a server has done since it started.
type Work struct {
	Copied   uint64        // bytes of segments: sent, received, and read for a check
	Fsyncs   uint64        // of the log, that have begun
	Fsyncing time.Duration // that they lasted, together; one that has not ended, until now
}

const (
	// rateSteps are from nothing to the setting: 8 s. Larger: the rate is steadier where the log is the bound, and small copies take longer.
	rateSteps = 32
	// rateLeast is the part of the setting that is the lowest rate. Larger: a server whose disk is slow for other reasons copies for longer.
	rateLeast = 8
	// rateLeastBytes are the lowest rate at least, in bytes a second: so little delays no writer.
	rateLeastBytes = 1 << 20
	// rateStuck is how many steps in a row at the lowest rate make their fsyncs the baseline. Larger: a server that never rested copies slowly for longer.
	rateStuck = 8
	// rateMeans are those that the median is of. Larger: a disk that became slower is noticed later.
	rateMeans = 40
	// rateKnown is from how many of them the median is known. Before, the rate is the lowest while there are fsyncs.
	rateKnown = 8
	// rateSlack is how much longer than the baseline an fsync may last where that is short: it is too little to notice, and such means scatter widely.
	rateSlack = 500 * time.Microsecond
)

// NewRate makes the machine for a setting in bytes a second. A setting of 1 MiB/s or less is the rate at all times.
func NewRate(most int64) *Rate {
	r := &Rate{most: float64(most)}
	r.least = min(r.most, max(r.most/rateLeast, rateLeastBytes))
	r.now = r.least
	return r
}

// Step returns the bytes a second that may be sent, and as many received, until the next step. Steps are a quarter of a second apart.
func (r *Rate) Step(total Work) float64 {
	copied, fsyncs, took := total.Copied-r.last.Copied, total.Fsyncs-r.last.Fsyncs, total.Fsyncing-r.last.Fsyncing
	r.last = total
	rests := copied == 0
	mean := took / time.Duration(max(fsyncs, 1)) // none may begin while one lasts
	if rests || r.now > r.least {
		r.lowest = 0
	} else {
		r.lowest++
	}
	if took > 0 && (rests && r.rested || r.lowest > rateStuck) {
		r.note(mean)
	}
	r.rested = rests
	baseline, known := r.Baseline()
	most := baseline + max(baseline, rateSlack)
	switch {
	case rests:
		r.now -= r.most / rateSteps
	case took == 0: // no row waits
		r.now += r.most / rateSteps
	case !known:
		r.now = r.least
	case mean > most:
		r.now *= min(max(float64(most)/float64(mean), 1./2), 7./8)
	default:
		r.now += r.most / rateSteps
	}
	r.now = min(max(r.now, r.least), r.most)
	return r.now
}

// Baseline returns how long an fsync of the log lasts without copying; known is false if there were too few.
func (r *Rate) Baseline() (median time.Duration, known bool) {
	if len(r.means) < rateKnown {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(r.means))
	return sorted[len(sorted)/2], true
}

func (r *Rate) note(mean time.Duration) {
	if len(r.means) == rateMeans {
		r.means = slices.Delete(r.means, 0, 1)
	}
	r.means = append(r.means, mean)
}
