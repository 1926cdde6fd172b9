package server

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// families describes a table's metric families. They are few and change rarely: each is in the catalogue under its
// name, and all are in memory.
type families struct {
	sync.RWMutex
	byName map[string]point.MetadataRow
	bytes  int // of all rows
}

// familiesMax and familiesBytesMax bound the families that senders can add to a table; the size of each is bounded by its decoder.
const (
	familiesMax      = 200_000
	familiesBytesMax = 64 << 20
)

const familyPrefix = "m/family/"

func familyKey(table, metric string) []byte { return []byte(familyPrefix + table + "\x00" + metric) }

// PutMetadata implements peer.Storage. A row that is stored already costs a look-up and no disk write. Rows beyond the bounds are
// refused as Invalid, the others are kept.
func (s *Server) PutMetadata(_ context.Context, name string, rows []point.MetadataRow) error {
	t := s.tableOrNew(name)
	fresh := t.families.fresh(rows)
	if len(fresh) == 0 {
		return nil
	}
	t.families.Lock()
	defer t.families.Unlock()
	b := s.deps.Brick.NewBatch()
	var refused error
	kept, bytes := fresh[:0], 0
	for _, r := range fresh {
		if r.Bytes() > point.MetadataBytesMax {
			refused = fault.Errorf(fault.Invalid, "metadata of %.100q is over %d bytes", r.Metric, point.MetadataBytesMax)
			continue
		}
		have, known := t.families.byName[r.Metric]
		if !known && len(t.families.byName)+len(kept) >= familiesMax || t.families.bytes+bytes+r.Bytes()-have.Bytes() > familiesBytesMax {
			refused = fault.Errorf(fault.Invalid, "metadata of %.100q: a table describes at most %d metrics, in %d bytes", r.Metric, familiesMax, familiesBytesMax)
			continue
		}
		bytes += r.Bytes() - have.Bytes()
		value, err := json.Marshal(r)
		if err != nil {
			b.Close()
			return fault.Wrap(err, fault.Internal, "metadata of %q", r.Metric)
		}
		b.Set(familyKey(name, r.Metric), value)
		kept = append(kept, r)
	}
	if len(kept) == 0 {
		b.Close()
		return refused
	}
	if err := b.Commit(true); err != nil {
		return fault.Annotate(err, "keep metadata")
	}
	t.families.putLocked(kept)
	return refused
}

// fresh returns the rows that change something.
func (f *families) fresh(rows []point.MetadataRow) []point.MetadataRow {
	f.RLock()
	defer f.RUnlock()
	var out []point.MetadataRow
	for _, r := range rows {
		if have, ok := f.byName[r.Metric]; !ok || have != r {
			out = append(out, r)
		}
	}
	return out
}

func (f *families) putLocked(rows []point.MetadataRow) {
	if f.byName == nil {
		f.byName = map[string]point.MetadataRow{}
	}
	for _, r := range rows {
		have := f.byName[r.Metric]
		f.bytes += r.Bytes() - have.Bytes()
		f.byName[r.Metric] = r
	}
}

// GetMetadata implements peer.Storage: by name, sorted.
func (s *Server) GetMetadata(_ context.Context, name, metric string) ([]point.MetadataRow, error) {
	t, ok := s.table(name)
	if !ok {
		return nil, nil
	}
	t.families.RLock()
	defer t.families.RUnlock()
	var out []point.MetadataRow
	for _, r := range t.families.byName {
		if metric == "" || r.Metric == metric {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b point.MetadataRow) int { return strings.Compare(a.Metric, b.Metric) })
	return out, nil
}

// loadFamilies reads the rows that PutMetadata stored.
func (s *Server) loadFamilies() error {
	return s.deps.Brick.Scan([]byte(familyPrefix), func(key, value []byte) error {
		table, _, ok := strings.Cut(strings.TrimPrefix(string(key), familyPrefix), "\x00")
		var r point.MetadataRow
		if err := json.Unmarshal(value, &r); err != nil || !ok {
			return fault.Errorf(fault.Corrupt, "metadata under %q in the catalogue: %w", key, err)
		}
		t := s.tableOrNew(table)
		t.families.Lock()
		defer t.families.Unlock()
		t.families.putLocked([]point.MetadataRow{r})
		return nil
	})
}
