package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
)

// TestFilesWhoseNamesMayBeLostAreCopiedAgain: the fsync of the directory failed, and so did the backup, or the restore. The next one found the files there, and its own fsync
// succeeded, which proves nothing: after a power cut the backup, or the store, could name files that were gone.
func TestFilesWhoseNamesMayBeLostAreCopiedAgain(t *testing.T) {
	mem := vfs.NewMem()
	rows := bytes.Repeat([]byte("rows"), 1000)
	g := Segment{Placement: 42, Epoch: 1, Seq: 1, Size: int64(len(rows)), Checksum: xxhash.Sum64(rows), Path: "/rows"}
	if err := writeFile(mem, g.Path, bytes.NewReader(rows)); err != nil {
		t.Fatal(err)
	}
	cut := &unsynced{dir: "/bk/" + SegmentsDir}
	at := Dir{FS: errorfs.Wrap(mem, cut), Path: "/bk"}
	write := func(second int64) (Result, error) {
		return Write(t.Context(), mem, at, &Content{Store: "s", Segments: []Segment{g}}, time.Unix(second, 0), Settings{})
	}
	inParts := func(second int64) (Result, error) {
		s, err := Begin(t.Context(), at, "s", time.Unix(second, 0), Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Keep(t.Context(), &g, g.Path, func() (io.ReadCloser, error) { return mem.Open(g.Path) }); err != nil {
			t.Fatal(err)
		}
		res, err := s.End(t.Context(), &Manifest{Segments: []Segment{g}})
		return res, err
	}
	for name, write := range map[string]func(int64) (Result, error){"a store": write, "a cluster": inParts} {
		if err := at.Remove(t.Context(), SegmentsDir+"/"+g.name()); err != nil {
			t.Fatal(err)
		}
		cut.on.Store(true)
		if res, err := write(1); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("%s: the first backup: %+v, %v", name, res, err)
		}
		cut.on.Store(false)
		if res, err := write(2 + int64(len(name))); err != nil || res.Copied != g.Size {
			t.Errorf("%s: the second backup copied %d of %d bytes, %v", name, res.Copied, g.Size, err)
		}
	}
	// The file was left by a backup that was killed, and its name had never been made durable.
	for name, write := range map[string]func(int64) (Result, error){"a store": write, "a cluster": inParts} {
		for _, list := range []string{"", SegmentsDir} { // no backup names it
			files, err := at.List(t.Context(), list)
			if err != nil {
				t.Fatal(err)
			}
			for f := range files {
				if isBackup(f) || list != "" {
					if err := at.Remove(t.Context(), path.Join(list, f)); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if err := writeFile(mem, at.path(SegmentsDir+"/"+g.name()), bytes.NewReader(rows)); err != nil {
			t.Fatal(err)
		}
		cut.on.Store(true)
		if res, err := write(100); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("%s: the backup after one that was killed: %+v, %v", name, res, err)
		}
		cut.on.Store(false)
		if res, err := write(101 + int64(len(name))); err != nil || res.Copied != g.Size {
			t.Errorf("%s: the backup after one that was killed and one that failed copied %d of %d bytes, %v", name, res.Copied, g.Size, err)
		}
		cut.on.Store(true)
		if res, err := write(200); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("%s: the last backup: %+v, %v", name, res, err)
		}
		if _, err := mem.Stat(at.path(SegmentsDir + "/" + g.name())); err != nil {
			t.Errorf("%s: a file of a backup is removed: %v", name, err)
		}
	}
	cut.on.Store(false)
	ofStore, err := write(300)
	if err != nil {
		t.Fatal(err)
	}
	cut.dir = "/data/segments/" + g.Placement.String()
	restore := func() (Result, error) {
		return Restore(t.Context(), at, ofStore.Name, brick.Deps{FS: errorfs.Wrap(mem, cut)}, brick.Settings{DataDir: "/data", FreeBytesMin: 1}, Settings{})
	}
	cut.on.Store(true)
	if res, err := restore(); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("the first restore: %+v, %v", res, err)
	}
	cut.on.Store(false)
	if _, err := mem.Stat(cut.dir + "/1-1.seg"); err == nil {
		t.Error("the file whose name may be lost is there for the next try")
	}
}

