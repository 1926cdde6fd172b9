package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/verify"
	"github.com/spillwaydb/spillway/gateway/mapcache"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
	stagings "github.com/spillwaydb/spillway/storage/staging/runner"
)

// outside is a directory with the files that servers and gateways of a cluster keep beside log, catalogue and segments: staged rows in several files, rows that copies
// set aside, cached maps, dead letters of Kafka.
type outside struct {
	t        *testing.T
	dir, old string // old: as it was when half of all was written
	names    []string
	was      map[string][]byte // by name
	harmed   string            // the file
	now      []byte            // of it; nil: gone
}

const (
	outsideRows  = 24
	outsideMaps  = 4
	outsideTable = "t"
)

func openOutsideStaging(dir string) (*stagings.Store, error) {
	return stagings.Open(stagings.Deps{FS: vfs.Default, Dir: filepath.Join(dir, stagingDir), Room: func(int64) error { return nil }, Announce: func(context.Context, []string) error { return nil }, Ways: nowhere{}, Log: slog.New(slog.DiscardHandler)},
		staging.Settings{Server: "a", BytesMax: 16 << 10}) // a file has an eighth of it
}

// newOutside writes the directory.
func newOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{t: t, dir: filepath.Join(t.TempDir(), "whole"), old: filepath.Join(t.TempDir(), "old"), was: map[string][]byte{}}
	s, err := openOutsideStaging(o.dir)
	o.must(err)
	for i := range outsideRows {
		if i == outsideRows/2 {
			copyCorrupt(t, o.dir, o.old)
		}
		o.must(s.Stage(t.Context(), outsideTable, 1, &peer.Staging{Do: peer.Stage, Nonce: uint64(i), Holders: []string{"a", "b"}}, &frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: point.Stamp(i+1) << 10,
			Defs: []point.Labels{point.MakeLabels("__name__", "m", "pad", strings.Repeat("p", 200), "i", fmt.Sprint(i))}, IDs: []point.DenseID{0}, Times: []point.Nanos{point.Nanos(i)}, Values: []float64{float64(i)}}))
	}
	o.must(s.Close())
	cache, err := mapcache.Open(filepath.Join(o.dir, "cluster"), mapcache.Settings{})
	o.must(err)
	for i := range outsideMaps {
		o.must(cache.Save(tables.Cached{Table: fmt.Sprint("t", i), Row: []byte("row"), Map: bytes.Repeat([]byte{byte(i)}, 40), At: time.Unix(1_800_000_000, 0)}))
	}
	o.put("segments/00000000000000ab/3-4.surplus", surplusFile(1, 0xab))
	var letters []byte
	for i := range 5 {
		line := fmt.Appendf(nil, `{"time":"2026-11-24T00:00:00Z","topic":"t","partition":0,"offset":%d,"kind":"invalid","reason":"r","rows_refused":0,"value":"no line"`, i)
		letters = fmt.Appendf(letters, "%s,\"crc32c\":\"%08x\"}\n", line, crc32.Checksum(line, crc32.MakeTable(crc32.Castagnoli)))
	}
	o.put("kafka-dead-letters.jsonl", letters)
	o.names, err = corruptFiles(o.dir)
	o.must(err)
	slices.Sort(o.names)
	for _, name := range o.names {
		o.was[name], err = os.ReadFile(filepath.Join(o.dir, name))
		o.must(err)
	}
	return o
}

func (o *outside) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *outside) put(name string, b []byte) {
	o.t.Helper()
	o.must(os.MkdirAll(filepath.Dir(filepath.Join(o.dir, name)), 0o700))
	o.must(os.WriteFile(filepath.Join(o.dir, name), b, 0o600))
}

// restore makes the directory whole again.
func (o *outside) restore() {
	o.t.Helper()
	o.must(os.RemoveAll(o.dir))
	for name, b := range o.was {
		o.put(name, b)
	}
}

// wholeOnce reports whether the harmed file is, byte by byte, one that its writer left at some time, there or under another name: nothing outside of it says that it is not the newest.
func (o *outside) wholeOnce() bool {
	switch {
	case bytes.Equal(o.now, o.was[o.harmed]) && o.now != nil:
		return true
	case filepath.Base(o.harmed) == staging.WitnessFile:
		return o.witnessWasSo()
	case filepath.Ext(o.harmed) == ".staged": // the witness knows each
		return false
	case o.now == nil:
		return true
	}
	if ext := filepath.Ext(o.harmed); ext != ".cache" { // a map names its table
		for name, b := range o.was {
			if filepath.Ext(name) == ext && bytes.HasPrefix(b, o.now) && atBoundary(ext, o.now, b) {
				return true
			}
		}
	}
	return false
}

// atBoundary reports whether part, the beginning of a whole file, ends where a record ends.
func atBoundary(ext string, part, whole []byte) bool {
	switch ext {
	case ".jsonl":
		return len(part) == 0 || part[len(part)-1] == '\n'
	}
	return len(part) == len(whole)
}

// witnessWasSo reports whether each mark of the harmed witness is one that was there at some time, or none: a mark less cannot be noticed, and loses no row.
func (o *outside) witnessWasSo() bool {
	old, err := os.ReadFile(filepath.Join(o.old, o.harmed))
	o.must(err)
	const mark = 64
	none := make([]byte, mark)
	for at := 0; at < len(o.now); at += mark {
		now := o.now[at:min(at+mark, len(o.now))]
		is := func(b []byte) bool { return at+len(now) <= len(b) && bytes.Equal(b[at:at+len(now)], now) }
		if !is(o.was[o.harmed]) && !is(old) && !bytes.Equal(now, none[:len(now)]) {
			return false
		}
	}
	return true
}

