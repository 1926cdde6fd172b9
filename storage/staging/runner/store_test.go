package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/deliver"
	"github.com/spillwaydb/spillway/storage/staging"
)

// house is one server with staged rows, and its surroundings.
type house struct {
	t  *testing.T
	fs *vfs.MemFS

	mu        sync.Mutex
	announced []string
	deaf      error // of the coordination store
	full      error // of the disk
	logged    bytes.Buffer
}

func newHouse(t *testing.T) *house { return &house{t: t, fs: vfs.NewCrashableMem()} }

func (h *house) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.logged.Write(b)
}

func (h *house) open(set staging.Settings) *Store {
	h.t.Helper()
	return h.openOn(h.fs, set)
}

func (h *house) openOn(fs vfs.FS, set staging.Settings) *Store {
	h.t.Helper()
	set.Server = "a"
	s, err := Open(Deps{FS: fs, Dir: "staging", Log: slog.New(slog.NewTextHandler(h, nil)),
		Room: func(int64) error { return h.full }, Ways: &leaderless{},
		Announce: func(_ context.Context, tables []string) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.deaf == nil {
				h.announced = slices.Clone(tables)
			}
			return h.deaf
		}}, set)
	h.must(err)
	return s
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) stage(s *Store, table string, n int) error {
	table, of, f := row(table, n)
	return s.Stage(h.t.Context(), table, 1, of, f)
}

// row is a frame of one row of a series of its own, at a time of that many nanoseconds.
func row(table string, n int) (string, *peer.Staging, *frame.Frame) {
	return table, &peer.Staging{Do: peer.Stage, Nonce: uint64(n), Holders: []string{"a", "b"}}, &frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: point.Stamp(n << 10),
		Defs: []point.Labels{point.MakeLabels("__name__", "m", "n", fmt.Sprint(n))}, IDs: []point.DenseID{0}, Times: []point.Nanos{point.Nanos(n)}, Values: []float64{float64(n)}}
}

func idOf(n int) staging.ID { return staging.ID{Stamp: point.Stamp(n << 10), Nonce: uint64(n)} }

// values reads the values of all staged rows of a table.
func (h *house) values(s *Store, table string) (all []float64) {
	h.t.Helper()
	series, err := s.Read(&Query{Table: table, Lo: math.MinInt64, Hi: math.MaxInt64, Match: func(point.Labels) bool { return true }, Take: func(int64) error { return nil }})
	h.must(err)
	for i := range series {
		all = append(all, series[i].Values...)
	}
	slices.Sort(all)
	return all
}

func (h *house) want(s *Store, table string, want ...float64) {
	h.t.Helper()
	if got := h.values(s, table); !slices.Equal(got, want) {
		h.t.Fatalf("staged rows of %s: %v, want %v", table, got, want)
	}
}

// TestStagedRowsSurviveAPowerCut: acked frames are there after a crash that loses every byte that was not synced; forgotten ones may be.
func TestStagedRowsSurviveAPowerCut(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if err := h.stage(s, "t", i+1); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	h.must(h.stage(s, "u", 30))
	if !slices.Equal(h.announced, []string{"t", "u"}) {
		t.Errorf("announced are %v", h.announced)
	}
	for i := range 18 {
		h.must(s.Forget(idOf(i + 1)))
	}
	h.want(s, "t", 19, 20)
	h.must(h.stage(s, "t", 21)) // its fsync covers the records that forget the others
	crashed := h.fs.CrashClone(vfs.CrashCloneCfg{})
	h.must(s.Close())
	h.fs = crashed
	s = h.open(staging.Settings{})
	h.want(s, "t", 19, 20, 21)
	h.want(s, "u", 30)
	for _, i := range []int{19, 20, 21, 30} {
		h.must(s.Forget(idOf(i)))
	}
	h.must(s.Close())
	s = h.open(staging.Settings{})
	h.want(s, "t")
	h.must(s.Close())
	if names, err := h.fs.List("staging"); err != nil || !slices.Equal(names, []string{staging.WitnessFile}) {
		t.Errorf("nothing is staged, and there is %v, %v", names, err)
	}
}

