package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Snapshot is the source of a backup. Its segments are not deleted until it is closed, but for those of partitions that are dropped: these are kept for a minute at most.
type Snapshot struct {
	backup.Content
	views []*partition.View
}

// Close releases the segments.
func (s *Snapshot) Close() {
	for _, v := range s.views {
		v.Close()
	}
	s.views = nil
}

// Snapshot flushes all heads and returns all that was acked before the call. Rows that come meanwhile may be included or not, partition by
// partition. Partitions that cannot be read are named in Missing, and the others are complete. Errors: Unavailable, Corrupt (the
// catalogue), Canceled.
func (s *Server) Snapshot(ctx context.Context) (_ *Snapshot, err error) {
	snap := &Snapshot{Content: backup.Content{Store: s.deps.Brick.ID().String()}}
	defer func() {
		if err != nil {
			snap.Close()
		}
	}()
	snap.Dropped = func(id point.PlacementID) (key []byte, dropped bool) {
		key = partition.StateKey(id)
		_, there, err := s.deps.Brick.Get(key)
		return key, err == nil && !there
	}
	// Partitions first, then maps, then rows: a partition that is made meanwhile is in the maps and empty, never in no map.
	var all []*partition.Partition
	for _, t := range s.tables() {
		all = append(all, t.all()...)
	}
	if err := s.deps.Brick.Scan([]byte("m/"), func(k, v []byte) error {
		if string(k) != scrubKey {
			snap.Entries = append(snap.Entries, backup.Entry{Key: slices.Clone(k), Value: slices.Clone(v)})
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, p := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		id := p.Identity()
		// The view keeps the segment files from being deleted until Close, so that the copy may last for hours; the
		// entry is as of the same moment.
		v, st, err := p.Snapshot(ctx)
		if err != nil {
			snap.Missing = append(snap.Missing, fmt.Sprintf("partition %s/%d: %s", id.Table, id.Partition, strings.ReplaceAll(err.Error(), "\n", "; ")))
			continue
		}
		if v == nil {
			continue // dropped
		}
		snap.views = append(snap.views, v)
		k, value := st.Entry()
		snap.Entries = append(snap.Entries, backup.Entry{Key: k, Value: value})
		paths := map[string]string{}
		v.Files(func(info segment.Info, path string) { paths[info.ID.String()] = path })
		for _, g := range st.Segments {
			snap.Segments = append(snap.Segments, backup.Segment{Placement: id.Placement, Epoch: g.ID.Epoch, Seq: g.ID.Seq, Size: g.Size, Checksum: g.Checksum, Path: paths[g.ID.String()]})
		}
	}
	return snap, nil
}

var _ peer.Snapshots = (*Server)(nil)

// OpenSnapshot implements peer.Snapshots.
func (s *Server) OpenSnapshot(ctx context.Context, name string, id point.PartitionID) (peer.Snapshot, error) {
	key := lease.Partition{Table: name, ID: id}
	epoch, ok := s.leadership.MayAct(name, id)
	if !ok {
		return nil, s.named(name, s.notLed(name, id))
	}
	p, here := s.Placement(key)
	if !here {
		if m, ok := s.deps.Maps.Get(name); ok && id < m.NextID { // asked after the placement: one that is removed has left the map before
			if _, mapped := m.ByID(id); !mapped {
				return nil, s.named(name, fault.Errorf(fault.Stale, "partition %v is not in map %d any more: others may have its rows", key, m.Seq))
			}
		}
		return partSnapshot{}, s.stillLeads(key, epoch) // its first row creates it
	}
	if !p.Leads(epoch) {
		lead := p.Lead
		if s.kept(name, id) {
			lead = func(epoch point.Epoch) error { return s.LeadCopies(ctx, key, epoch) }
		}
		if err := lead(epoch); err != nil {
			return nil, err
		}
	}
	v, st, err := p.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, fault.Errorf(fault.Stale, "partition %v was dropped", key)
	}
	snap := partSnapshot{view: v, paths: map[point.SegmentID]string{}, fs: s.deps.Brick.FS()}
	v.Files(func(info segment.Info, path string) { snap.paths[info.ID] = path })
	_, snap.entry = st.Entry()
	// The lease is asked after the flush: no other server acked a row meanwhile.
	if err := s.stillLeads(key, epoch); err != nil {
		return nil, errors.Join(err, snap.Close())
	}
	return snap, nil
}

func (s *Server) stillLeads(key lease.Partition, epoch point.Epoch) error {
	if now, ok := s.leadership.MayAct(key.Table, key.ID); !ok || now != epoch {
		return s.named(key.Table, s.notLed(key.Table, key.ID))
	}
	return nil
}

// partSnapshot is the snapshot of one partition; the zero one is of a partition without rows.
type partSnapshot struct {
	view  *partition.View
	entry []byte
	paths map[point.SegmentID]string
	fs    vfs.FS
}

// Entry implements peer.Snapshot.
func (s partSnapshot) Entry() []byte { return s.entry }

// Open implements peer.Snapshot.
func (s partSnapshot) Open(id point.SegmentID) (io.ReadCloser, error) {
	path, ok := s.paths[id]
	if !ok {
		return nil, fault.Errorf(fault.NotFound, "segment %v is not in the snapshot", id)
	}
	f, err := s.fs.Open(path)
	return f, fault.Wrap(err, fault.Unavailable, "open %s", path)
}

// Close implements peer.Snapshot.
func (s partSnapshot) Close() error {
	if s.view != nil {
		s.view.Close()
	}
	return nil
}

// StagedFrames implements peer.Snapshots.
func (s *Server) StagedFrames(_ context.Context, name string, give func(frame []byte) error) error {
	if s.deps.Staging == nil {
		return nil
	}
	return s.deps.Staging.Frames(name, give)
}
