package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/partition"
)

// timely refuses a stamp that is too far ahead of the servers' clocks: once accepted, it stays. The later of their median and our own clock counts, since a gateway that
// is refused sets its stamps back: those of rows that it stages then would be behind the stamps of rows that others staged before.
//
// So no time is said while it may be that of our own clock alone, soon after a start: a server whose clock was behind set
// gateways back by as much, and overwrites that they staged lost to older values.
func (s *Server) timely(stamp point.Stamp) error {
	now := s.latest()
	if !rank.Ahead(stamp, now) {
		return nil
	}
	if s.deps.ClocksKnown != nil && !s.deps.ClocksKnown() {
		return fault.Errorf(fault.Stale, "nothing was kept: the stamp of the insert is more than %v ahead of the clock of this server, "+
			"which does not know those of the other servers yet", rank.AheadMax)
	}
	s.metrics.ahead.Inc()
	return peer.NewAhead(now)
}

// ranksNow is the time by which compactions leave out the ranks of old rows: none before it is known by the clocks of all live
// servers, since our own alone may be years ahead.
func (s *Server) ranksNow() point.Nanos {
	if s.deps.ClocksKnown != nil && !s.deps.ClocksKnown() {
		return 0
	}
	return s.now()
}

// Parents finds the highest rank of partitions that are not led here, and whose keys others have now. Safe for concurrent use.
type Parents interface {
	// HighestRank asks the partition's leader, as peer.SealedRanker. Errors mean that it is not known.
	HighestRank(ctx context.Context, table string, at *topology.Partition) (point.Stamp, error)
	// InSync reports whether no server leads the partition, and this placement here is in sync by a lease row that is not older than the call. Then it has all
	// rows that were acked.
	InSync(ctx context.Context, table string, at *topology.Partition, placement point.PlacementID) bool
}

const (
	// askRankEvery is the pause before a leader is asked again that does not know yet, since it is just carrying out the map.
	askRankEvery = 20 * time.Millisecond
	// askRanksMax bounds the partitions whose ranks are asked for. The rows of a merge of more get ranks that run ahead.
	askRanksMax = 32
)

// rankAbove makes a partition that is about to be led rank its rows above those of the partitions whose keys it now owns. For one that accepts no rows any more
// the bound is its highest rank, if that is known here or at its leader. Else it follows from the clocks: no accepted rank is more than AheadMax ahead of the
// latest time by the servers' clocks. By this server's clock that may be further ahead, if it is behind the others, or if most clocks were set back since.
//
// Ranks that run ahead have a price. Staged rows keep the rank of their gateway, which is of now: if they overwrite rows of a moment ago that ranked a second
// ahead, they lose.
func (s *Server) rankAbove(ctx context.Context, t *table, p *partition.Partition, at *topology.Partition, epoch point.Epoch) {
	m, ok := s.deps.Maps.Get(t.name)
	if !ok {
		return
	}
	if at.State == topology.Unload { // it ranks no row any more, and its heirs, which rank above it, would be ahead as well
		return
	}
	var elsewhere []*topology.Partition
	for _, other := range m.Overlapping(at.TimeLo, at.TimeHi-1) {
		if other.ID == at.ID || !at.SharesRing(other) {
			continue
		}
		highest, known := s.rankHere(t, other)
		p.RankAbove(highest)
		if !known {
			elsewhere = append(elsewhere, other)
		}
	}
	if len(elsewhere) == 0 {
		return
	}
	highest, known := s.ranksElsewhere(ctx, t, at.ID, m.Seq, elsewhere)
	switch {
	case known:
	case p.Leads(epoch): // another insert had the answer meanwhile
		return
	default:
		highest = rank.At(s.latest() + int64(rank.AheadMax))
	}
	p.RankAbove(highest)
}

