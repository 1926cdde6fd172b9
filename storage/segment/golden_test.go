package segment

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// goldens are small segments that older programs wrote. Their bytes must never change: a follower and a leader of
// different versions keep the same segment under one checksum (I4), and old files stay readable.
func goldens() map[string]*source {
	empty := &source{meta: Meta{Table: "empty", ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
	one := &source{meta: Meta{Table: "one", ID: point.SegmentID{Epoch: 1, Seq: 2}}}
	one.add(4, rows.Run{Times: []point.Nanos{5}, Values: []float64{0.5}, StampLo: 7, StampHi: 7})
	return map[string]*source{"empty": empty, "one": one, "small": small(), "devops": devops(3, 40, 15)}
}

// described is a golden of the fields added in versions 2 and 3: the range of the partition, and deletions with their ranks.
func described() *source {
	matching := frame.Deletion{Lo: -9, Hi: 1 << 60, Matchers: []frame.Matcher{{Name: "__name__", Value: "up"}, {Type: 2, Name: "job", Value: "a|\xff"}}}
	s := &source{meta: Meta{Table: "described", Partition: 9, ID: point.SegmentID{Epoch: 3, Seq: 4}, Base: point.SegmentID{Epoch: 2, Seq: 3},
		Ends:       []point.EpochEnd{{Epoch: 3, Seq: 77}},
		Range:      &Range{TimeLo: -5, TimeHi: 1e18, PointLo: 1 << 62, PointHi: 1 << 63},
		Deletions:  []Deletion{{frame.Deletion{Lo: 1, Hi: 2}, 0}, {matching, 1 << 63}},
		Remembered: []Deletion{{matching, 7}}}}
	s.add(4, rows.Run{Times: []point.Nanos{5}, Values: []float64{0.5}, StampLo: 7, StampHi: 7})
	return s
}

func TestGoldenBytes(t *testing.T) {
	all := map[string]*source{"described.v3": described(), "ranked.v2": withRanks(small())}
	for name, s := range goldens() {
		all[name+".v2"] = s
	}
	for name, s := range all {
		fs := vfs.NewMem()
		info := s.write(t, fs, "seg")
		got := readFile(t, fs, "seg")
		path := filepath.Join("testdata", "golden", name+".seg")
		if *rewrite {
			check(t, os.MkdirAll(filepath.Dir(path), 0o755))
			check(t, os.WriteFile(path, got, 0o644))
		}
		want, err := os.ReadFile(path)
		check(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes are written, the golden file has %d and differs: I4 is broken, or the format version must rise", name, len(got), len(want))
		}
		r := readGolden(t, fs, want, info, s)
		if d := cmp.Diff(s.meta, r.Info().Meta); d != "" {
			t.Errorf("%s tells of itself (-want +got)\n%s", name, d)
		}
	}
}

// TestDeletionsWithoutRanksStayReadable: stores in use have segments of version 2 that list deletions.
func TestDeletionsWithoutRanksStayReadable(t *testing.T) {
	fs := vfs.NewMem()
	s := described()
	info := s.write(t, fs, "seg")
	b, err := os.ReadFile(filepath.Join("testdata", "golden", "described.v2.seg"))
	check(t, err)
	info.FormatVersion, info.Size, info.Checksum = 2, int64(len(b)), xxhash.Sum64(b)
	want := s.meta
	want.Remembered = nil
	want.Deletions = slices.Clone(want.Deletions)
	for i := range want.Deletions {
		want.Deletions[i].Rank = 0
	}
	if d := cmp.Diff(want, readGolden(t, fs, b, info, s).Info().Meta); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

// TestSegmentsOfVersionOneStayReadable: stores in use have them.
func TestSegmentsOfVersionOneStayReadable(t *testing.T) {
	for name, s := range goldens() {
		fs := vfs.NewMem()
		want, err := os.ReadFile(filepath.Join("testdata", "golden", name+".v1.seg"))
		check(t, err)
		info := s.write(t, fs, "seg")
		info.FormatVersion, info.Size, info.Checksum = 1, int64(len(want)), xxhash.Sum64(want)
		if r := readGolden(t, fs, want, info, s); r.Info().Described() || r.Info().FormatVersion != 1 {
			t.Errorf("%s: %+v", name, r.Info())
		}
	}
}

func readGolden(t *testing.T, fs vfs.FS, b []byte, info Info, s *source) *Reader {
	t.Helper()
	writeFile(t, fs, "golden", b)
	r := openSegment(t, fs, "golden", info, openCache(t, 0))
	check(t, r.Verify())
	check(t, r.Scan(func(id point.DenseID, run rows.Run) error {
		equalRun(t, id, run, s.runs[id])
		return nil
	}))
	return r
}

// TestSameCallsSameBytes writes twice in one process, the second time after other work has warmed whatever is pooled.
func TestSameCallsSameBytes(t *testing.T) {
	s := small()
	fs := vfs.NewMem()
	first := s.write(t, fs, "a")
	devops(4, 100, 15).write(t, fs, "b")
	if second := s.write(t, fs, "c"); second.Checksum != first.Checksum || second.Size != first.Size {
		t.Errorf("the same calls gave %+v, then %+v", first, second)
	}
	sum, size, err := Checksum(fs, "a")
	check(t, err)
	if sum != first.Checksum || size != first.Size {
		t.Errorf("Checksum reads %x of %d bytes, Finish said %+v", sum, size, first)
	}
}

// TestAWarmEncoderChangesNothing: the zstd encoder keeps tables between frames; they must not leak into bytes.
func TestAWarmEncoderChangesNothing(t *testing.T) {
	s := devops(5, 100, 0)
	var e valueEncoder
	warm := newPacker()
	for _, id := range s.order {
		r := s.runs[id]
		var b block
		b.addFloats(chunk{rows: len(r.Values)}, r.Values, &e)
		b.page.add(r.Times)
		cold := newPacker()
		if !bytes.Equal(b.pack(nil, 0, warm), b.pack(nil, 0, cold)) || !bytes.Equal(b.page.pack(nil, warm), b.page.pack(nil, cold)) {
			t.Fatalf("series %d: a warm encoder gives other bytes than a new one", id)
		}
	}
}
