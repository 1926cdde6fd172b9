package process

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/histogram"

	"github.com/spillwaydb/spillway/cmd/spillway/backups"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/backup/cluster"
)

// oneSource is a cluster of one server, with rows that wait on another one.
type oneSource struct {
	*standalone
	waiting [][]byte // frames
}

func (s oneSource) Tables(context.Context) ([]string, error) { return s.tables.Names(), nil }
func (s oneSource) Map(ctx context.Context, table string) (*topology.Map, uint64, error) {
	m, err := s.tables.Refresh(ctx, table, 0)
	return m, 0, err
}
func (s oneSource) Stagers(_ context.Context, table string) ([]topology.ServerID, error) {
	if table != "t" {
		return nil, nil
	}
	return []topology.ServerID{"stager"}, nil
}
func (s oneSource) Leader(string, *topology.Partition, int) (topology.ServerID, error) {
	return settings.LocalServer, nil
}
func (s oneSource) Unled(string, point.PartitionID) bool { return false }
func (s oneSource) CaughtUp(context.Context) error       { return nil }
func (s oneSource) Server(id topology.ServerID) (peer.Storage, bool) {
	return serverThatStages{s.server, s.waiting}, true
}
func (s oneSource) Families(ctx context.Context, table string) ([]point.MetadataRow, error) {
	return s.server.GetMetadata(ctx, table, "")
}

// serverThatStages has rows that wait.
type serverThatStages struct {
	peer.Storage
	frames [][]byte
}

func (w serverThatStages) OpenSnapshot(ctx context.Context, table string, id point.PartitionID) (peer.Snapshot, error) {
	return w.Storage.(peer.Snapshots).OpenSnapshot(ctx, table, id)
}

func (w serverThatStages) StagedFrames(_ context.Context, _ string, give func([]byte) error) error {
	for _, f := range w.frames {
		if err := give(f); err != nil {
			return err
		}
	}
	return nil
}

// content is all that a table of a process holds, as readers see it.
func content(t *testing.T, p *standalone, table string) (series []peer.Series, exemplars []peer.SeriesExemplars, families []point.MetadataRow) {
	t.Helper()
	all := &peer.Select{Table: table, Lo: 0, Hi: time.Now().Add(time.Hour).UnixNano()}
	set, err := p.server.Select(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	for set.Next() {
		s := *set.At()
		s.Times, s.Values = slices.Clone(s.Times), slices.Clone(s.Values)
		s.Ranks, s.HistRanks = nil, nil
		series = append(series, s)
	}
	if err := set.Err(); err != nil {
		t.Fatal(err)
	}
	_ = set.Close()
	if exemplars, err = p.server.Exemplars(t.Context(), all, [][]peer.Matcher{{}}); err != nil {
		t.Fatal(err)
	}
	families, err = p.server.GetMetadata(t.Context(), table, "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range exemplars {
		for k := range exemplars[i].Exemplars {
			exemplars[i].Exemplars[k].ID = 0
		}
	}
	return series, exemplars, families
}

// filledWithAll writes rows of every kind into table t of a process, over three days: overwritten ones, deleted ones, histograms, exemplars, descriptions.
func filledWithAll(t *testing.T, p *standalone) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	day := time.Now().Truncate(24 * time.Hour)
	for round := range 3 {
		var body strings.Builder
		for i := range 40 {
			fmt.Fprintf(&body, "m,i=s%d v=%d %d\n", i%8, i*(round+1), day.Add(-time.Duration(i%3)*24*time.Hour+time.Duration(i)*time.Second).UnixNano())
		}
		if code, text := p.do(t, http.MethodPost, "/write?db=t", body.String()); code != http.StatusNoContent {
			t.Fatalf("%d %s", code, text)
		}
	}
	must(p.server.PutMetadata(t.Context(), "t", []point.MetadataRow{{Metric: "m_v", Type: "gauge", Help: "of a test", Unit: "s"}}))
	m, _ := p.tables.Get("t")
	st, err := p.server.OpenStream(t.Context(), "t")
	must(err)
	labels := point.MakeLabels("__name__", "h", "i", "s1")
	must(st.Define(t.Context(), []peer.Def{{ID: 1, Labels: labels}}))
	at, ok := m.Find(m.PointOf(labels), day.UnixNano())
	if !ok {
		t.Fatal("no partition has the time")
	}
	must(st.Insert(t.Context(), &peer.Insert{Partition: at.ID, Stamp: 1 << 40, Level: point.All, Staging: &peer.Staging{Do: peer.Inherit}, // it is not checked
		Hists:     []point.HistRow{{ID: 1, Time: day.UnixNano(), H: point.AppendHistogram(nil, &histogram.Histogram{Count: 3, Sum: 4, ZeroCount: 3})}},
		Exemplars: []point.ExemplarRow{{ID: 1, Time: day.UnixNano() + 5, Value: 7, Labels: "\x05trace\x03abc"}}}))
	must(st.Close())
	must(p.server.DeleteSeries(t.Context(), &peer.Select{Table: "t", Lo: 0, Hi: time.Now().UnixNano(), Matchers: []peer.Matcher{{Name: "i", Value: "s3"}}}))
}