// ranksElsewhere returns the highest rank of partitions that are not led here; false: that of one of them is not known. All inserts that wait for the epoch of
// the partition id to begin share one question.
func (s *Server) ranksElsewhere(ctx context.Context, t *table, id point.PartitionID, seq uint64, all []*topology.Partition) (point.Stamp, bool) {
	if s.deps.Parents == nil || len(all) > askRanksMax || slices.ContainsFunc(all, func(at *topology.Partition) bool { return at.State != topology.Unload }) {
		return 0, false
	}
	highest, err, _ := s.rankQuestions.Do(fmt.Sprintf("%s/%d/%d", t.name, id, seq), func() (any, error) { return s.askRanks(ctx, t, all) })
	if err != nil {
		return 0, false
	}
	return highest.(point.Stamp), true
}

// askRanks asks for the ranks of all partitions at once. It ends within RankWithin, even if the insert that began it has gone. It ends by a cancellation and
// not by a deadline: a busy server that misses a deadline counts as one that does not answer, and gets no other calls for a while either.
func (s *Server) askRanks(ctx context.Context, t *table, all []*topology.Partition) (point.Stamp, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer time.AfterFunc(s.settings.RankWithin, cancel).Stop()
	ranks := make([]point.Stamp, len(all))
	g, ctx := errgroup.WithContext(ctx)
	for i, at := range all {
		g.Go(func() (err error) {
			ranks[i], err = s.rankElsewhere(ctx, t, at)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		s.deps.Log.Info("the ranks of a partition begin ahead of the clocks, as the highest one of its parent is not known", "table", t.name, "error", err)
		return 0, err
	}
	return slices.Max(ranks), nil
}

// rankElsewhere returns the highest rank of a partition that accepts no more rows, from its leader, or, if it has none, from a copy here that has all acked
// rows.
func (s *Server) rankElsewhere(ctx context.Context, t *table, at *topology.Partition) (point.Stamp, error) {
	highest, err := s.deps.Parents.HighestRank(ctx, t.name, at)
	for fault.Is(err, fault.Stale) {
		select {
		case <-ctx.Done():
			return 0, fault.Annotate(err, "partition %s/%d", t.name, at.ID)
		case <-time.After(askRankEvery):
		}
		highest, err = s.deps.Parents.HighestRank(ctx, t.name, at)
	}
	if err == nil {
		return highest, nil
	}
	q, here := t.get(at.ID)
	if !here || !s.deps.Parents.InSync(ctx, t.name, at, q.Identity().Placement) {
		return 0, fault.Annotate(err, "partition %s/%d", t.name, at.ID)
	}
	return q.HighestLogged()
}

var _ peer.SealedRanker = (*Server)(nil)

// HighestRank implements peer.SealedRanker.
func (s *Server) HighestRank(_ context.Context, name string, id point.PartitionID) (point.Stamp, error) {
	t, ok := s.table(name)
	m, known := s.deps.Maps.Get(name)
	if !ok || !known {
		return 0, fault.Errorf(fault.Stale, "table %q is not known here", name)
	}
	at, ok := m.ByID(id)
	if !ok {
		return 0, fault.Errorf(fault.Stale, "partition %s/%d does not exist by map %d", name, id, m.Seq)
	}
	highest, final := s.rankHere(t, at)
	if !final {
		return 0, fault.Errorf(fault.Stale, "partition %s/%d is not led here, or takes rows, by map %d", name, id, m.Seq)
	}
	return highest, nil
}

// rankHere returns the highest rank of the rows of a partition that are here. final: these are all rows that were ever acked for the partition, and no other
// row will be: it unloads, is led here, its gate is sealed, and no row is under way. Its epoch must have begun here: until then the former leader, cut off from
// the coordination store, may get rows acked by the whole list (Alone), of which this placement is one. A placement without rows has no catalogue entry; nor
// has one whose entry is lost.
func (s *Server) rankHere(t *table, at *topology.Partition) (highest point.Stamp, final bool) {
	quiet := at.State == topology.Unload && t.gate(at.ID).quiet() // before its rank is read: a row that was under way would have a higher one
	epoch, leads := s.leadership.MayAct(t.name, at.ID)
	q, here := t.get(at.ID)
	if !here {
		return 0, quiet && leads && s.rebuilt == "" && len(s.unknown) == 0
	}
	leads = leads && q.Leads(epoch)
	highest, err := q.HighestLogged()
	if err != nil {
		return q.HighestRank(), false
	}
	return highest, quiet && leads
}
