package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/server"
)

// TestPowerCutsLoseNothingAcked runs inserts, deletions, drops, metadata, flushes and compactions side by side and checks images of power
// cuts at random moments, with all or nothing of the bytes not fsynced: the image opens, every acked row is there with its value, deleted
// rows stay deleted, dropped partitions dropped, and nothing is invented. CRASH_IMAGES sets how many images (default 60), TEST_SEED which
// ones.
func TestPowerCutsLoseNothingAcked(t *testing.T) {
	images, seed := envInt(t, "CRASH_IMAGES", 60), uint64(envInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d CRASH_IMAGES=%d go test -run %s ./storage/server", seed, images, t.Name())
	var total load
	for round := uint64(0); images > 0 && !t.Failed(); round++ {
		n := min(images, 100) // then a new store: an image should hold no more than the test needs
		images -= n
		w := newWorkload(t, seed+round<<32, func(fs vfs.FS) vfs.FS { return fs })
		w.run(n)
		total.add(&w.load)
	}
	t.Logf("%d inserts, %d deletions, %d drops, %d flushes, of them %d with compaction", total.inserts.Load(), total.deletions.Load(),
		total.drops.Load(), total.flushes.Load(), total.compactions.Load())
	if !total.heavy() {
		t.Error("the load was too light to prove anything")
	}
}

func envInt(t *testing.T, name string, def int) int {
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s=%s: %v", name, s, err)
	}
	return n
}

// load counts the operations.
type load struct{ inserts, deletions, drops, flushes, compactions atomic.Int64 }

// heavy reports whether every operation was done at least once.
func (l *load) heavy() bool {
	return l.inserts.Load() > 0 && l.deletions.Load() > 0 && l.drops.Load() > 0 && l.compactions.Load() > 0
}

func (l *load) add(o *load) {
	l.inserts.Add(o.inserts.Load())
	l.deletions.Add(o.deletions.Load())
	l.drops.Add(o.drops.Load())
	l.flushes.Add(o.flushes.Load())
	l.compactions.Add(o.compactions.Load())
}

// workload is a server and its users. Each user owns its series, so that it alone decides the order of operations on them.
type workload struct {
	t    *testing.T
	fs   *vfs.MemFS
	maps oneMap
	seed uint64
	process
	load load

	refusals bool // operations may fail, because the disk does

	clock atomic.Int64 // counts beginnings and ends; stamps them
	stamp atomic.Uint64
	turn  sync.RWMutex // stops the users while an image is checked

	users    []*user
	families family // of metadata
}

// stamps of something: when it began and, if it has, when it was acked.
type span struct{ began, acked int64 }

// version is the result of one operation for a row: a value, or nothing.
type version struct {
	*span
	value float64
	gone  bool
}

// key is a row: its series and time.
type key struct {
	series int
	at     int64
}

type family struct {
	mu   sync.Mutex
	puts []*span // of metric_0, metric_1, …
}

// user does one thing after the other to its own series.
type user struct {
	w       *workload
	rng     *rand.Rand
	to      *writer
	first   int // its series are first … first+4
	lo, hi  int64
	rows    map[key][]version
	written float64
}

const mapPartitions = 64

// newWorkload opens a server on wrap of a file system in memory.
func newWorkload(t *testing.T, seed uint64, wrap func(vfs.FS) vfs.FS) *workload {
	m, err := topology.New("t", topology.Config{PartitionWidth: 100 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var times []point.Nanos
	for i := range int64(mapPartitions) {
		times = append(times, i*100e9)
	}
	w := &workload{t: t, fs: vfs.NewCrashableMem(), seed: seed, maps: oneMap{m.Cover(times, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(100 + p), Server: "s1"}}
	})}}
	w.process, err = open(wrap(w.fs), w.maps, 1)
	if err != nil {
		t.Fatal(err)
	}
	w.stamp.Store(1 << 20)
	for i := range 3 {
		w.users = append(w.users, &user{w: w, rng: rand.New(rand.NewPCG(seed, uint64(i))), first: 5 * i, hi: 300e9, rows: map[key][]version{}})
	}
	return w
}

