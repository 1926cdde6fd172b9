package main

import (
	"runtime"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
)

// body is one request, ready to be sent.
type body struct {
	bytes   []byte
	samples int
	scrape  int
}

// makeBodies encodes the whole load: warm scrapes first. Scrape numbers below zero are warm-up.
func makeBodies(o options) (bodies []body, series int) {
	f := fleet.New(o.hosts, o.seed)
	series = o.hosts * f.Fields()
	e := fleet.NewEncoder(o.protocol)
	total := o.warm + o.scrapes
	// The load ends a little before now, so that nothing lies in the future and a day boundary is met only by chance.
	start := time.Now().Add(-time.Duration(total) * o.interval).Truncate(time.Second).UnixMilli()
	for scrape := range total {
		at := start + int64(scrape)*o.interval.Milliseconds()
		if o.churn > 0 {
			f.Churn(o.churn / float64(total))
		}
		for i := range f.Hosts {
			t := at
			if o.jitter > 0 {
				t += f.Rand.Int64N(o.jitter.Milliseconds() + 1)
			}
			if o.late > 0 && f.Rand.Float64() < o.late {
				t -= o.interval.Milliseconds() + 1
			}
			e.Host(f, &f.Hosts[i], t)
			if e.Samples() >= o.batch {
				bodies = cutBody(bodies, e, scrape-o.warm)
			}
		}
		bodies = cutBody(bodies, e, scrape-o.warm)
	}
	runtime.GC()
	return bodies, series
}

func cutBody(bodies []body, e fleet.Encoder, scrape int) []body {
	n := e.Samples()
	if b := e.Cut(); b != nil {
		bodies = append(bodies, body{b, n, scrape})
	}
	return bodies
}
