package mapstore

import (
	"errors"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Fetch is one search for a METADATA file at the servers that should have it: Step(now, input) effects. It has no clock,
// lock, I/O or goroutine.
//
//	ask the first ──answer──▶ Found
//	      │ an error: ask the next one at once
//	      │ silence:  ask the next one too, after HedgeAfter; the first answer wins
//	      └ all failed ─────▶ Lost
type Fetch struct {
	table   string
	servers []topology.ServerID // in the order in which they are asked
	next    int
	waiting int
	last    time.Time // when the newest was asked
	failed  []error
	over    bool
}

// HedgeAfter is how long a metadata server may be silent before another is asked beside it.
const HedgeAfter = 300 * time.Millisecond

// NewFetch searches at the servers, in this order.
func NewFetch(table string, servers []topology.ServerID) *Fetch {
	return &Fetch{table: table, servers: slices.Clone(servers)}
}

// FetchInput is an input of a Fetch: FetchTick, which is also the first one, or FetchAnswer.
type FetchInput interface{ fetchInput() }

// FetchTick reports that time has passed.
type FetchTick struct{}

// FetchAnswer reports how the request to a server ended: nil means that its file was checked and is the one asked for.
type FetchAnswer struct {
	Server topology.ServerID
	Err    error
}

func (FetchTick) fetchInput()   {}
func (FetchAnswer) fetchInput() {}

// FetchEffect is an effect of a Fetch.
type FetchEffect interface{ fetchEffect() }

// FetchAsk asks a server; a FetchAnswer follows in any case. FetchTick is due After later, while no answer comes; 0: none.
type FetchAsk struct {
	Server topology.ServerID
	After  time.Duration
}

// FetchFound ends a search: the answer of this server is the result. Others under way may be cancelled.
type FetchFound struct{ Server topology.ServerID }

// FetchLost ends a search without a result. The error is Unavailable.
type FetchLost struct{ Err error }

func (FetchAsk) fetchEffect()   {}
func (FetchFound) fetchEffect() {}
func (FetchLost) fetchEffect()  {}

// Step handles an input and appends the effects to perform.
func (f *Fetch) Step(now time.Time, in FetchInput, out []FetchEffect) []FetchEffect {
	if f.over {
		return out
	}
	switch in := in.(type) {
	case FetchTick:
		if f.waiting == 0 || now.Sub(f.last) >= HedgeAfter {
			return f.ask(now, out)
		}
	case FetchAnswer:
		f.waiting--
		if in.Err == nil {
			f.over = true
			return append(out, FetchFound{in.Server})
		}
		f.failed = append(f.failed, fault.Annotate(in.Err, "%s", in.Server))
		return f.ask(now, out)
	}
	return out
}

func (f *Fetch) ask(now time.Time, out []FetchEffect) []FetchEffect {
	if f.next == len(f.servers) {
		if f.waiting > 0 {
			return out
		}
		f.over = true
		return append(out, FetchLost{f.err()})
	}
	s := f.servers[f.next]
	f.next++
	f.waiting++
	f.last = now
	after := HedgeAfter
	if f.next == len(f.servers) {
		after = 0
	}
	return append(out, FetchAsk{s, after})
}

func (f *Fetch) err() error {
	if len(f.failed) == 0 {
		return fault.Errorf(fault.Unavailable, "table %q has no metadata server to ask", f.table)
	}
	return fault.Wrap(errors.Join(f.failed...), fault.Unavailable, "no metadata server of table %q has it; asked %v", f.table, f.servers)
}