// TestARestoreThatWasKilledAtItsFirstStepGoesOn: its mark was empty, and each restore into the directory was refused in favour of backup "".
func TestARestoreThatWasKilledAtItsFirstStepGoesOn(t *testing.T) {
	mem := vfs.NewMem()
	at := Dir{FS: mem, Path: "/bk"}
	if _, err := Write(t.Context(), mem, at, &Content{Store: "s"}, time.Unix(1, 0), Settings{}); err != nil {
		t.Fatal(err)
	}
	if err := mem.MkdirAll("/data", 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := mem.Create("/data/"+brick.RestoringFile, vfs.WriteCategoryUnspecified)
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), at, "", brick.Deps{FS: mem}, brick.Settings{DataDir: "/data", FreeBytesMin: 1}, Settings{}); err != nil {
		t.Error(err)
	}
}

// weighing is a place that records how much memory is in use when a backup is read.
type weighing struct {
	Dir
	most *uint64
}

func (w weighing) Read(ctx context.Context, name string) (io.ReadCloser, int64, error) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	*w.most = max(*w.most, m.HeapAlloc)
	return w.Dir.Read(ctx, name)
}

// TestPruningHoldsOneManifestInMemory: it held those of all backups at once, gigabytes for some weeks of a large store, in the process that serves.
func TestPruningHoldsOneManifestInMemory(t *testing.T) {
	var most uint64
	at := weighing{Dir{FS: vfs.NewMem(), Path: "backups"}, &most}
	unlock, err := at.Lock(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock.Close(); err != nil {
		t.Fatal(err)
	}
	const backups, segments, entryBytes = 12, 1000, 2 << 20
	last := ""
	for i := range backups {
		m := &Manifest{Version: formatVersion, Made: time.UnixMilli(int64(i)), Entries: []Entry{{Key: []byte("p/1"), Value: make([]byte, entryBytes)}}}
		for n := range segments {
			m.Segments = append(m.Segments, Segment{Placement: 1, Epoch: 1, Seq: uint64(n), Size: 10, Checksum: checksumOf(i, n)})
		}
		if err := writeManifest(t.Context(), at, m); err != nil {
			t.Fatal(err)
		}
		last = m.name()
	}
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	removed, err := Prune(t.Context(), at, "", last, 3)
	if err != nil || len(removed) != backups-3 {
		t.Fatalf("removed %v, %v", removed, err)
	}
	if most > before.HeapAlloc+4*entryBytes {
		t.Errorf("%d KiB were in use, %d KiB before", most>>10, before.HeapAlloc>>10)
	}
}

func checksumOf(backup, n int) uint64 { return xxhash.Sum64String(fmt.Sprint(backup, n)) }

// unsure is a place in which names of backups may be lost.
type unsure struct{ Dir }

func (u unsure) Sync(folder string) error {
	if folder != "" {
		return u.Dir.Sync(folder)
	}
	return fault.Errorf(fault.Unavailable, "no fsync")
}

// TestABackupThatFailedIsNoBackup: the fsync of its name failed, and its file stayed. Older backups were removed in favour of one that a power cut could lose.
func TestABackupThatFailedIsNoBackup(t *testing.T) {
	at := Dir{FS: vfs.NewMem(), Path: "/bk"}
	if err := brick.MakeDir(at.FS, at.path(SegmentsDir)); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.Context(), at.FS, unsure{at}, &Content{Store: "s"}, time.Unix(1, 0), Settings{}); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
	files, err := at.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for f := range files {
		if isBackup(f) {
			t.Errorf("%s is there", f)
		}
	}
}

