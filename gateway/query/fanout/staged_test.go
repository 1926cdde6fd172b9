package fanout

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// stage stages a row at 7 s of a new series on a server.
func (w *world) stage(at topology.ServerID) {
	w.t.Helper()
	s := w.servers[at]
	s.staged = querytest.NewStore()
	b := point.GetBatch(point.NewDict(0))
	b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "i", "waits")), 7e9, 1)
	if err := querytest.Inserter(s.staged, "t", 1)(w.t.Context(), b); err != nil {
		w.t.Fatal(err)
	}
}

// TestAckedRowsAreReadWhileTheyWait: a row is staged on n2, and no partition has it. It is in the answer.
func TestAckedRowsAreReadWhileTheyWait(t *testing.T) {
	inWorld(t, func(w *world) {
		w.stage("n2")
		w.reads(whole)
		w.source.deps.Staged = func(string) []topology.ServerID { return []topology.ServerID{"n2"} }
		w.reads(whole + ", waits: 7")
	})
}

// TestARefusedQueryLeavesNoStagedRowsOpen: n1 refuses, or the asker leaves, and n2 answered already. Each set that stayed open counted as a call to n2 for ever: after 1,000
// of them the gateway called it no more.
func TestARefusedQueryLeavesNoStagedRowsOpen(t *testing.T) {
	inWorld(t, func(w *world) {
		w.stage("n1")
		w.stage("n2")
		w.source.deps.Staged = func(string) []topology.ServerID { return []topology.ServerID{"n1", "n2"} }
		w.servers["n1"].refuses = fault.Errorf(fault.Throttled, "too many reads at once")
		if got, err := w.rows(w.t.Context()); !fault.Is(err, fault.Throttled) {
			t.Errorf("read %q, %v", got, err)
		}
		w.closed()

		w.servers["n1"].refuses, w.servers["n1"].slow = nil, time.Hour
		ctx, leave := context.WithTimeout(w.t.Context(), time.Second/2)
		defer leave()
		if got, err := w.rows(ctx); err == nil {
			t.Errorf("read %q after the asker left", got)
		}
		w.closed()
	})
}

// TestAReaderThatSkipsStagedRowsKnowsWhatItMisses: it has the watermark as a warning if its times may be among those of staged rows, asked for once in a request.
func TestAReaderThatSkipsStagedRowsKnowsWhatItMisses(t *testing.T) {
	const mark = `staged rows of table "t" are left out: 1 on 1 servers, copies counted; rows that came before 1970-01-01T00:16:40.000Z, and those of times before 1970-01-01T00:00:07.000Z, are in the answer`
	for _, c := range []struct {
		name   string
		hi     point.Nanos
		away   error
		staged bool
		warns  []string
		marked int
	}{
		{name: "a staged row in the range", hi: 1e18, staged: true, warns: []string{mark}, marked: 1},
		{name: "a staged row later than the range", hi: 6e9, staged: true, marked: 1},
		{name: "none is staged", hi: 1e18},
		{name: "the holder is away", hi: 6e9, staged: true, away: fault.Errorf(fault.Unavailable, "away"), warns: []string{`staged rows of table "t" are left out, and since when is unknown: no answer of n2`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				if c.staged {
					w.stage("n2")
				}
				w.servers["n2"].away = c.away
				w.source.deps.Staged = func(string) []topology.ServerID { return []topology.ServerID{"n1", "n2"} }
				ctx, warnings := query.WithWarnings(query.WithoutStaged(w.t.Context()))
				q := &peer.Select{Table: "t", Hi: c.hi}
				for range 2 {
					set, err := w.source.Select(ctx, q)
					if err != nil {
						t.Fatal(err)
					}
					series := 0
					for set.Next() {
						series++
					}
					if err := set.Err(); err != nil || series != 3 {
						t.Errorf("%d series, %v", series, err)
					}
					_ = set.Close()
				}
				if _, err := w.source.Exemplars(ctx, q, nil); err != nil {
					t.Error(err)
				}
				if values, _, err := w.source.LabelValues(ctx, q, "i", 0); err != nil || strings.Join(values, " ") != "0 1 2" {
					t.Errorf("%v %v", values, err)
				}
				if got := warnings.Texts(); !slices.Equal(got, c.warns) {
					t.Errorf("warnings %q, want %q", got, c.warns)
				}
				if got := w.servers["n2"].marked; got != c.marked {
					t.Errorf("asked %d times for the watermark, should be %d", got, c.marked)
				}
			})
		})
	}
}

