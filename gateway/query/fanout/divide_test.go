package fanout

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAQuestionThatBeginsLateEndsNoGateway: a second copy is about to be asked, when the first one answers and the plan is divided anew by a newer map, which leaves nothing to
// ask. The late question belongs to the older division, and looked its request up in the newer one: the process ended.
func TestAQuestionThatBeginsLateEndsNoGateway(t *testing.T) {
	d := &division{q: &peer.Select{Table: "t"}, silent: func(topology.ServerID) bool { return false }, of: &columns.Request{Plan: columns.Plan{
		Grid:   columns.Grid{Start: 0, End: 600_000, Step: 60_000},
		Source: columns.Source{Window: time.Minute, Function: columns.FunctionOf("rate"), OneName: true},
	}}}
	ps, _ := drawn(t, "1@a[-60,60)")
	groups, _ := d.plan(ps, func(*topology.Partition) (target, error) { return target{leader: "a"}, nil })
	if len(groups) != 1 {
		t.Fatalf("%d questions", len(groups))
	}
	if again, _ := d.plan(nil, nil); len(again) != 0 {
		t.Fatalf("%d questions by a map without partitions", len(again))
	}
	server := &manyServer{}
	_, _ = d.ask(t.Context(), &groups[0], server)
	if len(server.asked) != 1 {
		t.Errorf("the server was asked %q", server.asked)
	}
}

// evaluator is a server with the newest map that notes the partitions of each evaluation, and evaluates none.
type evaluator struct {
	*storage
	evaluated []point.PartitionID
}

func (e *evaluator) Evaluate(_ context.Context, q *peer.Select, _ []byte, give func([]byte) error) error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	newest := e.w.newest
	if q.MapNext < newest.NextID && slices.ContainsFunc(newest.Overlapping(q.Lo, q.Hi), func(p *topology.Partition) bool { return p.ID >= q.MapNext }) {
		return peer.WithMap(fault.Errorf(fault.Stale, "the caller's map is old"), peer.MapAt{Txn: peer.TxnID{1}, Seq: newest.Seq, Servers: []string{"n1"}})
	}
	e.evaluated = append(e.evaluated, q.Partitions...)
	return columns.SendOutcome(columns.Unknown, give)
}

// evaluators are one server under all names.
type evaluators struct{ *evaluator }

func (e evaluators) Server(topology.ServerID) (peer.Storage, bool) { return e.evaluator, true }

func (e evaluators) All() []topology.ServerID { return []topology.ServerID{"n1"} }

// TestStepsOfPartitionsNotSeenYetAreEvaluated: another gateway has just made partition 4, and a server acked rows of it. No partition of the old map has times of the last step, so no server
// was asked for that, and the servers that were asked for the others looked at their times alone: the answer ended early, without a word.
func TestStepsOfPartitionsNotSeenYetAreEvaluated(t *testing.T) {
	for _, copied := range []bool{false, true} {
		inWorld(t, func(w *world) {
			w.newest = w.m.Cover([]point.Nanos{10e9}, func(point.PartitionID) []topology.Placement {
				return []topology.Placement{{ID: 4, Server: "n1"}, {ID: 5, Server: "n2"}}
			})
			at := &evaluator{storage: w.servers["n1"]}
			w.source.deps.Servers = evaluators{at}
			w.leads[4] = "n1"
			if copied {
				w.m = withCopies(w.m)
				w.source.deps.Copies = func(lease.Partition) []topology.ServerID { return []topology.ServerID{"n1", "n2"} }
			}
			_, err := w.source.Divide(w.t.Context(), &peer.Select{Table: "t", Lo: 400e6 + 1, Hi: 10_500e6}, &columns.Request{Plan: columns.Plan{
				Grid:   columns.Grid{Start: 500, End: 10_500, Step: 5000}, // the step between lies in no partition at all
				Source: columns.Source{Window: 100 * time.Millisecond, Function: columns.FunctionOf("rate"), OneName: true},
			}})
			if slices.Sort(at.evaluated); err != nil || !slices.Equal(at.evaluated, []point.PartitionID{1, 4}) {
				w.t.Errorf("copies %t: partitions %v were evaluated, %v", copied, at.evaluated, err)
			}
		})
	}
}

