package deliver

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAClockThatRunsAheadDropsNoAckedRow: a server whose clock was set a month ahead, while it forwarded staged rows or moved those of a split, judged them
// older than their table keeps, and left out rows that were acknowledged.
func TestAClockThatRunsAheadDropsNoAckedRow(t *testing.T) {
	const hour = int64(time.Hour)
	now := 1000*hour + hour/2
	none, err := topology.New("t", topology.Config{PartitionWidth: time.Hour, Retention: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	m := none.Cover([]point.Nanos{now - 2*hour, now}, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "s1"}} })
	for _, c := range []struct {
		why                           string
		m                             *topology.Map
		now, at                       point.Nanos
		delivered, uncovered, expired int
	}{
		{"a row of now", m, now, now, 1, 0, 0},
		{"the clock is a month ahead, and the row has a partition", m, now + 720*hour, now - 2*hour, 1, 0, 0},
		{"the clock is a month ahead, and the row has none yet", m, now + 720*hour, now - hour, 0, 1, 0},
		{"the table has no partition yet", none, now + 720*hour, now, 0, 1, 0},
		{"the row is older than the table keeps", m, now, now - 26*hour, 0, 0, 1},
		{"the clock is a month behind", m, now - 720*hour, now - 26*hour, 0, 1, 0},
	} {
		s := &Scratch{Frame: frame.Frame{Defs: []point.Labels{point.MakeLabels(point.MetricName, "m")}, IDs: []point.DenseID{0}, Times: []point.Nanos{c.at}, Values: []float64{1}}}
		uncovered, expired := s.divide(c.m, c.now)
		delivered := 0
		for _, p := range s.parts {
			delivered += len(p.in.IDs)
		}
		if delivered != c.delivered || len(uncovered) != c.uncovered || expired != c.expired {
			t.Errorf("%s: %d delivered, %d without a partition, %d expired; want %d, %d and %d", c.why, delivered, len(uncovered), expired, c.delivered, c.uncovered, c.expired)
		}
	}
}

// TestRowsGoToTheirColumns: a partition with the whole ring is followed in time by two with halves of it, and rows come for all in turns.
func TestRowsGoToTheirColumns(t *testing.T) {
	const hour = int64(time.Hour)
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	placed := func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "s1"}} }
	ranges, err := topology.Spread(nil, []uint32{1, 1})
	if err != nil {
		t.Fatal(err)
	}
	m, err = m.Cover([]point.Nanos{0}, placed).Apply(topology.SetColumns{Layout: topology.Layout{From: hour, Weights: []uint32{1, 1}, Ranges: ranges}})
	if err != nil {
		t.Fatal(err)
	}
	m = m.Cover([]point.Nanos{hour}, placed)
	of := &Scratch{}
	g := &of.Frame
	for i := range 40 {
		g.Defs = append(g.Defs, point.MakeLabels(point.MetricName, "m", "host", fmt.Sprint(i)))
	}
	for i := range 400 {
		g.IDs, g.Times, g.Values = append(g.IDs, point.DenseID(i*7%40)), append(g.Times, hour*int64(i/3%2)+int64(i)), append(g.Values, float64(i))
	}
	if uncovered, expired := of.divide(m, 0); len(uncovered) > 0 || expired > 0 || m.Len() != 3 {
		t.Fatalf("%d uncovered, %d expired, %d partitions", len(uncovered), expired, m.Len())
	}
	rows := 0
	for _, p := range of.parts {
		for i, id := range p.in.IDs {
			if want, _ := m.Find(m.PointOf(g.Defs[id]), p.in.Times[i]); want.ID != p.partition.ID {
				t.Errorf("a row of series %d at %d goes to partition %d, want %d", id, p.in.Times[i], p.partition.ID, want.ID)
			}
			rows++
		}
	}
	if rows != len(g.IDs) || len(of.parts) != 3 {
		t.Errorf("%d of %d rows go to %d partitions", rows, len(g.IDs), len(of.parts))
	}
}

// gathering is a cluster of one server that notes what goes together.
type gathering struct {
	peer.Storage
	peer.Stream
	m     *topology.Map
	calls [][]peer.Insert
	defs  map[point.SeriesID]point.Labels
}

// Cover makes no partition: none is missing.
func (g *gathering) Cover(context.Context, string, []point.Nanos) error { return nil }

func (g *gathering) Leader(string, *topology.Partition) (topology.ServerID, error) { return "s1", nil }

func (g *gathering) Server(topology.ServerID) (peer.Storage, bool) { return g, true }

