package fanout

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestRowsOfEdgesAreAskedForBesideEvaluations lists which partitions are asked for the rows of a stretch that no server evaluates: none where a row may be in two places, or staged.
func TestRowsOfEdgesAreAskedForBesideEvaluations(t *testing.T) {
	f := func(what, partitions, want string) {
		t.Helper()
		p := &columns.Plan{Grid: columns.Grid{Start: 0, End: 19 * 60_000, Step: 60_000}, Source: columns.Source{Window: 2 * time.Minute, Function: columns.FunctionOf("rate")}}
		partitions, staged := drawnTimes(t, partitions)
		ps, on := drawn(t, partitions)
		var got []string
		for _, s := range stretches(p, ps, staged, 0, func(p *topology.Partition) []topology.ServerID { return on[p.ID] }) {
			if s.units != nil {
				continue
			}
			line := fmt.Sprintf("%d+%d", s.first, s.steps)
			for _, u := range s.reads {
				line += fmt.Sprint(" ", u.servers, ":")
				for _, p := range u.partitions {
					line += fmt.Sprint(p.ID, ",")
				}
			}
			got = append(got, line)
		}
		if g := strings.Join(got, "; "); g != want {
			t.Errorf("%s: %q, want %q", what, g, want)
		}
	}
	f("an edge between two servers", "1@a[-60,10) 2@b[10,60)", "10+2 [a]:1, [b]:2,")
	f("edges after each other", "1@a[-60,10) 2@b[10,11) 3@a[11,60)", "10+3 [a]:1,3, [b]:2,")
	f("halves that change places", "1@a[-60,10)/0 2@b[-60,60)/1 3@b[10,60)/0", "10+2 [a]:1, [b]:3,2,")
	f("copies without a server that has both", "1@a|b[-60,10) 2@c|d[10,60)", "10+2 [a b]:1, [c d]:2,")
	f("copies: two servers remain to be asked", "1@a|b[-60,10)/0 2@c|b[-60,10)/1 3@d|a[10,60)", "10+2 [a b]:1, [d a]:3, [c b]:2,")
	f("copies: a partition of two stretches is asked for once", "1@a|b[-60,9)/0 2@a|b|c[9,10.5)/0 3@b|c[10.5,60)/0 4@d|e[-60,10)/1 5@f|g[10,60)/1", "10+2 [a b]:1,2, [d e]:4, [f g]:5, [b c]:3,")
	f("staged rows at the edge", "1@a[-60,10) 2@b[10,60) ~[10.5,11]", "10+3")
	f("staged rows beside the edge", "1@a[-60,10) 2@b[10,60) ~[12.5,12.6]", "10+2 [a]:1, [b]:2,; 13+2")
	f("staged rows right behind the edge", "1@a[-60,10) 2@b[10,60) ~[11.5,11.6]", "10+4")
	f("one that is unloading", "1@a[-60,15) 2@a[15,60)u", "15+5")
	f("one without a leader", "1@a[-60,15) 2@[15,60)", "15+5")
}

// rowServer gives rows, and for evaluations parts without columns.
type rowServer struct {
	*storage
	refuses error // its answer to questions for rows; ErrUnknown: it is of an older build

	mu       sync.Mutex
	requests int
	raw      [][]point.PartitionID
}

func (s *rowServer) EvaluateAll(ctx context.Context, all []*peer.Evaluation) {
	s.mu.Lock()
	s.requests++
	s.mu.Unlock()
	for _, e := range all {
		e.End(s.Evaluate(ctx, e.Select, e.Request, e.Give))
	}
}

func (s *rowServer) Evaluate(ctx context.Context, q *peer.Select, request []byte, give func([]byte) error) error {
	r, err := columns.DecodeRequest(request)
	if err != nil || r.Form != columns.Raw {
		if err == nil {
			err = (&columns.Part{Form: r.Form, Steps: r.Plan.Grid.Len()}).Send(give)
		}
		return err
	}
	s.mu.Lock()
	s.raw = append(s.raw, q.Partitions)
	s.mu.Unlock()
	switch {
	case s.refuses == columns.ErrUnknown:
		return columns.SendOutcome(columns.Unknown, give)
	case s.refuses != nil:
		return s.refuses
	}
	lo, hi := r.Plan.Reach()
	mine := *q
	mine.Lo, mine.Hi = point.NanosOf(lo), point.LastNanosOf(hi)
	set, err := s.Select(ctx, &mine)
	if err != nil {
		return err
	}
	defer set.Close()
	w := &columns.RawWriter{}
	for set.Next() {
		if !w.Add(set.At()) {
			return columns.SendOutcome(columns.Unknown, give)
		}
	}
	return w.Send(r, give)
}

// rowServers are the servers of a world.
type rowServers map[topology.ServerID]*rowServer

func rowServersOf(w *world) rowServers {
	all := rowServers{}
	for id, s := range w.servers {
		all[id] = &rowServer{storage: s}
	}
	w.source.deps.Servers = all
	return all
}

func (s rowServers) Server(id topology.ServerID) (peer.Storage, bool) { return s[id], true }

func (s rowServers) All() []topology.ServerID { return []topology.ServerID{"n1", "n2", "n3"} }

