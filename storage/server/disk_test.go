package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/server"
)

// failing is a file system on which, once on, operations of some kind on some files fail.
type failing struct {
	on   atomic.Bool
	kind errorfs.OpKind
	part string // of the path
}

func (f *failing) MaybeError(op errorfs.Op) error {
	if f.on.Load() && op.Kind == f.kind && strings.Contains(op.Path, f.part) {
		return errorfs.ErrInjected
	}
	return nil
}

func (f *failing) String() string { return "failing" }

// TestNothingIsAckedThatTheDiskRefused: if the log or the catalogue cannot write or fsync, inserts and changes that
// need it fail as Unavailable, Run ends with the reason, and after a power cut every row that was acked is there.
func TestNothingIsAckedThatTheDiskRefused(t *testing.T) {
	for name, f := range map[string]*failing{
		"log write":       {kind: errorfs.OpFileWrite, part: "/log/"},
		"log fsync":       {kind: errorfs.OpFileSyncData, part: "/log/"},
		"catalogue write": {kind: errorfs.OpFileWrite, part: "/catalogue/"},
		"catalogue fsync": {kind: errorfs.OpFileSyncData, part: "/catalogue/"},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			maps := newMap(t)
			p, err := open(errorfs.Wrap(mem, f), maps, 1)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- p.server.Run(context.Background()) }()
			truth := model{}
			w := newWriter(t, p.server)
			w.insert(t, 1024, []row{{1, 10e9, 1}, {2, 110e9, 2}}, truth)
			f.on.Store(true)
			if strings.HasPrefix(name, "log") {
				err = w.stream.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: 2048, IDs: []point.SeriesID{1}, Times: []int64{20e9}, Values: []float64{3}})
			} else {
				err = w.s.FlushAll(t.Context(), false)
			}
			if !fault.Is(err, fault.Unavailable) {
				t.Errorf("%v, want unavailable", err)
			}
			if err := <-ended; !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "the store is fenced") {
				t.Errorf("Run ended with %v", err)
			}
			f.on.Store(false) // the disk works again; the store stays fenced
			err = w.stream.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: 4096, IDs: []point.SeriesID{1}, Times: []int64{30e9}, Values: []float64{4}})
			if !fault.Is(err, fault.Unavailable) {
				t.Errorf("after the fence: %v, want unavailable", err)
			}
			image := mem.CrashClone(vfs.CrashCloneCfg{})
			_ = p.server.Close()
			if err := p.brick.Close(); !fault.Is(err, fault.Unavailable) {
				t.Errorf("closing: %v, want unavailable", err)
			}
			p, err = open(image, maps, 2)
			if err != nil {
				t.Fatal(err)
			}
			want := truth.String(0, 300e9, func(point.Labels) bool { return true })
			if got := read(t, p.server, &peer.Select{Table: "t", Lo: 0, Hi: 300e9}); got != want {
				t.Errorf("read\n%swant\n%s", got, want)
			}
			p.stop(t)
		})
	}
}

// TestDirectoriesThatCannotBeListedStopAStart: they counted as none, and files of a placement without an entry were not put aside.
func TestDirectoriesThatCannotBeListedStopAStart(t *testing.T) {
	mem := vfs.NewMem()
	p, err := open(mem, newMap(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	unknown := p.brick.SegmentDir(99)
	if err := errors.Join(p.server.Close(), p.brick.Close(), mem.MkdirAll(unknown, 0o755)); err != nil {
		t.Fatal(err)
	}
	f := &failing{kind: errorfs.OpList, part: "segments"}
	f.on.Store(true)
	if _, err := open(errorfs.Wrap(mem, f), newMap(t), 2); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), mem.PathDir(unknown)) ||
		!strings.Contains(err.Error(), "start the server again") {
		t.Errorf("the start goes on, or does not say where it stopped and what to do: %v", err)
	}
}

