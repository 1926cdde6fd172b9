package limits

import (
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Ticket is one write request on its way. The zero Ticket has no limits. Not for concurrent use.
type Ticket struct {
	registry *Registry // nil: no limits
	table    *Table    // nil: not found yet
	entered  bool      // table counts it as under way

	declared int64 // bytes; below 0: not said
	bytes    int64 // that came
	charged  int64 // charged to the rate; the rest follows when it came, or is refunded
	// overdrawn is set in dry run: the samples would have been refused.
	overdrawn bool
}

// Begin asks whether a request to a table may be read. declared is the length of its body, below 0 if none was declared.
// Errors are Refusals: Throttled, or TooLarge. The caller ends the ticket, also after an error.
//
// A table has no state until Found says that it exists: senders may write any name.
func (r *Registry) Begin(table string, declared int64) (Ticket, error) {
	if r == nil {
		return Ticket{}, nil
	}
	tk := Ticket{registry: r, table: r.Known(table), declared: declared}
	if err := tk.tooLarge(table, declared); err != nil || tk.table == nil {
		return tk, err
	}
	var err error
	if tk.overdrawn, err = tk.table.begin(time.Now()); err == nil {
		tk.enter()
	}
	return tk, err
}

// enter charges for the bytes that came, or are said to come.
func (tk *Ticket) enter() {
	tk.entered, tk.charged = true, max(0, tk.declared, tk.bytes)
	tk.table.enter(tk.charged)
}

func (tk *Ticket) tooLarge(table string, bytes int64) error {
	v := tk.registry.values(table)
	most := int64(v.RequestBytes)
	if most == 0 || bytes <= most {
		return nil
	}
	tk.table.Refused(RequestBytes, 0)
	if v.DryRun {
		return nil
	}
	return refusal(table, RequestBytes, fault.TooLarge, 0, "the body has %d bytes, at most %d are taken; send it in smaller pieces", bytes, most)
}

// Read records the length of a body. The error is as Begin's, for a body without a declared length.
func (tk *Ticket) Read(table string, bytes int) error {
	if tk.registry == nil {
		return nil
	}
	tk.bytes = int64(bytes)
	tk.settle()
	if tk.declared >= 0 {
		return nil
	}
	return tk.tooLarge(table, tk.bytes)
}

// More records further bytes, of a consumer that sees them bit by bit.
func (tk *Ticket) More(bytes int) {
	tk.bytes += int64(bytes)
	tk.settle()
}

func (tk *Ticket) settle() {
	if tk.entered {
		tk.table.chargeBytes(tk.bytes - tk.charged)
		tk.charged = tk.bytes
	}
}

// Found records that the table exists: from here on it has state.
func (tk *Ticket) Found(table string) {
	if tk.registry != nil && tk.table == nil {
		tk.table = tk.registry.Table(table)
		tk.table.requests.Add(1)
		tk.enter()
	}
}

// Table is the state of the ticket's table; nil until the table is found.
func (tk *Ticket) Table() *Table { return tk.table }

// Samples charges for the decoded samples; an excess shows at the next request.
func (tk *Ticket) Samples(n int) {
	if tk.table == nil {
		return
	}
	if tk.overdrawn {
		tk.table.Refused(SamplesPerSecond, n)
	}
	tk.table.chargeSamples(int64(n))
}

// Accepted counts samples that were stored.
func (tk *Ticket) Accepted(samples int) {
	if tk.table != nil {
		tk.table.counts.samples.Add(int64(samples))
	}
}

// End ends the request, whatever its outcome.
func (tk *Ticket) End() {
	if !tk.entered {
		return
	}
	tk.settle()
	tk.entered = false
	tk.table.requests.Add(-1)
	tk.table.counts.bytes.Add(tk.bytes)
}
