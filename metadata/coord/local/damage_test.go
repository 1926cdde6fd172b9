package local_test

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/local"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// commits writes n transactions and returns the rows that must be there then.
func commits(t *testing.T, s *local.Store, n int) map[string]string {
	t.Helper()
	want := map[string]string{}
	for i := range n {
		key, value := fmt.Sprint("table/", i%7), fmt.Sprint("config ", i)
		if _, ok, err := s.Commit(t.Context(), nil, []coord.Write{{Key: key, Value: []byte(value)}, {Key: fmt.Sprint("gone/", i-1), Delete: true}, {Key: fmt.Sprint("gone/", i)}}); err != nil || !ok {
			t.Fatal(err)
		}
		delete(want, fmt.Sprint("gone/", i-1))
		want[key], want[fmt.Sprint("gone/", i)] = value, ""
	}
	return want
}

func rowsOf(t *testing.T, s *local.Store) map[string]string {
	t.Helper()
	rows, _, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, r := range rows {
		got[r.Key] = string(r.Value)
	}
	return got
}

// stores are a closed store, and one of a killed process; opened and written twice, so that there are tables.
func stores(t *testing.T) map[string]struct {
	fs   *vfs.MemFS
	want map[string]string
} {
	out := map[string]struct {
		fs   *vfs.MemFS
		want map[string]string
	}{}
	for _, how := range []string{"closed", "killed"} {
		fs := vfs.NewCrashableMem()
		s := open(t, fs)
		commits(t, s, 30)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, fs)
		want := commits(t, s, 25)
		maps := rowsOf(t, s)
		for k, v := range want {
			if maps[k] != v {
				t.Fatalf("%s is %q, want %q", k, maps[k], v)
			}
		}
		image := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if how == "closed" {
			image = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
		}
		out[how] = struct {
			fs   *vfs.MemFS
			want map[string]string
		}{image, maps}
	}
	return out
}

func contents(t *testing.T, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func put(t *testing.T, fs vfs.FS, path string, b []byte) {
	t.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// damages are ways to hurt a file.
func damages(b []byte, rng *rand.Rand) map[string][]byte {
	out := map[string][]byte{"deleted": nil, "empty": {}}
	for range 6 {
		if len(b) == 0 {
			break
		}
		at := rng.IntN(len(b))
		out[fmt.Sprint("cut at ", at)] = b[:at]
		flipped := slices.Clone(b)
		flipped[at] ^= 1 << rng.IntN(8)
		out[fmt.Sprint("flipped at ", at)] = flipped
		zero := slices.Clone(b)
		clear(zero[at:min(len(b), at+64)])
		out[fmt.Sprint("zeroed at ", at)] = zero
	}
	return out
}

// After any damage the rows are all there, or the process gets one line that names the damage and the way out.
func TestRowsThatWereCommittedAreNeverLostInSilence(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for how, st := range stores(t) {
		names, err := st.fs.List("coord")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			path := "coord/" + name
			for what, bytes := range damages(contents(t, st.fs, path), rng) {
				image := st.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
				if what == "deleted" {
					if err := image.Remove(path); err != nil {
						t.Fatal(err)
					}
				} else {
					put(t, image, path, bytes)
				}
				if !wholeOrRefused(t, fmt.Sprintf("%s, %s %s", how, name, what), image, st.want) {
					refused++
				}
			}
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: is anything damaged?")
	}
}

// wholeOrRefused reports whether all rows are there.
func wholeOrRefused(t *testing.T, what string, fs vfs.FS, want map[string]string) bool {
	t.Helper()
	var said strings.Builder
	s, err := local.Open(fs, "coord", slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelInfo})))
	if err != nil {
		if !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v is %v, want corrupt", what, err, fault.KindOf(err))
		}
		if text := err.Error(); strings.Contains(text, "\n") || len(text) > 600 || !strings.Contains(text, "restore") {
			t.Errorf("%s: the message is %q", what, text)
		}
		if strings.Contains(said.String(), "goroutine") || strings.Contains(said.String(), ".go:") {
			t.Errorf("%s: it logged %s", what, &said)
		}
		return false
	}
	defer s.Close()
	got := rowsOf(t, s)
	if len(got) != len(want) {
		t.Errorf("%s: %d rows of %d, without a word", what, len(got), len(want))
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: row %s is %q, want %q", what, k, got[k], v)
		}
	}
	if _, _, err := s.Commit(t.Context(), nil, []coord.Write{{Key: "x"}}); err != nil && strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: %q", what, err)
	}
	return true
}

