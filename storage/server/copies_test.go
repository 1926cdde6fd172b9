package server_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/server"
)

// copied is the state of a server's leases and chains, as a test sets it.
type copied struct {
	leads, kept, sure, once, quiet bool

	takes error // why no row is accepted; nil: they are
}

func (c *copied) MayAct(string, point.PartitionID) (point.Epoch, bool) { return 1, c.leads }
func (c *copied) Alone(string, point.PartitionID) (point.Epoch, bool)  { return 1, false }
func (c *copied) Hold(context.Context, string, point.PartitionID, point.Epoch) error {
	return nil
}
func (c *copied) Wanted(string, point.PartitionID)        {}
func (c *copied) Why(string, point.PartitionID) string    { return "n2 leads it" }
func (c *copied) Kept(string, point.PartitionID) bool     { return c.kept }
func (c *copied) Accepts(lease.Partition) error           { return c.takes }
func (c *copied) Stalled(lease.Partition) error           { return nil }
func (c *copied) Sure(lease.Partition) bool               { return c.sure }
func (c *copied) Wake(context.Context, []lease.Partition) { c.sure = c.sure || c.quiet }
func (c *copied) Once(lease.Partition) bool               { return c.once }
func (c *copied) Lead(context.Context, lease.Partition, *partition.Partition, point.Epoch) error {
	return nil
}

// TestACopyAnswersWhatItSurelyHas: a placement that does not lead answers requests that allow it, and says where it may lack rows.
func TestACopyAnswersWhatItSurelyHas(t *testing.T) {
	maps, state := &someMap{m: newMap(t).m}, &copied{leads: true}
	p := start(t, vfs.NewMem(), maps, 1, func(d *server.Deps) { d.Leadership, d.Chains = state, state })
	defer p.stop(t)
	st := openStream(t, p.server)
	err := st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: 1024, Level: point.All, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	newest := &columns.Request{Form: columns.States, SamplesMax: 1 << 20, Plan: columns.Plan{
		Grid:   columns.Grid{Start: 10_000, End: 20_000, Step: 1000},
		Source: columns.Source{Window: 10 * time.Second, Function: columns.FunctionOf("count_over_time")},
		Stages: []columns.Stage{{Aggregation: &columns.Aggregation{Op: columns.Sum, Without: true}}},
	}}
	f := func(what string, s copied, id point.PartitionID, copies peer.Copies, answers, unsure bool) {
		t.Helper()
		*state = s
		q := &peer.Select{Table: "t", Partitions: []point.PartitionID{id}, Hi: 99e9, MapSeq: maps.m.Seq, Copies: copies}
		set, err := p.server.Select(t.Context(), q)
		rows := 0
		if err == nil {
			for set.Next() {
				rows += len(set.At().Times)
			}
			err = set.Close()
		}
		_, _, names := p.server.LabelNames(t.Context(), q, 0)
		_, exemplars := p.server.Exemplars(t.Context(), q, [][]peer.Matcher{{{Name: "i", Value: "1"}}})
		evaluated := p.server.Evaluate(t.Context(), q, newest.Append(nil), func([]byte) error { return nil })
		for call, err := range map[string]error{"select": err, "names": names, "exemplars": exemplars, "evaluate": evaluated} {
			if answers != (err == nil) || !answers && !fault.Is(err, fault.Stale) || peer.IsUnsure(err) != unsure {
				t.Errorf("%s, %s: %v (unsure %t), want an answer: %t, unsure: %t", what, call, err, peer.IsUnsure(err), answers, unsure)
			}
		}
		if answers && rows != 1 {
			t.Errorf("%s: %d rows", what, rows)
		}
	}
	follows := copied{kept: true}
	f("the leader", copied{leads: true, kept: true}, 1, peer.LeaderOnly, true, false)
	f("the leader, though its chain is not sure", copied{leads: true, kept: true}, 1, peer.SureCopies, true, false)
	f("a sure copy, and the leader is asked for", copied{kept: true, sure: true}, 1, peer.LeaderOnly, false, false)
	f("a sure copy", copied{kept: true, sure: true}, 1, peer.SureCopies, true, false)
	f("a sure copy, and any is asked for", copied{kept: true, sure: true}, 1, peer.UnsureCopies, true, false)
	f("a copy of a quiet chain", copied{kept: true, once: true, quiet: true}, 1, peer.SureCopies, true, false)
	f("a copy that was cut off", copied{kept: true, once: true}, 1, peer.SureCopies, false, true)
	f("a copy that was cut off, and any is asked for", copied{kept: true, once: true}, 1, peer.UnsureCopies, true, false)
	f("a copy that never was whole", follows, 1, peer.UnsureCopies, false, true)
	f("a table whose rows have no copies", copied{sure: true, once: true}, 1, peer.UnsureCopies, false, false)
	f("a partition that is not here", copied{kept: true, sure: true, once: true}, 2, peer.UnsureCopies, false, false)

	m, err := maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)})
	if err != nil {
		t.Fatal(err)
	}
	maps.m = m
	f("being split", copied{kept: true, sure: true, once: true}, 1, peer.UnsureCopies, false, false)
	f("being split, at the leader", copied{leads: true, kept: true}, 1, peer.SureCopies, true, false)
}