// TestAPrunedBackupThatMayComeBackKeepsItsSegments: the fsync of the removal failed. The next removal found no old backup, its own fsync succeeded, which proves nothing, and the
// segments went: a power cut could bring back a backup in the list that lacked them.
func TestAPrunedBackupThatMayComeBackKeepsItsSegments(t *testing.T) {
	mem := vfs.NewMem()
	at := Dir{FS: mem, Path: "/bk"}
	segments := someSegments(t, mem)
	var names []string
	for i := range 2 {
		res, err := Write(t.Context(), mem, at, &Content{Store: "s", Segments: segments[i : i+1]}, time.Unix(int64(i), 0), Settings{})
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, res.Name)
	}
	if _, err := Prune(t.Context(), unsure{at}, "s", names[1], 1); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
	if _, err := mem.Stat(at.path(SegmentsDir + "/" + segments[0].name())); err != nil {
		t.Error("a segment of the backup that may come back:", err)
	}
	if list, err := List(t.Context(), at); err != nil || len(list) != 2 || list[0].Err != nil || len(list[0].Missing) != 1 || list[0].Segments != 0 {
		t.Errorf("listed: %+v, %v", list, err)
	}
	// Restored, it made an empty store without a word, also of a cluster's backup.
	if _, err := Restore(t.Context(), at, names[0], brick.Deps{FS: mem}, brick.Settings{DataDir: "/data", FreeBytesMin: 1}, Settings{}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "was removed") {
		t.Errorf("restored: %v", err)
	}
	if _, err := mem.Stat("/data"); err == nil {
		t.Error("the restore made a directory")
	}
	if _, err := Verify(t.Context(), at, names[0], Settings{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("verified: %v", err)
	}
	if _, _, err := Load(t.Context(), at, names[0], Settings{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("loaded: %v", err)
	}
	if removed, err := Prune(t.Context(), at, "s", names[1], 1); err != nil || len(removed) != 1 || removed[0] != names[0] {
		t.Errorf("the next time %v is removed, %v", removed, err)
	}
	files, err := at.List(t.Context(), SegmentsDir)
	if err != nil || len(files) != 1 {
		t.Errorf("segments %v are there, %v", files, err)
	}
}

// written is a place that lists the files written to it.
type written struct {
	Dir
	names map[string]bool
}

func (w written) Put(ctx context.Context, name string, size int64, r io.Reader) error {
	w.names[name] = true
	return w.Dir.Put(ctx, name, size, r)
}

// TestABackupThatCannotBeReadKeepsNoDoubtfulFilesInUse: a backup was killed, and the fsync of the directory failed in the next one. Its files stayed as they were, for ever, since an
// old backup that could not be read might need them, and later backups named them without proof that they outlive a power cut.
func TestABackupThatCannotBeReadKeepsNoDoubtfulFilesInUse(t *testing.T) {
	mem := vfs.NewMem()
	cut := &unsynced{dir: "/bk/" + SegmentsDir}
	at := written{Dir{FS: errorfs.Wrap(mem, cut), Path: "/bk"}, map[string]bool{}}
	segments := someSegments(t, mem)
	named, left := SegmentsDir+"/"+segments[0].name(), SegmentsDir+"/"+segments[1].name()
	made, err := Write(t.Context(), mem, at, &Content{Store: "s", Segments: segments[:1]}, time.Unix(1, 0), Settings{})
	if err != nil {
		t.Fatal(err)
	}
	unread := []string{"20000101T000000.000Z", "20000102T000000.000Z"}
	for _, name := range unread {
		if err := writeFile(mem, at.path(name+suffix), bytes.NewReader([]byte("damaged, and long enough for a checksum"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeFile(mem, at.path(left), bytes.NewReader(bytes.Repeat([]byte{1}, 1001))); err != nil {
		t.Fatal(err)
	}
	clear(at.names)
	cut.on.Store(true)
	if _, err := Write(t.Context(), mem, at, &Content{Store: "s", Segments: segments[:2]}, time.Unix(2, 0), Settings{}); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
	cut.on.Store(false)
	if !at.names[left] || at.names[named] {
		t.Errorf("%v were written again: want those that no backup names", at.names)
	}
	for _, name := range []string{named, left} {
		if _, err := mem.Stat(at.path(name)); err != nil {
			t.Error(err)
		}
	}
	// With --keep the error names all that cannot be read, and says what to do; nothing goes.
	_, err = Prune(t.Context(), at, "s", made.Name, 1)
	if !fault.Is(err, fault.Corrupt) {
		t.Error(err)
	}
	for _, name := range unread {
		if !strings.Contains(fmt.Sprint(err), "remove "+name+suffix) {
			t.Errorf("%v does not say what to do with %s", err, name)
		}
	}
	if _, err := mem.Stat(at.path(left)); err != nil {
		t.Error(err)
	}
}

// unreadableFile is a place in which a file cannot be read.
type unreadableFile struct {
	written
	name string
}

func (u unreadableFile) Read(ctx context.Context, name string) (io.ReadCloser, int64, error) {
	f, size, err := u.written.Read(ctx, name)
	if err == nil && name == u.name {
		err = f.Close()
		f = io.NopCloser(iotest.ErrReader(fault.Errorf(fault.Corrupt, "read %s: input/output error", name)))
	}
	return f, size, err
}

// TestOneDamagedFileEndsNoRenewal: files that an interrupted backup left are written again after a failed fsync, beside a backup that cannot be read. At the first that the disk could not
// read that ended, and later backups named the rest without proof that they outlive a power cut.
func TestOneDamagedFileEndsNoRenewal(t *testing.T) {
	mem := vfs.NewMem()
	segments := someSegments(t, mem)
	for bad := range segments {
		at := unreadableFile{written{Dir{FS: mem, Path: "/bk"}, map[string]bool{}}, SegmentsDir + "/" + segments[bad].name()}
		leave(t, mem, at.Dir, segments)
		if err := writeFile(mem, at.path("20000101T000000.000Z"+suffix), strings.NewReader("damaged, and long enough for a checksum")); err != nil {
			t.Fatal(err)
		}
		if err := renewUnnamed(t.Context(), at); err == nil || !strings.Contains(err.Error(), "input/output error") {
			t.Errorf("the damaged file is not reported: %v", err)
		}
		for i := range segments {
			if name := SegmentsDir + "/" + segments[i].name(); i != bad && !at.names[name] {
				t.Errorf("%s is not written again, beside a damaged one", name)
			}
		}
	}
}

// TestSegmentsOfABackupThatMayComeBackAreNotRemoved: a backup's file was removed by hand, and the directory was not fsynced. The segments that no backup named then went after another failed
// fsync, and a power cut could bring the backup back without them.
func TestSegmentsOfABackupThatMayComeBackAreNotRemoved(t *testing.T) {
	mem := vfs.NewMem()
	segments := someSegments(t, mem)
	at := written{Dir{FS: mem, Path: "/bk"}, map[string]bool{}}
	leave(t, mem, at.Dir, segments)
	if err := renewUnnamed(t.Context(), unsureAndWritten{at}); err != nil {
		t.Error(err)
	}
	if len(at.names) != len(segments) {
		t.Errorf("%v were written again", at.names)
	}
	for i := range segments {
		if _, err := mem.Stat(at.path(SegmentsDir + "/" + segments[i].name())); err != nil {
			t.Error(err)
		}
	}
	if err := renewUnnamed(t.Context(), at); err != nil {
		t.Error(err)
	}
	if files, err := at.List(t.Context(), SegmentsDir); err != nil || len(files) > 0 {
		t.Errorf("%v stay although the removal of backups is durable, %v", files, err)
	}
}

// unsureAndWritten is both.
type unsureAndWritten struct{ written }

func (u unsureAndWritten) Sync(folder string) error { return unsure{u.Dir}.Sync(folder) }

// leave puts the files of segments into a place, as a backup that was interrupted does.
func leave(t *testing.T, fs vfs.FS, at Dir, segments []Segment) {
	t.Helper()
	if err := brick.MakeDir(fs, at.path(SegmentsDir)); err != nil {
		t.Fatal(err)
	}
	for i := range segments {
		f, err := fs.Open(segments[i].Path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(writeFile(fs, at.path(SegmentsDir+"/"+segments[i].name()), f), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// large is a place whose backup's file is made as it is read, and goes nowhere as it is written. It records the memory in use at the ends.
type large struct {
	Dir
	m    *Manifest
	most *uint64
}

func (l large) weigh() {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	*l.most = max(*l.most, m.HeapAlloc)
}

func (l large) Put(_ context.Context, _ string, size int64, r io.Reader) error {
	n, err := io.Copy(io.Discard, r)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes, want %d", n, size)
	}
	l.weigh()
	return err
}

func (l large) List(context.Context, string) (map[string]int64, error) {
	return map[string]int64{l.m.name() + suffix: 1}, nil
}

func (l large) Read(context.Context, string) (io.ReadCloser, int64, error) {
	size := int64(0)
	for b := range l.m.pieces() {
		size += int64(len(b))
	}
	next, stop := iter.Pull2(l.m.pieces())
	return struct {
		io.Reader
		io.Closer
	}{&pieceReader{next: next}, closing(func() { l.weigh(); stop() })}, size, nil
}

type closing func()

func (c closing) Close() error { c(); return nil }

// TestTheFileOfABackupIsNotHeldInMemory: a backup of a large store held it once more as text, up to a gigabyte, in the process that serves, and the removal of old ones, and a list,
// held all that it says.
func TestTheFileOfABackupIsNotHeldInMemory(t *testing.T) {
	var most uint64
	m := &Manifest{Version: formatVersion, Made: time.UnixMilli(1)}
	value := make([]byte, 1<<20)
	for range 64 {
		m.Entries = append(m.Entries, Entry{Key: []byte("p/1"), Value: value})
	}
	at := large{Dir{FS: vfs.NewMem(), Path: "bk"}, m, &most}
	at.weigh()
	before := most
	if err := m.put(t.Context(), at, m.name()); err != nil {
		t.Fatal(err)
	}
	if list, err := List(t.Context(), at); err != nil || len(list) != 1 || list[0].Err != nil {
		t.Fatal(list, err)
	}
	if most > before+16<<20 {
		t.Errorf("%d MiB were in use, %d MiB before", most>>20, before>>20)
	}
}
