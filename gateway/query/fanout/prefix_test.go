package fanout

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func mustRule(t interface{ Fatal(...any) }, s string) point.RingRule {
	r, err := point.ParseRingRule(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPrefixesOfASelector(t *testing.T) {
	eq := func(n, v string) peer.Matcher { return peer.Matcher{Type: peer.MatchEqual, Name: n, Value: v} }
	re := func(n, v string) peer.Matcher { return peer.Matcher{Type: peer.MatchRegexp, Name: n, Value: v} }
	f := func(rule string, want int, ms ...peer.Matcher) {
		t.Helper()
		r := mustRule(t, rule)
		if got := prefixes(&r, ms); len(got) != want {
			t.Errorf("rule %q, %v: %d prefixes, want %d", rule, ms, len(got), want)
		}
	}
	many := "v0"
	for i := 1; i <= prefixesMax; i++ {
		many += fmt.Sprintf("|v%d", i)
	}
	f("", 0, eq("host", "a"))
	f("host", 0)
	f("host", 0, eq("job", "a"))
	f("host", 1, eq("job", "a"), eq("host", "a"))
	f("host", 0, eq("host", "")) // series without the label lie anywhere
	f("host", 3, re("host", "a|b|c"))
	f("host", 1, re("host", "a"))
	f("host", 1, re("host", "a|b|c"), eq("host", "b"))
	f("host", 0, re("host", "a|"))
	f("host", 0, re("host", "a.*"))
	f("host", 0, re("host", `a\.b`))
	f("host", 0, re("host", many))
	f("host", 0, peer.Matcher{Type: peer.MatchNotEqual, Name: "host", Value: "a"})
	f("host,job", 0, eq("host", "a"))
	f("host,job", 1, eq("host", "a"), eq("job", "b"))
	f("host,job", 6, re("host", "a|b|c"), re("job", "x|y"))
	f("host,job", 0, re("host", many[:len(many)-4]), re("job", "x|y")) // 64 times 2
}

// A partition that holds a series is asked by every selector that selects the series.
func TestNoColumnWithASelectedSeriesIsLeftOut(t *testing.T) {
	value := rapid.StringMatching(`[ab/]{0,4}`)
	rapid.Check(t, func(t *rapid.T) {
		rule := mustRule(t, rapid.SampledFrom([]string{"host", "host,job", "host:2", "host:/,job:1", "__name__,host"}).Draw(t, "rule"))
		m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour, Ring: rule})
		if err != nil {
			t.Fatal(err)
		}
		m = inColumns(t, m, rapid.IntRange(1, 9).Draw(t, "columns"))
		pairs, matchers := []string{point.MetricName, "m"}, []peer.Matcher{{Type: peer.MatchEqual, Name: point.MetricName, Value: "m"}}
		for _, name := range []string{"host", "job"} {
			v := value.Draw(t, name)
			if v != "" {
				pairs = append(pairs, name, v)
			}
			switch rapid.IntRange(0, 3).Draw(t, "matcher of "+name) {
			case 1:
				matchers = append(matchers, peer.Matcher{Type: peer.MatchEqual, Name: name, Value: v})
			case 2:
				matchers = append(matchers, peer.Matcher{Type: peer.MatchRegexp, Name: name, Value: "x|" + v + "|y"})
			case 3:
				matchers = append(matchers, peer.Matcher{Type: peer.MatchNotEqual, Name: name, Value: "z"})
			}
		}
		p, ok := m.Find(m.PointOf(point.MakeLabels(pairs...)), 0)
		if !ok {
			t.Fatal("no partition holds it")
		}
		r := &request{hi: 1, matchers: matchers}
		if !slices.Contains(r.among(m), p) {
			t.Fatalf("rule %s: %v lies in partition %d, which %v does not ask", rule, pairs, p.ID, matchers)
		}
	})
}

// inColumns returns the map with one partition of the hour of 1970 in each of n columns.
func inColumns(t interface{ Fatal(...any) }, m *topology.Map, n int) *topology.Map {
	weights := make([]uint32, n)
	for i := range weights {
		weights[i] = 1
	}
	ranges, err := topology.Spread(nil, weights)
	if err != nil {
		t.Fatal(err)
	}
	m, err = m.Apply(topology.SetColumns{Layout: topology.Layout{From: -1 << 63, Weights: weights, Ranges: ranges}})
	if err != nil {
		t.Fatal(err)
	}
	return m.Cover([]point.Nanos{0}, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: 1, Server: topology.ServerID(fmt.Sprintf("n%d", p))}}
	})
}

// TestAQueryOfOneHostAsksItsServerAlone reads a table of three columns by host, a server each.
func TestAQueryOfOneHostAsksItsServerAlone(t *testing.T) {
	inWorld(t, func(w *world) {
		m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour, Ring: mustRule(w.t, "host")})
		if err != nil {
			w.t.Fatal(err)
		}
		w.m = inColumns(w.t, m, 3)
		for _, s := range w.servers {
			s.Store = querytest.NewStore()
		}
		for i := range 30 {
			l := point.MakeLabels(point.MetricName, "m", "i", fmt.Sprint(i), "host", fmt.Sprintf("h%d", i/3))
			p, _ := w.m.Find(w.m.PointOf(l), 1)
			b := point.GetBatch(point.NewDict(0))
			b.Append(querytest.Intern(b.Dict, l), 1, 1)
			if err := querytest.Inserter(w.servers[p.Placements[0].Server].Store, "t", p.ID)(w.t.Context(), b); err != nil {
				w.t.Fatal(err)
			}
		}
		for _, c := range []struct {
			m             peer.Matcher
			series, asked int
		}{
			{peer.Matcher{Type: peer.MatchEqual, Name: "host", Value: "h7"}, 3, 1},
			{peer.Matcher{Type: peer.MatchRegexp, Name: "host", Value: "h7|none"}, 3, 2}, // two prefixes in two columns
			{peer.Matcher{Type: peer.MatchRegexp, Name: "host", Value: "h7.*"}, 3, 3},
			{peer.Matcher{Type: peer.MatchNotEqual, Name: "host", Value: "h7"}, 27, 3},
		} {
			before := w.askedSoFar()
			set, err := w.source.Select(w.t.Context(), &peer.Select{Table: "t", Hi: 1e9, Matchers: []peer.Matcher{c.m}})
			if err != nil {
				w.t.Fatal(err)
			}
			n := 0
			for set.Next() {
				n++
			}
			if err := set.Close(); err != nil || set.Err() != nil || n != c.series {
				w.t.Errorf("%v: %d series, want %d; %v %v", c.m, n, c.series, set.Err(), err)
			}
			if asked := w.askedSoFar() - before; asked != c.asked {
				w.t.Errorf("%v: %d servers were asked, want %d", c.m, asked, c.asked)
			}
		}
	})
}

func (w *world) askedSoFar() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.servers {
		n += s.asked
	}
	return n
}