// frameThatWaits is a frame with a row of a series of its own, an hour ago.
func frameThatWaits() ([]byte, time.Time) {
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	f := frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: 1 << 41, Defs: []point.Labels{point.MakeLabels("__name__", "waited")}, IDs: []point.DenseID{0}, Times: []point.Nanos{at.UnixNano()}, Values: []float64{42}}
	var enc frame.Encoder
	return enc.Append(nil, &f), at
}

func write(t *testing.T, src cluster.Source, to backup.Place) backup.Result {
	t.Helper()
	res, err := cluster.Write(t.Context(), src, to, cluster.Settings{Holder: "test", Patience: time.Nanosecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestARestoredClusterHasRowsOfEveryKind: values, deletions, histograms, exemplars, descriptions, and rows that waited for their leaders; a second backup of the same copies
// nothing.
func TestARestoredClusterHasRowsOfEveryKind(t *testing.T) {
	p := open(t)
	filledWithAll(t, p)
	wait, at := frameThatWaits()
	src := oneSource{p, [][]byte{wait, wait}}
	dir := filepath.Join(t.TempDir(), "backups")
	place := backup.Dir{FS: vfs.Default, Path: dir}
	if res := write(t, src, place); len(res.Missing) > 0 || res.Copied == 0 || res.Segments < 4 {
		t.Errorf("the first backup: %+v", res)
	}
	for first := time.Now().UnixMilli(); time.Now().UnixMilli() == first; { // names are milliseconds
		runtime.Gosched()
	}
	if res := write(t, src, place); res.Copied != 0 {
		t.Errorf("a backup of the same copied %d bytes", res.Copied)
	}
	q := open(t)
	admin := httptest.NewServer(http.HandlerFunc(q.restorePage))
	defer admin.Close()
	into := backups.Restore{From: dir, URL: admin.URL}
	if err := into.Run(); err != nil {
		t.Fatal(err)
	}
	series, exemplars, families := content(t, p, "t")
	gotSeries, gotExemplars, gotFamilies := content(t, q, "t")
	waited := slices.IndexFunc(gotSeries, func(s peer.Series) bool { return s.Labels.Get("__name__") == "waited" })
	if waited < 0 || !slices.Equal(gotSeries[waited].Times, []point.Nanos{at.UnixNano()}) {
		t.Fatalf("the row that waited is not there: %v", gotSeries)
	}
	gotSeries = slices.Delete(gotSeries, waited, waited+1)
	if len(series) != 8 || len(exemplars) != 1 || len(families) != 1 {
		t.Fatalf("the test has %d series, %d with exemplars, %d descriptions", len(series), len(exemplars), len(families))
	}
	if !reflect.DeepEqual(series, gotSeries) {
		t.Errorf("restored are %v, were %v", gotSeries, series)
	}
	if !reflect.DeepEqual(exemplars, gotExemplars) || !reflect.DeepEqual(families, gotFamilies) {
		t.Errorf("restored are %v and %v, were %v and %v", gotExemplars, gotFamilies, exemplars, families)
	}
	if err := into.Run(); err == nil || !strings.Contains(err.Error(), "tables t already") {
		t.Errorf("a second restore: %v", err)
	}
	if err := (&backups.Restore{From: dir, DataDir: new(string)}).Run(); !fault.Is(err, fault.Invalid) {
		t.Errorf("a cluster's backup as a store: %v", err)
	}
}

// TestDamagedFilesOfAClusterBackupAreNamed: one is cut off, one has a bit flipped; the rows of the others are restored.
func TestDamagedFilesOfAClusterBackupAreNamed(t *testing.T) {
	p := open(t)
	filledWithAll(t, p)
	dir := filepath.Join(t.TempDir(), "backups")
	place := backup.Dir{FS: vfs.Default, Path: dir}
	if res := write(t, oneSource{p, nil}, place); len(res.Missing) > 0 {
		t.Fatal(res.Missing)
	}
	files, err := filepath.Glob(filepath.Join(dir, "segments", "*.seg"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d segments, %v", len(files), err)
	}
	for i, f := range files[:2] {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			b = b[:len(b)-1]
		} else {
			b[len(b)/2] ^= 4
		}
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	res, err := backup.Verify(t.Context(), place, "", backup.Settings{})
	if err != nil || len(res.Missing) != 2 {
		t.Errorf("verified: %v, %v", res.Missing, err)
	}
	q := open(t)
	got, err := cluster.Restore(t.Context(), place, "", restoreTarget{q.tables, &q.door}, cluster.RestoreSettings{FS: vfs.Default, Scratch: filepath.Join(t.TempDir(), "scratch"), Log: slog.New(slog.DiscardHandler)})
	if err != nil || len(got.Missing) != 2 || got.Rows == 0 {
		t.Fatalf("restored: %+v, %v", got, err)
	}
	for i, f := range files[:2] {
		if !strings.Contains(strings.Join(got.Missing, "\n"), filepath.Base(f)) || !strings.Contains(strings.Join(res.Missing, "\n"), filepath.Base(f)) {
			t.Errorf("file %d, %s, is not named: %v", i, f, got.Missing)
		}
	}
	if series, _, _ := content(t, q, "t"); len(series) == 0 {
		t.Error("nothing is restored")
	}
}
