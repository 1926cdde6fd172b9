package server

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
	"github.com/spillwaydb/spillway/storage/unload/runner"
)

var (
	_ peer.StagedCounter = (*Server)(nil)
	_ peer.StagedRanger  = (*Server)(nil)
)

// Stats implements peer.Storage.
func (s *Server) Stats(_ context.Context, name string, topN int) (*peer.Stats, error) {
	var lost string
	if f := s.deps.Brick.LostFound(); f.Entries > 0 {
		lost = f.String()
	}
	t, ok := s.table(name)
	if !ok {
		st := &peer.Stats{LostFound: lost, Staged: s.stagedStats(name), Capacity: s.Capacity()}
		if name == "" {
			st.Unmapped = s.unmapped()
		}
		return st, nil
	}
	st := t.index.Stats(topN)
	st.LostFound, st.Staged, st.Capacity = lost, s.stagedStats(name), s.Capacity()
	st.MinTime, st.MaxTime = math.MaxInt64, math.MinInt64
	for _, p := range t.all() {
		st.Partitions++
		head := uint64(p.HeadRows())
		one := peer.PartitionStats{ID: p.Identity().Partition, Rows: head, Bytes: uint64(p.HeadBytes())}
		if err := p.Damaged(); err != nil {
			one.Damaged = err.Error()
		}
		if err := p.Unflushed(); err != nil {
			one.Unflushed = err.Error()
		}
		if s.deps.Differs != nil {
			one.Differs = s.deps.Differs(name, one.ID)
		}
		st.HeadRows += head
		if lo, hi, ok := p.TimeBounds(); ok {
			st.MinTime, st.MaxTime = min(st.MinTime, lo), max(st.MaxTime, hi)
			one.MinTime, one.MaxTime = lo, hi
		}
		for _, g := range p.Segments() {
			st.Segments++
			st.SegmentRows += g.Rows
			st.SegmentBytes += uint64(g.Size)
			one.Rows += g.Rows
			one.Bytes += uint64(g.Size)
		}
		one.Transfers = s.transfers(name, &one)
		st.ByPartition = append(st.ByPartition, one)
	}
	slices.SortFunc(st.ByPartition, func(a, b peer.PartitionStats) int { return cmp.Compare(a.ID, b.ID) })
	if st.MinTime > st.MaxTime {
		st.MinTime, st.MaxTime = 0, 0
	}
	return &st, nil
}

// transfers returns how far the rows of a partition are on their way from here, if it is led here.
func (s *Server) transfers(table string, of *peer.PartitionStats) (all []peer.Transfer) {
	if s.deps.Transfers != nil {
		all = slices.Clone(s.deps.Transfers(table, of.ID))
	}
	if s.deps.Unloads == nil || of.Rows == 0 {
		return all
	}
	if at, ok := s.deps.Unloads.Of(lease.Partition{Table: table, ID: of.ID}); ok {
		all = append(all, unloadTransfer(at, of))
	}
	return all
}

// unloadTransfer is a move of rows to other partitions, in bytes that the moved rows have here.
func unloadTransfer(at runner.Progress, of *peer.PartitionStats) peer.Transfer {
	width := float64(of.Bytes) / float64(of.Rows)
	x := peer.Transfer{Done: min(uint64(float64(at.Rows)*width), of.Bytes), Total: of.Bytes, BytesPerSecond: uint64(at.PerSecond * width), Since: at.Since.UnixNano()}
	if at.Finished {
		x.Done = x.Total
	}
	return x
}

// stagedStats returns the numbers of a table's rows staged here: one entry, or none.
func (s *Server) stagedStats(table string) []peer.StagedStats {
	if s.deps.Staging == nil {
		return nil
	}
	l, ok := s.deps.Staging.Load(table)
	if !ok {
		return nil
	}
	return s.stagedOf(&l)
}

func (s *Server) stagedOf(l *staging.Load) []peer.StagedStats {
	nanos := func(t time.Time) point.Nanos {
		if t.IsZero() {
			return 0
		}
		return t.UnixNano()
	}
	return []peer.StagedStats{{Server: string(s.settings.Server), Frames: l.Frames, Rows: l.Rows, Bytes: l.Bytes, Later: l.Later, Sole: l.Sole, Oldest: nanos(l.Oldest), Overdue: nanos(l.Overdue)}}
}

// StagedStats implements peer.StagedCounter.
func (s *Server) StagedStats(_ context.Context, table string) (*peer.Stats, error) {
	st := &peer.Stats{}
	if s.deps.Staging == nil {
		return st, nil
	}
	if l, ok := s.deps.Staging.Load(table); ok {
		st.MinTime, st.MaxTime, st.Staged = l.Lo, l.Hi, s.stagedOf(&l)
	}
	return st, nil
}

// StagedTimes implements peer.StagedRanger.
func (s *Server) StagedTimes(_ context.Context, table string) (lo, hi point.Nanos, err error) {
	if s.deps.Staging == nil {
		return math.MaxInt64, math.MinInt64, nil
	}
	lo, hi = s.deps.Staging.Times(table)
	return lo, hi, nil
}

// HeadLoad is the share of HeadBytesMax that head rows use, 0 to a little over 1.
func (s *Server) HeadLoad() float64 {
	return float64(s.heads.Used()) / float64(s.settings.HeadBytesMax)
}

// OnHeadGrowth makes the server call f with the memory of all head rows each time that an insert made it grow.
func (s *Server) OnHeadGrowth(f func(to int64)) { s.heads.OnGrowth(f) }

// HeadBytes is the memory of all head rows.
func (s *Server) HeadBytes() int64 { return s.heads.Used() }

// Series counts the series in memory, of all tables.
func (s *Server) Series() (n int64) {
	for _, t := range s.tables() {
		n += int64(t.index.Len())
	}
	return n
}

// CompactingBytes is about the memory of the compactions under way.
func (s *Server) CompactingBytes() int64 { return s.compacting.Load() }

// OnCompactingGrowth registers f, which is called with CompactingBytes before a compaction allocates its memory.
func (s *Server) OnCompactingGrowth(f func(to int64)) { s.compacting.OnGrowth(f) }

// unmappedMax bounds the tables that Stats names.
const unmappedMax = 100

// unmapped returns the tables with partitions or staged rows here that have no map.
func (s *Server) unmapped() (names []string) {
	add := func(table string) {
		if _, ok := s.deps.Maps.Get(table); !ok {
			names = append(names, table)
		}
	}
	for _, t := range s.tables() {
		if len(t.all()) > 0 {
			add(t.name)
		}
	}
	if s.deps.Staging != nil {
		for _, l := range s.deps.Staging.Loads() {
			if l.Frames > 0 {
				add(l.Table)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), unmappedMax)]
}