// TestFlushesThatFailAreTriedAgainByRun: the disk refuses segments for a while; Run carries on and flushes when it can.
func TestFlushesThatFailAreTriedAgainByRun(t *testing.T) {
	f := &failing{kind: errorfs.OpFileSyncData, part: "segments/"}
	p := start(t, errorfs.Wrap(vfs.NewMem(), f), newMap(t), 1)
	truth := model{}
	w := newWriter(t, p.server)
	w.insert(t, 1024, []row{{1, 10e9, 1}}, truth)
	f.on.Store(true)
	if err := p.server.FlushAll(t.Context(), false); err == nil {
		t.Fatal("the flush went well")
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.server.Run(ctx) }()
	f.on.Store(false)
	for { // the package's time limit ends this if need be
		st, err := p.server.Stats(t.Context(), "t", 0)
		if err != nil {
			t.Fatal(err)
		}
		if st.Segments == 1 && st.HeadRows == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run ended with %v", err)
	}
	if got, want := read(t, p.server, &peer.Select{Table: "t", Lo: 0, Hi: 300e9}), truth.String(0, 300e9, func(point.Labels) bool { return true }); got != want {
		t.Errorf("read\n%swant\n%s", got, want)
	}
	p.stop(t)
}

// TestDropsLeaveNothing: a partition that was dropped does not come back by an insert that was routed before, its log and
// files do not stay when the power is cut in the middle, and its entry in memory is deleted when the map no longer has it.
func TestDropsLeaveNothing(t *testing.T) {
	fs, maps := vfs.NewCrashableMem(), newMap(t)
	p := start(t, fs, maps, 1)
	w := newWriter(t, p.server)
	w.insert(t, 1024, []row{{1, 10e9, 1}}, model{})
	w.flush(t, false)
	w.insert(t, 2048, []row{{1, 20e9, 1}, {2, 110e9, 2}}, model{})
	late := &peer.Insert{Partition: 1, Stamp: 4096, IDs: []point.SeriesID{1}, Times: []int64{30e9}, Values: []float64{3}}
	if err := p.server.DropPartition("t", 1); err != nil {
		t.Fatal(err)
	}
	if err := w.stream.Insert(t.Context(), late); !fault.Is(err, fault.Stale) {
		t.Errorf("a late insert: %v, want stale", err)
	}
	dir := p.brick.SegmentDir(101)
	if n := p.brick.DroppedBytes(); n == 0 {
		t.Error("no bytes count as free")
	}
	left, err := fs.List(dir)
	must(t, err)
	p.removeDropped(t)
	if names, err := fs.List(dir); err == nil {
		t.Errorf("its files are still there: %v", names)
	}
	p.stop(t)
	// The state after a power cut between the end of the catalogue entry and that of the files.
	fs = power(t, func(p process, w *writer) {
		w.insert(t, 1024, []row{{1, 10e9, 1}}, model{})
		w.flush(t, false)
		w.insert(t, 2048, []row{{1, 20e9, 1}, {2, 110e9, 2}}, model{})
		must(t, p.server.DropPartition("t", 1))
	})
	p = start(t, fs, maps, 2)
	if names, err := fs.List(dir); err != nil || !slices.Equal(names, left) || p.brick.DroppedBytes() == 0 {
		t.Errorf("after a power cut: %v %v, %d bytes count as free; want %v", names, err, p.brick.DroppedBytes(), left)
	}
	p.removeDropped(t)
	if names, err := fs.List(dir); err == nil {
		t.Errorf("its files are still there after a restart: %v", names)
	}
	if ids, err := partition.Dropping(p.brick); len(ids) > 0 || err != nil {
		t.Errorf("notes of %v are left, %v", ids, err)
	}
	for _, pin := range p.brick.Pinning(10) {
		if pin.Placement == 101 {
			t.Error("its records pin the log")
		}
	}
	p.stop(t)
}

// power returns the file system of a store after the power was cut behind a function.
func power(t *testing.T, f func(process, *writer)) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewCrashableMem()
	p := start(t, fs, newMap(t), 1)
	f(p, newWriter(t, p.server))
	image := fs.CrashClone(vfs.CrashCloneCfg{})
	p.stop(t)
	return image
}

// removeDropped removes what dropped partitions left, as Run does.
func (p process) removeDropped(t *testing.T) {
	t.Helper()
	for more := true; more; {
		r, err := p.brick.RemoveSome()
		must(t, err)
		more = r.More
	}
}

