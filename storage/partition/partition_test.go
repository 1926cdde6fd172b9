package partition

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// headBytes is the account of one test.
type headBytes struct{ atomic.Int64 }

func (h *headBytes) Add(n int64) { h.Int64.Add(n) }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is one partition with its store and index.
type bench struct {
	*Partition
	t     *testing.T
	brick *brick.Brick
	cache *segment.Cache
	index *series.Index
	stamp point.Stamp
}

var ident = Identity{Table: "t", Partition: 1, Placement: 42, TimeLo: 0, TimeHi: 1000}

// benchCache is the size of the cache of blocks.
var benchCache int64 = 1 << 20

// openBench opens the partition of fs under an epoch, and makes it if there is none.
func openBench(t *testing.T, fs vfs.FS, epoch point.Epoch) *bench {
	t.Helper()
	return openBenchWith(t, fs, epoch, Settings{})
}

// hushed are the settings of a partition that removes series from memory as soon as they have no rows.
var hushed = Settings{QuietAfter: 1, QuietSeriesMin: 1, WarmSeriesMax: 1, CompactBytes: 200}

func openBenchWith(t *testing.T, fs vfs.FS, epoch point.Epoch, set Settings) *bench {
	t.Helper()
	return openBenchAs(t, fs, epoch, set, ident)
}

