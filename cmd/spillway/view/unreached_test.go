package view

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/spillwaydb/spillway/cmd/spillway/findings"
	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestRestartsAndSlowMomentsAreNotReported: a server that dies counts as live for seconds after.
func TestRestartsAndSlowMomentsAreNotReported(t *testing.T) {
	at := time.Unix(1700000000, 0)
	f := func(n int, d time.Duration, want bool) {
		t.Helper()
		if got := (failures{n: n, since: at}).longEnough(at.Add(d)); got != want {
			t.Errorf("%d failures in %v: %t", n, d, got)
		}
	}
	f(reachTries, 10*time.Second, false)
	f(1, time.Hour, false)
	f(reachTries, UnreachedAfter, true)
}

// noting has a process note rounds of calls in a row.
type noting struct {
	*reaching
	registry *prometheus.Registry
	at       time.Time
	all      []registry.Server
}

func newNoting(ids ...topology.ServerID) *noting {
	n := &noting{registry: prometheus.NewRegistry(), at: time.Now().Add(-time.Hour)}
	for _, id := range ids {
		n.all = append(n.all, registry.Server{ID: id, Addr: "h:" + string(id[1:])})
	}
	n.reaching = newReaching(slog.New(slog.DiscardHandler), n.registry)
	return n
}

// rounds notes rounds, five seconds apart, in which the servers in silent are not called, and those in failing do not answer.
func (n *noting) rounds(count int, silent, failing string) {
	for range count {
		var calls []call
		for _, row := range n.all {
			c := call{row: row}
			if strings.Contains(failing, string(row.ID)) {
				c.err = errors.New("i/o timeout")
			}
			if !strings.Contains(silent, string(row.ID)) {
				calls = append(calls, c)
			}
		}
		n.at = n.at.Add(callEvery)
		n.note(n.at, n.all, calls)
	}
}

// TestAServerThatIsNotReachedHasAMetric, and one that was reached all the time has none. The metric of a server that is reached again is 0, and stays until the server is removed.
func TestAServerThatIsNotReachedHasAMetric(t *testing.T) {
	n := newNoting("s1", "s2", "s3")
	f := func(when string, want ...string) {
		t.Helper()
		families, err := n.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				state := "reached"
				if v := m.GetGauge().GetValue(); v >= UnreachedAfter.Seconds() {
					state = "not reached"
				} else if v != 0 {
					state = fmt.Sprint(v)
				}
				got = append(got, m.GetLabel()[0].GetValue()+" "+state)
			}
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	n.rounds(10, "", "")
	f("all answer")
	n.rounds(6, "", "s2")
	f("s2 does not answer since 25 s")
	n.rounds(1, "", "s2")
	f("since 30 s", "s2 not reached")
	n.rounds(3, "s3", "s2 s3")
	f("s3 is dead", "s2 not reached")
	n.rounds(1, "", "")
	f("all answer again", "s2 reached")
	n.rounds(3, "", "s2")
	n.rounds(1, "s2", "s2")
	n.rounds(4, "", "s2")
	f("s2 was silent in between", "s2 reached")
	n.rounds(3, "", "s2")
	f("for 30 s", "s2 not reached")
	n.all = n.all[:1]
	n.rounds(1, "", "")
	f("s2 is not registered any more")
	if problems, err := testutil.GatherAndLint(n.registry); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// asked is a server that answers which one it is.
type asked struct {
	peers.Peer
	who peer.Self
	err error
}

func (a *asked) Self(context.Context) (peer.Self, error) { return a.who, a.err }
func (a *asked) Close() error                            { return nil }

// TestAServerIsReachedByWhatItAnswersAlone: one that is busy answers, and the coordination store has no part in it. The row of a server that was not reached before was written for each call: without the
// store the call failed, and the server was reported.
func TestAServerIsReachedByWhatItAnswersAlone(t *testing.T) {
	store := mem.New()
	row := registry.Server{ID: "s1", Addr: "h:1", Host: "h", Store: "d1", Since: time.Unix(1700000000, 0), Unreached: "i/o timeout"}
	if _, _, err := store.Commit(t.Context(), nil, []coord.Write{{Key: registry.Key("s1"), Value: row.Encode()}}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	servers, err := registry.Open(t.Context(), store, log, newRand())
	if err != nil {
		t.Fatal(err)
	}
	s1 := &asked{}
	v := Cluster{Registry: servers, Peers: peers.Open(peers.Deps{Servers: servers, Log: log, Registerer: prometheus.NewRegistry(),
		Dial: func(topology.ServerID, string) (peers.Peer, error) { return s1, nil }}, peers.Settings{})} // no store: nothing is written
	t.Cleanup(func() { _ = v.Peers.Close() })
	f := func(who peer.Self, err error, reached bool) {
		t.Helper()
		s1.who, s1.err = who, err
		if _, err := v.ask(t.Context(), row); (err == nil) != reached {
			t.Errorf("%+v, %v: %v", who, s1.err, err)
		}
	}
	f(peer.Self{Server: "s1", Store: "d1"}, nil, true)
	f(peer.Self{}, nil, true)
	f(peer.Self{}, fault.Errorf(fault.Throttled, "984 calls are under way"), true)
	f(peer.Self{}, fault.Errorf(fault.Unavailable, "connection refused"), false)
	f(peer.Self{Server: "s2", Store: "d1"}, nil, false)
	f(peer.Self{Server: "s1", Store: "d2"}, nil, false)
}

// TestAGatewayNamesTheServersThatItAloneDoesNotReach: others reached them, so that nothing said why its writes and queries failed.
func TestAGatewayNamesTheServersThatItAloneDoesNotReach(t *testing.T) {
	n := newNoting("s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8")
	n.all[7].Unreached = "i/o timeout" // its row says so to all, and the page does
	v := Cluster{reaching: n.reaching}
	sizes := findings.SomeSizes + " of table t are not known: server %s: i/o timeout"
	page := func() *ui.Status {
		s := &ui.Status{Whole: true, Role: "gateway", Problems: []string{fmt.Sprintf(sizes, "s1"), fmt.Sprintf(sizes, "s2")}}
		for _, row := range n.all {
			s.Servers = append(s.Servers, ui.Server{ID: string(row.ID), Live: true})
		}
		v.describeUnreached(s)
		return s
	}
	n.rounds(6, "", "s2")
	if s := page(); len(s.Problems) != 2 {
		t.Errorf("after 25 s: %q", s.Problems)
	}
	n.rounds(2, "", "s2 s8")
	s := page()
	since := n.at.Add(-7 * callEvery).UTC().Format(time.RFC3339)
	want := "This process does not reach 1 of the 8 storage servers that send heartbeats: s2 at h:2 since " + since + ": i/o timeout."
	if len(s.Problems) != 2 || s.Problems[1] != want {
		t.Errorf("%q, want %q beside the sizes of s1", s.Problems, want)
	}
	report := findings.OfStatus(s)
	if f := report[len(report)-1]; !strings.Contains(f.What, "s2 at h:2") || !strings.Contains(f.Do, "SpillwayServerUnreached") {
		t.Errorf("the doctor says %+v", f)
	}
	n.rounds(8, "", "s1 s2 s3 s4 s5 s6 s7")
	s = page()
	if report := findings.OfStatus(s); len(report) != 1 || !strings.Contains(report[0].What, "7 of the 8 storage servers") || !strings.Contains(report[0].What, "and 2 more") {
		t.Errorf("no server is reached: %+v", report)
	}
	n.rounds(1, "", "")
	if s := page(); len(s.Problems) != 2 {
		t.Errorf("all are reached: %q", s.Problems)
	}
}