// The n-th operation on the disk fails and all after it, for every n: no panic, one line, and every acked row is there afterwards.
func TestAFailingDiskIsSaidAndLosesNothing(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
		for n := int32(0); ; n++ {
			base := vfs.NewCrashableMem()
			counter := errorfs.OnIndex(n)
			broken := false
			disk := errorfs.Wrap(base, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
					return nil
				}
				if broken = broken || counter.MaybeError(op) != nil; broken {
					return &fileError{op.Path, errno}
				}
				return nil
			}))
			acked, hurt := useUntilItFails(t, disk, fmt.Sprintf("%v at write %d", errno, n))
			image := base.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
			s := open(t, image)
			got := rowsOf(t, s)
			for k, v := range acked {
				if got[k] != v {
					t.Errorf("%v at write %d: row %s is %q, want %q", errno, n, k, got[k], v)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if !hurt {
				if n < 20 {
					t.Errorf("only %d writes", n)
				}
				break
			}
		}
	}
}

type fileError struct {
	path string
	err  error
}

func (e *fileError) Error() string { return e.path + ": " + e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

func useUntilItFails(t *testing.T, disk vfs.FS, what string) (acked map[string]string, hurt bool) {
	t.Helper()
	acked = map[string]string{}
	reported := func(err error) {
		if hurt = true; !fault.Is(err, fault.Unavailable) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 600 {
			t.Errorf("%s: %v error %q", what, fault.KindOf(err), err)
		}
	}
	s, err := local.Open(disk, "coord", slog.New(slog.DiscardHandler))
	if err != nil {
		reported(err)
		return acked, true
	}
	for i := range 10 {
		key := fmt.Sprint("k", i)
		if _, _, err := s.Commit(t.Context(), nil, []coord.Write{{Key: key, Value: []byte(key)}}); err != nil {
			reported(err)
			select {
			case <-s.Failed():
			default:
				t.Errorf("%s: a commit failed and the store goes on", what)
			}
			continue
		}
		acked[key] = key
	}
	if err := s.Close(); err != nil {
		reported(err)
	}
	return acked, hurt
}

// smallFS says how much is free.
type smallFS struct {
	vfs.FS
	free uint64
}

func (f *smallFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: f.free, TotalBytes: 1 << 30}, nil
}

func TestAFullDiskIsReadAndTakesChangesWhenThereIsRoom(t *testing.T) {
	fs := &smallFS{FS: vfs.NewMem(), free: 1 << 30}
	s := open(t, fs)
	want := commits(t, s, 10)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	fs.free = 0
	s = open(t, fs)
	if got := rowsOf(t, s); len(got) != len(want) {
		t.Errorf("%d rows of %d", len(got), len(want))
	}
	put := []coord.Write{{Key: "late", Value: []byte("1")}}
	if _, _, err := s.Commit(t.Context(), nil, put); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "make room") {
		t.Errorf("a commit on a full disk: %v", err)
	}
	fs.free = 1 << 30
	if _, ok, err := s.Commit(t.Context(), nil, put); err != nil || !ok {
		t.Errorf("a commit when there is room: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, fs)
	if got := rowsOf(t, s); got["late"] != "1" || len(got) != len(want)+1 {
		t.Errorf("rows are %v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
