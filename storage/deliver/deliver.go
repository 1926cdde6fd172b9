package deliver

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Ways are what delivering needs to know of the cluster.
type Ways interface {
	// Cover makes partitions for times that have none.
	Cover(ctx context.Context, table string, times []point.Nanos) error
	// Leader returns the leader of a partition. Errors are Unavailable.
	Leader(table string, p *topology.Partition) (topology.ServerID, error)
	// Server returns the way to a server, this one too.
	Server(id topology.ServerID) (peer.Storage, bool)
}

// Deliverer has the streams to leaders. Safe for concurrent use.
type Deliverer struct {
	ways    Ways
	streams streams
}

// New makes a Deliverer without streams.
func New(w Ways) *Deliverer {
	d := &Deliverer{ways: w}
	d.streams.mu.open = map[to]*Stream{}
	return d
}

// Close closes the streams, once no frame uses them.
func (d *Deliverer) Close() error { return d.streams.close() }

// At calls f with a stream to a server. After an error the stream is not used again. Errors are Unavailable (the server is not known) and those of f.
func (d *Deliverer) At(ctx context.Context, server topology.ServerID, table string, f func(*Stream) error) error {
	storage, ok := d.ways.Server(server)
	if !ok {
		return fault.Errorf(fault.Unavailable, "server %q is not known here", server)
	}
	return d.streams.with(ctx, to{server, table}, storage, f)
}

// Rows inserts all rows of a frame, by partition, with its rank, as peer.Forward or peer.Inherit. Expired are those left out because they are older than their table keeps. Errors are
// Unavailable (some rows may be inserted; also where partitions had to be made first), and those of a leader that refuses a row for good.
func (d *Deliverer) Rows(ctx context.Context, table string, m *topology.Map, as peer.StagingDo, s *Scratch) (expired int, err error) {
	return d.Together(ctx, table, m, as, []*Scratch{s})
}

// Slice is a slice of a partition that unloads.
type Slice struct {
	Partition point.PartitionID
	Epoch     point.Epoch // under which it is led here
	// Leader is Ways.Leader, with the epoch of the heir's lease, 0 for a guess: as it was read before the lease under Epoch was found good. Errors are Unavailable, also where it
	// is not.
	Leader func(heir *topology.Partition) (topology.ServerID, point.Epoch, error)
}

// Slice is Rows for the rows of a slice, as peer.Inherit.
func (d *Deliverer) Slice(ctx context.Context, table string, m *topology.Map, from *Slice, s *Scratch) (expired int, err error) {
	return d.together(ctx, table, m, peer.Inherit, from, []*Scratch{s})
}

// Together is Rows for several frames of a table, at most peer.TogetherMax: those rows of all of them that belong to one partition go to its leader in one call.
func (d *Deliverer) Together(ctx context.Context, table string, m *topology.Map, as peer.StagingDo, frames []*Scratch) (expired int, err error) {
	return d.together(ctx, table, m, as, nil, frames)
}

func (d *Deliverer) together(ctx context.Context, table string, m *topology.Map, as peer.StagingDo, from *Slice, frames []*Scratch) (expired int, err error) {
	var uncovered []point.Nanos
	for _, s := range frames {
		none, old := s.divide(m, time.Now().UnixNano())
		uncovered, expired = append(uncovered, none...), expired+old
	}
	if len(uncovered) > 0 {
		if err := d.ways.Cover(ctx, table, uncovered); err != nil {
			return 0, err
		}
		return 0, fault.Errorf(fault.Unavailable, "partitions were made for rows of table %q", table)
	}
	for _, group := range byPartition(frames) {
		if err := d.insert(ctx, table, as, from, group, m.Seq); err != nil {
			return 0, err
		}
	}
	return expired, nil
}

// share is the part of a frame that belongs to a partition.
type share struct {
	of *Scratch
	at *part
}

// byPartition sorts the parts of frames by their partitions, in the order in which they come.
func byPartition(frames []*Scratch) (groups [][]share) {
	for _, s := range frames {
		for i := range s.parts {
			p := &s.parts[i]
			at := slices.IndexFunc(groups, func(g []share) bool { return g[0].at.partition == p.partition })
			if at < 0 {
				at, groups = len(groups), append(groups, nil)
			}
			groups[at] = append(groups[at], share{s, p})
		}
	}
	return groups
}

