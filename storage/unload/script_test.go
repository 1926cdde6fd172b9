package unload

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestScripts plays histories of one leader. The partition has the times 0 to 99.
//
//	partition [rate=10]    a new leader's machine: reads begin after a minute, two slices at once
//	begin [first] | end    it leads, first: since before the partition was sealed; or does not any more
//	run 500ms              time goes by, with a tick at the end
//	read 1 to=50 rows=7    rows up to a time were read; bytes=n, else ten a row
//	unread 1               they could not be read
//	acked 1 | failed 1     the end of a slice's sending
//	delete 1 | deleted 1   a deletion asks to begin, and ends
//	leaders a b            the servers that lead heirs; unknown: they are not known yet
//	ended a | silent a     a server has ended the slices of earlier leaders, or does not answer
//
// Each command shows the effects, how far the unload is, and when the machine wants to be woken.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{now: time.Unix(1700000000, 0)}
		datadriven.RunTest(t, path, s.play)
	})
}

type script struct {
	m   *Machine
	now time.Time
}

func (s *script) play(t *testing.T, d *datadriven.TestData) string {
	number := func(key string, def int) int {
		d.MaybeScanArgs(t, key, &def)
		return def
	}
	id := func() (n uint64) {
		if _, err := fmt.Sscan(d.CmdArgs[0].Key, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	var in Input
	switch d.Cmd {
	case "partition":
		s.m = New(Settings{Rate: int64(number("rate", 0))}, 0, 100)
		return ""
	case "begin":
		in = Begin{First: d.HasArg("first")}
	case "end":
		in = End{}
	case "run":
		by, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		s.now, in = s.now.Add(by), Tick{}
	case "read":
		rows := number("rows", 0)
		in = Read{ID: id(), To: point.Nanos(number("to", 0)), Rows: rows, Bytes: int64(number("bytes", 10*rows))}
	case "unread":
		in = Unread{id()}
	case "acked", "failed":
		in = Sent{ID: id(), OK: d.Cmd == "acked"}
	case "delete":
		in = Delete{id()}
	case "deleted":
		in = Deleted{id()}
	case "leaders":
		l := Leaders{ID: 1, Known: !d.HasArg("unknown")}
		for _, a := range d.CmdArgs {
			l.Servers = append(l.Servers, topology.ServerID(a.Key))
		}
		in = l
	case "ended", "silent":
		in = Answered{ID: 1, Server: topology.ServerID(d.CmdArgs[0].Key), OK: d.Cmd == "ended"}
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
	return s.show(s.m.Step(s.now, in))
}

func (s *script) show(effects []Effect) string {
	var b strings.Builder
	for _, e := range effects {
		switch e := e.(type) {
		case ReadSlice:
			fmt.Fprintf(&b, "read %d: from %d to %d\n", e.ID, e.From, e.To)
		case Send:
			fmt.Fprintf(&b, "send %d\n", e.ID)
		case Drop:
			fmt.Fprintf(&b, "drop %d\n", e.ID)
		case Permit:
			fmt.Fprintf(&b, "deletion %d may begin\n", e.ID)
		case Finish:
			b.WriteString("finish\n")
		case FindLeaders:
			b.WriteString("find the leaders of the heirs\n")
		case EndSlices:
			fmt.Fprintf(&b, "%s: end earlier slices\n", e.Server)
		}
	}
	upTo, finished := s.m.Progress()
	fmt.Fprintf(&b, "up to %d", upTo)
	if finished {
		b.WriteString(", all")
	}
	if at := s.m.Wake(); !at.IsZero() {
		fmt.Fprintf(&b, "; wakes in %v", at.Sub(s.now))
	}
	return b.String() + "\n"
}
