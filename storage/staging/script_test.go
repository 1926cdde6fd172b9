package staging

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestScripts plays histories of one server, A. Each command draws the frames of A and its requests.
//
//	server [bytes=100]          a new machine; after=750ms: smeared frames that are due wait for others as long
//	stage 1 A,B [bytes=10]      a gateway stages frame 1 at holders A and B; it is logged at once
//	stage 1 A,B after=30s       the same, of a smeared frame that is due in 30 s
//	restore 1 A,B               frame 1 is found on the disk
//	run 500ms                   time goes by
//	away B | back B             B does not answer, or does
//	began B                     B begins with another directory
//	due                         the frames to be forwarded now
//	next                        when it is to be asked again
//	postponed 1 | forwarded 1   the outcome
//	forget 1                    another holder forwarded it
//	restages B C                what to stage again; B and C are the servers there are
//	restaged 1 | failed 1       the outcome
//	leave | stay                A is drained or stops, or is not any more
//	admit 1 A,B | logged 1      as stage, in two steps: before its record is durable, and after
//	delete | deleted            a deletion in all rows begins, and ends; it waits for the frames that are on their way
//	reduced 1 bytes=5           it left fewer rows in frame 1
//	load                        what servers report
//	way 1                       whether frame 1 is on its way
//	end 5                       the table was dropped: maps below number 5 are of it; frame n was written by map n
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.play(t, d) })
	})
}

type script struct {
	m        *Machine
	now      time.Time
	restages map[string]Restage
}

func (s *script) play(t *testing.T, d *datadriven.TestData) string {
	var args []string
	bytes, after := int64(10), time.Duration(0)
	for _, a := range d.CmdArgs {
		if a.Key == "bytes" {
			n, err := strconv.Atoi(a.Vals[0])
			if err != nil {
				t.Fatal(err)
			}
			bytes = int64(n)
			continue
		}
		if a.Key == "after" {
			var err error
			if after, err = time.ParseDuration(a.Vals[0]); err != nil {
				t.Fatal(err)
			}
			continue
		}
		args = append(args, a.Key)
		if len(a.Vals) > 0 {
			t.Fatalf("%s", a)
		}
	}
	out := s.do(t, d.Cmd, args, bytes, after)
	return out + s.draw()
}

func (s *script) do(t *testing.T, cmd string, args []string, bytes int64, after time.Duration) string {
	id := func() ID {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			t.Fatal(err)
		}
		return ID{point.Stamp(n), uint64(n)}
	}
	servers := func(names []string) (all []topology.ServerID) {
		for _, n := range names {
			all = append(all, topology.ServerID(n))
		}
		return all
	}
	frame := func() Frame {
		f := Frame{ID: id(), Table: "t", Bytes: bytes, Rows: 1, MapSeq: uint64(id().Stamp), Holders: servers(strings.Split(args[1], "+")), Since: s.now}
		if after > 0 {
			f.Due = s.now.Add(after)
		}
		f.Bound(s.now)
		return f
	}
	switch cmd {
	case "server":
		s.now, s.restages = time.Unix(1700000000, 0), map[string]Restage{}
		s.m = New(Settings{Server: "A", BytesMax: bytes, GatherFor: after})
		return ""
	case "stage":
		hold, err := s.m.Admit(frame())
		if err != nil {
			return err.Error() + "\n"
		}
		if hold {
			s.m.Logged(id())
			return "logged, acked\n"
		}
		return "acked, it was held\n"
	case "admit":
		if _, err := s.m.Admit(frame()); err != nil {
			return err.Error() + "\n"
		}
	case "logged":
		s.m.Logged(id())
	case "delete":
		ids := s.m.BeginDelete("t", math.MinInt64, math.MaxInt64)
		slices.SortFunc(ids, ID.Compare)
		var all []string
		for _, id := range ids {
			all = append(all, strconv.Itoa(int(id.Stamp)))
		}
		return fmt.Sprintf("on their way %v\n", all)
	case "load":
		var b strings.Builder
		for _, l := range s.m.Loads() {
			fmt.Fprintf(&b, "table %s: %d frames, %d rows, %d bytes, %d rows not due, %d held here alone", l.Table, l.Frames, l.Rows, l.Bytes, l.Later, l.Sole)
			if !l.Overdue.IsZero() {
				fmt.Fprintf(&b, ", overdue for %v", s.now.Sub(l.Overdue))
			}
			b.WriteByte('\n')
		}
		return b.String()
	case "deleted":
		s.m.EndDelete("t")
	case "reduced":
		f := s.m.frames[id()].Frame
		f.Bytes = bytes
		s.m.Reduced(f)
	case "way":
		return fmt.Sprintf("on its way %t\n", s.m.OnWay(id()))
	case "restore":
		s.m.Restore(frame())
	case "run":
		by, err := time.ParseDuration(args[0])
		if err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(by)
	case "away", "back":
		s.m.Answered(s.now, topology.ServerID(args[0]), cmd == "back")
	case "began":
		s.m.Began(topology.ServerID(args[0]), s.now)
	case "due":
		var all []string
		for _, f := range s.m.Due(s.now) {
			all = append(all, strconv.Itoa(int(f.ID.Stamp)))
		}
		return fmt.Sprintf("forward %v\n", all)
	case "next":
		at, wait := s.m.Next()
		if at.IsZero() {
			return fmt.Sprintf("look from time to time %t\n", wait)
		}
		return fmt.Sprintf("look in %v, from time to time %t\n", at.Sub(s.now), wait)
	case "postponed":
		s.m.Postponed(s.now, id())
	case "forwarded":
		others, ok := s.m.Forwarded(id())
		return fmt.Sprintf("held %t, tell %v to forget it\n", ok, others)
	case "forget":
		return fmt.Sprintf("held %t\n", s.m.Forget(id()))
	case "restages":
		var b strings.Builder
		for _, r := range s.m.Restages(s.now, servers(args)) {
			s.restages[strconv.Itoa(int(r.ID.Stamp))] = r
			fmt.Fprintf(&b, "stage %d at %s, then held by %v\n", r.ID.Stamp, r.To, r.Holders)
		}
		return b.String()
	case "restaged", "failed":
		if gone, _ := s.m.Restaged(s.now, s.restages[args[0]], cmd == "restaged"); gone {
			return "not held here any more\n"
		}
	case "leave", "stay":
		s.m.Leave(cmd == "leave")
	case "end":
		var all []string
		for _, f := range s.m.End("t", uint64(id().Stamp)) {
			all = append(all, strconv.Itoa(int(f.ID.Stamp)))
		}
		return fmt.Sprintf("ended %v\n", all)
	default:
		t.Fatalf("no command %s", cmd)
	}
	return ""
}

func (s *script) draw() string {
	var b strings.Builder
	for _, name := range s.m.names() {
		s.m.tables[name].all(func(e *entry) bool {
			fmt.Fprintf(&b, "%d held by %v", e.ID.Stamp, e.Holders)
			if wait := e.Due.Sub(s.now); wait > 0 {
				fmt.Fprintf(&b, ", due in %v", wait)
			}
			if e.underWay {
				b.WriteString(", under way")
			}
			if e.restaging {
				b.WriteString(", being staged again")
			}
			b.WriteByte('\n')
			return true
		})
	}
	fmt.Fprintf(&b, "%d bytes\n", s.m.Bytes())
	return b.String()
}
