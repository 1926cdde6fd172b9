package runner

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/storage/staging"
)

// files reads all files of the log, and its witness.
func (h *house) files() map[string][]byte {
	h.t.Helper()
	names, err := h.fs.List("staging")
	h.must(err)
	all := map[string][]byte{}
	for _, n := range names {
		all[n], err = readAll(h.fs, h.fs.PathJoin("staging", n))
		h.must(err)
	}
	return all
}

func (h *house) said() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.logged.String()
}

// TestAckedRowsAreNotMissedInSilenceWhereALogIsShortened: a log of three files, as a clean stop, a kill and a power cut leave it. Each file is cut off
// between any two records, removed, replaced by each of the others, and grown by a record that it never had behind a cut. Verify and the next start notice each.
func TestAckedRowsAreNotMissedInSilenceWhereALogIsShortened(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{BytesMax: 8 << 10})
	n := 0
	for len(s.journal.mu.files) < 3 || n%4 != 0 {
		n++
		h.must(h.stage(s, "t", n))
	}
	h.must(s.Forget(idOf(n / 2)))
	s.journal.witness.sync()
	killed := h.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	cut := h.fs.CrashClone(vfs.CrashCloneCfg{})
	h.must(s.Close())
	for how, fs := range map[string]*vfs.MemFS{"stopped": h.fs, "killed": killed, "power cut": cut} {
		h.fs = fs
		whole := h.files()
		try := func(what string, harmed map[string][]byte) {
			t.Helper()
			of := newHouse(t)
			for name, b := range harmed {
				of.put(name, b)
			}
			checked, err := Check(of.fs, "staging")
			h.must(err)
			found := slices.ContainsFunc(checked, func(c *Checked) bool { return c.Lost != nil || c.Err != nil || c.Kind == FileMissing })
			s := of.open(staging.Settings{})
			lost, names := s.Lost(true), of.said()
			h.must(s.Close())
			if want := what != "nothing"; found != want || lost != want || want != strings.Contains(names, "level=ERROR") && !strings.Contains(names, "is missing") {
				t.Errorf("%s, %s: found %v, lost %v, logged %s", how, what, found, lost, names)
			}
		}
		try("nothing", whole)
		for name, b := range whole {
			if name == staging.WitnessFile {
				continue
			}
			with := func(content []byte) map[string][]byte {
				harmed := map[string][]byte{}
				for k, v := range whole {
					harmed[k] = v
				}
				if harmed[name] = content; content == nil {
					delete(harmed, name)
				}
				return harmed
			}
			try("without "+name, with(nil))
			for rest := b[len(staging.FileMagic):]; len(rest) > 0; {
				at := len(b) - len(rest)
				unsynced := how != "stopped" && !slices.ContainsFunc(recordsOf(t, rest), func(r staging.Record) bool { return !r.Forget })
				if !unsynced { // the last record forgets a frame, and nothing waited for its fsync
					try(fmt.Sprintf("%s cut off at %d of %d", name, at, len(b)), with(b[:at]))
					try(fmt.Sprintf("%s with another end from %d on", name, at), with(staging.AppendForget(slices.Clone(b[:at]), idOf(99_999))))
				}
				var err error
				_, rest, err = staging.CutRecord(rest)
				h.must(err)
			}
			for other, o := range whole {
				if other != name && other != staging.WitnessFile {
					try(other+" in place of "+name, with(o))
				}
			}
		}
	}
}

func recordsOf(t *testing.T, b []byte) (all []staging.Record) {
	t.Helper()
	for len(b) > 0 {
		r, rest, err := staging.CutRecord(b)
		if err != nil {
			t.Fatal(err)
		}
		all, b = append(all, r), rest
	}
	return all
}