// insert sends shares of one partition to its leader.
func (d *Deliverer) insert(ctx context.Context, table string, as peer.StagingDo, from *Slice, all []share, seq uint64) error {
	p := all[0].at.partition
	leader, named, err := d.leader(table, p, from)
	if err != nil {
		return err
	}
	return d.At(ctx, leader, table, func(st *Stream) error {
		ins := make([]*peer.Insert, len(all))
		for i, x := range all {
			s, in := x.of, &x.at.in
			in.Partition, in.MapSeq, in.Stamp, in.Level = p.ID, seq, s.Frame.Stamp, point.All
			in.Staging = &peer.Staging{Do: as, From: named}
			var err error
			if s.ids, err = st.define(ctx, s.ids[:0], s.Frame.Defs, s.kept); err != nil {
				return err
			}
			Translate(in, s.ids)
			ins[i] = in
		}
		return st.InsertTogether(ctx, ins)
	})
}

// leader finds the leader of a partition, and names the slice that is sent to it, if it is one.
func (d *Deliverer) leader(table string, p *topology.Partition, from *Slice) (topology.ServerID, *peer.Slice, error) {
	if from == nil {
		leader, err := d.ways.Leader(table, p)
		return leader, nil, err
	}
	leader, under, err := from.Leader(p)
	return leader, &peer.Slice{Partition: from.Partition, Epoch: from.Epoch, Under: under}, err
}

// Translate turns the frame's numbers of series into the stream's. The columns are the caller's own.
func Translate(in *peer.Insert, ids []point.SeriesID) {
	for i, id := range in.IDs {
		in.IDs[i] = ids[id]
	}
	for i := range in.Hists {
		in.Hists[i].ID = ids[in.Hists[i].ID]
	}
	for i := range in.Exemplars {
		in.Exemplars[i].ID = ids[in.Exemplars[i].ID]
	}
}

// divide cuts the frame by a map into parts. It returns the times that no partition has, and counts the rows without one that are older than their table keeps. A row that has
// a partition goes there, whatever the clock says: the master drops old partitions, and a clock that runs ahead must not drop acknowledged rows.
func (s *Scratch) divide(m *topology.Map, now point.Nanos) (uncovered []point.Nanos, expired int) {
	g := &s.Frame
	s.parts = s.parts[:0]
	s.places.reset(len(g.Defs))
	var last *topology.Partition
	var at int // of last, in s.parts
	find := func(id point.DenseID, t point.Nanos) *peer.Insert {
		if last == nil || !last.Contains(s.places.of(m, g, id, last), t) {
			p, ok := m.Find(s.places.of(m, g, id, nil), t)
			if !ok && m.Config.Retention > 0 && t < now-int64(m.Config.Retention) {
				if now = min(now, end(m)); t < now-int64(m.Config.Retention) {
					expired++
					return nil
				}
			}
			if !ok {
				uncovered = append(uncovered, t)
				return nil
			}
			last, at = p, s.part(p)
		}
		return &s.parts[at].in
	}
	for i, id := range g.IDs {
		if in := find(id, g.Times[i]); in != nil {
			in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(id)), append(in.Times, g.Times[i]), append(in.Values, g.Values[i])
		}
	}
	for _, h := range g.Hists {
		if in := find(h.ID, h.Time); in != nil {
			in.Hists = append(in.Hists, point.HistRow{ID: point.SeriesID(h.ID), Time: h.Time, H: h.H})
		}
	}
	for _, e := range g.Exemplars {
		if in := find(e.ID, e.Time); in != nil {
			in.Exemplars = append(in.Exemplars, point.ExemplarRow{ID: point.SeriesID(e.ID), Time: e.Time, Value: e.Value, Labels: e.Labels})
		}
	}
	return uncovered, expired
}

// end is the end of a map's newest partition. As for the master, a table keeps rows from its newest on, or from now if that is earlier.
func end(m *topology.Map) point.Nanos {
	newest := point.Nanos(math.MinInt64)
	for p := range m.All() {
		newest = max(newest, p.TimeHi)
	}
	return max(newest, math.MinInt64+int64(m.Config.Retention)) // of a map without partitions, nothing is too old
}