// TestExemplarsThatWaitAreMissed: exemplars of staged rows cannot be read until their leader has them, and the answer did not warn.
func TestExemplarsThatWaitAreMissed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.source.deps.Staged = func(string) []topology.ServerID { return []topology.ServerID{"n1", "n2"} }
		warned := func(hi point.Nanos) []string {
			ctx, warnings := query.WithWarnings(w.t.Context())
			if _, err := w.source.Exemplars(ctx, &peer.Select{Table: "t", Hi: hi}, nil); err != nil {
				t.Fatal(err)
			}
			return warnings.Texts()
		}
		if got := warned(1e18); len(got) > 0 {
			t.Errorf("none is staged, and it warns %q", got)
		}
		w.stage("n2")
		if got := warned(1e18); len(got) != 1 || !strings.Contains(got[0], `staged rows of table "t" are left out: 1 on 1 servers`) {
			t.Errorf("it warns %q", got)
		}
		if got := warned(6e9); len(got) > 0 {
			t.Errorf("the staged row is later, and it warns %q", got)
		}
	})
}

// TestAFrozenServerWithStagedRowsHoldsUpForAMomentWhatReadsNone: each read of exemplars, and each query that skips staged rows, waited a second for it. The answer says
// that some may be missing.
func TestAFrozenServerWithStagedRowsHoldsUpForAMomentWhatReadsNone(t *testing.T) {
	inWorld(t, func(w *world) {
		w.source.deps.Staged = func(string) []topology.ServerID { return []topology.ServerID{"n1", "n2"} }
		w.servers["n2"].freezes = true
		q := &peer.Select{Table: "t", Hi: 1e18}
		for what, read := range map[string]func(ctx context.Context) error{
			"exemplars": func(ctx context.Context) error {
				_, err := w.source.Exemplars(ctx, q, nil)
				return err
			},
			"a query that skips": func(ctx context.Context) error {
				set, err := w.source.Select(query.WithoutStaged(ctx), q)
				if err != nil {
					return err
				}
				return set.Close()
			},
		} {
			ctx, warnings := query.WithWarnings(w.t.Context())
			began := time.Now()
			if err := read(ctx); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(began); took > markPatience {
				t.Errorf("%s took %v", what, took)
			}
			if got := warnings.Texts(); len(got) != 1 || !strings.Contains(got[0], "no answer of n2") {
				t.Errorf("%s warns %q", what, got)
			}
		}
	})
}

// TestADeletionThatFailsDoesNotShowOverwrittenRows: the leader of partitions cannot delete. The rows that wait stay: older values of theirs may be in these partitions.
func TestADeletionThatFailsDoesNotShowOverwrittenRows(t *testing.T) {
	inWorld(t, func(w *world) {
		w.stage("n2")
		for _, id := range w.All() {
			w.servers[id].keeps = fault.Errorf(fault.Unavailable, "its disk is full")
		}
		w.source.deps.Staged = func(string) []topology.ServerID { return []topology.ServerID{"n2"} }
		w.source.deps.Stagers = func(context.Context, string) ([]topology.ServerID, error) { return []topology.ServerID{"n2"}, nil }
		ctx, stop := context.WithTimeout(w.t.Context(), 5*time.Second)
		defer stop()
		err := w.source.DeleteSeries(ctx, &peer.Select{Table: "t", Hi: 1e18, Matchers: []peer.Matcher{{Name: point.MetricName, Value: "m"}}})
		if err == nil {
			t.Error("it is acked")
		}
		w.reads(whole + ", waits: 7")
	})
}

// TestADeletionThatFailsDoesNotShowStagedRowsThatWereOverwritten: rows of a series are staged on n2, which may be older than those of
// their partitions. The first partition deletes. The third cannot, and a row of its time is staged as well.
func TestADeletionThatFailsDoesNotShowStagedRowsThatWereOverwritten(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.servers["n2"]
		s.staged = querytest.NewStore()
		b := point.GetBatch(point.NewDict(0))
		series := querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "i", "waits"))
		b.Append(series, 0, 5)
		b.Append(series, 2e9, 4)
		if err := querytest.Inserter(s.staged, "t", 1)(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		w.servers["n3"].keeps = fault.Errorf(fault.Internal, "its disk is full")
		w.source.deps.Staged = func(string) []topology.ServerID { return []topology.ServerID{"n2"} }
		w.source.deps.Stagers = func(context.Context, string) ([]topology.ServerID, error) { return []topology.ServerID{"n2"}, nil }
		if err := w.source.DeleteSeries(w.t.Context(), &peer.Select{Table: "t", Hi: 1e18, Matchers: []peer.Matcher{{Name: point.MetricName, Value: "m"}}}); err == nil || !strings.Contains(err.Error(), "the deletion is not complete") {
			t.Errorf("it is acked, or not said to be half done: %v", err)
		}
		w.reads("0: 2, 1: 2, 2: 2, waits: 2")
	})
}

