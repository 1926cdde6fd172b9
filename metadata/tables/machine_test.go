package tables

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestScripts plays the life of a table as one process sees it. Each command prints the state then, and the effects.
//
//	new                                a process without any state
//	cache txn=a seq=1                  an earlier process cached this
//	row 7 txn=b seq=2 [on=(s1,s2)] [dropping] [dropped]    the table's row, at revision 7
//	proven ago=1s                      the store was asked for all rows a second ago, and answers
//	gone 9                             there was no row at revision 9
//	known txn=b seq=2 [row=7]          a map that this process committed, or a server named
//	fetched 1 | failed 1               how fetch 1 ended
//	wanted | retry | save              a caller waits; an alarm that was asked for is due
//	wait 5s                            time passes
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &story{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.command(t, d) })
	})
}

type story struct {
	m       *Machine
	now     time.Time
	fetches map[int]Fetch
	seq     uint64
}

func (s *story) command(t *testing.T, d *datadriven.TestData) string {
	arg := func(name string, into any) {
		if d.HasArg(name) {
			d.ScanArgs(t, name, into)
		}
	}
	first := func() (n int) {
		if _, err := fmt.Sscan(d.CmdArgs[0].Key, &n); err != nil {
			d.Fatalf(t, "%v", err)
		}
		return n
	}
	var row mapstore.Row
	var txn string
	arg("txn", &txn)
	copy(row.Txn[:], txn)
	arg("seq", &row.Seq)
	row.Dropped, row.Dropping = d.HasArg("dropped"), d.HasArg("dropping")
	for _, a := range d.CmdArgs {
		if a.Key == "on" {
			for _, v := range a.Vals {
				row.Servers = append(row.Servers, topology.ServerID(v))
			}
		}
	}
	mapAt := func(seq uint64) *topology.Map {
		return &topology.Map{Table: "cpu", Seq: seq, Config: topology.Config{PartitionWidth: time.Hour}}
	}
	switch d.Cmd {
	case "new":
		s.m, s.now, s.fetches, s.seq = &Machine{}, time.Unix(0, 0), map[int]Fetch{}, 0
		return s.draw(nil)
	case "cache":
		return s.draw(s.step(t, FromCache{mapAt(row.Seq), row, s.now}))
	case "proven":
		var ago string
		arg("ago", &ago)
		pause, err := time.ParseDuration(ago)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return s.draw(s.step(t, Proven{s.now.Add(-pause)}))
	case "row":
		return s.draw(s.step(t, RowRead{row, coord.Revision(first())}))
	case "gone":
		return s.draw(s.step(t, RowGone{coord.Revision(first())}))
	case "known":
		rev := 0
		arg("row", &rev)
		return s.draw(s.step(t, Known{mapAt(row.Seq), row, coord.Revision(rev)}))
	case "fetched":
		return s.draw(s.step(t, Fetched{ID: first(), Map: mapAt(s.fetches[first()].Want.Seq)}))
	case "failed":
		return s.draw(s.step(t, Fetched{ID: first(), Err: fault.Errorf(fault.Unavailable, "no server answers")}))
	case "wanted":
		return s.draw(s.step(t, Wanted{}))
	case "retry":
		return s.draw(s.step(t, RetryDue{}))
	case "save":
		return s.draw(s.step(t, SaveDue{}))
	case "wait":
		pause, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		s.now = s.now.Add(pause)
		return s.draw(nil)
	}
	d.Fatalf(t, "no command %q", d.Cmd)
	return ""
}

func (s *story) step(t *testing.T, in Input) []Effect {
	out := s.m.Step(in, nil)
	if seq := s.m.Row().Seq; seq < s.seq {
		t.Errorf("%T: transaction %d after %d", in, seq, s.seq)
	} else {
		s.seq = seq
	}
	if len(s.m.fetches) > 2 {
		t.Errorf("%d fetches", len(s.m.fetches))
	}
	return out
}

func name(txn peer.TxnID) string { return strings.TrimRight(string(txn[:]), "\x00") }

func (s *story) draw(effects []Effect) string {
	var b strings.Builder
	switch m, rev := s.m.At(); {
	case m != nil:
		fmt.Fprintf(&b, "map %d (%s) of row %d, servers %v", m.Seq, name(s.m.Row().Txn), rev, s.m.Row().Servers)
	case s.m.Row().Dropped:
		fmt.Fprintf(&b, "dropped at %d", s.m.Row().Seq)
	default:
		b.WriteString("no map")
	}
	if s.m.Dropping() {
		b.WriteString(", being dropped")
	}
	if at := s.m.NewestAt(); !at.IsZero() {
		fmt.Fprintf(&b, ", the newest %v ago", s.now.Sub(at))
	}
	b.WriteByte('\n')
	for _, e := range effects {
		switch e := e.(type) {
		case Fetch:
			s.fetches[e.ID] = e
			fmt.Fprintf(&b, "  fetch %d: transaction %d (%s) from %v", e.ID, e.Want.Seq, name(e.Want.Txn), e.Want.Servers)
			if e.Have != nil {
				fmt.Fprintf(&b, " since %s", name(e.Since))
			}
		case Publish:
			b.WriteString("  publish")
		case Forget:
			b.WriteString("  forget")
		case Retry:
			fmt.Fprintf(&b, "  retry after %v", e.After)
		case Settled:
			b.WriteString("  settled")
			if e.Err != nil {
				fmt.Fprintf(&b, ": %v", fault.KindOf(e.Err))
			}
		case SaveLater:
			fmt.Fprintf(&b, "  save after %v", e.After)
		case Save:
			b.WriteString("  save")
		}
		b.WriteByte('\n')
	}
	return b.String()
}
