package follow

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// copiesScript runs
//
//	copies n1 n2 n3 [enough=2] [less] [other]     the servers in the order in which they are asked; then events, one a line:
//	    n1 ok · n1 unsure · n1 stale [named=9] · n1 unavailable · n1 corrupt · n1 throttled · n1 here throttled · late · leads n2 · silent n1 n3
//
// "here": by this gateway itself. All go by a map of seq 7. "n1?" is the question for what n1 has, though rows may be missing.
func (s *script) copies(d *datadriven.TestData) string {
	enough, less, other := 2, d.HasArg("less"), d.HasArg("other")
	d.MaybeScanArgs(s.t, "enough", &enough)
	var order []topology.ServerID
	for _, a := range d.CmdArgs {
		if a.Vals == nil && a.Key != "less" && a.Key != "other" {
			order = append(order, topology.ServerID(a.Key))
		}
	}
	c := s.policy.Copies(order, 7, enough, less, other)
	var out strings.Builder
	name := func(a CopyAsk) string {
		if a.Mode == peer.UnsureCopies {
			return string(order[a.Copy]) + "?"
		}
		return string(order[a.Copy])
	}
	say := func(what string, asks []CopyAsk) {
		fmt.Fprintf(&out, "%s:", what)
		for _, a := range asks {
			fmt.Fprintf(&out, " ask %s", name(a))
		}
		if o := c.Outcome(); o != Open {
			fmt.Fprintf(&out, " %s", [...]string{Whole: "whole", Merged: "merged", Lacking: "lacking", Failed: "failed", Refused: "refused"}[o])
			for _, a := range c.Answers() {
				fmt.Fprintf(&out, " %s", name(a))
			}
			if reason, err := c.Failure(); o == Failed {
				fmt.Fprintf(&out, ": %v, %v", reason, err)
			}
		}
		fmt.Fprintln(&out)
	}
	say("begin", c.Begin())
	for _, line := range strings.Split(d.Input, "\n") {
		f := strings.Fields(line)
		if f[0] == "late" {
			say(line, c.Late())
			continue
		}
		if f[0] == "silent" {
			say(line, c.Silent(func(id topology.ServerID) bool { return slices.Contains(f[1:], string(id)) }))
			continue
		}
		if f[0] == "leads" {
			c.Look(lead(f[1]), len(f) > 2) // still: it led when they were first asked
			say(line, nil)
			continue
		}
		server, unsure := strings.CutSuffix(f[0], "?")
		a := CopyAsk{slices.Index(order, topology.ServerID(server)), peer.SureCopies}
		if unsure {
			a.Mode = peer.UnsureCopies
		}
		say(line, c.Answer(a, s.copyAnswer(f[1:])))
	}
	return out.String()
}

func (s *script) copyAnswer(f []string) error {
	switch {
	case f[0] == "unsure":
		return peer.Unsure(fault.Errorf(fault.Stale, "may lack rows"))
	case f[0] == "throttled":
		return peer.Answer(fault.Errorf(fault.Throttled, "throttled"))
	case f[0] == "here":
		return answers[f[1]]
	case f[0] == "corrupt":
		return fault.Errorf(fault.Corrupt, "a damaged segment")
	case len(f) > 1:
		var named uint64
		if _, err := fmt.Sscanf(f[1], "named=%d", &named); err != nil {
			s.t.Fatal(err)
		}
		return peer.WithMap(answers["stale"], peer.MapAt{Seq: named, Txn: peer.TxnID{1}, Servers: []string{"n9"}})
	case answers[f[0]] != nil:
		return fault.Errorf(fault.KindOf(answers[f[0]]), "%s", f[0])
	}
	return nil
}

// TestSpreadIsTheSameAlwaysAndEven: each server is asked first for about a third of the partitions, and always for the same.
func TestSpreadIsTheSameAlwaysAndEven(t *testing.T) {
	first := map[topology.ServerID]int{}
	for id := range point.PartitionID(3000) {
		p := &topology.Partition{ID: id, Placements: []topology.Placement{{Server: "n3"}, {Server: "n1"}, {Server: "n4"}, {Server: "n2"}}}
		order := Spread(p, []topology.ServerID{"n1", "n2", "n3", "n9"})
		slices.Reverse(p.Placements)
		if again := Spread(p, []topology.ServerID{"n3", "n2", "n1"}); !slices.Equal(order, again) {
			t.Fatalf("partition %d: %v, then %v", id, order, again)
		}
		if len(order) != 4 || order[3] != "n4" {
			t.Fatalf("partition %d: %v; n4 is not listed, and n9 has no placement", id, order)
		}
		first[order[0]]++
	}
	for s, n := range first {
		if n < 900 || n > 1100 {
			t.Errorf("%s is first for %d of 3000", s, n)
		}
	}
}

func TestHedge(t *testing.T) {
	var h Hedge
	if got := h.Late(); got != LateMax/4 {
		t.Errorf("before the first answer: %v", got)
	}
	for i := range 400 {
		h.took(time.Duration(i%100) * time.Millisecond)
	}
	if got := h.Late(); got < 90*time.Millisecond || got > 99*time.Millisecond {
		t.Errorf("19 of 20 take up to 95 ms: %v", got)
	}
	for range 400 {
		h.took(time.Microsecond)
	}
	if got := h.Late(); got != LateMin {
		t.Errorf("at least %v: %v", LateMin, got)
	}
	for range 400 {
		h.took(time.Minute)
	}
	if got := h.Late(); got != LateMax {
		t.Errorf("at most %v: %v", LateMax, got)
	}
	h.After = 50 * time.Millisecond
	if got := h.Late(); got != h.After {
		t.Errorf("set to %v: %v", h.After, got)
	}

	// When every copy is late, a tenth of the questions is asked twice.
	h, twice := Hedge{}, 0
	for range 400 {
		h.took(time.Millisecond)
	}
	for range 10000 {
		if h.Late() < LateMax {
			h.Hedged()
			twice++
		}
	}
	if twice < 900 || twice > 1100 {
		t.Errorf("%d of 10000 were asked twice", twice)
	}

	servers := []topology.ServerID{"n1", "n2", "n3"}
	h.Shun(begin, "n1")
	if got := h.Order(begin.Add(time.Second), servers); got[0] != "n2" || got[2] != "n1" {
		t.Errorf("n1 was late: %v", got)
	}
	if got := h.Order(begin.Add(time.Minute), servers); got[0] != "n1" {
		t.Errorf("long ago: %v", got)
	}
	h.Answered("n1", time.Millisecond)
	if got := h.Order(begin, servers); got[0] != "n1" {
		t.Errorf("it answered: %v", got)
	}
	for i := range 2 * strikesMax {
		if i == 2 {
			h.Answered("n1", time.Millisecond)
		}
		h.WasLate(begin, "n1")
		if got, shunned := h.Order(begin, servers), i >= strikesMax+1; got[0] != "n1" != shunned {
			t.Errorf("late %d times: %v", i+1, got)
		}
	}
}