// openBenchAs opens the partition, and makes it as another one than usual if there is none.
func openBenchAs(t *testing.T, fs vfs.FS, epoch point.Epoch, set Settings, ident Identity) *bench {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	br, err := brick.Open(brick.Deps{FS: fs, Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, brick: br, cache: segment.NewCache(benchCache), index: series.New(), stamp: point.Stamp(epoch) << 32}
	deps := Deps{Brick: br, Index: b.index, Cache: b.cache, Log: log, Metrics: NewMetrics(prometheus.NewRegistry()), HeadBytes: new(headBytes), Compacting: new(budget.Held)}
	err = br.Scan(StatePrefix(), func(_, v []byte) error {
		st, err := DecodeState(v)
		if err == nil {
			b.Partition, err = Open(deps, set, st, epoch)
		}
		return err
	})
	var d frame.Decoder
	var f frame.Frame
	if err == nil {
		released := func(point.PlacementID) point.Serial {
			if b.Partition == nil {
				return point.Serial{Epoch: math.MaxUint64}
			}
			return b.Flushed()
		}
		err = br.Recover(released, func(_ point.PlacementID, _ point.Serial, rec []byte) error { return b.Replay(rec, &d, &f) })
	}
	if err == nil && b.Partition == nil {
		b.Partition, err = Create(deps, set, ident, epoch)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) close() {
	b.t.Helper()
	b.Partition.Close()
	b.cache.Close()
	if err := b.brick.Close(); err != nil {
		b.t.Error(err)
	}
}

// removeDropped removes the files of a dropped partition that no view reads.
func (b *bench) removeDropped() {
	b.t.Helper()
	for more := true; more; {
		r, err := b.brick.RemoveSome()
		b.must(err)
		more = r.More
	}
}

func labelsOf(name string) point.Labels { return point.MakeLabels(point.MetricName, "m", "i", name) }

// put appends one row of a series and returns the error.
func (b *bench) put(name string, at point.Nanos, v float64) error {
	ref := b.index.Intern(labelsOf(name))
	defer b.index.Release(ref)
	b.stamp += 1024
	return b.Append(&Rows{Stamp: b.stamp, Refs: []series.Ref{ref}, Times: []point.Nanos{at}, Values: []float64{v}})
}

// must ends the test at an error.
func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// text returns all rows of a view: "a 1:10 2:20; b 1:5".
func text(t *testing.T, v *View) string {
	t.Helper()
	ss, err := v.Match(nil)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(ss, func(a, b Series) int { return a.Labels.Compare(b.Labels) })
	var lines []string
	err = v.Read(ss, math.MinInt64, math.MaxInt64, func(i int, r rows.Run) error {
		line := ss[i].Labels.Get("i")
		for j, at := range r.Times {
			line += fmt.Sprintf(" %d:%v", at, r.Values[j])
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(lines, "; ")
	newest(t, v, ss)
	m := v.Memory()
	defer m.Close()
	for _, n := range []int{len(ss), 1, 2} {
		if again := textInto(t, v, m, ss, n); again != all {
			t.Errorf("read %q, and %q by %d series into memory that is used again", all, again, n)
		}
	}
	return all
}

// newest compares the last row of each series with the one that a read of newest rows gives, and says if one is lost.
func newest(t *testing.T, v *View, ss []Series) {
	t.Helper()
	for _, hi := range []point.Nanos{math.MaxInt64, 50, 20} {
		var last [2]map[string]string
		for i, of := range []bool{false, true} {
			v.newest, last[i] = of, map[string]string{}
			err := v.Read(ss, math.MinInt64, hi, func(at int, r rows.Run) error {
				if n := len(r.Times); n > 0 {
					last[i][ss[at].Labels.Get("i")] = fmt.Sprintf("%d:%v", r.Times[n-1], r.Values[n-1])
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if v.newest = false; !maps.Equal(last[0], last[1]) {
			t.Errorf("newest rows up to %d: %v, by a read of newest rows: %v", hi, last[0], last[1])
		}
	}
}

// textInto reads n series at a time, and looks at them when all n are read.
func textInto(t *testing.T, v *View, m *Memory, ss []Series, n int) string {
	t.Helper()
	var lines []string
	for from := 0; from < len(ss); from += n {
		some := ss[from:min(from+n, len(ss))]
		got := make([]rows.Run, len(some))
		m.Reset()
		err := v.ReadInto(m, some, math.MinInt64, math.MaxInt64, func(i int, r rows.Run) error { got[i] = r; return nil })
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range got {
			if r.Len() == 0 {
				continue
			}
			line := some[i].Labels.Get("i")
			for j, at := range r.Times {
				line += fmt.Sprintf(" %d:%v", at, r.Values[j])
			}
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

func (b *bench) want(want string) {
	b.t.Helper()
	v, _ := b.View()
	defer v.Close()
	if got := text(b.t, v); got != want {
		b.t.Errorf("read %q, want %q", got, want)
	}
}

// only makes the matcher i=name.
func only(name string) []peer.Matcher { return []peer.Matcher{{Name: "i", Value: name}} }

// files lists the segment directory.
func (b *bench) files() []string {
	names, _ := b.brick.FS().List(b.brick.SegmentDir(ident.Placement))
	slices.Sort(names)
	return names
}

// A query that runs while its partition is dropped, its files were closed to leave room for others, and the disk is short of room, gets an error that asks for a new look-up.
func TestAQueryOfADroppedPartitionReportsNoDamage(t *testing.T) {
	fs := vfs.NewMem()
	b := openBench(t, fs, 1)
	b.cache.LimitFiles(1)
	for i := range 2 {
		b.must(b.put("a", point.Nanos(i), 10))
		b.must(b.Flush(t.Context(), ByAge))
	}
	v, err := b.View()
	b.must(err)
	defer v.Close()
	ss, err := v.Match(nil)
	b.must(err)
	b.must(b.Drop())
	b.must(b.brick.RemoveNow(ident.Placement))
	if err := v.Read(ss, 0, 1000, func(int, rows.Run) error { return nil }); !fault.Is(err, fault.Stale) {
		t.Errorf("reading: %v, want stale", err)
	}
	b.close()
}

// A query that began before its partition was dropped reads all rows, and the files go when it ends.
func TestAQueryOfADroppedPartitionReadsItsRows(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	b.cache.LimitFiles(1)
	for i := range 2 {
		b.must(b.put("a", point.Nanos(i), 10))
		b.must(b.Flush(t.Context(), ByAge))
	}
	v, err := b.View()
	b.must(err)
	ss, err := v.Match(nil)
	b.must(err)
	b.must(b.Drop())
	b.removeDropped()
	n := 0
	b.must(v.Read(ss, 0, 1000, func(_ int, r rows.Run) error {
		n += len(r.Times)
		return nil
	}))
	if n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
	v.Close()
	b.removeDropped()
	if names := b.files(); len(names) != 0 {
		t.Errorf("files %v are left", names)
	}
	b.close()
}

func TestADeletionAfterADropDoesNotBringThePartitionBack(t *testing.T) {
	fs := vfs.NewMem()
	b := openBench(t, fs, 1)
	b.must(b.put("a", 1, 10))
	b.must(b.Flush(t.Context(), ByAge))
	b.must(b.Drop())
	if err := b.Delete(t.Context(), 0, only("a"), 0, 5); !fault.Is(err, fault.Stale) {
		t.Errorf("deleting: %v, want stale", err)
	}
	if err := b.put("a", 2, 20); !fault.Is(err, fault.Stale) {
		t.Errorf("appending: %v, want stale", err)
	}
	b.must(b.Flush(t.Context(), ByAge))
	b.must(b.Compact(t.Context(), ByRequest))
	if v, err := b.View(); v != nil || err != nil {
		t.Error("a view of a dropped partition")
	}
	b.must(b.Drop()) // again is fine
	b.removeDropped()
	if n := len(b.files()); n != 0 {
		t.Errorf("%d files are left", n)
	}
	b.index.Sweep()
	if n := b.index.Len(); n != 0 {
		t.Errorf("%d series are left", n)
	}
	if n := b.deps.HeadBytes.(*headBytes).Load(); n != 0 {
		t.Errorf("%d bytes of heads are left", n)
	}
	b.close()
	b = openBench(t, fs, 2)
	b.want("")
	b.close()
}

func TestViewsFindTheirSeriesAfterThePartitionCooled(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	b.must(b.put("a", 1, 10))
	if b.Cool(time.Now().Add(time.Hour), 0) {
		t.Error("cooled with rows in the head")
	}
	v, _ := b.View()
	b.must(b.Flush(t.Context(), ByIdle))
	if !b.Cool(time.Now().Add(time.Hour), time.Minute) {
		t.Fatal("did not cool")
	}
	b.index.Sweep()
	if got := text(t, v); got != "a 1:10" {
		t.Errorf("the view begun before reads %q", got)
	}
	v.Close()
	b.index.Sweep()
	if n := b.index.Len(); n != 0 {
		t.Errorf("%d series are in memory, of a cold partition", n)
	}
	b.want("a 1:10") // the segments answer
	cold, _ := b.View()
	names, err := LabelValues([]*View{cold}, nil, "i", 0)
	b.must(err)
	cold.Close()
	if !slices.Equal(names, []string{"a"}) {
		t.Errorf("cold label values %v", names)
	}
	b.must(b.put("b", 2, 20))
	b.must(b.put("a", 3, 30))
	b.want("a 1:10 3:30; b 2:20")
}

func TestExemplarsAloneAreFlushed(t *testing.T) {
	fs := vfs.NewMem()
	b := openBench(t, fs, 1)
	ref := b.index.Intern(labelsOf("a"))
	ex := point.ExemplarRow{Time: 5, Value: 7, Labels: "\x05trace\x03abc"}
	b.must(b.Append(&Rows{Stamp: 1024, ExemplarRefs: []series.Ref{ref}, Exemplars: []point.ExemplarRow{ex}}))
	b.index.Release(ref)
	b.must(b.Maintain(t.Context(), time.Now().Add(2*time.Hour), NotDue))
	if pins := b.brick.Pinning(1); len(pins) != 0 || b.Flushed().Seq != 1 {
		t.Errorf("flushed up to %v; the log is pinned by %v", b.Flushed(), pins)
	}
	b.must(b.put("a", 1, 1))
	for range 2 {
		b.must(b.Flush(t.Context(), ByAge))
		b.must(b.Compact(t.Context(), ByRequest))
		v, _ := b.View()
		ss, err := v.MatchDefined(nil)
		b.must(err)
		n := 0
		b.must(v.Exemplars(ss, 0, 10, func(_ int, got []point.ExemplarRow) error {
			n += len(got)
			if got[0].Time != ex.Time || got[0].Value != ex.Value || got[0].Labels != ex.Labels {
				t.Errorf("read %v, want %v", got, ex)
			}
			return nil
		}))
		v.Close()
		if n != 1 {
			t.Errorf("%d exemplars, want 1", n)
		}
		b.close()
		b = openBench(t, fs, b.mu.epoch+1)
	}
	b.close()
}

// A sender that got no ack sends the same again, perhaps after a flush and in another order.
func TestExemplarsSentAgainAfterAFlushAreReadOnce(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	ref := b.index.Intern(labelsOf("a"))
	defer b.index.Release(ref)
	send := func(stamp point.Stamp, values ...float64) {
		rows := &Rows{Stamp: stamp}
		for _, v := range values {
			rows.ExemplarRefs = append(rows.ExemplarRefs, ref)
			rows.Exemplars = append(rows.Exemplars, point.ExemplarRow{Time: 5, Value: v, Labels: "\x05trace\x03abc"})
		}
		b.must(b.Append(rows))
	}
	send(1024, 7, -7)
	b.must(b.Flush(t.Context(), ByAge))
	send(2048, -7, 3, 7)
	v, _ := b.View()
	defer v.Close()
	ss, err := v.MatchDefined(nil)
	b.must(err)
	var got []float64
	b.must(v.Exemplars(ss, 0, 10, func(_ int, ex []point.ExemplarRow) error {
		for _, e := range ex {
			got = append(got, e.Value)
		}
		return nil
	}))
	if want := []float64{-7, 3, 7}; !slices.Equal(got, want) {
		t.Errorf("exemplars of one time are %v, not %v", got, want)
	}
}

// failing is a file system on which, once on, operations of some kind on some files fail.
type failing struct {
	on   atomic.Bool
	kind errorfs.OpKind
	part string // of the path
	hits atomic.Int32
}

func (f *failing) MaybeError(op errorfs.Op) error {
	if f.on.Load() && op.Kind == f.kind && strings.Contains(op.Path, f.part) {
		f.hits.Add(1)
		return errorfs.ErrInjected
	}
	return nil
}

func (f *failing) String() string { return "failing" }

// TestFailedFlushIsTriedAgain lets each step of writing a segment fail for a while. Rows stay readable, are acked as
// before, and reach a segment when the disk is well, though nothing more is written; nothing is left of the failures.
func TestFailedFlushIsTriedAgain(t *testing.T) {
	for name, f := range map[string]*failing{
		"create":         {kind: errorfs.OpCreate, part: ".seg"},
		"write":          {kind: errorfs.OpFileWrite, part: ".seg"},
		"sync":           {kind: errorfs.OpFileSyncData, part: ".seg"},
		"rename":         {kind: errorfs.OpRename, part: ".seg"},
		"read it back":   {kind: errorfs.OpOpen, part: ".seg"},
		"sync directory": {kind: errorfs.OpFileSync, part: "segments/"},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			b := openBench(t, errorfs.Wrap(mem, f), 1)
			b.must(b.put("a", 1, 10))
			f.on.Store(true)
			for i := range 3 {
				if err := b.Flush(t.Context(), ByAge); err == nil {
					t.Fatal("the flush went well")
				}
				b.must(b.put("b", int64(i), float64(i)))
				b.want("a 1:10; b" + []string{" 0:0", " 0:0 1:1", " 0:0 1:1 2:2"}[i])
			}
			now := time.Now()
			hits := f.hits.Load()
			b.must(b.Maintain(t.Context(), now, ByLog))
			if f.hits.Load() != hits {
				t.Error("no pause after failures")
			}
			f.on.Store(false)
			b.must(b.Maintain(t.Context(), now.Add(time.Minute), NotDue)) // the one that failed
			if b.Flushed().Seq != 1 {
				t.Errorf("flushed up to %v, want frame 1", b.Flushed())
			}
			b.must(b.Flush(t.Context(), ByAge))
			b.want("a 1:10; b 0:0 1:1 2:2")
			if names := b.files(); len(names) != 2 || !strings.HasSuffix(names[0], ".seg") {
				t.Errorf("files %v, want two segments", names)
			}
			b.close()
			b = openBench(t, mem, 2)
			b.want("a 1:10; b 0:0 1:1 2:2")
			b.close()
		})
	}
}

// TestFailedCompactionLeavesEverything is the same for compactions.
func TestFailedCompactionLeavesEverything(t *testing.T) {
	for name, f := range map[string]*failing{
		"write":        {kind: errorfs.OpFileWrite, part: ".seg"},
		"rename":       {kind: errorfs.OpRename, part: ".seg"},
		"read it back": {kind: errorfs.OpOpen, part: ".seg"},
	} {
		t.Run(name, func(t *testing.T) {
			b := openBench(t, errorfs.Wrap(vfs.NewMem(), f), 1)
			defer b.close()
			for i := range 3 {
				b.must(b.put("a", int64(i), float64(i)))
				b.must(b.Flush(t.Context(), ByAge))
			}
			before := b.files()
			f.on.Store(true)
			if err := b.Compact(t.Context(), ByRequest); err == nil {
				t.Fatal("the compaction went well")
			}
			if after := b.files(); !slices.Equal(before, after) {
				t.Errorf("files were %v and are %v", before, after)
			}
			b.want("a 0:0 1:1 2:2")
			f.on.Store(false)
			b.must(b.Compact(t.Context(), ByRequest))
			b.want("a 0:0 1:1 2:2")
			if n := len(b.files()); n != 1 {
				t.Errorf("%d files, want 1", n)
			}
		})
	}
}

// TestPartitionsWarmAgainAfterADiskError: the half that was read of the names must not stand in the way of the next try.
func TestPartitionsWarmAgainAfterADiskError(t *testing.T) {
	mem := vfs.NewMem()
	b := openBench(t, mem, 1)
	for i := range 2000 { // so many that opening does not read them all
		b.must(b.put(fmt.Sprint(i), 1, 1))
		if i%1000 == 999 {
			b.must(b.Flush(t.Context(), ByAge))
		}
	}
	b.close()

	f := &failing{kind: errorfs.OpFileReadAt, part: "1-2.seg"}
	b = openBench(t, errorfs.Wrap(mem, f), 2)
	f.on.Store(true)
	if err := b.put("y", 1, 1); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v, want unavailable", err)
	}
	f.on.Store(false)
	b.must(b.put("y", 1, 1))
	if n := b.ids.Load().len(); n != 2001 || b.index.Len() != n {
		t.Errorf("%d series, in the index %d, want 2001", n, b.index.Len())
	}
	b.close()
}

// TestAppendsThatFitInNoFrameAreRefused: a sender may send them, so the reply is an error and not a panic.
func TestAppendsThatFitInNoFrameAreRefused(t *testing.T) {
	fs := vfs.NewMem()
	b := openBench(t, fs, 1)
	ref := b.index.Intern(labelsOf("a"))
	many := func(n int) []series.Ref { return slices.Repeat([]series.Ref{ref}, n) }
	f := func(what string, r Rows, want fault.Kind) {
		t.Helper()
		r.Stamp = 1024
		if err := b.Append(&r); fault.KindOf(err) != want {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	const n = frame.RowsMax + 1
	huge := point.HistRow{H: make([]byte, 40<<20)}
	for range 2 { // of a new series, then of an existing one
		f("floats", Rows{Refs: many(n), Times: make([]point.Nanos, n), Values: make([]float64, n)}, fault.TooLarge)
		f("exemplars", Rows{ExemplarRefs: many(n), Exemplars: make([]point.ExemplarRow, n)}, fault.TooLarge)
		f("histograms", Rows{HistRefs: many(2), Hists: []point.HistRow{huge, huge}}, fault.TooLarge)
		f("unequal columns", Rows{Refs: many(2), Times: []point.Nanos{1}, Values: []float64{1}}, fault.Invalid)
		b.must(b.Append(&Rows{Stamp: 2048, Refs: many(1), Times: []point.Nanos{1}, Values: []float64{10}}))
	}
	b.must(b.Append(&Rows{Stamp: 4096})) // nothing at all
	b.index.Release(ref)
	b.want("a 1:10")
	b.close()
	b = openBench(t, fs, 2)
	b.want("a 1:10")
	if b.mu.last.Seq != 2 {
		t.Errorf("%d frames were logged, want 2", b.mu.last.Seq)
	}
	b.close()
}

func TestDeletionsAreBounded(t *testing.T) {
	one := Tombstone{Matchers: only("a"), Lo: 0, Hi: 10}
	full := SegmentState{Info: segment.Info{Rows: 1, TimeHi: 5}}
	for i := range deletionsMax {
		full.Tombstones = append(full.Tombstones, Tombstone{Matchers: only("a"), Lo: 0, Hi: int64(i)})
	}
	f := func(what string, s SegmentState, t1 Tombstone, wantHit bool, want fault.Kind) {
		t.Helper()
		hit, err := hide([]SegmentState{s}, t1, true)
		if hit != wantHit || err != nil && fault.KindOf(err) != want || err == nil && want != fault.Internal {
			t.Errorf("%s: %t %v", what, hit, err)
		}
	}
	const fine = fault.Internal
	f("rows in its range are hidden", SegmentState{Info: segment.Info{Rows: 1, TimeHi: 5}}, one, true, fine)
	f("a segment outside of it is left alone", SegmentState{Info: segment.Info{Rows: 1, TimeLo: 11, TimeHi: 12}}, one, false, fine)
	f("twice is once", SegmentState{Info: segment.Info{Rows: 1, TimeHi: 5}, Tombstones: []Tombstone{one}}, one, false, fine)
	f("there is an end", full, Tombstone{Matchers: only("b"), Hi: 1}, false, fault.Throttled)
	f("also at the end what is hidden is hidden", full, Tombstone{Matchers: only("a"), Hi: 1}, false, fine)

	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	b.must(b.put("a", 1, 10))
	b.must(b.Flush(t.Context(), ByAge))
	b.must(b.put("a", 2, 20)) // its minor defines nothing
	b.must(b.Delete(t.Context(), 0, only("nobody"), 0, 10))
	b.want("a 1:10 2:20")
	for _, g := range b.mu.state.Segments {
		if len(g.Tombstones) != 0 {
			t.Errorf("segment %v applies %v", g.ID, g.Tombstones)
		}
	}
	b.must(b.Delete(t.Context(), 0, only("a"), 2, 10))
	b.want("a 1:10")
	b.must(b.put("a", 2, 30)) // later rows are not deleted
	b.want("a 1:10 2:30")
	b.must(b.Compact(context.Background(), ByRequest))
	b.want("a 1:10 2:30")
}

func TestEntriesOfOlderEpochsStay(t *testing.T) {
	fs := vfs.NewMem()
	for epoch := point.Epoch(1); epoch <= 3; epoch++ {
		b := openBench(t, fs, epoch)
		b.must(b.put("a", int64(epoch), 1))
		b.must(b.Flush(t.Context(), ByAge))
		if epoch == 2 {
			b.must(b.Compact(t.Context(), ByRequest))
		}
		if got := b.mu.state.Ends; len(got) != int(epoch) || got[0].Epoch != 1 {
			t.Errorf("ends %v in epoch %d", got, epoch)
		}
		b.close()
	}
	b := openBench(t, fs, 4)
	b.want("a 1:1 2:1 3:1")
	var ids bytes.Buffer
	for _, g := range b.Segments() {
		fmt.Fprintf(&ids, "%v<-%v ", g.ID, g.Base)
	}
	if got := ids.String(); got != "2-3<-2-2 3-4<-2-3 " {
		t.Errorf("the chain is %q", got)
	}
	b.close()
}

// TestManyRowsIntoOneMemory reads series of several blocks, flushed in three parts and with rows in the head, of which
// some have times of their own.
func TestManyRowsIntoOneMemory(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	const names, parts, rows = 70, 4, 700
	for part := range parts {
		r := &Rows{}
		for n := range names {
			ref := b.index.Intern(labelsOf(fmt.Sprint(n)))
			defer b.index.Release(ref)
			if n%11 == part {
				continue
			}
			for i := range rows {
				at := point.Nanos(part*rows+i) * 10
				if n%7 == 3 && i%5 == 2 {
					at += point.Nanos(n)
				}
				if n%7 == 5 && i > 300 {
					break
				}
				r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, at), append(r.Values, float64(n*i%100)+float64(part)/10)
			}
		}
		b.stamp += 1024
		r.Stamp = b.stamp
		b.must(b.Append(r))
		if part < parts-1 {
			b.must(b.Flush(context.Background(), ByRequest))
		}
	}
	v, _ := b.View()
	defer v.Close()
	text(t, v)
	b.must(b.Delete(context.Background(), 0, only("5"), 100, 200))
	b.must(b.Delete(context.Background(), 0, only("12"), 9000, 15_000))
	v, _ = b.View()
	defer v.Close()
	all := text(t, v)
	if n := strings.Count(all, ":"); n < names*parts*rows/2 {
		t.Errorf("%d rows", n)
	}
}