func open(fs vfs.FS, maps server.Maps, epoch point.Epoch) (process, error) {
	log := slog.New(slog.DiscardHandler)
	b, err := brick.Open(brick.Deps{FS: fs, Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1, FileBytesMax: 64 << 10})
	if err != nil {
		return process{}, err
	}
	s, err := server.Open(context.Background(), server.Deps{Brick: b, Maps: maps, Log: log, Registerer: prometheus.NewRegistry()},
		server.Settings{Server: "s1", Epoch: epoch, Partition: partition.Settings{MinorsMax: 3}})
	if err != nil {
		return process{}, errors.Join(err, b.Close())
	}
	return process{b, s}, nil
}

// start starts the users; the result ends them.
func (w *workload) start() (end func()) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(step func()) {
		wg.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
					w.underTurn(step)
				}
			}
		})
	}
	for _, u := range w.users {
		u.to = newWriter(w.t, w.server)
		u.to.again = w.next
		u.to.m = w.maps.m
		loop(u.step)
	}
	rng := rand.New(rand.NewPCG(w.seed, 100))
	d := w.newDropper()
	loop(d.step)
	loop(w.describe)
	loop(func() {
		time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond) // the pace of flushes beside the load
		compact := rng.IntN(3) == 0
		if !w.done(w.server.FlushAll(context.Background(), compact)) {
			return
		}
		w.load.flushes.Add(1)
		if compact {
			w.load.compactions.Add(1)
		}
	})
	return func() {
		close(quit)
		wg.Wait()
	}
}

// run makes and checks n images, and more on a machine so slow that by then not everything was done once.
func (w *workload) run(n int) {
	end := w.start()
	moments := rand.New(rand.NewPCG(w.seed, 101))
	for i := 0; (i < n || !w.load.heavy() && i < n+1000) && !w.t.Failed(); i++ {
		time.Sleep(time.Duration(moments.IntN(4000)) * time.Microsecond)
		before := w.clock.Load()
		image := w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: i % 2 * 100, RNG: moments})
		after := w.clock.Load()
		w.turn.Lock()
		if err := w.check(image, before, after, i%10 == 0); err != nil {
			w.t.Errorf("image %d, %d %% of unsynced data kept: %v", i, i%2*100, err)
		}
		w.turn.Unlock()
	}
	end()
	w.stop(w.t)
}

func (w *workload) underTurn(step func()) {
	w.turn.RLock()
	defer w.turn.RUnlock() // also when the step ends the test
	step()
}

// done reports whether an operation went well.
func (w *workload) done(err error) bool {
	if err != nil && !w.refusals {
		w.t.Error(err)
	}
	return err == nil
}

// inserted reports whether rows were acked.
func (u *user) inserted(rows []row) (ok bool) {
	if !u.w.refusals {
		u.to.insert(u.w.t, u.w.next(), rows, model{})
		return true
	}
	defer func() {
		if r := recover(); r != nil {
			if _, of := r.(insertRefused); !of {
				panic(r)
			}
			ok = false
		}
	}()
	u.to.insert(insertRefused{}, u.w.next(), rows, model{})
	return true
}

// insertRefused ends an insert that fails.
type insertRefused struct{}

// Fatal implements fataler.
func (r insertRefused) Fatal(...any) { panic(r) }

// begin stamps the beginning of an operation; ack its end.
func (w *workload) begin() *span      { return &span{began: w.clock.Add(1)} }
func (w *workload) ack(s *span)       { s.acked = w.clock.Add(1) }
func (w *workload) next() point.Stamp { return point.Stamp(w.stamp.Add(1024)) }

// step inserts mostly and deletes sometimes.
func (u *user) step() {
	if u.rng.IntN(25) == 0 {
		u.delete()
	} else {
		u.insert()
	}
}

func (u *user) insert() {
	s := u.w.begin()
	rows := make([]row, 1+u.rng.IntN(20))
	for i := range rows {
		u.written += 0.5
		rows[i] = row{u.first + u.rng.IntN(5), u.lo + u.rng.Int64N(u.hi-u.lo)/1e9*1e9, u.written}
		k := key{rows[i].series, rows[i].at}
		u.rows[k] = append(u.rows[k], version{span: s, value: u.written})
	}
	if !u.inserted(rows) {
		return
	}
	u.w.ack(s)
	u.w.load.inserts.Add(1)
}