// TestABackupTakesNoPartitionThatIsGoneForOneWithoutRows: a split's parent whose rows are all in its halves leaves the map, and then the disk. A backup that came to it between that
// and the release of its lease found no rows, and no error: those that it had not found in the halves before were in no part of it.
func TestABackupTakesNoPartitionThatIsGoneForOneWithoutRows(t *testing.T) {
	maps, state := &someMap{m: newMap(t).m}, &copied{leads: true}
	p := start(t, vfs.NewMem(), maps, 1, func(d *server.Deps) { d.Leadership, d.Chains = state, state })
	defer p.stop(t)
	empty, err := p.server.OpenSnapshot(t.Context(), "t", 1)
	if err != nil || len(empty.Entry()) != 0 {
		t.Errorf("before its first row: %v", err)
	}
	m, err := maps.m.Apply(topology.Drop{IDs: []point.PartitionID{1}})
	if err != nil {
		t.Fatal(err)
	}
	maps.m = m
	if _, err := p.server.OpenSnapshot(t.Context(), "t", 1); !fault.Is(err, fault.Stale) {
		t.Errorf("after it left the map: %v", err)
	}
}

// passedOn is a chain whose copies have everything at once; it counts the frames.
type passedOn struct{ frames int }

func (c *passedOn) Pass(_, _ point.Serial, _ []byte, _ brick.Wait)      { c.frames++ }
func (c *passedOn) HandOn()                                             {}
func (c *passedOn) Await(context.Context, point.Serial) error           { return nil }
func (c *passedOn) AwaitSoon(ctx context.Context, s point.Serial) error { return c.Await(ctx, s) }

// beginning is a server's chains, of which one is slow to lead.
type beginning struct {
	copied
	chain     passedOn
	meanwhile func() // nil: it leads at once
}

func (b *beginning) Lead(_ context.Context, _ lease.Partition, p *partition.Partition, epoch point.Epoch) error {
	if f := b.meanwhile; f != nil {
		b.meanwhile = nil
		f()
	}
	return p.LeadChain(epoch, &b.chain)
}

// TestTheFirstRowOfAnEpochWaitsForCopiesToo: a table demands two copies of each row, and a partition has one in sync. Rows were refused, but for those that came first after it was led anew: they
// were acknowledged with one copy.
func TestTheFirstRowOfAnEpochWaitsForCopiesToo(t *testing.T) {
	state := &beginning{copied: copied{leads: true, kept: true, takes: fault.Errorf(fault.Unavailable, "1 of its placements are in sync, and the table demands 2")}}
	p := start(t, vfs.NewMem(), newMap(t), 1, func(d *server.Deps) { d.Leadership, d.Chains = state, state })
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	insert := func() error {
		return st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: 1024, Level: point.All, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{1}})
	}
	for range 2 {
		if err := insert(); !fault.Is(err, fault.Unavailable) || state.chain.frames > 0 {
			t.Errorf("%v, %d frames are logged", err, state.chain.frames)
		}
	}
	state.takes = nil
	must(t, insert())
}