// divideRows divides a plan over three partitions of a second, each on a server of its own, with windows that reach over their edges. It lists the pieces: steps, and "part", "select", or the times of
// the rows of each series in seconds.
func divideRows(w *world, ctx context.Context) (pieces []string, err error) {
	divided, err := w.source.Divide(ctx, &peer.Select{Table: "t", Hi: 3e9}, &columns.Request{Plan: columns.Plan{
		Grid:   columns.Grid{Start: 0, End: 2900, Step: 100},
		Source: columns.Source{Window: 150 * time.Millisecond, Function: columns.FunctionOf("rate"), OneName: true},
	}})
	if divided == nil || err != nil {
		return nil, err
	}
	found := map[int]string{}
	for _, f := range divided.Found {
		for range 2 { // an evaluation may begin anew
			set := f.Open(ctx)
			var text []string
			for set.Next() {
				s := set.At().Labels.Get("i") + ":"
				for _, at := range set.At().Times {
					s += fmt.Sprint(" ", at/1e9)
				}
				text = append(text, s)
			}
			if err := set.Err(); err != nil {
				return nil, err
			}
			if found[f.Piece] = strings.Join(text, ", "); set.Close() != nil {
				return nil, fault.Errorf(fault.Internal, "close")
			}
		}
	}
	for i, p := range divided.Pieces {
		what, there := found[i]
		switch {
		case p.Part != nil:
			what = "part"
		case !there:
			what = "select"
		}
		pieces = append(pieces, fmt.Sprintf("%d+%d %s", p.First, p.Steps, what))
	}
	return pieces, nil
}

// TestRowsBetweenEvaluationsTravelWithThem: each server gets one request for all it is asked.
func TestRowsBetweenEvaluationsTravelWithThem(t *testing.T) {
	inWorld(t, func(w *world) {
		servers := rowServersOf(w)
		w.source.settings.StretchTime = 1
		got, err := divideRows(w, w.t.Context())
		want := []string{"0+10 part", "10+2 0: 1, 1: 1, 2: 1", "12+8 part", "20+2 0: 2, 1: 2, 2: 2", "22+8 part"}
		if err != nil || !slices.Equal(got, want) {
			w.t.Errorf("%q %v, want %q", got, err, want)
		}
		for id, s := range servers {
			if s.requests != 1 {
				w.t.Errorf("%s got %d requests", id, s.requests)
			}
		}
	})
}

// TestARowThatDoesNotTravelWithEvaluationsIsReadByASelect: a server of an older build, too many rows, another error, no memory. None of them fails the query, or waits for anything.
func TestARowThatDoesNotTravelWithEvaluationsIsReadByASelect(t *testing.T) {
	for what, refuses := range map[string]error{
		"an older build": columns.ErrUnknown, "stale": fault.Errorf(fault.Stale, "it moved"), "away": fault.Errorf(fault.Unavailable, "it stops"),
		"memory": nil, "an error that no other server cures": fault.Errorf(fault.TooLarge, "no memory for it"),
	} {
		for _, copied := range []bool{false, true} {
			inWorld(t, func(w *world) {
				servers := rowServersOf(w)
				w.source.settings.StretchTime = 1
				servers["n2"].refuses = refuses
				if copied {
					w.source.deps.Copies = func(lease.Partition) []topology.ServerID { return nil }
				}
				ctx, began := w.t.Context(), time.Now()
				if refuses == nil {
					loan, err := budget.New("queries", 64<<20).Borrow(ctx, 0)
					if err != nil {
						w.t.Fatal(err)
					}
					defer loan.Close()
					for n := int64(1 << 20); n >= 256; n /= 2 { // the rest has room for parts without columns
						for loan.Take(n) == nil {
						}
					}
					ctx = budget.WithLoan(ctx, loan)
				}
				got, err := divideRows(w, ctx)
				want := []string{"0+10 part", "10+2 select", "12+8 part", "20+2 select", "22+8 part"}
				if err != nil || !slices.Equal(got, want) || time.Since(began) > 0 {
					w.t.Errorf("%s: %q %v after %v, want %q", what, got, err, time.Since(began), want)
				}
			})
		}
	}
}

// TestAllRowsOfNarrowPartitionsAreOneQuestionToAServer, where reading few rows costs less than evaluating between the edges. If one server has too many, the plan is divided as without.
func TestAllRowsOfNarrowPartitionsAreOneQuestionToAServer(t *testing.T) {
	inWorld(t, func(w *world) {
		servers := rowServersOf(w)
		got, err := divideRows(w, w.t.Context())
		if want := []string{"0+30 0: 0 1 2, 1: 0 1 2, 2: 0 1 2"}; err != nil || !slices.Equal(got, want) {
			w.t.Errorf("%q %v, want %q", got, err, want)
		}
		servers["n3"].refuses = columns.ErrUnknown
		got, err = divideRows(w, w.t.Context())
		want := []string{"0+10 part", "10+2 0: 1, 1: 1, 2: 1", "12+8 part", "20+2 select", "22+8 part"}
		if err != nil || !slices.Equal(got, want) {
			w.t.Errorf("%q %v, want %q", got, err, want)
		}
		if s := servers["n1"]; s.requests != 3 || len(s.raw) != 3 {
			w.t.Errorf("n1 got %d requests, for the rows of %v", s.requests, s.raw)
		}
		w.source.deps.Silence = func(id topology.ServerID) time.Duration {
			return map[topology.ServerID]time.Duration{"n1": time.Minute}[id]
		}
		if _, err := divideRows(w, w.t.Context()); err != nil || len(servers["n1"].raw) != 3 {
			w.t.Errorf("n1 was asked for the rows of %v, although it is silent: %v", servers["n1"].raw, err)
		}
	})
}