func (u *user) delete() {
	s := u.w.begin()
	series, lo := u.first+u.rng.IntN(5), u.lo+u.rng.Int64N(u.hi-u.lo)
	hi := lo + u.rng.Int64N(100e9)
	for k := range u.rows {
		if k.series == series && k.at >= lo && k.at <= hi {
			u.rows[k] = append(u.rows[k], version{span: s, gone: true})
		}
	}
	if !u.w.done(u.w.server.DeleteSeries(context.Background(), &peer.Select{Table: "t", Lo: lo, Hi: hi, Matchers: []peer.Matcher{{Name: "i", Value: fmt.Sprint(series)}}})) {
		return
	}
	u.w.ack(s)
	u.w.load.deletions.Add(1)
}

// dropper fills one partition after the other and drops it.
type dropper struct {
	*user
	partition point.PartitionID
}

func (w *workload) newDropper() *dropper {
	u := &user{w: w, rng: rand.New(rand.NewPCG(w.seed, 50)), first: 100, rows: map[key][]version{}}
	u.to = newWriter(w.t, w.server)
	u.to.again = w.next
	u.to.m = w.maps.m
	w.users = append(w.users, u)
	d := &dropper{user: u, partition: 3}
	d.forward()
	return d
}

func (d *dropper) forward() {
	d.partition++
	p, _ := d.w.maps.m.ByID(d.partition)
	d.lo, d.hi = p.TimeLo, p.TimeHi
}

func (d *dropper) step() {
	time.Sleep(time.Duration(d.rng.IntN(2000)) * time.Microsecond) // the pace of drops beside the load
	if d.partition == mapPartitions {
		return
	}
	if r, err := d.w.brick.RemoveSome(); !d.w.done(err) || r.More && d.rng.IntN(2) == 0 {
		return
	}
	if d.rng.IntN(20) != 0 {
		d.insert()
		return
	}
	s := d.w.begin()
	for k, vs := range d.rows {
		if k.at >= d.lo {
			d.rows[k] = append(vs, version{span: s, gone: true})
		}
	}
	if !d.w.done(d.w.server.DropPartition("t", d.partition)) {
		return
	}
	d.w.ack(s)
	d.w.load.drops.Add(1)
	d.forward()
}

// describe puts a new metric family.
func (w *workload) describe() {
	time.Sleep(2 * time.Millisecond) // the pace of families beside the load
	w.families.mu.Lock()
	s, n := w.begin(), len(w.families.puts)
	w.families.puts = append(w.families.puts, s)
	w.families.mu.Unlock()
	if w.done(w.server.PutMetadata(context.Background(), "t", []point.MetadataRow{{Metric: fmt.Sprint("metric_", n), Type: "gauge"}})) {
		w.ack(s)
	}
}

// check opens an image that was made between two readings of the clock and compares it with the operations. on: the
// store is then used further, compacted, and checked again.
func (w *workload) check(image *vfs.MemFS, before, after int64, on bool) error {
	p, err := open(image, w.maps, 2)
	if err != nil {
		return err
	}
	defer p.stop(w.t)
	if err := w.holds(p.server, before, after, 0); err != nil || !on {
		return err
	}
	p.removeDropped(w.t)
	if err := w.onlyKnown(p); err != nil {
		return err
	}
	// A row of a series of its own, in a partition of the others.
	to := newWriter(w.t, p.server)
	to.again = w.next
	to.insert(w.t, w.next(), []row{{999, 1e9, 7}}, model{})
	if err := p.server.FlushAll(context.Background(), true); err != nil {
		return fmt.Errorf("going on with the image: %w", err)
	}
	return w.holds(p.server, before, after, 1)
}