// TestStagedRowsOutliveADamagedLog cuts and flips the log at every place: frames before the damage are there, and the damaged file is kept.
func TestStagedRowsOutliveADamagedLog(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	for i := range 3 {
		h.must(h.stage(s, "t", i+1))
	}
	h.must(s.Close())
	names, err := h.fs.List("staging")
	h.must(err)
	if slices.Sort(names); !slices.Equal(names, []string{"0000000000000000.staged", staging.WitnessFile}) {
		t.Fatal(names)
	}
	path := h.fs.PathJoin("staging", names[0])
	whole, err := readAll(h.fs, path)
	h.must(err)
	put := func(b []byte) *Store {
		t.Helper()
		h.fs = vfs.NewCrashableMem()
		h.must(h.fs.MkdirAll("staging", 0o755))
		f, err := h.fs.Create(path, vfs.WriteCategoryUnspecified)
		h.must(err)
		_, err = f.Write(slices.Clone(b)) // a vfs.File may change the bytes it is given
		h.must(err)
		h.must(f.Close())
		return h.open(staging.Settings{})
	}
	third := len(whole) / 3
	for at := len(staging.FileMagic); at < len(whole); at += 7 {
		s := put(whole[:at])
		if n := len(h.values(s, "t")); n > 3 || n < at/(third+8)-1 {
			t.Errorf("cut at %d: %d rows", at, n)
		}
		h.must(s.Close())
		bad := slices.Clone(whole)
		bad[at] ^= 1 << (at % 8)
		s = put(bad)
		if n := len(h.values(s, "t")); n == 3 {
			t.Errorf("flipped at %d: all rows are there", at)
		}
		names, err := h.fs.List("staging")
		h.must(err)
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, damagedSuffix) }) {
			t.Errorf("flipped at %d: the damaged file is not kept: %v", at, names)
		}
		h.must(s.Close())
	}
}

// TestNoStagedRowGoesInSilence flips each bit of the log, those of lengths too, and cuts it at each byte: the damaged file is kept, and a cut is logged with its file.
func TestNoStagedRowGoesInSilence(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	for i := range 3 {
		h.must(h.stage(s, "t", i+1))
	}
	h.must(s.Close())
	const name = "0000000000000000.staged"
	whole, err := readAll(h.fs, h.fs.PathJoin("staging", name))
	h.must(err)
	begins := map[int]bool{len(staging.FileMagic): true} // of records: nothing is seen to be missing
	for b := whole[len(staging.FileMagic):]; len(b) > 0; {
		_, b, err = staging.CutRecord(b)
		h.must(err)
		begins[len(whole)-len(b)] = true
	}
	open := func(b []byte) (kept, lost bool, logged string) {
		t.Helper()
		h := newHouse(t)
		h.put(name, b)
		checked, err := Check(h.fs, "staging")
		h.must(err)
		s := h.open(staging.Settings{})
		if c := checked[0]; len(checked) != 1 || c.Rows != len(h.values(s, "t")) || (c.Err != nil || c.Torn) != s.Lost(false) {
			t.Errorf("checked %+v, opened: %d rows, lost %v", *c, len(h.values(s, "t")), s.Lost(false))
		}
		defer func() { h.must(s.Close()) }()
		names, err := h.fs.List("staging")
		h.must(err)
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, damagedSuffix) }), s.Lost(true), h.logged.String()
	}
	for bit := range 8 * len(whole) {
		bad := slices.Clone(whole)
		bad[bit/8] ^= 1 << (bit % 8)
		if kept, lost, logged := open(bad); !kept || !lost || !strings.Contains(logged, name) {
			t.Errorf("bit %d of byte %d flipped: kept %v, lost %v, logged %q", bit%8, bit/8, kept, lost, logged)
		}
	}
	for at := range whole {
		if _, lost, logged := open(whole[:at]); !begins[at] && (!lost || !strings.Contains(logged, name)) {
			t.Errorf("cut at %d of %d: lost %v, logged %q", at, len(whole), lost, logged)
		}
	}
	if _, lost, _ := open(whole[:len(staging.FileMagic)]); !lost {
		t.Error("nothing is lost of an announced log that is empty")
	}
	if _, lost, _ := open(whole); lost {
		t.Error("a whole log lost something")
	}
}

// put writes a file beside the log.
func (h *house) put(name string, b []byte) {
	h.t.Helper()
	h.must(h.fs.MkdirAll("staging", 0o755))
	f, err := h.fs.Create(h.fs.PathJoin("staging", name), vfs.WriteCategoryUnspecified)
	h.must(err)
	_, err = f.Write(slices.Clone(b)) // a vfs.File may change the bytes it is given
	h.must(err)
	h.must(f.Close())
}

