package topology_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestScripts plays stories in testdata/scripts: one command is a transaction of one or more ops, a line each. The map is
// drawn as it is before them, then the result; "show" only draws. Times are durations since 1970.
//
//	create p1 from=0h to=1h on=s1,s2 ring=0x0..0x8000000000000000
//	cover at=0h,1h on=s1,s2
//	presplit now=0h at=1h15m,1h30m on=s1,s2
//	split p1 time=30m low=p2:s1,s2 high=p3:s2,s3      or ring=0x…
//	finalize p1 low=p2 · abort p1 low=p2 · final p1
//	merge p1 p2 into=p3:s1,s2 closed=2h
//	join p1 s3 · live p1 s3 · unjoin p1 s3 [lost] · remove p1 s3 · force p1 s4 by=ann because=fire
//	drop p1 p2 · expire now=5h
//	config width=1h retention=2h replicas=2 in-sync=1 [notes=yes]
//	columns now=1h from=2h weights=1,2
//	find ring=0x0 at=1h · read from=0h to=1h · server s1
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{ids: map[string]point.PlacementID{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "table" {
				s.m = nil
				a := s.args(d.Input)
				var err error
				s.m, err = topology.New(a.words[0], s.config(a))
				if err != nil {
					return err.Error() + "\n"
				}
				return "ok\n"
			}
			out := s.m.String()
			if d.Cmd == "show" {
				return out
			}
			var ops []topology.Op
			for line := range strings.Lines(d.Input) {
				a := s.args(line)
				if answer, ok := s.ask(a); ok {
					out += "→ " + answer + "\n"
					continue
				}
				op, err := s.op(a)
				if err != nil {
					d.Fatalf(t, "%s: %v", line, err)
				}
				ops = append(ops, op)
			}
			if len(ops) == 0 {
				return out
			}
			next, err := s.m.Apply(ops...)
			switch {
			case err != nil:
				return out + fmt.Sprintf("→ %s: %v\n", fault.KindOf(err), err)
			case next == s.m:
				return out + "→ nothing to do\n"
			}
			if err := next.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			s.m = next
			return out + fmt.Sprintf("→ seq %d\n", next.Seq)
		})
	})
}

type script struct {
	m   *topology.Map
	ids map[string]point.PlacementID
}

type words struct {
	words []string
	named map[string]string
}

func (s *script) args(line string) words {
	a := words{named: map[string]string{}}
	for _, w := range strings.Fields(line) {
		if k, v, ok := strings.Cut(w, "="); ok {
			a.named[k] = v
		} else {
			a.words = append(a.words, w)
		}
	}
	return a
}

func (a words) time(key string) point.Nanos {
	d, err := time.ParseDuration(a.named[key])
	if err != nil {
		panic(fmt.Sprintf("%s=%s: %v", key, a.named[key], err))
	}
	return int64(d)
}

func (a words) ring(s string) uint64 {
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		panic(err)
	}
	return v
}

func id(s string) point.PartitionID {
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "p"), 10, 64)
	if err != nil {
		panic(err)
	}
	return point.PartitionID(n)
}

func ids(ss []string) (out []point.PartitionID) {
	for _, s := range ss {
		out = append(out, id(s))
	}
	return out
}

// placement gives a server's placement of a partition the same id each time, as a story would.
func (s *script) placement(p, server string) topology.Placement {
	key := p + server
	if s.ids[key] == 0 {
		s.ids[key] = point.PlacementID(len(s.ids) + 1)
	}
	return topology.Placement{ID: s.ids[key], Server: topology.ServerID(server)}
}

func (s *script) placements(p, servers string) (out []topology.Placement) {
	for name := range strings.SplitSeq(servers, ",") {
		if name != "" {
			out = append(out, s.placement(p, name))
		}
	}
	return out
}

func (s *script) child(v string) topology.Child {
	p, servers, _ := strings.Cut(v, ":")
	return topology.Child{ID: id(p), Placements: s.placements(p, servers)}
}

func (s *script) config(a words) topology.Config {
	c := topology.Config{PartitionWidth: time.Hour}
	if s.m != nil {
		c = s.m.Config
	}
	if _, ok := a.named["width"]; ok {
		c.PartitionWidth = time.Duration(a.time("width"))
	}
	if _, ok := a.named["retention"]; ok {
		c.Retention = time.Duration(a.time("retention"))
	}
	if r, ok := a.named["replicas"]; ok {
		c.Replicas, _ = strconv.Atoi(r)
	}
	if n, ok := a.named["in-sync"]; ok {
		c.InSyncMin, _ = strconv.Atoi(n)
	}
	return c
}

