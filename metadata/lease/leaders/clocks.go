package leaders

import (
	"context"
	"log/slog"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/point"
)

// clocksListed passes on the times of heartbeats that may be old.
func (v *View) clocksListed(rows []coord.Row) {
	if v.clock == nil {
		return
	}
	var times []point.Nanos
	for _, r := range rows {
		if _, at, ok := sentAt(r); ok {
			times = append(times, at)
		}
	}
	v.clock.Listed(times)
}

// clocksObserved passes on the times of heartbeats that were sent just now.
func (v *View) clocksObserved(events []coord.Event) {
	if v.clock == nil {
		return
	}
	for _, e := range events {
		if server, at, ok := sentAt(e.Row); ok && !e.Deleted {
			v.clock.Observe(server, at)
		}
	}
}

// sentAt is when a server sent a heartbeat, by its own clock.
func sentAt(r coord.Row) (server string, at point.Nanos, ok bool) {
	s, ok := lease.ParseBeatKey(r.Key)
	if !ok {
		return "", 0, false
	}
	b, err := lease.DecodeBeat(r.Value)
	if err != nil || b.Missing || b.Time.IsZero() {
		return "", 0, false
	}
	return string(s), b.Time.UnixNano(), true
}

// judgeEvery is how often this process's clock is compared with the servers'.
const judgeEvery = time.Second

// judgeClock judges this process's clock until ctx ends, and logs when it begins to be off and when it is right again.
func (v *View) judgeClock(ctx context.Context) error {
	ticks := time.NewTicker(judgeEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		was, is := v.clock.Look()
		if (was.Verdict == clock.Off) == (is.Verdict == clock.Off) {
			continue
		}
		ahead := slog.Duration("ahead", v.clock.Ahead().Round(time.Millisecond))
		if is.Verdict == clock.Off {
			v.log.Warn("the clock of this machine is wrong: rows and queries are judged by the median of the storage servers' clocks; set it right", ahead)
		} else {
			v.log.Info("the clock of this machine is right again", ahead)
		}
	}
}
