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
	total := o.warm + o.scrapes
	// The load ends a little before now, so that nothing lies in the future and a day boundary is included only by chance.
	start := time.Now().Add(-time.Duration(total) * o.interval).Truncate(time.Second)
	g := newGenerator(o, start)
	for scrape := range total {
		g.scrape(scrape-o.warm, func(b body) { bodies = append(bodies, b) })
	}
	runtime.GC()
	return bodies, g.series()
}

// generator makes one scrape of the fleet after the other.
type generator struct {
	o     options
	fleet *fleet.Fleet
	enc   fleet.Encoder
	at    int64 // of the next scrape
}

func newGenerator(o options, start time.Time) *generator {
	return &generator{o, fleet.New(o.hosts, o.seed), fleet.NewEncoder(o.protocol), start.UnixMilli()}
}

func (g *generator) series() int { return g.o.hosts * g.fleet.Fields() }

// scrape hands out the bodies of the next scrape, which has this number.
func (g *generator) scrape(n int, out func(body)) {
	o, f := &g.o, g.fleet
	if o.churn > 0 {
		f.Churn(o.churn / float64(o.warm+o.scrapes))
	}
	for i := range f.Hosts {
		t := g.at
		if o.jitter > 0 {
			t += f.Rand.Int64N(o.jitter.Milliseconds() + 1)
		}
		if o.late > 0 && f.Rand.Float64() < o.late {
			t -= o.interval.Milliseconds() + 1
		}
		g.enc.Host(f, &f.Hosts[i], t)
		if g.enc.Samples() >= o.batch {
			g.cut(n, out)
		}
	}
	g.cut(n, out)
	g.at += o.interval.Milliseconds()
}

func (g *generator) cut(scrape int, out func(body)) {
	n := g.enc.Samples()
	if b := g.enc.Cut(); b != nil {
		out(body{b, n, scrape})
	}
}
