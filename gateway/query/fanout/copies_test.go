package fanout

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// copied is a table of three partitions, each with copies on three servers of which n1 leads.
type copied struct {
	*world
	copies map[topology.ServerID]*copyServer
}

// copyServer is one server: it leads all partitions, has sure copies of them, or copies that may lack rows.
type copyServer struct {
	*storage
	leads, sure bool
	away        error
	modes       []peer.Copies // of the questions
	partitions  int           // asked for, in all
	last        int           // questions with partition 4
}

func (s *copyServer) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	s.w.mu.Lock()
	s.modes = append(s.modes, q.Copies)
	s.partitions += len(q.Partitions)
	if slices.Contains(q.Partitions, 4) {
		s.last++
	}
	mute, breaks, away, leads, sure := s.mute, s.breaks, s.away, s.leads, s.sure
	s.w.mu.Unlock()
	switch {
	case mute:
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(2 * time.Second): // as connections do
			return nil, fault.Errorf(fault.Unavailable, "%s is silent", s.id)
		}
	case away != nil:
		return nil, away
	case leads, sure && q.Copies != peer.LeaderOnly, q.Copies == peer.UnsureCopies:
		in, err := s.Store.Select(ctx, q)
		if breaks != nil {
			in = &breaking{SeriesSet: in, err: breaks}
		}
		return in, err
	}
	return nil, peer.Unsure(fault.Errorf(fault.Stale, "%s may lack rows", s.id))
}

// Server implements Servers.
func (c *copied) Server(id topology.ServerID) (peer.Storage, bool) { return c.copies[id], true }

// Find implements Leaders.
func (c *copied) Find(string, *topology.Partition, int) (leaders.Lead, error) {
	return leaders.Lead{Server: "n1"}, nil
}

func inCopies(t *testing.T, story func(c *copied)) {
	synctest.Test(t, func(t *testing.T) {
		c := &copied{world: newWorld(t), copies: map[topology.ServerID]*copyServer{}}
		m, err := topology.New("t", topology.Config{PartitionWidth: time.Second, Replicas: 3})
		if err != nil {
			t.Fatal(err)
		}
		c.m = m.Cover([]point.Nanos{0, 1e9, 2e9}, func(point.PartitionID) []topology.Placement {
			return []topology.Placement{{ID: 1, Server: "n1"}, {ID: 2, Server: "n2"}, {ID: 3, Server: "n3"}}
		})
		for id, s := range c.servers {
			c.copies[id] = &copyServer{storage: s, leads: id == "n1", sure: true}
			s.Store = querytest.NewStore()
			for i := range 3 {
				c.put(id, int64(i)*1e9, float64(i))
			}
		}
		c.source = New(Deps{Tables: c, Leaders: c, Servers: c, Log: slog.New(slog.DiscardHandler),
			Copies: func(lease.Partition) []topology.ServerID { return []topology.ServerID{"n1", "n2", "n3"} }}, Settings{})
		story(c)
	})
}

// put writes a row of the series "0" to one server; a row that is written later has a higher rank.
func (c *copied) put(server topology.ServerID, at int64, value float64) {
	b := point.GetBatch(point.NewDict(0))
	b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "i", "0")), at, value)
	if err := querytest.Inserter(c.servers[server].Store, "t", point.PartitionID(at/1e9+1))(c.t.Context(), b); err != nil {
		c.t.Fatal(err)
	}
}

// sum is the sum of all values that are read, and for how long they were.
func (c *copied) sum(ctx context.Context) (sum float64, took time.Duration, err error) {
	began := time.Now()
	set, err := c.source.Select(ctx, &peer.Select{Table: "t", Hi: 1e18})
	if err != nil {
		return 0, time.Since(began), err
	}
	for set.Next() {
		for _, v := range set.At().Values {
			sum += v
		}
	}
	if err = set.Err(); err == nil {
		err = set.Close()
	}
	return sum, time.Since(began), err
}

func (c *copied) asked() (n int) {
	for _, s := range c.copies {
		n += len(s.modes)
	}
	return n
}

// TestCopiesShareAQuery: every partition is read once, by the same server each time, and not all by one; by the leader if the request says so.
func TestCopiesShareAQuery(t *testing.T) {
	inCopies(t, func(c *copied) {
		for range 3 {
			if sum, _, err := c.sum(c.t.Context()); sum != 3 || err != nil {
				t.Errorf("read %v %v", sum, err)
			}
		}
		for id, s := range c.copies {
			if s.partitions%3 != 0 || s.partitions == 9 {
				t.Errorf("%s was asked for %d partitions in three queries of three", id, s.partitions)
			}
		}
		before := len(c.copies["n1"].modes)
		total := c.asked()
		if sum, _, err := c.sum(query.WithLeaderOnly(c.t.Context(), true)); sum != 3 || err != nil || len(c.copies["n1"].modes)-before != c.asked()-total {
			t.Errorf("at the leader: %v %v, asked %d", sum, err, c.asked()-total)
		}
		c.closed()
	})
}