// TestTheTimesOfWhichAllPartitionsDeleted.
func TestTheTimesOfWhichAllPartitionsDeleted(t *testing.T) {
	for _, c := range []struct {
		name    string
		ps      []*topology.Partition // named by their places, from 0 on
		deleted []point.PartitionID
		hi      point.Nanos
		want    []interval
	}{
		{name: "none"},
		{name: "one did", ps: []*topology.Partition{{TimeLo: 0, TimeHi: 10}}, deleted: []point.PartitionID{0}, hi: 100, want: []interval{{2, 9}}},
		{name: "one did, beyond the times asked for", ps: []*topology.Partition{{TimeLo: 0, TimeHi: 10}}, deleted: []point.PartitionID{0}, hi: 7, want: []interval{{2, 7}}},
		{name: "one of two columns did", ps: []*topology.Partition{{TimeLo: 0, TimeHi: 10}, {TimeLo: 0, TimeHi: 10}}, deleted: []point.PartitionID{1}, hi: 100},
		{name: "neighbours", ps: []*topology.Partition{{TimeLo: 0, TimeHi: 10}, {TimeLo: 10, TimeHi: 20}, {TimeLo: 20, TimeHi: 30}, {TimeLo: 40, TimeHi: 50}},
			deleted: []point.PartitionID{0, 1, 3}, hi: 100, want: []interval{{2, 19}, {40, 49}}},
		{name: "one beside some that are narrower", ps: []*topology.Partition{{TimeLo: 0, TimeHi: 30}, {TimeLo: 0, TimeHi: 10}, {TimeLo: 10, TimeHi: 20}, {TimeLo: 20, TimeHi: 30}},
			deleted: []point.PartitionID{0, 1, 3}, hi: 100, want: []interval{{2, 9}, {20, 29}}},
		{name: "to the end of time", ps: []*topology.Partition{{TimeLo: 0, TimeHi: math.MaxInt64}}, deleted: []point.PartitionID{0}, hi: math.MaxInt64, want: []interval{{2, math.MaxInt64 - 1}}},
	} {
		deleted := map[point.PartitionID]bool{}
		for i, p := range c.ps {
			p.ID = point.PartitionID(i)
			deleted[p.ID] = slices.Contains(c.deleted, p.ID)
		}
		if got := deletedTimes(c.ps, deleted, 2, c.hi); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestADeletionReachesRowsThatWait, or says that it did not; where a server with such rows is away nothing is deleted.
func TestADeletionReachesRowsThatWait(t *testing.T) {
	unavailable := fault.Errorf(fault.Unavailable, "away")
	for _, c := range []struct {
		name  string
		n3    error                 // the answer of n3, which has no staged rows
		at    [][]topology.ServerID // the servers with staged rows, by round
		fails error                 // to find them
		want  string
		cuts  [3]int
		err   string
	}{
		{name: "a staged row", at: [][]topology.ServerID{{"n2", "n3"}}, cuts: [3]int{0, 2, 2}},
		{name: "none is staged", at: [][]topology.ServerID{{}}, want: "waits: 7"},
		{name: "the row moves to n2 meanwhile", at: [][]topology.ServerID{{"n1"}, {"n1", "n2"}}, cuts: [3]int{3, 2, 0}},
		{name: "the rows are gone after a round", at: [][]topology.ServerID{{"n2"}, {}}, cuts: [3]int{0, 1, 0}},
		{name: "one is away", n3: unavailable, at: [][]topology.ServerID{{"n2", "n3"}}, want: whole + ", waits: 7", err: "server n3 may have staged rows"},
		{name: "one is older", n3: fault.Errorf(fault.Invalid, "copies of kind 4"), at: [][]topology.ServerID{{"n2", "n3"}}, cuts: [3]int{0, 1, 1}, err: "upgrade it"},
		{name: "the registry is away", fails: unavailable, want: whole + ", waits: 7", err: "find the servers"},
		{name: "servers take turns", at: [][]topology.ServerID{{"n1"}, {"n2"}, {"n1"}, {"n2"}, {"n1"}}, cuts: [3]int{3, 2, 0}, err: "keep moving"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.stage("n2")
				w.servers["n3"].away = c.n3
				w.source.deps.Staged = func(string) []topology.ServerID { return []topology.ServerID{"n2"} }
				round := -1 // that in which they are asked whether they are there
				w.source.deps.Stagers = func(context.Context, string) ([]topology.ServerID, error) {
					if c.fails != nil {
						return nil, c.fails
					}
					round++
					return c.at[min(max(round, 1), len(c.at))-1], nil
				}
				err := w.source.DeleteSeries(w.t.Context(), &peer.Select{Table: "t", Hi: 1e18, Matchers: []peer.Matcher{{Name: point.MetricName, Value: "m"}}})
				if c.err == "" && err != nil || c.err != "" && (!fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), c.err)) {
					t.Fatal(err)
				}
				w.reads(c.want)
				for i, id := range w.All() {
					if got := w.servers[id].cuts; got != c.cuts[i] {
						t.Errorf("%s deleted %d times in its staged rows, should have %d", id, got, c.cuts[i])
					}
				}
			})
		})
	}
}