func (s *script) ask(a words) (string, bool) {
	switch a.words[0] {
	case "find":
		p, ok := s.m.Find(a.ring(a.named["ring"]), a.time("at"))
		if !ok {
			return "nowhere", true
		}
		return fmt.Sprintf("p%d", p.ID), true
	case "shortest":
		var out []string
		for p := range s.m.All() {
			out = append(out, fmt.Sprintf("p%d: %d of %d", p.ID, s.m.Config.ShortestList(p.ID, len(p.Placements)), len(p.Placements)))
		}
		return strings.Join(out, ", "), true
	case "read":
		var out []string
		for _, p := range s.m.Overlapping(a.time("from"), a.time("to")-1) {
			out = append(out, fmt.Sprintf("p%d", p.ID))
		}
		return strings.Join(out, " "), true
	case "server":
		var out []string
		id := topology.ServerID(a.words[1])
		for p := range s.m.All() {
			if _, ok := p.On(id); ok {
				out = append(out, fmt.Sprintf("p%d", p.ID))
			}
			if _, ok := p.JoiningOn(id); ok {
				out = append(out, fmt.Sprintf("p%d joining", p.ID))
			}
			for _, c := range p.Children() {
				if _, ok := c.On(id); ok {
					out = append(out, fmt.Sprintf("p%d of p%d", c.ID, p.ID))
				}
			}
		}
		return strings.Join(out, ", "), true
	}
	return "", false
}

func (s *script) op(a words) (topology.Op, error) {
	first := point.PartitionID(0)
	if len(a.words) > 1 {
		first = id(a.words[1])
	}
	where := func() topology.Placement { return s.placement(a.words[1], a.words[2]) }
	place := func(p point.PartitionID) []topology.Placement {
		return s.placements(fmt.Sprintf("p%d", p), a.named["on"])
	}
	times := func() (out []point.Nanos) {
		for v := range strings.SplitSeq(a.named["at"], ",") {
			out = append(out, words{named: map[string]string{"at": v}}.time("at"))
		}
		return out
	}
	switch a.words[0] {
	case "create":
		p := topology.Partition{ID: first, TimeLo: a.time("from"), TimeHi: a.time("to"), Placements: place(first)}
		if lo, hi, ok := strings.Cut(a.named["ring"], ".."); ok {
			p.PointLo, p.PointHi = a.ring(lo), a.ring(hi)
		}
		return topology.Create{Partitions: []topology.Partition{p}}, nil
	case "cover":
		return s.m.Covering(times(), place), nil
	case "presplit":
		var edges []topology.Edge
		for _, at := range times() {
			edges = append(edges, topology.Edge{At: at})
		}
		return s.m.Presplitting(a.time("now"), edges, place), nil
	case "replace":
		return topology.Presplit{Now: a.time("now"), Replace: ids(a.words[1:]), Partitions: []topology.Partition{{
			ID: s.m.NextID, TimeLo: a.time("from"), TimeHi: a.time("to"), Placements: place(s.m.NextID)}}}, nil
	case "split":
		at := topology.Cut{}
		if r, ok := a.named["ring"]; ok {
			at = topology.AtRing(a.ring(r))
		} else {
			at = topology.AtTime(a.time("time"))
		}
		return topology.SplitBegin{Partition: first, Split: topology.Split{At: at, Low: s.child(a.named["low"]), High: s.child(a.named["high"])}}, nil
	case "finalize":
		return topology.SplitFinalize{Partition: first, Low: id(a.named["low"])}, nil
	case "abort":
		return topology.SplitAbort{Partition: first, Low: id(a.named["low"])}, nil
	case "final":
		return topology.UnloadFinal{Partition: first}, nil
	case "merge":
		return topology.Merge{Partitions: ids(a.words[1:]), Into: s.child(a.named["into"]), ClosedBefore: a.time("closed")}, nil
	case "join":
		return topology.Join{Partition: first, Placement: where()}, nil
	case "live":
		return topology.JoinFinalize{Partition: first, Placement: where().ID}, nil
	case "unjoin":
		return topology.Unjoin{Partition: first, Placement: where().ID, Lost: len(a.words) > 3}, nil
	case "remove":
		return topology.Remove{Partition: first, Placement: where().ID}, nil
	case "force":
		return topology.ForceJoin{Partition: first, Placement: where(), By: a.named["by"], Reason: a.named["because"]}, nil
	case "drop":
		return topology.Drop{IDs: ids(a.words[1:])}, nil
	case "expire":
		return topology.Expire{Now: a.time("now")}, nil
	case "config":
		return topology.SetConfig{Config: s.config(a), Notes: a.named["notes"] != ""}, nil
	case "columns":
		var weights []uint32
		for v := range strings.SplitSeq(a.named["weights"], ",") {
			n, _ := strconv.Atoi(v)
			weights = append(weights, uint32(n))
		}
		from := a.time("from")
		ranges, err := topology.Spread(s.m.RangesAt(from), weights)
		return topology.SetColumns{Now: a.time("now"), Layout: topology.Layout{From: from, Weights: weights, Ranges: ranges}}, err
	}
	return nil, fmt.Errorf("no op %q", a.words[0])
}
