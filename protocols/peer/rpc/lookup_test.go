package rpc

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestALongListIsOfTheMemoryOfItsRequest: a list of all values of a label came whole, up to 257 MiB of each server, before any account had it.
func TestALongListIsOfTheMemoryOfItsRequest(t *testing.T) {
	m, p := pair(t)
	queries := budget.New("queries", 24<<20)
	f := func(what string, values int, want fault.Kind) {
		t.Helper()
		m.names = nil
		for range values {
			m.names = append(m.names, strings.Repeat("x", 1000))
		}
		loan, err := queries.Borrow(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer loan.Close()
		got, _, err := p.LabelValues(budget.WithLoan(t.Context(), loan), &peer.Select{Table: "t"}, "a", 0)
		switch used := loan.Used(); {
		case want != fault.Internal:
			wantKind(t, what, err, want)
			if used >= 2<<20 && want == fault.TooLarge {
				t.Errorf("%s: %d bytes stay booked", what, used)
			}
		case err != nil || len(got) != values+1:
			t.Errorf("%s: %d values, %v", what, len(got), err)
		case used < int64(values)*1000 || used > int64(values)*1100+4096:
			t.Errorf("%s: %d bytes are booked", what, used)
		}
	}
	f("few", 10, fault.Internal)
	f("some", 2000, fault.Internal)
	f("more than there is memory for", 60_000, fault.TooLarge)
	f("some, after that", 2000, fault.Internal)
}