// TestASilentServerIsNotWaitedFor, nor one that is gone; after some questions it is asked last.
func TestASilentServerIsNotWaitedFor(t *testing.T) {
	inCopies(t, func(c *copied) {
		for _, away := range []bool{false, true} {
			for id, s := range c.copies {
				if s.mute = true; away {
					s.mute, s.away = false, fault.Errorf(fault.Unavailable, "connection refused")
				}
				for i := range 6 {
					sum, took, err := c.sum(c.t.Context())
					if most := follow.LateMax / 4; sum != 3 || err != nil || took > most || away && took > 0 || i > 3 && took > 0 {
						t.Errorf("%s is silent, query %d: %v %v after %v", id, i, sum, err, took)
					}
				}
				s.mute, s.away = false, nil
				c.closed()
				time.Sleep(time.Minute)
				if sum, _, err := c.sum(c.t.Context()); sum != 3 || err != nil {
					t.Errorf("%v %v", sum, err)
				}
			}
		}
	})
}

// TestCopiesThatMayLackRowsHaveThemTogether: the leader is frozen. n2 lacks a row that n3 has, and has the older value of another: no answer is
// made from one copy, and the newer value wins.
func TestCopiesThatMayLackRowsHaveThemTogether(t *testing.T) {
	inCopies(t, func(c *copied) {
		c.copies["n1"].mute, c.copies["n2"].sure, c.copies["n3"].sure = true, false, false
		for i := range 50 { // ranks of one store: later rows win, and these come later than any of the other's
			c.put("n3", 3e9-1, float64(100+i))
		}
		c.put("n3", 0, 1000)
		for range 4 {
			sum, took, err := c.sum(c.t.Context())
			if sum != 1000+1+2+149 || err != nil || took > follow.LateMax {
				t.Errorf("%v %v after %v", sum, err, took)
			}
		}
		c.closed()

		c.copies["n3"].away = fault.Errorf(fault.Unavailable, "connection refused") // now there is no answer
		_, took, err := c.sum(c.t.Context())
		if !fault.Is(err, fault.Unavailable) || took > 4*time.Second {
			t.Errorf("one of three, which may lack rows: %v after %v", err, took)
		}
		c.closed()
		c.copies["n1"].mute, c.copies["n1"].away = false, c.copies["n3"].away
		ctx, warned := query.WithWarnings(query.WithPartial(c.t.Context()))
		if sum, _, err := c.sum(ctx); sum != 3 || err != nil || !strings.Contains(strings.Join(warned.Texts(), ";"), "may lack rows") {
			t.Errorf("in part: %v %v, warned of %q", sum, err, warned.Texts())
		}
		c.closed()
	})
}

// TestRaisedReplicasLoseNoRowOfAQuery: a table of three replicas is to have five. Its partitions lie on three servers yet, and n3 fell out of their in-sync
// lists when two of three were enough. The others do not answer: what n3 has is not all.
func TestRaisedReplicasLoseNoRowOfAQuery(t *testing.T) {
	inCopies(t, func(c *copied) {
		c.put("n1", 0, 7) // acknowledged without n3
		c.put("n2", 0, 7)
		cfg := c.m.Config
		cfg.Replicas = 5
		m, err := c.m.Apply(topology.SetConfig{Config: cfg})
		if err != nil {
			t.Fatal(err)
		}
		c.m = m
		c.copies["n3"].sure = false
		for _, id := range []topology.ServerID{"n1", "n2"} {
			c.copies[id].away = fault.Errorf(fault.Unavailable, "connection refused")
		}
		if sum, _, err := c.sum(c.t.Context()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("one of three, which may lack rows: %v %v", sum, err)
		}
		c.closed()
		c.copies["n2"].away, c.copies["n2"].sure = nil, false // two of three are complete, as before
		if sum, _, err := c.sum(c.t.Context()); sum != 10 || err != nil {
			t.Errorf("two of three, which may lack rows: %v %v", sum, err)
		}
		c.closed()
	})
}

// TestACutOffFollowersAnswerNeverCounts while another has all rows, however the order.
func TestACutOffFollowersAnswerNeverCounts(t *testing.T) {
	inCopies(t, func(c *copied) {
		c.put("n1", 0, 7)
		c.put("n2", 0, 7)
		c.copies["n3"].sure = false
		for range 3 {
			if sum, took, err := c.sum(c.t.Context()); sum != 10 || err != nil || took > 0 {
				t.Errorf("%v %v after %v", sum, err, took)
			}
		}
		for _, mode := range c.copies["n3"].modes {
			if mode == peer.UnsureCopies {
				t.Error("n3 was asked for what it has")
			}
		}
		c.closed()
	})
}

// TestAnErrorNamesEveryCopyThatWasAsked: an operator has to look at every copy, not at the first.
func TestAnErrorNamesEveryCopyThatWasAsked(t *testing.T) {
	inCopies(t, func(c *copied) {
		long := strings.Repeat("é", 4*namedReasonMax)
		for id, why := range map[topology.ServerID]string{"n1": "fenced", "n2": "its disk is gone", "n3": long} {
			c.copies[id].away = fault.Errorf(fault.Unavailable, "%s is away: %s", id, why)
		}
		_, _, err := c.sum(c.t.Context())
		if !fault.Is(err, fault.Unavailable) {
			t.Fatal(err)
		}
		if n := strings.Count(err.Error(), "é"); n > namedReasonMax {
			t.Errorf("%d letters of one reason", n)
		}
		for _, want := range []string{"n1 is away: fenced", "n2 is away: its disk is gone", "n3 is away: é"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in %v", want, err)
			}
		}
	})
}
