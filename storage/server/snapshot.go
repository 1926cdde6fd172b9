package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Snapshot is the source of a backup. Its segments are not deleted until it is closed.
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
