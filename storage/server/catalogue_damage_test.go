package server_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// disk is all files of a store, as a test may alter them.
type disk map[string][]byte

func diskOf(t *testing.T, fs vfs.FS, dir string) disk {
	t.Helper()
	d := disk{}
	var walk func(dir string)
	walk = func(dir string) {
		names, err := fs.List(dir)
		must(t, err)
		for _, name := range names {
			path := fs.PathJoin(dir, name)
			st, err := fs.Stat(path)
			must(t, err)
			if st.IsDir() {
				walk(path)
				continue
			}
			f, err := fs.Open(path)
			must(t, err)
			d[path], err = io.ReadAll(f)
			must(t, err)
			must(t, f.Close())
		}
	}
	walk(dir)
	return d
}

// fs makes a file system with these files.
func (d disk) fs(t *testing.T) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewMem()
	for path, b := range d {
		must(t, fs.MkdirAll(fs.PathDir(path), 0o755))
		f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		must(t, err)
		_, err = f.Write(slices.Clone(b))
		must(t, err)
		must(t, f.Close())
	}
	return fs
}

// below lists the files below a directory that are not empty, sorted.
func (d disk) below(dir string) (paths []string) {
	for _, p := range slices.Sorted(maps.Keys(d)) {
		if strings.HasPrefix(p, dir+"/") && len(d[p]) > 0 {
			paths = append(paths, p)
		}
	}
	return paths
}

// segments are the names and bytes of all segments, in any directory.
func (d disk) segments() map[string]string {
	out := map[string]string{}
	for p, b := range d {
		if strings.HasSuffix(p, ".seg") && !strings.Contains(p, point.PlacementID(103).String()) { // that one was dropped
			parts := strings.FieldsFunc(p, func(r rune) bool { return r == '/' || r == '~' })
			out[strings.Join(parts[len(parts)-2:], "/")] = string(b)
		}
	}
	return out
}

// lived makes a store that was restarted twice: segments, a compaction, a deletion, a drop, new rows in the log. The last process
// was killed, or stopped.
func lived(t *testing.T, killed bool) (disk, oneMap, model) {
	fs := vfs.NewCrashableMem()
	maps, truth := newMap(t), model{}
	stamp := point.Stamp(1024)
	for life := range int64(3) {
		p := start(t, fs, maps, point.Epoch(life+1))
		w := newWriter(t, p.server)
		for i := range int64(4) {
			stamp += 1024
			at := (10*life + i) * 1e9
			w.insert(t, stamp, []row{{int(i), at, float64(i)}, {int(i + 1), at + 100e9, float64(life)}, {int(i), at + 200e9, 1}}, truth)
			if i < 3 {
				w.flush(t, life == 1 && i == 2)
			}
		}
		if life == 1 {
			must(t, p.server.DeleteSeries(context.Background(), &peer.Select{Table: "t", Lo: 100e9, Hi: 110e9, Matchers: []peer.Matcher{{Name: "i", Value: "2"}}}))
			for at := range truth[string(labelsOf(2))] {
				if at >= 100e9 && at <= 110e9 {
					delete(truth[string(labelsOf(2))], at)
				}
			}
		}
		if life == 2 {
			must(t, p.server.DropPartition("t", 3))
			for _, rows := range truth {
				for at := range rows {
					if at >= 200e9 {
						delete(rows, at)
					}
				}
			}
			if killed {
				image := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
				p.stop(t)
				return diskOf(t, image, "data"), maps, truth
			}
		}
		p.stop(t)
	}
	return diskOf(t, fs, "data"), maps, truth
}

// outcome is the result of opening and reading a damaged store.
type outcome int

const (
	whole outcome = iota
	refused
	closed
	silent
)

// ask opens a store and reads everything.
func ask(t *testing.T, fs vfs.FS, maps oneMap, truth model) (outcome, string) {
	t.Helper()
	p, err := open(fs, maps, 9)
	if err != nil {
		if !fault.Is(err, fault.Corrupt) || strings.Contains(err.Error(), "goroutine") {
			return silent, "a start that does not say what is damaged: " + err.Error()
		}
		return refused, err.Error()
	}
	defer p.stop(t)
	worst := whole
	for id := range point.PartitionID(3) {
		lo := int64(id) * 100e9
		want := truth.String(lo, lo+99e9, func(point.Labels) bool { return true })
		got, err := tryRead(p.server, &peer.Select{Table: "t", Lo: lo, Hi: lo + 99e9})
		switch {
		case fault.Is(err, fault.Corrupt):
			worst = max(worst, closed)
		case err != nil || got != want:
			return silent, fmt.Sprintf("partition %d: %v, read\n%swant\n%s", id+1, err, got, want)
		}
	}
	return worst, ""
}

