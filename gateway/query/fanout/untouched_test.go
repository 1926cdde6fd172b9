package fanout

import (
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// oldServers are servers that do not know the times of their staged rows, as those of an older build.
type oldServers struct {
	Servers
	old []topology.ServerID
}

func (o oldServers) Server(id topology.ServerID) (peer.Storage, bool) {
	st, ok := o.Servers.Server(id)
	if slices.Contains(o.old, id) {
		st = struct{ peer.Storage }{st}
	}
	return st, ok
}

// TestTimesOfStagedRowsAreKnown if one holder of every frame answers: each frame has one holder where a row has one replica, and two where it has three.
func TestTimesOfStagedRowsAreKnown(t *testing.T) {
	f := func(what string, replicas int, staged, silent, old []topology.ServerID, want []times, known bool) {
		t.Helper()
		inWorld(t, func(w *world) {
			w.change(func() {
				m := *w.m
				m.Config.Replicas = replicas
				w.m = &m
			})
			for _, id := range staged {
				w.stage(id)
			}
			for _, id := range silent {
				w.servers[id].away = fault.Errorf(fault.Unavailable, "away")
			}
			w.source.deps.Servers = oldServers{w, old}
			got, ok := w.source.stagedTimes(w.t.Context(), w.All(), "t")
			if ok != known || ok && !slices.Equal(got, want) {
				t.Errorf("%s: %v %t, want %v %t", what, got, ok, want, known)
			}
		})
	}
	type ids = []topology.ServerID
	at := times{7e9, 7e9}
	f("no server has any", 1, nil, nil, nil, nil, true)
	f("one has", 1, ids{"n2"}, nil, nil, []times{at}, true)
	f("two have", 1, ids{"n1", "n2"}, nil, nil, []times{at, at}, true)
	f("one is silent, and may be the only holder", 1, ids{"n2"}, ids{"n1"}, nil, nil, false)
	f("one is silent, the other holder is not", 3, ids{"n2"}, ids{"n1"}, nil, []times{at}, true)
	f("two are silent", 3, ids{"n2"}, ids{"n1", "n2"}, nil, nil, false)
	f("one is of an older build", 1, ids{"n2"}, nil, ids{"n2"}, nil, false)
	f("one is of an older build, the other holder is not", 3, ids{"n2", "n3"}, nil, ids{"n2"}, []times{at}, true)
}

// TestAFrozenServerHoldsUpTheTimesOfStagedRowsForAQuarterOfASecond where the others hold all rows that it has; else, for a second, until all steps are read.
func TestAFrozenServerHoldsUpTheTimesOfStagedRowsForAQuarterOfASecond(t *testing.T) {
	for replicas, want := range map[int]time.Duration{1: time.Second, 3: time.Second / 4} {
		inWorld(t, func(w *world) {
			w.change(func() {
				m := *w.m
				m.Config.Replicas = replicas
				w.m = &m
			})
			w.stage("n2")
			w.servers["n1"].slow = time.Hour
			began := time.Now()
			if _, known := w.source.stagedTimes(w.t.Context(), w.All(), "t"); known != (replicas == 3) {
				t.Errorf("%d replicas: known is %t", replicas, known)
			}
			if took := time.Since(began); took != want {
				t.Errorf("%d replicas: it took %v, should be %v", replicas, took, want)
			}
		})
	}
}
