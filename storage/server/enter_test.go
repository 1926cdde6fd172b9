package server

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
)

// TestTheFirstQueryDoesNotPayForNewSeries: series of the log after a restart, and those that come later, enter the postings although no query asks.
func TestTheFirstQueryDoesNotPayForNewSeries(t *testing.T) {
	fs := vfs.NewMem()
	s, stop := openWithIndex(t, fs, 1)
	write(t, s, 0, 2000)
	stop()
	s, stop = openWithIndex(t, fs, 2)
	defer stop()
	index := s.tables()[0].index
	if index.Waiting() != 2000 {
		t.Fatalf("%d series wait after the start, not the 2000 of the log: nothing is shown", index.Waiting())
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() { end(); <-ended }()
	allEntered(s)
	write(t, s, 2000, 3000)
	allEntered(s)
	values, _, err := s.LabelValues(t.Context(), &peer.Select{Table: "t", Hi: 1 << 62}, "host", 0)
	if err != nil || len(values) != 3000 {
		t.Errorf("%d hosts, not 3000: %v", len(values), err)
	}
}

// allEntered waits until no series waits.
func allEntered(s *Server) {
	for s.tables()[0].index.Waiting() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// wholeDay is a table with one partition.
type wholeDay struct{ m *topology.Map }

func (o wholeDay) Get(string) (*topology.Map, bool) { return o.m, true }

func openWithIndex(t *testing.T, fs vfs.FS, epoch point.Epoch) (*Server, func()) {
	t.Helper()
	m, err := topology.New("t", topology.Config{PartitionWidth: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	m = m.Cover([]point.Nanos{0}, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(100 + p), Server: "s1"}}
	})
	log := slog.New(slog.DiscardHandler)
	b, err := brick.Open(brick.Deps{FS: fs, Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Deps{Brick: b, Maps: wholeDay{m}, Log: log, Registerer: prometheus.NewRegistry()}, Settings{Server: "s1", Epoch: epoch})
	if err != nil {
		t.Fatal(err)
	}
	return s, func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// write writes a row of each of the series [from, to).
func write(t *testing.T, s *Server, from, to int) {
	t.Helper()
	st, err := s.OpenStream(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	in := peer.Insert{Partition: 1, Level: point.All, Stamp: point.Stamp(1<<50 + from)}
	var defs []peer.Def
	for i := from; i < to; i++ {
		defs = append(defs, peer.Def{ID: point.SeriesID(i), Labels: point.MakeLabels("__name__", "up", "host", fmt.Sprint("h", i))})
		in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(i)), append(in.Times, 1e9), append(in.Values, 1)
	}
	if err := st.Define(t.Context(), defs); err != nil {
		t.Fatal(err)
	}
	if err := st.Insert(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}
