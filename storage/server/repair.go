package server

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/metafile"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Repaired reports the state of a store that Repair found, and the result.
type Repaired struct {
	Trouble error // the damage of the catalogue; nil: none
	// Exact: all entries are as they were. Otherwise they were made from the readable rest of the catalogue, from
	// segments and from the log.
	Exact bool
	// Changed: a new catalogue was written, or would be without DryRun.
	Changed         bool
	DryRun          bool
	Known, Mirrored uint64 // the newest commit that any file mentions, and that the mirror holds
	Entries         int
	LogFiles        int
	LogTrouble      error // why the log would be refused; nil: it is whole
	Store           brick.StoreID
	NewStore        bool

	Partitions []RepairedPartition
	// Metadata is the newest commit of partition maps that the mirror of METADATA holds; 0: it holds none.
	Metadata uint64
	// NoMaps: nothing is left of the partition maps (METADATA files). A cluster has them on other servers.
	NoMaps bool
	sites  map[point.PlacementID]metafile.Site // of placements, by the partition maps
	sound  bool                                // a start would accept the entries and the log as they are

	// Unknown are directories of segments, and placements in the log, without any record of their partition.
	Unknown []string
}

// RepairedPartition is the outcome for one placement.
type RepairedPartition struct {
	Identity partition.Identity
	Segments int
	Rows     uint64 // in segments
	InLog    int    // records of the log, superfluous ones too
	Rebuilt  bool   // its entry was rebuilt from its segments
	Problem  error  // why it could not be rebuilt: it is closed; nil: it is whole
}

// Lossy reports whether anything is not as it was.
func (r *Repaired) Lossy() bool {
	return r.LogTrouble != nil || len(r.Unknown) > 0 || slices.ContainsFunc(r.Partitions, func(p RepairedPartition) bool { return p.Problem != nil })
}

