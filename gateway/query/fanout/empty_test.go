package fanout

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// emptyWorld has a fourth partition, of which no row was acked, and the server that leads it is dead.
type emptyWorld struct {
	*world
	view    sync.Mutex // guards the fields below while a query runs
	empty   bool
	changed uint64 // the transaction that changed the partition last
	calls   int    // of CaughtUp
	late    error  // of these
	learns  func() // what the view learns meanwhile
}

func inEmptyWorld(t *testing.T, f func(*emptyWorld)) {
	inWorld(t, func(w *world) {
		x := &emptyWorld{world: w, empty: true}
		w.cover(time.Now())
		w.change(func() { w.leads[4] = "dead" })
		w.source.deps.HasNoRows = func(p lease.Partition, seq uint64) bool {
			x.view.Lock()
			defer x.view.Unlock()
			return p.ID == 4 && x.empty && x.changed <= seq
		}
		w.source.deps.CaughtUp = func(context.Context) error {
			x.view.Lock()
			defer x.view.Unlock()
			if x.calls++; x.learns != nil {
				x.learns()
			}
			return x.late
		}
		f(x)
	})
}

// TestQueriesAreAnsweredWhileTheLeaderOfAPartitionWithoutRowsIsDead: no copy has anything to answer with, and queries of all its times were refused for four seconds.
func TestQueriesAreAnsweredWhileTheLeaderOfAPartitionWithoutRowsIsDead(t *testing.T) {
	inEmptyWorld(t, func(w *emptyWorld) {
		began := time.Now()
		w.answers("its leader is dead", query.WithWhole(w.t.Context()), "", false)
		w.answers("leaders alone may answer", query.WithLeaderOnly(w.t.Context(), true), "", false)
		w.change(func() { w.leads[4] = "" })
		w.answers("no server leads it", w.t.Context(), "", false)
		if took := time.Since(began); took > 0 || w.calls != 3 {
			t.Errorf("it took %v, with %d questions to the coordination store", took, w.calls)
		}
	})
}