// TestStagedRowsAreHeldWhileADeletionRuns: before partitions delete, for as long as they need, and not after it, whatever its outcome.
func TestStagedRowsAreHeldWhileADeletionRuns(t *testing.T) {
	f := func(what string, change func(*world), fails bool, want string) {
		t.Helper()
		inWorld(t, func(w *world) {
			w.stage("n2")
			w.source.deps.Stagers = func(context.Context, string) ([]topology.ServerID, error) { return []topology.ServerID{"n2"}, nil }
			change(w)
			err := w.source.DeleteSeries(w.t.Context(), &peer.Select{Table: "t", Hi: 1e18, Matchers: []peer.Matcher{{Name: point.MetricName, Value: "m"}}})
			if got := strings.Join(w.servers["n2"].did, ", "); got != want || (err != nil) != fails {
				t.Errorf("%s: %v, n2 did %q, want %q", what, err, got, want)
			}
		})
	}
	f("all is well", func(*world) {}, false, "hold, partitions, staged, held, staged, held, partitions, release")
	f("the server is older", func(w *world) { w.servers["n2"].old = true }, false, "partitions, staged, staged, partitions, release")
	f("a partition cannot delete", func(w *world) { w.servers["n2"].keeps = fault.Errorf(fault.Internal, "its disk is full") }, true, "hold, staged, held, staged, held, release") // at the times before and after its partition's
	f("finding servers takes long", func(w *world) {
		times := 0
		w.source.deps.Stagers = func(context.Context, string) ([]topology.ServerID, error) {
			if times++; times == 2 {
				<-time.NewTimer(12 * time.Second).C
			}
			return []topology.ServerID{"n2"}, nil
		}
	}, false, "hold, partitions, renew, renew, staged, held, staged, held, partitions, release")
}

// TestAReaderKnowsThatRowsWaitInKafka: a table lets rows of Kafka wait in their topic, where no reader sees them. A reader is told so where its times are among those that may wait.
func TestAReaderKnowsThatRowsWaitInKafka(t *testing.T) {
	const told = `rows of table "t" that come by Kafka wait there up to 3s (smear_kafka is wait), and are not in the answer before: those of the last 5m3s may be missing`
	wait := smear.Rule{Mode: smear.Auto, Kafka: smear.KafkaWait}
	for _, c := range []struct {
		name    string
		rule    smear.Rule
		servers int
		ago     time.Duration
		warns   []string
	}{
		{"of now", wait, 3, 0, []string{told}},
		{"of a moment that may wait", wait, 3, 5*time.Minute + 2*time.Second, []string{told}},
		{"of before", wait, 3, 5*time.Minute + 3*time.Second, nil},
		{"of one server, where nothing waits", wait, 1, 0, nil},
		{"they are staged", smear.Rule{Mode: smear.Auto}, 3, 0, nil},
		{"smearing is off", smear.Rule{Kafka: smear.KafkaWait}, 3, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				cfg := w.m.Config
				cfg.Smear = c.rule
				m, err := w.m.Apply(topology.SetConfig{Config: cfg})
				if err != nil {
					t.Fatal(err)
				}
				w.m = m
				w.source.deps.Takers = func() int { return c.servers }
				ctx, warnings := query.WithWarnings(w.t.Context())
				q := &peer.Select{Table: "t", Hi: time.Now().Add(-c.ago).UnixNano()}
				for range 2 {
					set, err := w.source.Select(ctx, q)
					if err != nil {
						t.Fatal(err)
					}
					for set.Next() {
					}
					if err := set.Close(); err != nil {
						t.Fatal(err)
					}
				}
				if got := warnings.Texts(); !slices.Equal(got, c.warns) {
					t.Errorf("warned of %q", got)
				}
			})
		})
	}
}