// TestALostLogOfStagedRowsIsNoticed: a file between two others is gone, or one that is kept for a person has the number of the next.
func TestALostLogOfStagedRowsIsNoticed(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	h.must(h.stage(s, "t", 1))
	h.must(s.Close())
	one, err := readAll(h.fs, h.fs.PathJoin("staging", "0000000000000000.staged"))
	h.must(err)

	h = newHouse(t)
	h.put("0000000000000005.staged", one)
	h.put("0000000000000006.staged", one)
	s = h.open(staging.Settings{})
	if s.Lost(true) {
		t.Error("two files that follow one another are taken for a loss")
	}
	h.must(s.Close())
	h.put("0000000000000008.staged", one) // the one with number 5 went, as another has its frame
	checked, err := Check(h.fs, "staging")
	h.must(err)
	s = h.open(staging.Settings{})
	if h.want(s, "t", 1); !s.Lost(true) || checked[0].Gap || !checked[1].Gap || checked[1].Rows != 1 {
		t.Errorf("lost %v, checked %+v and %+v", s.Lost(true), *checked[0], *checked[1])
	}
	h.must(s.Close())

	h = newHouse(t)
	h.put("0000000000000000.damaged", one[:20])
	s = h.open(staging.Settings{})
	h.must(h.stage(s, "t", 1))
	h.must(s.Close())
	if names, err := h.fs.List("staging"); err != nil || !slices.Contains(names, "0000000000000001.staged") || slices.Contains(names, "0000000000000000.staged") {
		t.Errorf("the log goes on as %v, %v: a second damaged file of the number could not be kept", names, err)
	}
}

// TestStagedRowsAreNotAckedBeforeReadersCanFindThem: without its announcement, its fsync or room a frame is refused, and is not there.
func TestStagedRowsAreNotAckedBeforeReadersCanFindThem(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{BytesMax: 250})
	refused := func(what string, n int) {
		t.Helper()
		if err := h.stage(s, "t", n); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", what, err)
		}
		h.want(s, "t")
	}
	h.deaf = fault.Errorf(fault.Unavailable, "the store is away")
	refused("the coordination store is away", 1)
	h.deaf, h.full = nil, fault.Errorf(fault.Unavailable, "the disk is full")
	refused("the disk is full", 1)
	h.full = nil
	h.must(h.stage(s, "t", 1))
	h.must(h.stage(s, "t", 1)) // sent again: held once
	h.want(s, "t", 1)
	var err error
	n := 2
	for ; err == nil && n < 10; n++ {
		err = h.stage(s, "t", n)
	}
	if !fault.Is(err, fault.Unavailable) || n > 4 {
		t.Errorf("%d frames in 250 bytes: %v", n, err)
	}
	h.must(s.Close())
	if err := h.stage(s, "t", 9); !fault.Is(err, fault.Unavailable) {
		t.Errorf("closed: %v", err)
	}
}

// TestStagingGoesOnWhileFramesAreAlwaysHeld: the log loses its oldest files although it is never empty.
func TestStagingGoesOnWhileFramesAreAlwaysHeld(t *testing.T) {
	h := newHouse(t)
	const most = 1 << 20
	s := h.open(staging.Settings{BytesMax: most})
	rows := 4096
	for n := range 300 {
		table, of, f := row("t", n+1)
		for i := range rows {
			f.IDs, f.Times, f.Values = append(f.IDs, 0), append(f.Times, point.Nanos(n*rows+i)), append(f.Values, math.Sqrt(float64(n*rows+i)))
		}
		if err := s.Stage(t.Context(), table, 1, of, f); err != nil {
			t.Fatalf("frame %d, with %d bytes in the log: %v", n, s.journal.bytes(), err)
		}
		if n > 0 {
			h.must(s.Forget(idOf(n)))
		}
		if b := s.journal.bytes(); b > most {
			t.Fatalf("after frame %d the log takes %d bytes, for one frame", n, b)
		}
	}
	h.must(s.Close())
	s = h.open(staging.Settings{BytesMax: most})
	if n := len(h.values(s, "t")); n != rows+1 {
		t.Errorf("%d rows are staged", n)
	}
	h.must(s.Close())
}