// withCopies is a map whose partitions lie on two servers.
func withCopies(m *topology.Map) *topology.Map {
	two, err := topology.New("t", topology.Config{PartitionWidth: time.Second, Replicas: 2})
	if err != nil {
		panic(err)
	}
	return two.Cover([]point.Nanos{0, 1e9, 2e9}, func(point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: 1, Server: "n1"}, {ID: 2, Server: "n2"}}
	})
}

// copyEvaluator evaluates nothing; the leader is frozen, or the copy gets nothing from it.
type copyEvaluator struct{ *copyServer }

func (e copyEvaluator) Evaluate(ctx context.Context, q *peer.Select, _ []byte, _ func([]byte) error) error {
	set, err := e.Select(ctx, q)
	if err == nil {
		err = set.Close()
	}
	return err
}

// copyEvaluators are the servers of copied, which evaluate.
type copyEvaluators struct{ *copied }

func (c copyEvaluators) Server(id topology.ServerID) (peer.Storage, bool) {
	return copyEvaluator{c.copies[id]}, true
}

// TestEvaluationsDoNotWaitForAFrozenLeader: the other copies get nothing from it. Rows are read of them together, as soon as it is late.
func TestEvaluationsDoNotWaitForAFrozenLeader(t *testing.T) {
	inCopies(t, func(c *copied) {
		c.copies["n1"].mute, c.copies["n2"].sure, c.copies["n3"].sure = true, false, false
		c.source.deps.Servers = copyEvaluators{c}
		began := time.Now()
		divided, err := c.source.Divide(c.t.Context(), &peer.Select{Table: "t", Hi: 2e9}, &columns.Request{Plan: columns.Plan{
			Grid:   columns.Grid{Start: 500, End: 1500, Step: 500},
			Source: columns.Source{Window: 100 * time.Millisecond, Function: columns.FunctionOf("rate"), OneName: true},
		}})
		if took := time.Since(began); err != nil || divided != nil || took > follow.LateMax || c.asked() < 3 {
			c.t.Errorf("%v %v after %v, with %d questions: want rows to be read", divided, err, took, c.asked())
		}
	})
}

// partEvaluators are the servers of copied, which evaluate and send parts without columns.
type partEvaluators struct {
	*copied
	edges *int // questions for partition 4, under copied.mu
}

func (c partEvaluators) Server(id topology.ServerID) (peer.Storage, bool) {
	return partEvaluator{copyEvaluator{c.copies[id]}, c}, true
}

type partEvaluator struct {
	copyEvaluator
	c partEvaluators
}

func (e partEvaluator) Evaluate(ctx context.Context, q *peer.Select, request []byte, give func([]byte) error) error {
	if slices.Contains(q.Partitions, 4) {
		e.c.mu.Lock()
		*e.c.edges++
		e.c.mu.Unlock()
	}
	r, err := columns.DecodeRequest(request)
	if err == nil {
		err = e.copyEvaluator.Evaluate(ctx, q, request, give)
	}
	if err != nil {
		return err
	}
	return (&columns.Part{Form: r.Form, Steps: r.Plan.Grid.Len()}).Send(give)
}