// verified returns the worst state that verify gives, and its words. It looks at files only: there is no store to start.
func (o *outside) verified() (worst, said string) {
	o.t.Helper()
	v, err := verify.ExamineFiles(Rehearsal{}, o.dir)
	o.must(err)
	for _, f := range v.Files {
		if f.State != verify.FileOK {
			said += fmt.Sprintf("%s %s: %s; %s\n", f.File, f.State, f.What, f.Do)
		}
	}
	return v.Worst(""), said
}

// TestCorruptionsLoseNothingOutsideTheLog harms one file after the other, as TestCorruptionsLoseNothingInSilence does, of those that only a cluster has. Verify reports it and changes
// nothing; a start reads all whole files, deletes no other, and has no value that was never written.
//
//	CORRUPT_N, TEST_SEED, CORRUPT_CASE   as there
func TestCorruptionsLoseNothingOutsideTheLog(t *testing.T) {
	n, seed, only := processtest.EnvInt(t, "CORRUPT_N", 100), uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32()))), processtest.EnvInt(t, "CORRUPT_CASE", -1)
	o := newOutside(t)
	if worst, said := o.verified(); worst != verify.FileOK {
		t.Fatalf("unharmed: %s", said)
	}
	o.starts("unharmed", verify.FileOK)
	outcomes := map[string]int{}
	for c := range n {
		if only >= 0 && c != only {
			continue
		}
		o.restore()
		rng := rand.New(rand.NewPCG(seed, uint64(c)))
		o.harmed = o.names[rng.IntN(len(o.names))]
		siblings := slices.DeleteFunc(slices.Clone(o.names), func(name string) bool { return kindOf(name) != kindOf(o.harmed) })
		_, how, err := harmFile(rng, o.dir, o.harmed, siblings, []string{o.old})
		o.must(err)
		if o.now, err = os.ReadFile(filepath.Join(o.dir, o.harmed)); errors.Is(err, fs.ErrNotExist) {
			o.now, err = nil, nil
		}
		o.must(err)
		what := fmt.Sprintf("CORRUPT_CASE=%d TEST_SEED=%d: %s: %s", c, seed, o.harmed, how)
		before := (&corruptTrial{dir: o.dir}).sums()
		worst, said := o.verified()
		if !slices.Equal(before, (&corruptTrial{dir: o.dir}).sums()) {
			t.Errorf("%s: verify changed a file", what)
		}
		switch silent := o.wholeOnce(); {
		case worst == verify.FileOK && !silent:
			t.Errorf("%s: verify finds nothing", what)
		case worst != verify.FileOK && !strings.Contains(said, o.harmed) && !strings.Contains(how, "swapped"):
			t.Errorf("%s: verify does not name the file: %s", what, said)
		}
		o.starts(what, worst)
		outcomes[worst]++
	}
	t.Logf("%d corruptions, TEST_SEED=%d: %v", n, seed, outcomes)
}

// starts opens what a storage server and a gateway open.
func (o *outside) starts(what, worst string) {
	o.t.Helper()
	s, err := openOutsideStaging(o.dir)
	if err != nil {
		o.t.Errorf("%s: %v", what, err)
		return
	}
	got, err := s.Read(&stagings.Query{Table: outsideTable, Lo: math.MinInt64, Hi: math.MaxInt64, Match: func(point.Labels) bool { return true }, Take: func(int64) error { return nil }})
	o.must(err)
	for _, r := range got {
		if r.Labels.Get("i") != fmt.Sprint(r.Values[0]) || r.Times[0] != point.Nanos(r.Values[0]) {
			o.t.Errorf("%s: %s has %v at %v", what, r.Labels, r.Values, r.Times)
		}
	}
	lost := s.Lost(true)
	o.must(s.Close())
	inStaging := strings.HasPrefix(o.harmed, stagingDir)
	if len(got) != outsideRows && (!inStaging || !lost && !o.wholeOnce()) {
		o.t.Errorf("%s: %d staged rows of %d, lost %v", what, len(got), outsideRows, lost)
	}
	if inStaging && lost && worst == verify.FileDamaged && o.now != nil {
		kept, _ := filepath.Glob(filepath.Join(o.dir, stagingDir, "*.damaged"))
		if !slices.ContainsFunc(kept, func(name string) bool { b, _ := os.ReadFile(name); return bytes.Equal(b, o.now) }) {
			o.t.Errorf("%s: the damaged file is not kept: %v", what, kept)
		}
	}
	cache, err := mapcache.Open(filepath.Join(o.dir, "cluster"), mapcache.Settings{})
	o.must(err)
	maps, err := cache.Load()
	for _, m := range maps {
		if want := bytes.Repeat([]byte{m.Table[1] - '0'}, 40); !bytes.Equal(m.Map, want) {
			o.t.Errorf("%s: the map of %s is another one", what, m.Table)
		}
	}
	if len(maps) < outsideMaps-2 || len(maps) < outsideMaps && err == nil && o.now != nil {
		o.t.Errorf("%s: %d maps of %d, %v", what, len(maps), outsideMaps, err)
	}
	if b, err := os.ReadFile(filepath.Join(o.dir, o.harmed)); !inStaging && o.now != nil && !bytes.Equal(b, o.now) {
		o.t.Errorf("%s: a start changed the damaged file: %v", what, err)
	}
}

// nowhere leads nowhere: staged rows stay.
type nowhere struct{ stagings.Ways }

func (nowhere) Map(string) (*topology.Map, uint64) { return nil, 0 }
