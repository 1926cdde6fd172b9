package presplit

import (
	"math"
	"math/rand/v2"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Traces are the names that Synthetic knows.
var Traces = []string{"steady", "daily", "weekly", "growth", "step", "spike", "outage", "new"}

// SyntheticStart is when synthetic traces begin: a Monday, 2026-01-05 00:00 UTC.
const SyntheticStart = point.Nanos(1767571200e9)

// Synthetic makes a trace of a kind, with a mean of some 10 MB/s; nil if there is no such kind. Its noise: each minute is off by 5 % (standard deviation, independent of
// the others), and all by a wave of 3 % with a memory of an hour.
//
//	steady  the same rate all the time
//	daily   a day's cycle: 2.3 times as much at 14:00 as at 02:00
//	weekly  that, with 60 % of that on Saturdays and Sundays
//	growth  that, 5 % more each day
//	step    weekly; twice as much from noon of day 4 on
//	spike   weekly; five times as much for 20 minutes on day 4 at 12:00
//	outage  weekly; nothing for 2 hours on day 4 at 12:00
//	new     daily; nothing is known of the time before
func Synthetic(kind string, days int, seed uint64) *Trace {
	shape := map[string]func(day, hour float64) float64{
		"steady": func(float64, float64) float64 { return 1 }, "daily": daily, "new": daily, "weekly": weekly,
		"growth": func(day, hour float64) float64 { return weekly(day, hour) * math.Pow(1.05, day) },
		"step": func(day, hour float64) float64 {
			if day >= 4.5 {
				return 2 * weekly(day, hour)
			}
			return weekly(day, hour)
		},
		"spike": func(day, hour float64) float64 {
			if day >= 4.5 && day < 4.5+20.0/1440 {
				return 5 * weekly(day, hour)
			}
			return weekly(day, hour)
		},
		"outage": func(day, hour float64) float64 {
			if day >= 4.5 && day < 4.5+120.0/1440 {
				return 0
			}
			return weekly(day, hour)
		},
	}[kind]
	if shape == nil {
		return nil
	}
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	t := &Trace{Start: SyntheticStart, Bytes: make([]float64, days*1440)}
	wave := 0.0
	const memory = 59.0 / 60
	for i := range t.Bytes {
		wave = memory*wave + math.Sqrt(1-memory*memory)*0.03*rng.NormFloat64()
		day := float64(i) / 1440
		t.Bytes[i] = max(0, 600e6*shape(day, 24*(day-math.Floor(day)))*(1+0.05*rng.NormFloat64())*(1+wave))
	}
	return t
}

func daily(_, hour float64) float64 { return 1 - 0.4*math.Cos((hour-2)/24*2*math.Pi) }

func weekly(day, hour float64) float64 {
	if math.Mod(day, 7) >= 5 {
		return 0.6 * daily(day, hour)
	}
	return daily(day, hour)
}