// TestNoLossIsReportedOfALogThatLostNothing: histories of staged and forgotten frames, in lives that end by a stop, a kill or a power cut at any moment. The
// witness is never ahead of the log.
func TestNoLossIsReportedOfALogThatLostNothing(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 7))
		h := newHouse(t)
		var acked []int // and not forgotten
		n := 0
		for life := range 6 {
			s := h.open(staging.Settings{BytesMax: 4 << 10})
			if said := h.said(); strings.Contains(said, "is missing") || strings.Contains(said, "is damaged") {
				t.Fatalf("seed %d, life %d: %s", seed, life, said)
			}
			for _, i := range acked {
				if _, ok := s.get(idOf(i)); !ok {
					t.Fatalf("seed %d, life %d: frame %d is gone", seed, life, i)
				}
			}
			for range rng.IntN(40) {
				switch rng.IntN(6) {
				case 0:
					s.journal.witness.sync()
				case 1:
					h.must(s.journal.tidy(true))
				case 2:
					h.must(s.settle())
				case 3:
					if len(acked) > 0 {
						i := rng.IntN(len(acked))
						h.must(s.Forget(idOf(acked[i])))
						acked = slices.Delete(acked, i, i+1)
					}
				default:
					n++
					h.must(h.stage(s, "t", n))
					acked = append(acked, n)
				}
			}
			if rng.IntN(3) == 0 {
				for _, i := range acked {
					h.must(s.Forget(idOf(i)))
				}
				acked = nil
			}
			fs := h.fs
			switch rng.IntN(3) {
			case 0:
				fs = h.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
			case 1:
				fs = h.fs.CrashClone(vfs.CrashCloneCfg{})
			}
			h.must(s.Close())
			h.fs = fs
		}
	}
}

// TestALossIsNotForgottenBeforeItWasAnnounced: a start that ends before the server registered as one that lost frames leaves the next one to notice.
func TestALossIsNotForgottenBeforeItWasAnnounced(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{BytesMax: 4 << 10})
	for n := 1; len(s.journal.mu.files) < 3; n++ {
		h.must(h.stage(s, "t", n))
	}
	h.must(s.Close())
	newest := fmt.Sprintf("%016x.staged", s.journal.mu.files[2].number)
	h.must(h.fs.Remove(h.fs.PathJoin("staging", newest)))
	for range 3 {
		s = h.open(staging.Settings{})
		if !s.Lost(false) {
			t.Error("the newest file is gone, and nothing is lost")
		}
		h.must(s.Close())
	}
	s, l, stop := h.serve()
	l.set(nil)
	h.await("what is left is forwarded", func() bool { return s.Bytes() == 0 })
	h.must(h.stage(s, "t", 1000))
	h.await("that as well", func() bool { return s.Bytes() == 0 })
	h.must(s.journal.tidy(true))
	stop()
	s = h.open(staging.Settings{})
	if s.Lost(false) {
		t.Errorf("a loss is reported again after all files of that time are gone: %s", h.said())
	}
	h.must(s.Close())
	if files := h.files(); len(files) != 1 || len(files[staging.WitnessFile]) == 0 {
		t.Errorf("nothing is staged, and there are %d files", len(files))
	}
}

// TestALossIsNotHiddenByFilesThatAStartRemoves: a start that misses the oldest file removes the next one, of which no frame is held, and ends before it registered.
func TestALossIsNotHiddenByFilesThatAStartRemoves(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{BytesMax: 4 << 10})
	for n := 1; len(s.journal.mu.files) < 4; n++ {
		h.must(h.stage(s, "t", n))
	}
	oldest, next := s.journal.mu.files[0], s.journal.mu.files[1]
	var forgotten []staging.ID
	for id, f := range s.mu.held {
		if f.in == next {
			forgotten = append(forgotten, id)
		}
	}
	for _, id := range forgotten {
		h.must(s.Forget(id))
	}
	h.must(s.Close())
	name := func(f *file) string { return fmt.Sprintf("%016x.staged", f.number) }
	h.must(h.fs.Remove(h.fs.PathJoin("staging", name(oldest))))
	for range 3 {
		s = h.open(staging.Settings{})
		if !s.Lost(false) {
			t.Error("the oldest file is gone, and nothing is lost")
		}
		h.must(s.Close())
	}
	if h.files()[name(next)] != nil {
		t.Error("the file without frames is not removed: nothing is shown")
	}
}

// refusing is a disk that writes no witness.
type refusing struct{ vfs.FS }

var errRefused = errors.New("the disk refuses")

func (f refusing) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if strings.HasSuffix(name, staging.WitnessFile) {
		return nil, errRefused
	}
	return f.FS.OpenReadWrite(name, c, opts...)
}

// TestRowsAreStagedWithoutAWitness: the log is whole without it. One warning names the file.
func TestRowsAreStagedWithoutAWitness(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	s.journal.fs, s.journal.witness.fs = refusing{h.fs}, refusing{h.fs}
	for n := range 3 {
		h.must(h.stage(s, "t", n+1))
	}
	if said := h.said(); strings.Count(said, staging.WitnessFile) != 1 || !strings.Contains(said, errRefused.Error()) {
		t.Errorf("logged is %s", said)
	}
	h.must(s.Close())
	s = h.open(staging.Settings{})
	h.want(s, "t", 1, 2, 3)
	if s.Lost(true) {
		t.Error("frames are lost")
	}
	h.must(s.Close())
}