// harm is one change of one file.
type harm struct {
	what string
	to   func(b []byte) []byte // nil: the file is gone
}

func flip(bit int) harm {
	return harm{fmt.Sprintf("bit %d flipped", bit), func(b []byte) []byte {
		b[bit/8] ^= 1 << (bit % 8)
		return b
	}}
}

func cutAt(n int) harm {
	return harm{fmt.Sprintf("cut at %d", n), func(b []byte) []byte { return b[:n] }}
}

// TestAckedRowsSurviveAFlippedBitInTheCatalogue: after a change of any bit, length or file of the catalogue, a read
// returns all acked rows or an error, and no segment is deleted.
func TestAckedRowsSurviveAFlippedBitInTheCatalogue(t *testing.T) {
	n := envInt(t, "CORRUPT", 150)
	seed := uint64(envInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d CORRUPT=%d go test -run %s ./storage/server", seed, n, t.Name())
	for _, killed := range []bool{false, true} {
		d, maps, truth := lived(t, killed)
		if what, why := ask(t, d.fs(t), maps, truth); what != whole {
			t.Fatalf("killed %t, unharmed: %d, %s", killed, what, why)
		}
		rng := rand.New(rand.NewPCG(seed, 5))
		var count [silent + 1]int
		try := func(path string, h harm) {
			t.Helper()
			what, why := harmed(t, d, path, h, maps, truth)
			count[what]++
			if what == silent {
				t.Errorf("killed %t, %s of %d bytes, %s: %s", killed, path, len(d[path]), h.what, why)
			}
		}
		for _, path := range d.below("data/catalogue") {
			size := len(d[path])
			before := count
			try(path, harm{"gone", nil})
			for range max(n/10, 2) {
				try(path, cutAt(rng.IntN(size)))
			}
			for range max(n/4, 5) {
				try(path, flip(rng.IntN(8*size)))
			}
			t.Logf("killed %t, %s: %d whole, %d refused", killed, path, count[whole]-before[whole], count[refused]-before[refused])
		}
		for range n {
			for _, path := range d.below("data/catalogue") {
				if strings.HasSuffix(path, ".log") {
					try(path, flip(rng.IntN(8*len(d[path]))))
				}
			}
		}
		t.Logf("killed %t: %d whole, %d refused, %d with a partition closed, %d silent", killed, count[whole], count[refused], count[closed], count[silent])
		if count[refused] == 0 {
			t.Error("nothing was refused: the test proves nothing")
		}
	}
}

func harmed(t *testing.T, d disk, path string, h harm, maps oneMap, truth model) (outcome, string) {
	t.Helper()
	bad := clone(d)
	if h.to == nil {
		delete(bad, path)
	} else {
		bad[path] = h.to(slices.Clone(d[path]))
	}
	fs := bad.fs(t)
	what, why := ask(t, fs, maps, truth)
	if what == silent {
		return what, why
	}
	after := diskOf(t, fs, "data").segments()
	for name, b := range d.segments() {
		if after[name] != b {
			return silent, "segment " + name + " is gone"
		}
	}
	return what, why
}

func clone(d disk) disk { return maps.Clone(d) }

// repair is `spillway repair`.
func repair(t *testing.T, fs vfs.FS, dryRun bool) *server.Repaired {
	t.Helper()
	r, err := server.Repair(brick.Deps{FS: fs}, brick.Settings{DataDir: "data", FreeBytesMin: 1}, dryRun)
	must(t, err)
	return r
}

// TestARepairedCatalogueGivesAllRowsBack: exactly from the mirror; if that is gone as well, from segments and log,
// without the rows that were deleted, and as another store.
func TestARepairedCatalogueGivesAllRowsBack(t *testing.T) {
	n := envInt(t, "CORRUPT", 150) / 5
	seed := uint64(envInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d CORRUPT=%d go test -run %s ./storage/server", seed, 5*n, t.Name())
	rng := rand.New(rand.NewPCG(seed, 6))
	for _, killed := range []bool{false, true} {
		d, maps, truth := lived(t, killed)
		exact := 0
		for i := range n {
			bad := clone(d)
			paths := d.below("data/catalogue")
			path := paths[rng.IntN(len(paths))]
			if path, all := "data/catalogue.mirror", i%2 == 1; all {
				delete(bad, path)
			}
			if i%8 == 7 {
				for _, p := range paths {
					delete(bad, p)
				}
			}
			if len(bad[path]) > 0 {
				bad[path] = flip(rng.IntN(8 * len(bad[path]))).to(slices.Clone(bad[path]))
			}
			fs := bad.fs(t)
			what, why := ask(t, fs, maps, truth)
			if what == silent {
				t.Fatalf("killed %t, %s, mirror gone %t: %s", killed, path, i%2 == 1, why)
			}
			if what == whole {
				continue
			}
			before := diskOf(t, fs, "data")
			plan := repair(t, fs, true)
			if after := diskOf(t, fs, "data"); len(after) != len(before) {
				t.Fatalf("a dry run made %d files of %d", len(after), len(before))
			}
			r := repair(t, fs, false)
			if !r.Changed || r.Lossy() || plan.Exact != r.Exact || r.Exact == r.NewStore || i%2 == 1 == r.Exact {
				t.Fatalf("killed %t, %s, mirror gone %t: %+v", killed, path, i%2 == 1, r)
			}
			if r.Exact {
				exact++
			}
			if what, why := ask(t, fs, maps, truth); what != whole {
				t.Fatalf("killed %t, %s, mirror gone %t, repaired exactly %t: %d %s", killed, path, i%2 == 1, r.Exact, what, why)
			}
			if again := repair(t, fs, false); again.Changed || again.Lossy() {
				t.Fatalf("there was something left to repair: %+v", again)
			}
			warned(t, fs, maps, !r.Exact)
			accepted, err := server.AcceptRebuilt(brick.Deps{FS: fs}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
			if must(t, err); r.Exact != (accepted == "") {
				t.Fatalf("repaired exactly %t, accepted %q", r.Exact, accepted)
			}
			warned(t, fs, maps, false)
		}
		t.Logf("killed %t: %d of %d repaired exactly", killed, exact, n)
	}
}

// TestARepairOfAWholeStoreLeavesItsRowsReadable: a repair of a store that was killed, and lacked nothing, counted frames as lost, closed their
// partition and gave the store a new identity.
func TestARepairOfAWholeStoreLeavesItsRowsReadable(t *testing.T) {
	fs, maps, truth := vfs.NewCrashableMem(), newMap(t), model{}
	p := start(t, fs, maps, 1)
	w, stamp := newWriter(t, p.server), point.Stamp(1024)
	for i := range int64(2000) { // enough records that some start at the end of a block
		stamp += 1024
		w.insert(t, stamp, []row{{int(i % 7), i * 1e7, float64(i)}}, truth)
	}
	image := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	p.stop(t)
	if r := repair(t, image, false); r.Changed || r.Lossy() || r.NewStore {
		t.Errorf("there was something to repair: %+v", r)
	}
	if what, why := ask(t, image, maps, truth); what != whole {
		t.Fatal(what, why)
	}
}

// warned opens a store and checks whether it reports an inexact rebuild.
func warned(t *testing.T, fs vfs.FS, maps oneMap, want bool) {
	t.Helper()
	p, err := open(fs, maps, 9)
	must(t, err)
	defer p.stop(t)
	if text := p.server.Rebuilt(); (text != "") != want {
		t.Fatalf("rebuilt: %q", text)
	}
}

// TestAckedRowsAreMissedWhenTheLogIsShortened: when the newest file of the log is cut to any length, the missing acked
// rows are noticed; and a damaged copy of a whole store is no reason to refuse it.
func TestAckedRowsAreMissedWhenTheLogIsShortened(t *testing.T) {
	d, maps, truth := lived(t, true)
	logs := d.below("data/log")
	newest := logs[len(logs)-2] // behind it comes STORE
	size := len(d[newest])
	for n := 0; n < size; n += 1 + size/150 {
		if what, why := harmed(t, d, newest, cutAt(n), maps, truth); what != refused || !strings.Contains(why, "damaged") {
			t.Errorf("%s of %d bytes cut at %d: %d %s", newest, size, n, what, why)
		}
	}
	if what, why := harmed(t, d, newest, harm{"gone", nil}, maps, truth); what != refused {
		t.Errorf("%s gone: %d %s", newest, what, why)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, path := range []string{"data/WITNESS", "data/catalogue.mirror"} {
		for i := range 40 {
			n := rng.IntN(len(d[path]))
			h := flip(8*n + i%8)
			if i%4 == 0 {
				h = cutAt(n)
			}
			if what, why := harmed(t, d, path, h, maps, truth); what != whole {
				t.Errorf("%s %s: %d %s", path, h.what, what, why)
			}
		}
		if what, why := harmed(t, d, path, harm{"gone", nil}, maps, truth); what != whole {
			t.Errorf("%s gone: %d %s", path, what, why)
		}
	}
}

func tryRead(s *server.Server, q *peer.Select) (string, error) {
	set, err := s.Select(context.Background(), q)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for set.Next() {
		x := set.At()
		fmt.Fprintf(&b, "%v", x.Labels)
		for i, at := range x.Times {
			fmt.Fprintf(&b, " %d:%x", at, math.Float64bits(x.Values[i]))
		}
		b.WriteByte('\n')
	}
	if err := set.Err(); err != nil {
		_ = set.Close()
		return "", err
	}
	return b.String(), set.Close()
}
