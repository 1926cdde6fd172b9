package backup

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/storage/brick"
)

// cuts keeps the files that are left when a process ends before each write of a file system: by a kill, where 100 percent of what is not durable is there, or by a power cut.
type cuts struct {
	mem      *vfs.MemFS
	percents []int

	mu   sync.Mutex
	left []cut
}

type cut struct {
	at string
	fs *vfs.MemFS
}

// MaybeError implements errorfs.Injector.
func (c *cuts) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose || op.Kind == errorfs.OpLock {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.left) / len(c.percents)
	for _, percent := range c.percents {
		fs := c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(1, uint64(n)))})
		c.left = append(c.left, cut{fmt.Sprintf("write %d, to %s, %d%% of what is not durable is there", n, op.Path, percent), fs})
	}
	return nil
}

func (c *cuts) String() string { return "cuts" }

// someSegments are files of a store.
func someSegments(t *testing.T, fs vfs.FS) (all []Segment) {
	t.Helper()
	for i := range 3 {
		rows := bytes.Repeat([]byte{byte(i)}, 1000+i)
		g := Segment{Placement: 42, Epoch: 1, Seq: uint64(i + 1), Size: int64(len(rows)), Checksum: xxhash.Sum64(rows), Path: fmt.Sprintf("/rows%d", i)}
		if err := writeFile(fs, g.Path, bytes.NewReader(rows)); err != nil {
			t.Fatal(err)
		}
		all = append(all, g)
	}
	return all
}

// TestARestoreThatIsKilledGoesOn cuts a restore at each of its writes: the same command makes the whole store of the files there.
func TestARestoreThatIsKilledGoesOn(t *testing.T) {
	mem := vfs.NewCrashableMem()
	segments := someSegments(t, mem)
	from := Dir{FS: mem, Path: "/bk"}
	entry := Entry{Key: []byte("p/000000000000002a"), Value: []byte("placement 42")}
	made, err := Write(t.Context(), mem, from, &Content{Store: "s", Segments: segments, Entries: []Entry{entry}}, time.Unix(1, 0), Settings{})
	if err != nil {
		t.Fatal(err)
	}
	where := brick.Settings{DataDir: "/data", FreeBytesMin: 1}
	restore := func(fs vfs.FS) error {
		_, err := Restore(t.Context(), from, made.Name, brick.Deps{FS: fs}, where, Settings{})
		return err
	}
	c := &cuts{mem: mem, percents: []int{0, 100}} // Pebble needs names that become durable in the order in which they were made, as journals of file systems do it
	if err := restore(errorfs.Wrap(mem, c)); err != nil {
		t.Fatal(err)
	}
	if len(c.left) < 2*20 {
		t.Fatalf("a restore has only %d writes", len(c.left)/len(c.percents))
	}
	for _, x := range append(c.left, cut{"its end", mem.CrashClone(vfs.CrashCloneCfg{})}) {
		if err := restore(x.fs); err != nil && x.at != "its end" {
			t.Errorf("cut at %s: %v", x.at, err)
			continue
		}
		after := x.fs.CrashClone(vfs.CrashCloneCfg{})
		for _, g := range segments {
			f, err := after.Open(fmt.Sprintf("/data/segments/%v/%d-%d.seg", g.Placement, g.Epoch, g.Seq))
			if err != nil {
				t.Errorf("cut at %s: %v", x.at, err)
				continue
			}
			if b, err := io.ReadAll(f); err != nil || xxhash.Sum64(b) != g.Checksum {
				t.Errorf("cut at %s: segment %d has %d bytes, %v", x.at, g.Seq, len(b), err)
			}
			f.Close()
		}
		b, err := brick.Open(brick.Deps{FS: after}, where)
		if err != nil {
			t.Errorf("cut at %s: %v", x.at, err)
			continue
		}
		found := ""
		err = b.Scan(entry.Key, func(_, v []byte) error { found = string(v); return nil })
		if err != nil || found != string(entry.Value) {
			t.Errorf("cut at %s: the catalogue has %q, %v", x.at, found, err)
		}
		if err := b.Close(); err != nil {
			t.Errorf("cut at %s: %v", x.at, err)
		}
	}
}

// TestABackupThatIsKilledHarmsNone cuts a backup, and the removal of an older one, at each of their writes: all backups that are listed are whole, and the next one is made.
func TestABackupThatIsKilledHarmsNone(t *testing.T) {
	mem := vfs.NewCrashableMem()
	segments := someSegments(t, mem)
	old := Dir{FS: mem, Path: "/bk"}
	if _, err := Write(t.Context(), mem, old, &Content{Store: "s", Segments: segments[:2]}, time.Unix(1, 0), Settings{}); err != nil {
		t.Fatal(err)
	}
	next := func(fs vfs.FS, second int64) error {
		to := Dir{FS: fs, Path: "/bk"}
		made, err := Write(t.Context(), mem, to, &Content{Store: "s", Segments: segments[1:]}, time.Unix(second, 0), Settings{})
		if err == nil {
			_, err = Prune(t.Context(), to, "s", made.Name, 1)
		}
		return err
	}
	whole := func(at string, fs vfs.FS, atLeast int) {
		from := Dir{FS: fs, Path: "/bk"}
		list, err := List(t.Context(), from)
		if err != nil || len(list) < atLeast {
			t.Errorf("cut at %s: %d backups are there: %v", at, len(list), err)
		}
		for _, l := range list {
			if res, err := Verify(t.Context(), from, l.Name, Settings{}); l.Err != nil || err != nil || len(res.Missing) > 0 {
				t.Errorf("cut at %s: backup %s: %v, %v, it lacks %q", at, l.Name, l.Err, err, res.Missing)
			}
		}
	}
	c := &cuts{mem: mem, percents: []int{0, 50, 100}}
	if err := next(errorfs.Wrap(mem, c), 2); err != nil {
		t.Fatal(err)
	}
	if len(c.left) < 3*10 {
		t.Fatalf("a backup has only %d writes", len(c.left)/len(c.percents))
	}
	for _, x := range c.left {
		whole(x.at, x.fs, 1)
		if err := next(x.fs, 3); err != nil {
			t.Errorf("cut at %s: the next backup: %v", x.at, err)
		}
		whole(x.at+", after the next backup", x.fs.CrashClone(vfs.CrashCloneCfg{}), 1)
	}
}