// Repair inspects the store of a server that does not run, and makes a new catalogue if the existing one lacks
// something: exactly, from its mirror, if that holds every commit that any file mentions; otherwise from the readable
// parts of both, the segments, which describe themselves, and the log. With dryRun nothing is changed. Errors:
// Unavailable, Corrupt (there is no store).
func Repair(d brick.Deps, s brick.Settings, dryRun bool) (_ *Repaired, err error) {
	r, err := brick.Examine(d, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	out := &Repaired{Trouble: r.Trouble, Exact: r.Exact(), Known: r.Known, Mirrored: r.Mirrored, Metadata: r.Metadata, DryRun: dryRun, LogFiles: r.LogFiles()}
	entries, err := r.Entries()
	if err != nil {
		return nil, err
	}
	if out.Exact {
		out.LogTrouble = r.CheckLog(entries)
		out.sound = out.LogTrouble == nil
	}
	if err := out.placements(r, entries); err != nil {
		return nil, err
	}
	if !out.Exact {
		if err := noteRebuilt(entries, out.Trouble, time.Now()); err != nil {
			return nil, err
		}
	}
	out.NoMaps = !out.Exact && !anyPrefix(entries, "m/file/")
	out.Entries = len(entries)
	// Entries were changed in memory only so far; Rebuild writes them as a new catalogue and puts the damaged one aside
	// in lost+found; after a crash in between the store refuses to start until it is repaired again.
	out.Changed = r.Trouble != nil || !out.Exact
	out.NewStore = !out.Exact
	if !dryRun && out.Changed {
		if out.Store, err = r.Rebuild(entries, out.Exact); err != nil {
			return nil, err
		}
	}
	if !out.Exact { // entries were changed since
		out.LogTrouble = r.CheckLog(entries)
	}
	return out, nil
}

// placements checks the entry of every placement that an entry, a directory or the log names, and repairs it if it can.
func (o *Repaired) placements(r *brick.Remains, entries map[string][]byte) error {
	cache := segment.NewCache(16 << 20)
	defer cache.Close()
	known, err := statesOf(entries)
	if err != nil {
		return err
	}
	ids := map[point.PlacementID]bool{}
	for id := range known {
		ids[id] = true
	}
	// Three sources name placements: entries, records of the log, and directories. One that only the log or a directory
	// has lost its entry.
	for id := range r.Logs() {
		ids[id] = true
	}
	names, _ := r.FS().List(r.SegmentsDir()) // none: no segment was ever written
	for _, name := range names {
		if id, err := strconv.ParseUint(name, 16, 64); err == nil && len(name) == 16 {
			ids[point.PlacementID(id)] = true
		}
	}
	o.sites = metafile.Sites(entries, ids)
	for _, id := range slices.Sorted(keys(ids)) {
		if log := r.Logs()[id]; log != nil && log.Dropped && !o.Exact {
			delete(entries, partition.EntryKey(id))
			entries[string(partition.DropKey(id))] = nil
		}
		if _, dropped := entries[string(partition.DropKey(id))]; !dropped {
			o.placement(r, entries, id, known[id], cache)
		}
	}
	return nil
}

func keys(m map[point.PlacementID]bool) func(func(point.PlacementID) bool) {
	return func(yield func(point.PlacementID) bool) {
		for id := range m {
			if !yield(id) {
				return
			}
		}
	}
}

func statesOf(entries map[string][]byte) (map[point.PlacementID]*partition.State, error) {
	out := map[point.PlacementID]*partition.State{}
	prefix := string(partition.StatePrefix())
	for k, v := range entries {
		if !strings.HasPrefix(k, prefix) {
			continue
		}
		st, err := partition.DecodeState(v)
		if err != nil {
			return nil, fault.Annotate(err, "entry %q, which two checksums call whole", k)
		}
		out[st.Placement] = st
	}
	return out, nil
}

func (o *Repaired) placement(r *brick.Remains, entries map[string][]byte, id point.PlacementID, known *partition.State, cache *segment.Cache) {
	log := r.Logs()[id]
	dir := r.FS().PathJoin(r.SegmentsDir(), id.String())
	// log may be nil: After of none is that no frame is in the log.
	after := log.After
	if o.sound {
		// A start reads every frame, and closes the partition if one is missing. Closing it here would cost the store's identity too.
		after = func(uint64) (to, last uint64) { return math.MaxUint64, 0 }
	}
	made := partition.Rebuild(r.FS(), dir, id, known, r.Exact(), cache, after)
	if site, ok := o.sites[id]; made.State == nil && !made.Found && log != nil && !o.Exact && ok {
		p := &site.Partition // all its rows are in the log, and its table's map says to which server they belong
		made = partition.Rebuild(r.FS(), dir, id, &partition.State{Identity: partition.Identity{
			Table: site.Table, Partition: p.ID, Placement: id, TimeLo: p.TimeLo, TimeHi: p.TimeHi, PointLo: p.PointLo, PointHi: p.PointHi,
		}, NextSegment: 1}, false, cache, log.After)
		made.Changed = true
	}
	st := made.State
	if st == nil {
		if made.Found || log != nil && !o.Exact {
			o.Unknown = append(o.Unknown, unknown(id, log, made.Problem))
		}
		return
	}
	if made.Changed {
		o.Exact = false
		k, v := st.Entry()
		entries[string(k)] = v
		// A promise is an entry too, and may be lost: without it a deposed leader's frames would be accepted again.
		// The epoch that rows prove is the least that it was.
		if n := len(st.Ends); n > 0 {
			brick.RaiseEpoch(entries, id, st.Ends[n-1].Epoch)
		}
	}
	p := RepairedPartition{Identity: st.Identity, Segments: len(st.Segments), Rebuilt: made.Changed, Problem: made.Problem}
	for _, g := range st.Segments {
		p.Rows += g.Rows
	}
	if log != nil {
		p.InLog = log.Records
		if !o.Exact {
			brick.RaiseEpoch(entries, id, log.Epoch)
		}
	}
	o.Partitions = append(o.Partitions, p)
}

func anyPrefix(entries map[string][]byte, prefix string) bool {
	for k := range entries {
		if strings.HasPrefix(k, prefix) {
			return true
		}
	}
	return false
}

func unknown(id point.PlacementID, log *brick.LogSeqs, why error) string {
	s := "placement " + id.String()
	if log != nil {
		s += fmt.Sprintf(", %d records in the log", log.Records)
	}
	if why != nil {
		s += ": " + why.Error()
	}
	return s + "; the next start puts it aside in lost+found"
}