// TestAPlacementThatComesBackKeepsItsRows: its files of before waited to be removed, and its new ones went with them, now or after a restart.
func TestAPlacementThatComesBackKeepsItsRows(t *testing.T) {
	for _, drops := range []string{"in this process", "in one before"} {
		fs, maps, truth := vfs.NewCrashableMem(), newMap(t), model{}
		p := start(t, fs, maps, 1)
		w := newWriter(t, p.server)
		w.insert(t, 1024, []row{{1, 10e9, 1}}, model{})
		w.flush(t, false)
		w.insert(t, 2048, []row{{1, 20e9, 1}}, model{})
		must(t, p.server.RemovePlacement("t", 1, 101, false))
		if drops == "in one before" {
			p.stop(t)
			p = start(t, fs, maps, 2)
			w = newWriter(t, p.server)
		}
		w.insert(t, 4<<20, []row{{1, 30e9, 3}}, truth)
		w.flush(t, false)
		w.insert(t, 5<<20, []row{{1, 40e9, 4}}, truth)
		p.removeDropped(t)
		want := truth.String(0, 300e9, func(point.Labels) bool { return true })
		for range 2 {
			if got := read(t, p.server, &peer.Select{Table: "t", Lo: 0, Hi: 300e9}); got != want {
				t.Errorf("dropped %s: read\n%swant\n%s", drops, got, want)
			}
			image := fs.CrashClone(vfs.CrashCloneCfg{})
			p.stop(t)
			fs = image
			p = start(t, fs, maps, 3)
			p.removeDropped(t)
		}
		p.stop(t)
	}
}

// TestRunRemovesWhatDropsLeft, those of an earlier process, too, while rows are written.
func TestRunRemovesWhatDropsLeft(t *testing.T) {
	maps := newMap(t)
	fs := power(t, func(p process, w *writer) {
		w.insert(t, 1024, []row{{1, 10e9, 1}, {1, 110e9, 1}}, model{})
		w.flush(t, false)
		must(t, p.server.DropPartition("t", 1))
	})
	p := start(t, fs, maps, 2)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.server.Run(ctx) }()
	must(t, p.server.DropPartition("t", 2))
	w := newWriter(t, p.server)
	for at := int64(0); p.brick.DroppedBytes() > 0; at++ {
		w.insert(t, point.Stamp(at+4)<<20, []row{{1, 210e9 + at, 1}}, model{})
	}
	stop()
	must(t, <-ended)
	p.removeDropped(t)
	for _, id := range []point.PlacementID{101, 102} {
		if names, err := fs.List(p.brick.SegmentDir(id)); err == nil {
			t.Errorf("of placement %d are left: %v", id, names)
		}
	}
	p.stop(t)
}