// TestAnOverwriteThatIsStagedWins: of two staged values at one time the one with the higher rank is read, and within a frame the later one.
func TestAnOverwriteThatIsStagedWins(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	l := []point.Labels{point.MakeLabels("__name__", "m")}
	put := func(n int, values ...float64) {
		t.Helper()
		f := &frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: point.Stamp(n << 10), Defs: l}
		for _, v := range values {
			f.IDs, f.Times, f.Values = append(f.IDs, 0), append(f.Times, 5), append(f.Values, v)
		}
		h.must(s.Stage(t.Context(), "t", 1, &peer.Staging{Do: peer.Stage, Nonce: uint64(n), Holders: []string{"a"}}, f))
	}
	put(2, 3, 4)
	put(1, 9)
	h.want(s, "t", 4)
	put(3, math.Float64frombits(0x7ff0000000000002)) // a stale marker never beats a value
	h.want(s, "t", 4)
	h.must(s.Close())
}

// leaderless are ways in a cluster in which the leader accepts rows or not.
type leaderless struct {
	mu     sync.Mutex
	m      *topology.Map
	begun  uint64
	leaves bool
	held   []uint64 // nonces of frames that another server staged
	err    error
	gate   chan struct{} // frames wait at the leader until it is closed; nil: they do not
	waits  int           // so many do
	taken  []float64
	ranks  []point.Stamp
}

func (l *leaderless) Map(string) (*topology.Map, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.m, l.begun
}
func (l *leaderless) Leaving() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaves
}
func (l *leaderless) Cover(context.Context, string, []point.Nanos) error            { return nil }
func (l *leaderless) Leader(string, *topology.Partition) (topology.ServerID, error) { return "b", nil }
func (l *leaderless) Live(topology.ServerID) bool                                   { return true }
func (l *leaderless) Began(topology.ServerID) time.Time                             { return time.Time{} }
func (l *leaderless) Others() []topology.ServerID                                   { return []topology.ServerID{"b"} }
func (l *leaderless) Server(topology.ServerID) (peer.Storage, bool)                 { return leaderStorage{l: l}, true }

type leaderStorage struct {
	peer.Storage
	l *leaderless
}

func (s leaderStorage) OpenStream(context.Context, string) (peer.Stream, error) {
	return &leaderStream{s.l}, nil
}

type leaderStream struct{ l *leaderless }

func (s *leaderStream) Define(context.Context, []peer.Def) error { return nil }
func (s *leaderStream) Close() error                             { return nil }
func (s *leaderStream) Insert(_ context.Context, in *peer.Insert) error {
	s.l.mu.Lock()
	if gate := s.l.gate; gate != nil && in.Staging.Do != peer.Forget {
		s.l.waits++
		s.l.mu.Unlock()
		<-gate
		s.l.mu.Lock()
	}
	defer s.l.mu.Unlock()
	switch {
	case in.Staging == nil:
		return errors.New("rows that were staged come as if they were not")
	case in.Staging.Do == peer.Forget:
		return nil
	case in.Staging.Do == peer.Stage:
		s.l.held = append(s.l.held, in.Staging.Nonce)
		return nil
	case s.l.err == nil && in.MapSeq < s.l.begun: // a table made anew never has a partition of the number of an earlier one
		return fault.Errorf(fault.Stale, "there is no partition %d", in.Partition)
	case s.l.err == nil:
		s.l.taken, s.l.ranks = append(s.l.taken, in.Values...), append(s.l.ranks, in.Stamp)
	}
	return s.l.err
}

func (l *leaderless) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// madeAnew has the table dropped and made again. The leader accepts rows by maps of the new one.
func (l *leaderless) madeAnew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m = l.m.Cover([]point.Nanos{point.Nanos(2 * time.Hour)}, func(point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: 2, Server: "b"}}
	})
	l.begun, l.err = l.m.Seq, nil
}

// serve runs a store among servers of which the leader accepts rows or not.
func (h *house) serve() (s *Store, l *leaderless, stop func()) {
	h.t.Helper()
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour})
	h.must(err)
	l = &leaderless{err: fault.Errorf(fault.Unavailable, "away"), m: m.Cover([]point.Nanos{1}, func(point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: 1, Server: "b"}}
	})}
	s = h.open(staging.Settings{})
	s.deps.Ways, s.out = l, deliver.New(l)
	ctx, cancel := context.WithCancel(h.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, l, func() {
		cancel()
		h.must(<-ended)
		h.must(s.Close())
	}
}

func (h *house) await(what string, ok func() bool) {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatal("never: ", what)
		}
	}
}