// onlyKnown finds directories of no placement, and placements that lost theirs.
func (w *workload) onlyKnown(p process) error {
	var errs []error
	if ids, err := partition.Dropping(p.brick); len(ids) > 0 || err != nil {
		errs = append(errs, fmt.Errorf("notes of dropped placements are left: %v, %w", ids, err))
	}
	names, _ := p.brick.FS().List(p.brick.FS().PathDir(p.brick.SegmentDir(0))) // none: nothing was flushed
	for _, name := range names {
		id, err := strconv.ParseUint(name, 16, 64)
		at, ok := p.server.Placement(lease.Partition{Table: "t", ID: point.PartitionID(id - 100)})
		if err != nil || !ok || at.Identity().Placement != point.PlacementID(id) {
			errs = append(errs, fmt.Errorf("directory %s is of no placement", name))
		}
	}
	return errors.Join(errs...)
}

// holds compares all rows that are read with all operations. extra is how many rows were added to the image.
func (w *workload) holds(s *server.Server, before, after int64, extra int) error {
	got, err := everything(s)
	if err != nil {
		return err
	}
	return errors.Join(w.right(got, before, after, extra), w.described(s, before))
}

// right compares rows with all operations.
func (w *workload) right(got map[key]float64, before, after int64, extra int) error {
	var errs []error
	known := 0
	for _, u := range w.users {
		for k, versions := range u.rows {
			v, there := got[k]
			if there {
				known++
			}
			if !allowed(versions, before, after, v, there) {
				errs = append(errs, fmt.Errorf("series %d at %d: read %v (there: %t), at clock %d to %d; done: %s", k.series, k.at, v, there, before, after, versionsText(versions)))
			}
		}
	}
	if len(got) != known+extra {
		errs = append(errs, fmt.Errorf("%d rows, of which %d were never written", len(got), len(got)-known-extra))
	}
	return errors.Join(errs[:min(len(errs), 5)]...)
}

// allowed reports whether a row may have this value: that of the last operation acked before the image, or of one that
// had begun by its end.
func allowed(versions []version, before, after int64, value float64, there bool) bool {
	last := -1
	for i, v := range versions {
		if v.acked != 0 && v.acked <= before {
			last = i
		}
	}
	if last < 0 && !there {
		return true
	}
	for i := max(last, 0); i < len(versions) && versions[i].began <= after; i++ {
		v := versions[i]
		if i+1 < len(versions) && versions[i+1].span == v.span {
			continue // of one insert the later row wins
		}
		if v.gone == !there && (v.gone || v.value == value) {
			return true
		}
	}
	return false
}

func versionsText(vs []version) (s string) {
	for _, v := range vs {
		s += fmt.Sprintf(" [%d-%d %v %t]", v.began, v.acked, v.value, v.gone)
	}
	return s
}

func (w *workload) described(s *server.Server, before int64) error {
	rows, err := s.GetMetadata(context.Background(), "t", "")
	if err != nil {
		return err
	}
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.Metric
	}
	for i, put := range w.families.puts {
		if put.acked != 0 && put.acked <= before && !slices.Contains(names, fmt.Sprint("metric_", i)) {
			return fmt.Errorf("metadata of metric_%d is lost", i)
		}
	}
	return nil
}

// everything reads the whole table.
func everything(s *server.Server) (map[key]float64, error) {
	set, err := s.Select(context.Background(), &peer.Select{Table: "t", Lo: 0, Hi: mapPartitions * 100e9})
	if err != nil {
		return nil, err
	}
	defer set.Close()
	got := map[key]float64{}
	seen := map[point.Labels]bool{}
	for set.Next() {
		x := set.At()
		if seen[x.Labels] {
			return nil, fmt.Errorf("series %v comes twice", x.Labels)
		}
		seen[x.Labels] = true
		series, err := strconv.Atoi(x.Labels.Get("i"))
		if err != nil {
			return nil, err
		}
		if !slices.IsSorted(x.Times) || len(slices.Compact(slices.Clone(x.Times))) != len(x.Times) {
			return nil, fmt.Errorf("series %v: times do not rise: %v", x.Labels, x.Times)
		}
		maps.Insert(got, func(yield func(key, float64) bool) {
			for i, at := range x.Times {
				if !yield(key{series, at}, x.Values[i]) {
					return
				}
			}
		})
	}
	return got, set.Err()
}
