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

// familiesAtOnce are committed together: the catalogue is locked meanwhile, for all tables. familiesPerCall is how many rows of a call may change something;
// senders repeat their metadata, so that more come with the next calls.
const (
	familiesAtOnce  = 2_000
	familiesPerCall = 20_000
)

// The key is m/family/<table> 0x00 <metric>, as in "m/family/t\x00up", and the value the row as JSON.
const familyPrefix = "m/family/"

func familyKey(table, metric string) []byte { return []byte(familyPrefix + table + "\x00" + metric) }

// PutMetadata implements peer.Storage. A row that is stored already costs a look-up and no disk write. Rows beyond the bounds are
// refused as Invalid, the others are kept.
func (s *Server) PutMetadata(ctx context.Context, name string, rows []point.MetadataRow) error {
	t := s.tableOrNew(name)
	fresh := t.families.fresh(rows)
	var refused error
	if n := len(fresh); n > familiesPerCall {
		fresh = fresh[:familiesPerCall]
		refused = fault.Errorf(fault.Invalid, "%d metric families are new or changed in one request; %d were kept: send the others again", n, familiesPerCall)
	}
	for some := range slices.Chunk(fresh, familiesAtOnce) {
		if err := ctx.Err(); err != nil {
			return fault.Wrap(err, fault.Canceled, "keep metadata")
		}
		over, err := s.putFamilies(t, name, some)
		if err != nil {
			return err
		}
		if over != nil {
			refused = over
		}
	}
	return refused
}

// putFamilies commits some rows. over (Invalid) is why some were left out.
func (s *Server) putFamilies(t *table, name string, rows []point.MetadataRow) (over, err error) {
	t.families.Lock()
	defer t.families.Unlock()
	b := s.deps.Brick.NewBatch()
	kept, bytes, added := rows[:0], 0, 0
	for _, r := range rows {
		have, known := t.families.byName[r.Metric]
		switch grows := r.Bytes() - have.Bytes(); {
		case r.Bytes() > point.MetadataBytesMax:
			if over == nil {
				over = fault.Errorf(fault.Invalid, "metadata of %.100q is over %d bytes", r.Metric, point.MetadataBytesMax)
			}
			continue
		case !known && len(t.families.byName)+added >= familiesMax, t.families.bytes+bytes+grows > familiesBytesMax:
			if over == nil {
				over = fault.Errorf(fault.Invalid, "metadata of %.100q: a table describes at most %d metrics, in %d bytes", r.Metric, familiesMax, familiesBytesMax)
			}
			continue
		default:
			bytes += grows
		}
		if !known {
			added++
		}
		value, err := json.Marshal(r)
		if err != nil {
			b.Close()
			return nil, fault.Wrap(err, fault.Internal, "metadata of %q", r.Metric)
		}
		b.Set(familyKey(name, r.Metric), value)
		kept = append(kept, r)
	}
	if len(kept) == 0 {
		b.Close()
		return over, nil
	}
	if err := b.Commit(true); err != nil {
		return nil, fault.Annotate(err, "keep metadata")
	}
	t.families.putLocked(kept)
	return over, nil
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