// TestACopyHasTheDeletionThatComesBeforeItsLeaderLeads: a deletion that came between the first row and the start of its chain was on the leader's disk
// alone, and so was every row of that epoch.
func TestACopyHasTheDeletionThatComesBeforeItsLeaderLeads(t *testing.T) {
	state := &beginning{copied: copied{leads: true, kept: true}}
	p := start(t, vfs.NewMem(), newMap(t), 1, func(d *server.Deps) { d.Leadership, d.Chains = state, state })
	defer p.stop(t)
	state.meanwhile = func() {
		must(t, p.server.DeleteSeries(t.Context(), &peer.Select{Table: "t", Lo: 0, Hi: 10, Matchers: []peer.Matcher{{Name: "i", Value: "1"}}}))
		if state.chain.frames != 1 {
			t.Errorf("the deletion is acked, and the chain has %d frames", state.chain.frames)
		}
	}
	st := openStream(t, p.server)
	for i := range 2 {
		must(t, st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: point.Stamp(1024 + i), Level: point.All, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{1}}))
		if state.chain.frames != 2+i {
			t.Errorf("row %d is acked, and the chain has %d frames", i, state.chain.frames)
		}
	}
	must(t, st.Close())
}

// TestADeletionWaitsForCopiesAsRowsDo: it was acknowledged with one copy where a table demands two.
func TestADeletionWaitsForCopiesAsRowsDo(t *testing.T) {
	state := &beginning{copied: copied{leads: true, kept: true}}
	p := start(t, vfs.NewMem(), newMap(t), 1, func(d *server.Deps) { d.Leadership, d.Chains = state, state })
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	must(t, st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: 1024, Level: point.All, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{1}}))
	remove := func() error {
		return p.server.DeleteSeries(t.Context(), &peer.Select{Table: "t", Lo: 0, Hi: 10, Matchers: []peer.Matcher{{Name: "i", Value: "1"}}})
	}
	state.takes = fault.Errorf(fault.Unavailable, "1 of its placements are in sync, and the table demands 2")
	if err := remove(); !fault.Is(err, fault.Unavailable) || state.chain.frames != 1 {
		t.Errorf("%v, the chain has %d frames", err, state.chain.frames)
	}
	state.takes = nil
	must(t, remove())
}

// expiring is a map that loses its partitions, as with retention or the drop of a table.
type expiring struct {
	oneMap
	expired bool
}

func (e *expiring) Get(table string) (*topology.Map, bool) {
	m, ok := e.oneMap.Get(table)
	if e.expired && ok {
		left, err := topology.New(table, m.Config)
		return left, err == nil
	}
	return m, ok
}

// TestRowsThatOnlyARemovedCopyHadAreInLostAndFound: they went with the copy, without a word, if it left the map before they were at the leader.
// Those of a time that the table has no longer are to go.
func TestRowsThatOnlyARemovedCopyHadAreInLostAndFound(t *testing.T) {
	fs := vfs.NewMem()
	maps := &expiring{oneMap: newMap(t)}
	p := start(t, fs, maps, 1)
	defer p.stop(t)
	w := newWriter(t, p.server)
	w.insert(t, 1024, []row{{1, 1e9, 1}}, model{})
	w.insert(t, 409600, []row{{1, 150e9, 1}}, model{})
	for id := range point.PartitionID(2) {
		at, _ := p.server.Placement(lease.Partition{Table: "t", ID: id + 1})
		must(t, at.FollowLeader(2))
		if s, err := at.Cut(point.Serial{}); s == nil || err != nil {
			t.Fatalf("nothing is set aside: %v", err)
		}
		maps.expired = id == 1
		must(t, p.server.RemovePlacement("t", id+1, at.Identity().Placement, false))
		p.removeDropped(t)
		if _, err := fs.Stat(p.brick.SegmentDir(at.Identity().Placement)); err == nil {
			t.Errorf("files of partition %d are left", id+1)
		}
	}
	names, err := fs.List("data/lost+found")
	if must(t, err); len(names) != 1 || !strings.HasSuffix(names[0], "0-0.surplus") {
		t.Errorf("lost+found has %q", names)
	}
}
