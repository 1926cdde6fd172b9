package follow

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Scripts list the events of a request; the lines below "----" are its actions.
//
//	request writes|reads|alone [patience=5s] [stage=500ms]      begins at 0s
//	ask n1                                        an attempt; then events, one a line:
//	    silent · listen 400ms · deaf 800ms [waited=300ms] · look n2 [guess] · look - · answer ok|stale|unavailable|throttled|canceled|notfound|invalid
//	failed at=0s map=7 [draw=0.5]                 failures of a try, one a line:
//	    p1,p2 n1 stale [named=9]  ·  p3 - leaderless  ·  p4 n2 leader  ·  p5 n3 moved  ·  p6 n3 leader full [since=0s]  ·  p7 n1 stale guess
//	look at=1s map=7                              leader of each failed partition now, in one line: n1 n2 - ?n1, which is a guess
//	tick at=1s
//	absence                                       what all requests know of the leaders that are away, anew
//	leader p1 failed at=1s [began=0s] unanswered|deaf|stale|leaderless · leader p1 answered · leader p1 asked at=1s
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := script{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(d) })
	})
}

type script struct {
	t       *testing.T
	policy  Policy
	request Request
	absence Absence
}

var begin = time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)

func (s *script) run(d *datadriven.TestData) string {
	at, seq, draw := "0s", uint64(0), 0.5
	d.MaybeScanArgs(s.t, "at", &at)
	d.MaybeScanArgs(s.t, "map", &seq)
	if d.HasArg("draw") {
		var text string
		d.ScanArgs(s.t, "draw", &text)
		fmt.Sscan(text, &draw)
	}
	now := begin.Add(duration(s.t, at))
	switch d.Cmd {
	case "request":
		return s.begin(d)
	case "ask":
		return s.ask(d)
	case "copies":
		return s.copies(d)
	case "failed":
		return s.says(s.request.Failed(now, seq, s.failures(d.Input), draw))
	case "look":
		var leads []Lead
		for _, f := range strings.Fields(d.Input) {
			leads = append(leads, lead(f))
		}
		return s.says(s.request.Look(now, seq, leads))
	case "tick":
		return s.says(s.request.Tick(now))
	case "absence":
		s.absence = Absence{}
		return "nobody is away\n"
	case "leader":
		return s.leader(now, d)
	}
	return "unknown command " + d.Cmd
}

func (s *script) begin(d *datadriven.TestData) string {
	patience := "5s"
	d.MaybeScanArgs(s.t, "patience", &patience)
	p := duration(s.t, patience)
	s.policy = map[string]Policy{"writes": Writes(p, false), "alone": Writes(p, true), "reads": Reads(p)}[d.CmdArgs[0].Key]
	if d.HasArg("stage") {
		var after string
		d.ScanArgs(s.t, "stage", &after)
		s.policy.StageAfter = duration(s.t, after)
	}
	s.request = s.policy.Request(begin)
	return fmt.Sprintf("try 0, until %v\n", s.request.Deadline().Sub(begin))
}

func (s *script) ask(d *datadriven.TestData) string {
	a := s.policy.Begin(topology.ServerID(d.CmdArgs[0].Key))
	var out strings.Builder
	for _, line := range strings.Split(d.Input, "\n") {
		f := strings.Fields(line)
		fmt.Fprintf(&out, "%s: ", line)
		switch f[0] {
		case "silent":
			fmt.Fprintln(&out, map[bool]string{true: "look who leads", false: "go on"}[a.Silent()])
		case "listen":
			ping, again := a.Listen(duration(s.t, f[1]))
			fmt.Fprintln(&out, map[bool]string{true: "ping", false: fmt.Sprintf("listen again in %v", again)}[ping])
		case "deaf":
			waited := "300ms"
			if len(f) > 2 {
				waited = strings.TrimPrefix(f[2], "waited=")
			}
			fmt.Fprintln(&out, map[bool]string{true: "cancel", false: "go on"}[a.Deaf(duration(s.t, f[1]), duration(s.t, waited))])
		case "look":
			l := lead(f[1])
			l.Guess = len(f) > 2
			fmt.Fprintln(&out, map[bool]string{true: "cancel", false: "go on"}[a.Look(l)])
		case "answer":
			v, r := a.Answer(answers[f[1]])
			fmt.Fprintln(&out, [...]string{Done: "done", Again: "again: ", Final: "final"}[v]+r.String())
		}
	}
	return out.String()
}