func (g *gathering) OpenStream(context.Context, string) (peer.Stream, error) { return g, nil }

func (g *gathering) Close() error { return nil }

func (g *gathering) Define(_ context.Context, defs []peer.Def) error {
	for _, d := range defs {
		g.defs[d.ID] = d.Labels
	}
	return nil
}

func (g *gathering) Insert(ctx context.Context, in *peer.Insert) error {
	return g.InsertTogether(ctx, []*peer.Insert{in})
}

func (g *gathering) InsertTogether(_ context.Context, all []*peer.Insert) error {
	var call []peer.Insert
	for _, in := range all {
		c := *in
		c.IDs, c.Times, c.Values = slices.Clone(in.IDs), slices.Clone(in.Times), slices.Clone(in.Values)
		call = append(call, c)
	}
	g.calls = append(g.calls, call)
	return peer.CheckTogether(all)
}

// TestRowsOfSeveralFramesReachEachPartitionInOneCall, with the rank of their own frame and as their own series.
func TestRowsOfSeveralFramesReachEachPartitionInOneCall(t *testing.T) {
	const hour = int64(time.Hour)
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	m = m.Cover([]point.Nanos{0, hour, 2 * hour}, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "s1"}} })
	g := &gathering{m: m, defs: map[point.SeriesID]point.Labels{}}
	d := New(g)
	type row struct {
		labels point.Labels
		at     point.Nanos
		value  float64
		rank   point.Stamp
	}
	var frames []*Scratch
	want := map[row]bool{}
	for n := range 5 {
		s := &Scratch{Frame: frame.Frame{Stamp: point.Stamp(n+1) << 10}}
		f := &s.Frame
		for i := range 3 {
			f.Defs = append(f.Defs, point.MakeLabels(point.MetricName, "m", "host", fmt.Sprint((n+i)%4)))
			at := hour*int64((n+i)%3) + int64(n)
			f.IDs, f.Times, f.Values = append(f.IDs, point.DenseID(i)), append(f.Times, at), append(f.Values, float64(10*n+i))
			want[row{f.Defs[i], at, float64(10*n + i), f.Stamp}] = true
		}
		frames = append(frames, s)
	}
	if _, err := d.Together(t.Context(), "t", m, peer.Forward, frames); err != nil {
		t.Fatal(err)
	}
	if len(g.calls) != 3 {
		t.Errorf("%d calls for 3 partitions", len(g.calls))
	}
	for _, call := range g.calls {
		for _, in := range call {
			for i, id := range in.IDs {
				r := row{g.defs[id], in.Times[i], in.Values[i], in.Stamp}
				if !want[r] {
					t.Errorf("%+v was not sent, or came twice", r)
				}
				delete(want, r)
				if p, _ := m.Find(0, r.at); p.ID != in.Partition {
					t.Errorf("%+v went to partition %d", r, in.Partition)
				}
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("lost: %v", want)
	}
}

// TestAFrameOfTheCallersIsNotWrittenOver: a server handed over the rows that only it had, frame by frame, while it forwarded staged rows. Scratch memory kept the columns of the first frame
// and was used for a staged one, while the next frame was decoded into the same columns: rows got the labels, times and values of others.
func TestAFrameOfTheCallersIsNotWrittenOver(t *testing.T) {
	of := func(name string, at point.Nanos) *frame.Frame {
		return &frame.Frame{Kind: frame.Rows, Stamp: 1, Defs: []point.Labels{point.MakeLabels(point.MetricName, name)}, IDs: []point.DenseID{0}, Times: []point.Nanos{at}, Values: []float64{float64(at)}}
	}
	var e frame.Encoder
	var d frame.Decoder
	var f frame.Frame
	if err := d.Decode(e.Append(nil, of("first", 1)), &f); err != nil {
		t.Fatal(err)
	}
	s := Of(&f)
	s.divide(topologyOf(t), 0)
	s.Put()
	if err := d.Decode(e.Append(nil, of("second", 2)), &f); err != nil {
		t.Fatal(err)
	}
	if err := s.Decode(nil, e.Append(nil, of("staged", 3))); err != nil { // as its next user
		t.Fatal(err)
	}
	if got := f.Defs[0].Get(point.MetricName); got != "second" || f.Times[0] != 2 || f.Values[0] != 2 {
		t.Errorf("the caller's frame has a row of %s at %d of value %v, decoded was one of second at 2 of value 2", got, f.Times[0], f.Values[0])
	}
}

func topologyOf(t *testing.T) *topology.Map {
	t.Helper()
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return m.Cover([]point.Nanos{0}, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "s1"}} })
}