// TestStagedRowsReachTheirLeader when it is there again, with their rank, and are staged until then. A frame that it refuses for good is kept in a file.
func TestStagedRowsReachTheirLeader(t *testing.T) {
	h := newHouse(t)
	s, l, stop := h.serve()
	h.must(h.stage(s, "t", 1))
	h.must(h.stage(s, "t", 2))
	h.want(s, "t", 1, 2)
	l.set(nil)
	h.await("both are forwarded", func() bool { return len(h.values(s, "t")) == 0 })
	l.mu.Lock()
	slices.Sort(l.taken)
	slices.Sort(l.ranks)
	if !slices.Equal(l.taken, []float64{1, 2}) || !slices.Equal(l.ranks, []point.Stamp{1 << 10, 2 << 10}) {
		t.Errorf("the leader took %v with ranks %v", l.taken, l.ranks)
	}
	l.mu.Unlock()
	l.set(fault.Errorf(fault.Invalid, "never"))
	h.must(h.stage(s, "t", 3))
	h.await("the third is set aside", func() bool { return len(h.values(s, "t")) == 0 })
	stop()
	b, err := readAll(h.fs, h.fs.PathJoin("staging", fmt.Sprintf("%016x-%016x.aside", 3<<10, 3)))
	h.must(err)
	if r, _, err := staging.CutRecord(b[len(staging.FileMagic):]); err != nil || r.Frame.ID != idOf(3) {
		t.Errorf("set aside is %+v, %v", r, err)
	}
}

// TestADroppedTableStaysEmpty: rows that were staged for it are gone with it, and are not forwarded to a table that has its name later, by a server that comes back
// after that either.
func TestADroppedTableStaysEmpty(t *testing.T) {
	h := newHouse(t)
	s, l, stop := h.serve()
	h.must(h.stage(s, "t", 1)) // by map 1
	h.want(s, "t", 1)
	before := h.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	l.madeAnew()
	h.await("the row is gone", func() bool { return len(h.values(s, "t")) == 0 })
	if err := h.stage(s, "t", 2); !fault.Is(err, fault.Unavailable) { // of a gateway that does not know it yet
		t.Errorf("a row by a map of the table that was dropped: %v", err)
	}
	stop()
	h.fs = before
	again, l2, stop := h.serve()
	h.want(again, "t", 1)
	l2.madeAnew()
	h.await("the row is gone at the server that was away", func() bool { return len(h.values(again, "t")) == 0 })
	stop()
	for _, l := range []*leaderless{l, l2} {
		if len(l.taken) > 0 {
			t.Errorf("the table that was made later has %v", l.taken)
		}
	}
}

// TestAServerThatLeavesHoldsNothing: it stages its rows elsewhere if their leader is away, accepts no more when it stops, and does not go on to announce rows.
func TestAServerThatLeavesHoldsNothing(t *testing.T) {
	h := newHouse(t)
	s, l, stop := h.serve()
	defer stop()
	alone := func(n int) {
		table, of, f := row("t", n)
		of.Holders = []string{"a"}
		h.must(s.Stage(t.Context(), table, 1, of, f))
	}
	alone(1)
	l.mu.Lock()
	l.leaves = true // it is drained
	l.mu.Unlock()
	h.await("the row is staged elsewhere", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.Contains(l.held, 1) && s.Bytes() == 0
	})
	alone(2)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h.must(s.Leave(ctx))
	if n := s.Bytes(); n != 0 {
		t.Errorf("it holds %d bytes", n)
	}
	h.mu.Lock()
	if len(h.announced) > 0 { // `server remove` would ask for --force
		t.Errorf("its row says that rows of %v are staged there", h.announced)
	}
	h.mu.Unlock()
	l.mu.Lock()
	slices.Sort(l.held)
	if held := slices.Compact(l.held); !slices.Equal(held, []uint64{1, 2}) || len(l.taken) > 0 {
		t.Errorf("another server holds frames %v, the leader has %v", held, l.taken)
	}
	l.mu.Unlock()
	if err := h.stage(s, "t", 3); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a server that stops stages a row: %v", err)
	}
}

// TestRowsOfADroppedTableAreNotReadInTheNextOneOfItsName although nothing has looked at them since.
func TestRowsOfADroppedTableAreNotReadInTheNextOneOfItsName(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	l := &leaderless{}
	s.deps.Ways = l
	h.must(h.stage(s, "t", 1))
	h.want(s, "t", 1)
	l.begun = 2
	h.want(s, "t")
	table, of, g := row("t", 2)
	h.must(s.Stage(t.Context(), table, 2, of, g))
	h.want(s, "t", 2)
	h.must(s.Close())
}