// leader plays what requests learn of a partition's leader.
func (s *script) leader(now time.Time, d *datadriven.TestData) string {
	p, out := PartitionOf{Table: "t", ID: uint64(d.CmdArgs[0].Key[1] - '0')}, "it is there"
	switch d.CmdArgs[1].Key {
	case "failed":
		began := "0s"
		d.MaybeScanArgs(s.t, "began", &began)
		f := Failure{Sent: !d.HasArg("leaderless"), Reason: Unanswered, Deaf: d.HasArg("deaf")}
		if d.HasArg("stale") {
			f.Reason = Stale
		}
		since := s.absence.Failed(now, begin.Add(duration(s.t, began)), p, &f)
		out = fmt.Sprintf("away since %v", since.Sub(begin))
	case "answered":
		s.absence.Answered(p)
	case "asked":
		out = map[bool]string{true: "left alone: it said nothing lately", false: "asked"}[s.absence.Skip(now, p)]
	}
	return fmt.Sprintf("%s; %d away\n", out, s.absence.Len())
}

var answers = map[string]error{
	"ok": nil, "stale": fault.Errorf(fault.Stale, ""), "unavailable": fault.Errorf(fault.Unavailable, ""),
	"throttled": fault.Errorf(fault.Throttled, ""), "canceled": fault.Errorf(fault.Canceled, ""),
	"notfound": fault.Errorf(fault.NotFound, ""), "invalid": fault.Errorf(fault.Invalid, ""),
}

func lead(name string) Lead {
	if name == "-" {
		return Lead{}
	}
	name, guess := strings.CutPrefix(name, "?")
	return Lead{Server: topology.ServerID(name), Guess: guess}
}

// failures reads "p1,p2 n1 stale named=9".
func (s *script) failures(input string) (out []Failure) {
	for _, line := range strings.Split(input, "\n") {
		f := strings.Fields(line)
		x := Failure{Asked: lead(f[1]).Server, Sent: f[1] != "-"}
		for i := range strings.Split(f[0], ",") {
			x.Partitions = append(x.Partitions, &topology.Partition{ID: point.PartitionID(i)})
		}
		for _, r := range []Reason{Leaderless, Unanswered, Stale, Moved} {
			if r.String() == f[2] {
				x.Reason = r
			}
		}
		for _, arg := range f[min(3, len(f)):] {
			if since, ok := strings.CutPrefix(arg, "since="); ok {
				x.Since = begin.Add(duration(s.t, since))
				continue
			}
			if x.Full = x.Full || arg == "full"; arg == "full" {
				continue
			}
			if x.Guess = x.Guess || arg == "guess"; arg == "guess" {
				continue
			}
			var named uint64
			if _, err := fmt.Sscanf(arg, "named=%d", &named); err != nil {
				s.t.Fatal(err)
			}
			x.Err = peer.WithMap(answers["stale"], peer.MapAt{Seq: named, Txn: peer.TxnID{1}, Servers: []string{f[1]}})
		}
		out = append(out, x)
	}
	return out
}

func (s *script) says(e Effect) string {
	var out strings.Builder
	if e.Refresh {
		out.WriteString("look for a newer map")
		if e.Newer.Seq > 0 {
			fmt.Fprintf(&out, ": %d is on %v", e.Newer.Seq, e.Newer.Servers)
		}
		out.WriteString("\n")
	}
	switch e.Do {
	case Send:
		fmt.Fprintf(&out, "send, try %d; sent before: %d\n", s.request.Try(), e.Again)
	case Wait:
		fmt.Fprintf(&out, "wait until %v\n", e.Until.Sub(begin))
	case GiveUp:
		out.WriteString("give up\n")
	case Stage:
		out.WriteString("stage\n")
	}
	return out.String()
}

func duration(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestAnAnswerAllocatesNothing: every insert is an attempt.
func TestAnAnswerAllocatesNothing(t *testing.T) {
	p := Writes(time.Second, false)
	if n := testing.AllocsPerRun(100, func() {
		r := p.Request(begin)
		a := p.Begin("n1")
		if v, _ := a.Answer(nil); v != Done || r.Try() != 0 {
			t.Error("not done")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
