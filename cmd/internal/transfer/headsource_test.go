package transfer

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/spillwaydb/spillway/protocols/jsonrows"
	"github.com/spillwaydb/spillway/protocols/point"
)

// promOptions are those of a Prometheus that accepts samples out of order, with segments so small that there are many.
func promOptions() *tsdb.Options {
	o := tsdb.DefaultOptions()
	o.WALSegmentSize, o.OutOfOrderTimeWindow, o.OutOfOrderCapMax = 2*segmentPageBytes, (24 * 3600 * 1000), 8
	o.EnableExemplarStorage, o.MaxExemplars = true, 100
	return o
}

func openProm(t *testing.T, dir string) *tsdb.DB {
	t.Helper()
	db, err := tsdb.Open(dir, slog.New(slog.DiscardHandler), nil, promOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// writeProm writes seven hours of a Prometheus, compacted in between, and leaves it as a process that was killed would.
func writeProm(t *testing.T, dir string) {
	const t0 = 1_790_000_000_000
	db := openProm(t, dir)
	defer db.Close()
	ctx := context.Background()
	no := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for minute := range int64(7 * 60) {
		now := t0 + minute*60_000
		app := db.Appender(ctx)
		for i := range 40 {
			ls := labels.FromStrings("__name__", "up", "host", fmt.Sprint("host-", i), "job", "node")
			ref, err := app.Append(0, ls, now+int64(i), float64(minute)/3)
			no(err)
			if i == 3 {
				_, err = app.AppendExemplar(ref, ls, exemplar.Exemplar{Labels: labels.FromStrings("trace", fmt.Sprint(minute)), Value: 1, Ts: now, HasTs: true})
				no(err)
			}
			if minute > 100 && i < 10 && minute%5 == 0 { // an hour late
				_, err = app.Append(0, ls, now-3_600_000+30_000+int64(i), -float64(minute))
				no(err)
			}
		}
		v := float64(minute)
		if minute == 399 {
			v = math.Float64frombits(value.StaleNaN)
		}
		_, err := app.Append(0, labels.FromStrings("__name__", "stale"), now, v)
		no(err)
		_, err = app.AppendHistogram(0, labels.FromStrings("__name__", "latency"), now, tsdbutil.GenerateTestHistogram(minute), nil)
		no(err)
		_, err = app.AppendHistogram(0, labels.FromStrings("__name__", "size"), now, nil, tsdbutil.GenerateTestFloatHistogram(minute))
		no(err)
		_, err = app.AppendHistogram(0, labels.FromStrings("__name__", "classic"), now, tsdbutil.GenerateTestCustomBucketsHistogram(minute), nil)
		no(err)
		no(app.Commit())
		if minute == 250 || minute == 330 {
			no(db.Compact(ctx))
		}
		if minute == 300 { // deletes in blocks and in the head
			no(db.Delete(ctx, math.MinInt64, math.MaxInt64, labels.MustNewMatcher(labels.MatchEqual, "host", "host-7")))
			no(db.Delete(ctx, now-600_000, now-300_000, labels.MustNewMatcher(labels.MatchEqual, "host", "host-8")))
		}
	}
}

// runProm goes on with the Prometheus of writeProm for seven hours, in which its head becomes blocks, and rows that come a day late one more.
func runProm(t *testing.T, dir string) {
	db := openProm(t, dir)
	defer db.Close()
	app := db.Appender(t.Context())
	for minute := range int64(7 * 60) {
		at := 1_790_000_000_000 + (7*60+minute)*60_000
		for _, late := range []int64{0, 12 * 3_600_000} {
			if _, err := app.Append(0, labels.FromStrings("__name__", "up", "host", "later"), at-late, float64(minute)); err != nil && late == 0 {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := db.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// rowText is a row as the tests compare them.
func rowText(ms int64, f float64, h *histogram.Histogram, fh *histogram.FloatHistogram) string {
	switch {
	case h != nil:
		h = h.Copy()
		h.CounterResetHint = 0
		return fmt.Sprintf("%d %v", ms, h)
	case fh != nil:
		fh = fh.Copy()
		fh.CounterResetHint = 0
		return fmt.Sprintf("%d %v", ms, fh)
	}
	return fmt.Sprintf("%d %x", ms, math.Float64bits(f))
}

// promRows are all rows that Prometheus itself finds in a directory.
func promRows(t *testing.T, dir string) map[string]bool {
	t.Helper()
	db := openProm(t, dir)
	defer db.Close()
	q, err := db.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	rows := map[string]bool{}
	set := q.Select(context.Background(), false, nil, labels.MustNewMatcher(labels.MatchNotEqual, "__name__", ""))
	for set.Next() {
		ls := set.At().Labels().String()
		it := set.At().Iterator(nil)
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			var text string
			switch kind {
			case chunkenc.ValFloat:
				at, f := it.At()
				text = rowText(at, f, nil, nil)
			case chunkenc.ValHistogram:
				at, h := it.AtHistogram(nil)
				text = rowText(at, 0, h, nil)
			default:
				at, fh := it.AtFloatHistogram(nil)
				text = rowText(at, 0, nil, fh)
			}
			rows[ls+" "+text] = true
		}
		if err := it.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

// imported are the rows that a source gives.
type imported struct {
	rows    map[string]bool
	batches []*batch
	losses  Losses
	said    []string
}

// readProm reads a directory as an import does, from where an earlier run ended behind some batches.
func readProm(t *testing.T, dir string, before []*batch, keep map[string]bool) *imported {
	t.Helper()
	got := &imported{rows: keep}
	note := &resume{Done: []string{}}
	for _, b := range before {
		note.pass(b)
	}
	src, err := newPrometheusSource(dir, note, TimeMin, TimeMax, &got.losses, func(s string) { got.said = append(got.said, s) })
	if err != nil {
		t.Fatal(err)
	}
	defer src.close()
	was := -1.0
	for {
		b, err := src.next(context.Background())
		if err == io.EOF {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		if p := src.part(); p < was || p > 1.001 {
			t.Errorf("the progress goes from %v to %v", was, p)
		} else {
			was = p
		}
		got.batches = append(got.batches, b)
		got.add(t, b)
	}
}

func (g *imported) add(t *testing.T, b *batch) {
	t.Helper()
	for i := range b.lines {
		l := &b.lines[i]
		if !slices.IsSorted(l.Times) {
			t.Errorf("times of a line are not in order: %v", l.Times)
		}
		if len(l.Times) != len(l.Values) {
			t.Fatal(l)
		}
		ls := promLabels(new(labels.ScratchBuilder), l).String()
		for j, at := range l.Times {
			g.rows[ls+" "+rowText(int64(at)/nanosPerMilli, l.Values[j], nil, nil)] = true
		}
		for _, h := range l.Hists {
			g.rows[ls+" "+rowText(int64(h.Time)/nanosPerMilli, 0, h.Int, h.Float)] = true
		}
	}
}

// missing are rows of one that another lacks.
func missing(from, in map[string]bool) (rows []string) {
	for row := range from {
		if !in[row] {
			rows = append(rows, row)
		}
	}
	slices.Sort(rows)
	return rows
}

func wantSame(t *testing.T, got, want map[string]bool) {
	t.Helper()
	if m := missing(want, got); len(m) > 0 {
		t.Errorf("%d of %d rows are missing, such as %s", len(m), len(want), m[0])
	}
	if m := missing(got, want); len(m) > 0 {
		t.Errorf("%d rows are there that Prometheus does not have, such as %s", len(m), m[0])
	}
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// An import moves all rows of a Prometheus, also those in no block yet: in order and out of order, floats and histograms.
func TestTheNewestRowsOfAPrometheusMoveToo(t *testing.T) {
	dir := t.TempDir()
	writeProm(t, dir)
	if c, _ := lastCheckpoint(filepath.Join(dir, "wal")); c == "" {
		t.Fatal("there is no checkpoint")
	}
	if wbl, err := segmentsIn(filepath.Join(dir, "wbl"), -1); err != nil || len(wbl) == 0 {
		t.Fatal("there is no log of samples out of order", err)
	}
	got := readProm(t, dir, nil, map[string]bool{})
	want := promRows(t, copyDir(t, dir))
	wantSame(t, got.rows, want)
	if len(want) < 40*420 {
		t.Errorf("Prometheus has only %d rows", len(want))
	}
	if got.losses.Any() {
		var text strings.Builder
		got.losses.Print(&text)
		t.Error(text.String())
	}
	if said := strings.Join(got.said, "\n"); !strings.Contains(said, "exemplars") {
		t.Errorf("nothing is said of the exemplars: %q", said)
	}

	t.Run("goes on", func(t *testing.T) {
		for n := range got.batches {
			rest := &imported{rows: map[string]bool{}}
			for _, b := range got.batches[:n+1] {
				rest.add(t, b)
			}
			again := readProm(t, dir, got.batches[:n+1], maps.Clone(rest.rows))
			wantSame(t, again.rows, want)
			if len(again.batches) >= len(got.batches) {
				t.Errorf("behind batch %d it began anew", n)
			}
			if said := strings.Join(again.said, "\n"); n == len(got.batches)-1 && !strings.Contains(said, "blocks were imported by the unfinished run, and are skipped") {
				t.Errorf("nothing is said of the blocks that are skipped: %q", said)
			}
		}
	})

	// A Prometheus that runs between two runs of an import makes blocks of the rows in its head. Those were in neither: the import left
	// out of the head all rows older than the newest block, and read no block that stands before the one it came to.
	t.Run("Prometheus ran in between", func(t *testing.T) {
		inHead := slices.IndexFunc(got.batches, func(b *batch) bool { return strings.HasPrefix(b.within, headSign) })
		if inHead < 2 {
			t.Fatalf("the head begins at batch %d of %d", inHead, len(got.batches))
		}
		first := &batch{within: got.batches[inHead].within, next: 1} // a row of the head, which it left out
		later := copyDir(t, dir)
		runProm(t, later)
		want := promRows(t, copyDir(t, later))
		for n := range inHead + 1 {
			before := slices.Clone(got.batches[:n+1])
			if n == inHead {
				before[n] = first
			}
			rest := &imported{rows: map[string]bool{}}
			for _, b := range before {
				rest.add(t, b)
			}
			again := readProm(t, later, before, rest.rows)
			if m := missing(want, again.rows); len(m) > 0 {
				t.Errorf("the run that ended behind batch %d of %d: %d rows are missing, such as %s", n, len(got.batches), len(m), m[0])
			}
		}
	})

	t.Run("in use", func(t *testing.T) {
		busy := copyDir(t, dir)
		db := openProm(t, busy)
		defer db.Close()
		blocks := readProm(t, busy, nil, map[string]bool{})
		if !blocks.losses.Any() || len(blocks.rows) == 0 || len(blocks.rows) >= len(want) {
			t.Errorf("of a Prometheus that runs %d rows of %d came, losses %v", len(blocks.rows), len(want), blocks.losses.Any())
		}
	})

	t.Run("without blocks", func(t *testing.T) {
		agent := copyDir(t, dir)
		blocks, err := findBlocks(agent)
		if err != nil || len(blocks) == 0 {
			t.Fatal(blocks, err)
		}
		for _, b := range blocks {
			if err := os.RemoveAll(b.dir); err != nil {
				t.Fatal(err)
			}
		}
		head := readProm(t, agent, nil, map[string]bool{})
		if m := missing(promRows(t, agent), head.rows); len(m) > 0 {
			t.Errorf("%d rows are missing, such as %s", len(m), m[0])
		}
	})
}

// A crash tears the end of a log: what stands before is imported, as Prometheus keeps it. (Of larger cuts Prometheus has rows
// in the chunks that it maps beside the log, which are not read here; no row is made up all the same.)
func TestATornLogOfPrometheusGivesWhatItHas(t *testing.T) {
	dir := t.TempDir()
	writeProm(t, dir)
	want := promRows(t, copyDir(t, dir))
	for _, log := range []string{"wal", "wbl"} {
		segments, err := segmentsIn(filepath.Join(dir, log), -1)
		if err != nil || len(segments) == 0 {
			t.Fatal(err)
		}
		last := segments[len(segments)-1]
		for _, cut := range []int64{1, 3, 8, 100, 1000, last.size / 2, last.size - 1} {
			if cut >= last.size {
				continue
			}
			torn := copyDir(t, dir)
			if err := os.Truncate(filepath.Join(torn, log, filepath.Base(last.path)), last.size-cut); err != nil {
				t.Fatal(err)
			}
			got := readProm(t, torn, nil, map[string]bool{})
			if m := missing(got.rows, want); len(m) > 0 {
				t.Errorf("%d rows are made up, such as %s", len(m), m[0])
			}
			if cut <= 1000 {
				wantSame(t, got.rows, promRows(t, torn)) // Prometheus repairs it
			}
			if got.losses.Any() {
				t.Errorf("%s without its last %d bytes counts as a loss", log, cut)
			}
			if t.Failed() {
				t.Fatalf("%s without its last %d bytes", log, cut)
			}
		}
	}
}

// The import names damage in the middle of the log, and reads the whole records of the other segments, which Prometheus would drop.
func TestDamageInALogOfPrometheusIsNamed(t *testing.T) {
	dir := t.TempDir()
	writeProm(t, dir)
	want := promRows(t, copyDir(t, dir))
	segments, err := segmentsIn(filepath.Join(dir, "wal"), -1)
	if err != nil || len(segments) < 3 {
		t.Fatal(segments, err)
	}
	middle := segments[len(segments)/2]
	b, err := os.ReadFile(middle.path)
	if err != nil {
		t.Fatal(err)
	}
	without := copyDir(t, dir)
	if err := os.Truncate(filepath.Join(without, "wal", filepath.Base(middle.path)), 0); err != nil {
		t.Fatal(err)
	}
	others := readProm(t, without, nil, map[string]bool{})
	if len(others.rows) < len(want)/2 || len(others.rows) >= len(want) {
		t.Fatalf("%d rows of %d are in other segments", len(others.rows), len(want))
	}
	for _, at := range []int{0, 1, 5, 9, len(b) / 3, segmentPageBytes, segmentPageBytes + 4} {
		broken := copyDir(t, dir)
		c := slices.Clone(b)
		c[at] ^= 0x55
		if err := os.WriteFile(filepath.Join(broken, "wal", filepath.Base(middle.path)), c, 0o600); err != nil {
			t.Fatal(err)
		}
		got := readProm(t, broken, nil, map[string]bool{})
		var text strings.Builder
		got.losses.Print(&text)
		if !strings.Contains(text.String(), filepath.Base(middle.path)+" from byte ") {
			t.Errorf("a flip of byte %d is not named: %s", at, text.String())
		}
		made := slices.DeleteFunc(missing(got.rows, want), func(row string) bool { // the damaged bytes may be those of their deletion
			return strings.Contains(row, `host="host-7"`) || strings.Contains(row, `host="host-8"`)
		})
		if len(made) > 0 {
			t.Errorf("a flip of byte %d makes %d rows up, such as %s", at, len(made), made[0])
		}
		if m := missing(others.rows, got.rows); len(m) > 0 {
			t.Errorf("after a flip of byte %d %d rows of other segments are missing, such as %s", at, len(m), m[0])
		}
	}
}

// No bytes of a segment are a crash, and none allocate more than the bound.
func FuzzSegment(f *testing.F) {
	f.Add([]byte{1, 0, 1, 0, 0, 0, 0, 7})
	f.Add([]byte{9, 0, 5, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "00000000")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s := &headSource{segments: []segment{{path: path, size: int64(len(b)), last: true}}, ordered: 1, lo: TimeMin, hi: TimeMax, inBlocks: TimeMin, losses: &Losses{}, say: func(string) {}}
		defer s.close()
		for {
			if _, err := s.next(context.Background()); err != nil {
				if err != io.EOF {
					t.Fatal(err)
				}
				return
			}
		}
	})
}

// Rows of a line that came out of order are put in order, each with its value.
func TestSortLine(t *testing.T) {
	l := Line{Times: []point.Nanos{3, 1, 2}, Values: []float64{30, 10, 20}, Hists: []jsonrows.Histogram{{Time: 5}, {Time: 4}}}
	sortLine(&l)
	if !slices.Equal(l.Times, []point.Nanos{1, 2, 3}) || !slices.Equal(l.Values, []float64{10, 20, 30}) || l.Hists[0].Time != 4 {
		t.Errorf("%+v", l)
	}
}