// TestQueriesWaitHalfASecondForAFrozenLeaderOfAPartitionWithoutRows: one that is busy answers in that time, or is not missed.
func TestQueriesWaitHalfASecondForAFrozenLeaderOfAPartitionWithoutRows(t *testing.T) {
	inEmptyWorld(t, func(w *emptyWorld) {
		w.servers["n4"] = &storage{Store: querytest.NewStore(), w: w.world, id: "n4", mute: true}
		w.change(func() { w.leads[4], w.truth[4] = "n4", "n4" })
		began := time.Now()
		w.answers("it is frozen", query.WithWhole(w.t.Context()), "", false)
		if took := time.Since(began); took != follow.SilenceMax {
			t.Errorf("it took %v", took)
		}
		began, w.late = time.Now(), fault.Errorf(fault.Unavailable, "the watch is late")
		time.AfterFunc(follow.SilenceMax+time.Second, func() { w.change(func() { w.leads[4], w.truth[4] = "n3", "n3" }) })
		w.answers("it is frozen until another leads, and the coordination store does not answer", w.t.Context(), "", false)
		if took := time.Since(began); took != follow.SilenceMax+time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestQueriesDoNotAskALeaderThatGivesNoSignOfLifeForPartitionsWithoutRows: that it owes one is known from other requests. Its partitions with rows are asked for, and those that have some by now.
func TestQueriesDoNotAskALeaderThatGivesNoSignOfLifeForPartitionsWithoutRows(t *testing.T) {
	inEmptyWorld(t, func(w *emptyWorld) {
		frozen := &storage{Store: querytest.NewStore(), w: w.world, id: "n4", mute: true}
		w.servers["n4"] = frozen
		w.change(func() { w.leads[4], w.truth[4] = "n4", "n4" })
		silence := follow.PingMax
		w.source.deps.Silence = func(id topology.ServerID) time.Duration {
			if id == "n4" {
				return silence
			}
			return 0
		}
		began := time.Now()
		w.answers("it is frozen", query.WithWhole(w.t.Context()), "", false)
		if took := time.Since(began); took > 0 || frozen.asked > 0 || w.calls != 1 {
			t.Errorf("it took %v, with %d questions to it and %d to the coordination store", took, frozen.asked, w.calls)
		}
		silence = follow.PingMax - 1
		w.answers("it may only be busy", w.t.Context(), "", false)
		if frozen.asked != 1 {
			t.Errorf("%d questions to it", frozen.asked)
		}
		silence, w.learns = time.Minute, func() { w.empty = false }
		frozen.mute, w.truth[4] = false, ""
		w.answers("the first row was acked", w.t.Context(), "", true)
		if frozen.asked < 2 {
			t.Errorf("%d questions to it", frozen.asked)
		}
	})
}

// TestRowsAckedBeforeAQueryAreNotLeftOutWithTheirPartition: the first row was acked through another gateway, or by an heir of the partition, and this one
// did not know that yet when the leader gave no answer.
func TestRowsAckedBeforeAQueryAreNotLeftOutWithTheirPartition(t *testing.T) {
	inEmptyWorld(t, func(w *emptyWorld) {
		w.learns = func() { w.empty = false }
		w.answers("the first row was acked", w.t.Context(), "", true)
		w.empty, w.learns = true, func() { w.changed = w.m.Seq + 1 }
		w.answers("others took over", w.t.Context(), "", true)
		w.changed, w.learns, w.late = 0, nil, fault.Errorf(fault.Unavailable, "the watch is late")
		w.answers("it is not known", w.t.Context(), "", true)
	})
}

// TestALeaderWithANewerMapIsFollowedAlsoWhereItHasNoRows: it names a partition of the range that this gateway does not know, with rows.
func TestALeaderWithANewerMapIsFollowedAlsoWhereItHasNoRows(t *testing.T) {
	inEmptyWorld(t, func(w *emptyWorld) {
		now := time.Now()
		w.newest = w.m.Cover([]point.Nanos{now.Add(time.Hour).UnixNano()}, func(point.PartitionID) []topology.Placement {
			return []topology.Placement{{ID: 10, Server: "n1"}}
		})
		w.change(func() { w.leads[4], w.truth[4], w.leads[5], w.truth[5] = "n3", "n3", "n1", "n1" })
		set, err := w.source.Select(w.t.Context(), &peer.Select{Table: "t", Lo: now.UnixNano(), Hi: now.Add(2 * time.Hour).UnixNano()})
		if err != nil {
			t.Fatal(err)
		}
		if err := set.Close(); err != nil || w.servers["n1"].asked != 1 || w.calls > 0 {
			t.Errorf("%v, the new partition was asked for %d times", err, w.servers["n1"].asked)
		}
	})
}

// TestRowsThatANewerMapHasElsewhereAreReadBesideADeadLeaderWithoutRows: another gateway made a partition of the range and wrote rows there. The leader would have named that map.
func TestRowsThatANewerMapHasElsewhereAreReadBesideADeadLeaderWithoutRows(t *testing.T) {
	for _, what := range []string{"dead", "mute", "none"} {
		inEmptyWorld(t, func(w *emptyWorld) {
			now := time.Now()
			w.newest = w.m.Cover([]point.Nanos{now.Add(time.Hour).UnixNano()}, func(point.PartitionID) []topology.Placement {
				return []topology.Placement{{ID: 10, Server: "n1"}}
			})
			w.servers["mute"] = &storage{Store: querytest.NewStore(), w: w.world, id: "mute", mute: true}
			w.change(func() {
				w.leads[4], w.truth[4], w.leads[5], w.truth[5] = topology.ServerID(what), topology.ServerID(what), "n1", "n1"
			})
			switch what {
			case "none":
				w.change(func() { w.leads[4] = "" })
			case "mute": // its connection is given up, or another leads
				time.AfterFunc(2*time.Second, func() { w.change(func() { w.leads[4], w.truth[4] = "n3", "n3" }) })
			}
			set, err := w.source.Select(w.t.Context(), &peer.Select{Table: "t", Lo: now.UnixNano(), Hi: now.Add(2 * time.Hour).UnixNano()})
			if err != nil {
				t.Fatal(err)
			}
			if err := set.Close(); err != nil || w.servers["n1"].asked != 1 {
				t.Errorf("%s: %v, the new partition was asked for %d times", what, err, w.servers["n1"].asked)
			}
		})
	}
}

// TestManyPartitionsWithoutRowsCostOneLookAtTheStore: a server that stops gives back all that it leads, and a thousand looks, one after the other, were the wait of a query.
func TestManyPartitionsWithoutRowsCostOneLookAtTheStore(t *testing.T) {
	inEmptyWorld(t, func(w *emptyWorld) {
		for hour := range 20 {
			w.cover(time.Now().Add(-time.Duration(hour+1) * time.Hour))
		}
		w.source.deps.HasNoRows = func(p lease.Partition, _ uint64) bool { return p.ID >= 4 }
		w.change(func() { delete(w.leads, 4) })
		w.answers("no server leads them", w.t.Context(), "", false)
		if w.calls != 1 {
			t.Errorf("%d questions to the coordination store", w.calls)
		}
	})
}

// TestQueriesDoNotWaitForACoordinationStoreThatIsAway: nothing it says would count for what others may have done since it answered last.
func TestQueriesDoNotWaitForACoordinationStoreThatIsAway(t *testing.T) {
	inEmptyWorld(t, func(w *emptyWorld) {
		w.cut(follow.DoubtAge)
		w.source.deps.HadNoRows = func(p lease.Partition) bool { return p.ID == 4 }
		w.answers("it is away", w.t.Context(), "may be missing", false)
		if w.calls > 0 {
			t.Errorf("%d questions to the coordination store", w.calls)
		}
	})
}

// TestRowsThatMovedIntoAnEmptyPartitionAreRead: a partition had no rows by one map, and those of its parent were moved into it by the next one, which has no parent.
func TestRowsThatMovedIntoAnEmptyPartitionAreRead(t *testing.T) {
	inEmptyWorld(t, func(w *emptyWorld) {
		w.change(func() { w.truth[3] = "" }) // it answers Stale: there is a newer map
		w.newest = w.m.Cover([]point.Nanos{1 << 50}, func(point.PartitionID) []topology.Placement {
			return []topology.Placement{{ID: 10, Server: "n1"}}
		})
		w.learns = func() {
			w.learns = func() { w.empty = false }
			w.change(func() { w.truth[3], w.leads[5], w.truth[5] = "n3", "n1", "n1" })
		}
		w.answers("by a newer map it has rows", w.t.Context(), "", true)
		if w.calls < 2 {
			t.Errorf("%d questions to the coordination store: it was left out by the older map", w.calls)
		}
	})
}

// TestDeletionsWaitForTheLeaderOfAPartitionWithoutRows: it remembers them for rows that are on their way.
func TestDeletionsWaitForTheLeaderOfAPartitionWithoutRows(t *testing.T) {
	inEmptyWorld(t, func(w *emptyWorld) {
		err := w.source.DeleteSeries(w.t.Context(), &peer.Select{Table: "t", Lo: 0, Hi: time.Now().UnixNano(), Matchers: []peer.Matcher{{Name: "i", Value: "0"}}})
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%v, want it refused", err)
		}
	})
}