// TestFullHeadsRefuseUntilTheyAreFlushed: at its bound the server answers Throttled; as soon as heads can be flushed it
// accepts rows again. While they cannot, maintenance neither spins nor stops.
func TestFullHeadsRefuseUntilTheyAreFlushed(t *testing.T) {
	f := &failing{kind: errorfs.OpFileSyncData, part: "segments/"}
	maps := newMap(t)
	log := slog.New(slog.DiscardHandler)
	b, err := brick.Open(brick.Deps{FS: errorfs.Wrap(vfs.NewMem(), f), Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Open(t.Context(), server.Deps{Brick: b, Maps: maps, Log: log, Registerer: prometheus.NewRegistry()},
		server.Settings{Server: "s1", Epoch: 1, HeadBytesMax: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	p := process{b, s}
	defer p.stop(t)
	f.on.Store(true)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	w := newWriter(t, s)
	if err := w.stream.Define(t.Context(), []peer.Def{{ID: 1, Labels: labelsOf(1)}}); err != nil {
		t.Fatal(err)
	}
	acked := 0
	insert := func() error {
		in := &peer.Insert{Partition: 1, Stamp: point.Stamp(acked+1) << 20}
		for i := range 5000 {
			in.IDs, in.Times, in.Values = append(in.IDs, 1), append(in.Times, int64(acked+i)), append(in.Values, 1/float64(i+1))
		}
		err := w.stream.Insert(t.Context(), in)
		if err == nil {
			acked += 5000
		}
		return err
	}
	for err == nil {
		err = insert()
	}
	if !fault.Is(err, fault.Throttled) || acked == 0 {
		t.Errorf("%d rows, then %v, want throttled", acked, err)
	}
	f.on.Store(false)
	for fault.Is(err, fault.Throttled) { // the package's time limit ends this if need be
		time.Sleep(10 * time.Millisecond)
		err = insert()
	}
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		t.Error(err)
	}
	if st, err := s.Stats(t.Context(), "t", 0); err != nil || int(st.HeadRows+st.SegmentRows) != acked {
		t.Errorf("%d rows in heads and %d in segments, acked %d; %v", st.HeadRows, st.SegmentRows, acked, err)
	}
}

// TestAPartitionThatCannotBeFlushedStopsNoOther: the largest head cannot be written, and memory is over its bound: the
// others go to disk and accept rows, and so does this one when the disk works again.
func TestAPartitionThatCannotBeFlushedStopsNoOther(t *testing.T) {
	f := &failing{kind: errorfs.OpFileSyncData, part: fmt.Sprintf("segments/%016x/", 101)}
	log := slog.New(slog.DiscardHandler)
	b, err := brick.Open(brick.Deps{FS: errorfs.Wrap(vfs.NewMem(), f), Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Open(t.Context(), server.Deps{Brick: b, Maps: newMap(t), Log: log, Registerer: prometheus.NewRegistry()},
		server.Settings{Server: "s1", Epoch: 1, HeadBytesMax: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	p := process{b, s}
	defer p.stop(t)
	w := newWriter(t, s)
	if err := w.stream.Define(t.Context(), []peer.Def{{ID: 1, Labels: labelsOf(1)}}); err != nil {
		t.Fatal(err)
	}
	acked := map[point.PartitionID]int{}
	insert := func(id point.PartitionID) error {
		in := &peer.Insert{Partition: id, Stamp: point.Stamp(acked[id]+1) << 20}
		for i := range 5000 {
			in.IDs, in.Times, in.Values = append(in.IDs, 1), append(in.Times, int64(id-1)*100e9+int64(acked[id]+i)), append(in.Values, 1/float64(i+1))
		}
		err := w.stream.Insert(t.Context(), in)
		if err == nil {
			acked[id] += 5000
		}
		return err
	}
	f.on.Store(true)
	for s.HeadLoad() < 0.6 {
		must(t, insert(1))
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for { // until the second has more than fits beside the first; the package's time limit ends this if need be
		if err := insert(2); err != nil && !fault.Is(err, fault.Throttled) {
			t.Fatal(err)
		} else if err == nil && acked[2] > 10*acked[1] {
			break
		} else if err != nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
	if st, err := s.Stats(t.Context(), "t", 0); err != nil || st.HeadRows < uint64(acked[1]) {
		t.Errorf("%d rows in heads, %d of the first partition cannot be elsewhere; %v", st.HeadRows, acked[1], err)
	}
	f.on.Store(false)
	stop()
	must(t, <-ended)
	must(t, s.FlushAll(t.Context(), false))
	if st, err := s.Stats(t.Context(), "t", 0); err != nil || int(st.SegmentRows) != acked[1]+acked[2] {
		t.Errorf("%d rows in segments, acked %v; %v", st.SegmentRows, acked, err)
	}
}

// TestStoppingFlushesWhatItCan: a partition that cannot be flushed is an error after all others are.
func TestStoppingFlushesWhatItCan(t *testing.T) {
	f := &failing{kind: errorfs.OpFileSyncData, part: fmt.Sprintf("segments/%016x/", 101)}
	p := start(t, errorfs.Wrap(vfs.NewMem(), f), newMap(t), 1)
	defer p.stop(t)
	w := newWriter(t, p.server)
	w.insert(t, 1024, []row{{1, 10e9, 1}, {1, 110e9, 1}, {1, 210e9, 1}}, model{})
	f.on.Store(true)
	if err := p.server.FlushAll(t.Context(), false); err == nil {
		t.Error("the flush of all went well")
	}
	st, err := p.server.Stats(t.Context(), "t", 0)
	if err != nil || st.SegmentRows != 2 || st.HeadRows != 1 {
		t.Errorf("%d rows in segments and %d in heads; %v", st.SegmentRows, st.HeadRows, err)
	}
	for _, one := range st.ByPartition {
		if failing := one.ID == 1; failing != strings.HasPrefix(one.Unflushed, "1 flushes failed since ") {
			t.Errorf("partition %d: %q", one.ID, one.Unflushed)
		}
	}
	f.on.Store(false)
	must(t, p.server.FlushAll(t.Context(), false))
	if st, err = p.server.Stats(t.Context(), "t", 0); err != nil || st.ByPartition[0].Unflushed != "" {
		t.Errorf("after a flush that went well: %q, %v", st.ByPartition[0].Unflushed, err)
	}
}