// giveAway is a frame's way to another server.
func (s *Store) giveAway(id staging.ID) error {
	return s.forgotten(func() []staging.ID {
		s.mu.machine.Forget(id)
		s.giveLocked(id)
		return []staging.ID{id}
	})
}

// TestAFrameThatIsStagedAgainWhileItIsForgottenKeepsNoFile: a gateway tries again while a deletion syncs the log, which a forget waits for. The frame of before was lost sight of: its file, and
// all that came after it, stayed until the next start.
func TestAFrameThatIsStagedAgainWhileItIsForgottenKeepsNoFile(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	h.must(h.stage(s, "t", 1))
	s.forgetting.Lock()
	forgotten := make(chan error, 1)
	go func() { forgotten <- s.Forget(idOf(1)) }()
	h.await("the forget waits", func() bool {
		stacks := make([]byte, 1<<20)
		return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*Store).forgotten("))
	})
	h.must(h.stage(s, "t", 1))
	s.forgetting.Unlock()
	h.must(<-forgotten)
	s.mu.Lock()
	known, held := s.mu.machine.Len(), len(s.mu.held)
	s.mu.Unlock()
	live := 0
	s.journal.mu.Lock()
	for _, f := range s.journal.mu.files {
		live += f.live
	}
	s.journal.mu.Unlock()
	if known != held || live != held {
		t.Errorf("%d frames are to be forwarded, %d are held, and files are kept for %d", known, held, live)
	}
	h.must(s.Close())
}

// TestTimesAreOfAllThatIsRead: servers evaluate the steps that these times do not touch without staged rows. Frames count from before their ack on until their leader
// acked them, also those that went to another server, as long as they are read here, and those of an earlier life.
func TestTimesAreOfAllThatIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		s := h.open(staging.Settings{})
		f := func(what string, lo, hi point.Nanos) {
			t.Helper()
			if gotLo, gotHi := s.Times("t"); gotLo != lo || gotHi != hi {
				t.Errorf("%s: %d to %d, want %d to %d", what, gotLo, gotHi, lo, hi)
			}
		}
		const none = math.MaxInt64
		h.must(h.stage(s, "u", 1))
		f("another table has a row", none, math.MinInt64)
		for _, n := range []int{5, 2, 9} {
			h.must(h.stage(s, "t", n))
		}
		f("three rows", 2, 9)
		h.must(s.Forget(idOf(2)))
		f("the first has left", 5, 9)
		h.must(s.giveAway(idOf(9)))
		f("the last is at another server, and still read here", 5, 9)
		time.Sleep(staging.ReadableFor + time.Millisecond)
		f("it is read there alone", 5, 5)
		h.must(s.Close())
		s = h.open(staging.Settings{})
		f("after a start", 5, 5)
		h.must(s.Delete(t.Context(), these(5)))
		f("the row was deleted", none, math.MinInt64)
		h.must(s.Close())
	})
}

// TestAFrameThatIsGivenAwayAgainStaysReadable: it came back from a server that left, and went to a third one. The first hand-over's time ended its reading
// here, when gateways did not know the third server yet: queries lacked its rows.
func TestAFrameThatIsGivenAwayAgainStaysReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		s := h.open(staging.Settings{})
		for range 2 {
			h.must(h.stage(s, "t", 1))
			h.must(s.giveAway(idOf(1)))
			time.Sleep(staging.ReadableFor * 2 / 3)
			h.want(s, "t", 1)
		}
		time.Sleep(staging.ReadableFor / 2)
		h.want(s, "t")
		h.must(s.Close())
	})
}

// TestAServerWithoutStagedRowsStopsSoonWithoutTheCoordinationStore: it waited for all the time that the forwarding of staged rows may have, also for an announcement that had begun before.
func TestAServerWithoutStagedRowsStopsSoonWithoutTheCoordinationStore(t *testing.T) {
	for _, another := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := newHouse(t)
			s := h.open(staging.Settings{})
			s.deps.Announce = func(ctx context.Context, _ []string) error {
				<-ctx.Done()
				return ctx.Err()
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			if another {
				go func() { ended <- s.retract(ctx, time.Now()) }()
				synctest.Wait()
			}
			began := time.Now()
			h.must(s.Leave(ctx))
			if lasted := time.Since(began); lasted > leaveRetract {
				t.Errorf("another one: %t: it left within %v", another, lasted)
			}
			stop()
			if another {
				<-ended
			}
			h.must(s.Close())
		})
	}
}