// TestAPlanWhoseServerFellSilentKeepsOneSetOfParts: the parts that the first plan evaluated count no more, so its memory is given back. Where no partition can be left out the plan would be the same:
// it is not made again.
func TestAPlanWhoseServerFellSilentKeepsOneSetOfParts(t *testing.T) {
	for _, marked := range []bool{false, true} {
		inCopies(t, func(x *copied) {
			x.m = x.m.Cover([]point.Nanos{3e9}, func(point.PartitionID) []topology.Placement {
				return []topology.Placement{{ID: 1, Server: "n1"}, {ID: 2, Server: "n2"}, {ID: 3, Server: "n3"}}
			})
			listed := x.source.deps.Copies
			x.source.deps.Copies = func(p lease.Partition) []topology.ServerID {
				if p.ID == 4 {
					return nil
				}
				return listed(p)
			}
			x.source.deps.HasNoRows = func(p lease.Partition, _ uint64) bool { return marked && p.ID == 4 }
			x.source.deps.CaughtUp = func(context.Context) error { return nil }
			x.copies["n1"].mute = true
			edges := 0
			x.source.deps.Servers = partEvaluators{x, &edges}
			began := time.Now()
			x.source.deps.Silence = func(id topology.ServerID) time.Duration {
				if id != "n1" {
					return 0
				}
				return max(0, time.Since(began)-time.Second+follow.PingMax)
			}
			loan, err := budget.New("queries", 64<<20).Borrow(x.t.Context(), 0)
			if err != nil {
				x.t.Fatal(err)
			}
			defer loan.Close()
			divided, err := x.source.Divide(budget.WithLoan(x.t.Context(), loan), &peer.Select{Table: "t", Hi: 4e9}, &columns.Request{Plan: columns.Plan{
				Grid:   columns.Grid{Start: 500, End: 3500, Step: 500},
				Source: columns.Source{Window: 2 * time.Second, Function: columns.FunctionOf("rate"), OneName: true},
			}})
			if err != nil || divided == nil {
				x.t.Fatalf("marked %t: %v %v", marked, divided, err)
			}
			rows, kept := 0, int64(0)
			for _, at := range divided.Pieces {
				if at.Part == nil {
					rows++
				} else if err := at.Part.Send(func(b []byte) error { kept += int64(len(b)); return nil }); err != nil {
					x.t.Fatal(err)
				}
			}
			synctest.Wait()
			x.mu.Lock()
			defer x.mu.Unlock()
			if (rows == 0) != marked || kept == 0 || loan.Used() != kept || edges != 1 {
				x.t.Errorf("marked %t: %d of %d pieces are read as rows; parts of %d bytes with %d booked; the frozen leader was asked %d times for the partition without rows",
					marked, rows, len(divided.Pieces), kept, loan.Used(), edges)
			}
		})
	}
}

// TestEvaluationsOverTheEdgeOfAPartitionWithoutRowsDoNotWaitForAFrozenLeader: of the partition without rows no other server has a copy, so its leader alone could evaluate such steps. As soon as it
// owes a sign of life the steps are planned anew without the partition, and the copies evaluate; where that is known before, it is not asked.
func TestEvaluationsOverTheEdgeOfAPartitionWithoutRowsDoNotWaitForAFrozenLeader(t *testing.T) {
	for _, c := range []struct {
		what    string
		known   bool
		took    time.Duration
		without bool // the partition is left out
	}{
		{"at first", false, time.Second, false},
		{"known from other requests", true, 0, true},
	} {
		inCopies(t, func(x *copied) {
			x.m = x.m.Cover([]point.Nanos{3e9}, func(point.PartitionID) []topology.Placement {
				return []topology.Placement{{ID: 1, Server: "n1"}, {ID: 2, Server: "n2"}, {ID: 3, Server: "n3"}}
			})
			listed := x.source.deps.Copies
			x.source.deps.Copies = func(p lease.Partition) []topology.ServerID {
				if p.ID == 4 {
					return nil
				}
				return listed(p)
			}
			x.source.deps.HasNoRows = func(p lease.Partition, _ uint64) bool { return p.ID == 4 }
			looks := 0
			x.source.deps.CaughtUp = func(context.Context) error { looks++; return nil }
			x.copies["n1"].mute = true
			x.source.deps.Servers = copyEvaluators{x}
			began := time.Now()
			x.source.deps.Silence = func(id topology.ServerID) time.Duration {
				if id != "n1" {
					return 0
				}
				if c.known {
					return time.Minute
				}
				return max(0, time.Since(began)-time.Second+follow.PingMax)
			}
			divided, err := x.source.Divide(x.t.Context(), &peer.Select{Table: "t", Hi: 4e9}, &columns.Request{Plan: columns.Plan{
				Grid:   columns.Grid{Start: 500, End: 3500, Step: 500},
				Source: columns.Source{Window: 2 * time.Second, Function: columns.FunctionOf("rate"), OneName: true},
			}})
			took := time.Since(began)
			x.mu.Lock()
			// Of the other partitions it has a copy, and when both others have given nothing it is asked for these, too, and given up at once.
			frozen, others := x.copies["n1"].last, len(x.copies["n2"].modes)+len(x.copies["n3"].modes)
			x.mu.Unlock()
			if took < c.took || took > c.took+2*listenEvery || (frozen == 0) != c.without || others == 0 || looks != 1 {
				x.t.Errorf("%s: %v %v after %v; the frozen leader was asked %d times for the partition without rows, the copies %d times, the coordination store %d times", c.what, divided, err, took, frozen, others, looks)
			}
		})
	}
}
