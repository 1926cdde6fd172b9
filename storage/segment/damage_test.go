package segment

import (
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

func readFile(t testing.TB, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	check(t, err)
	defer func() { check(t, f.Close()) }()
	b, err := io.ReadAll(f)
	check(t, err)
	return b
}

func writeFile(t testing.TB, fs vfs.FS, path string, b []byte) {
	t.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	check(t, err)
	_, err = f.Write(append([]byte(nil), b...)) // a vfs may change the slice
	check(t, err)
	check(t, f.Close())
}

// readAll does everything that a query or a compaction may do with a file.
func readAll(fs vfs.FS, info Info, c *Cache, verify bool) error {
	r, err := Open(fs, "seg", info, c)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	if verify {
		return r.Verify()
	}
	var ids []point.DenseID
	if err := r.Scan(func(id point.DenseID, _ rows.Run) error { ids = append(ids, id); return nil }); err != nil {
		return err
	}
	if err := r.Read(ids, math.MinInt64, math.MaxInt64, func(point.DenseID, rows.Run) error { return nil }); err != nil {
		return err
	}
	if err := r.ReadRanked(ids, math.MinInt64, math.MaxInt64, 0, func(int, rows.Run) error { return nil }); err != nil {
		return err
	}
	if _, err := r.Match(nil); err != nil {
		return err
	}
	if _, err := r.SeriesIDs(); err != nil {
		return err
	}
	_, err = r.Look(ValuesOf("host", nil, 0), roaring.New())
	return err
}

func wantCorrupt(t *testing.T, what string, at int, err error) {
	t.Helper()
	if !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), "seg") {
		t.Fatalf("%s at byte %d: %v, want corrupt, with the file's name", what, at, err)
	}
}

// TestEveryTruncationIsSeen cuts the file at every byte, with and without a catalogue that has its size.
func TestEveryTruncationIsSeen(t *testing.T) {
	fs := vfs.NewMem()
	s := withRanks(small())
	info := s.write(t, fs, "seg")
	whole := readFile(t, fs, "seg")
	c := openCache(t, 1<<20)
	for n := range whole {
		writeFile(t, fs, "seg", whole[:n])
		wantCorrupt(t, "truncation", n, readAll(fs, info, c, true))
		wantCorrupt(t, "truncation of an unknown file", n, readAll(fs, Info{}, c, true))
	}
}

// TestEveryBitFlipIsSeen flips one bit of every byte: Verify must see all of them, and reading either answers Corrupt
// or is right, because the bytes that it read were not touched.
func TestEveryBitFlipIsSeen(t *testing.T) {
	fs := vfs.NewMem()
	s := withRanks(small())
	info := s.write(t, fs, "seg")
	whole := readFile(t, fs, "seg")
	c := openCache(t, 1<<20)
	unseen, step := 0, 1
	if testing.Short() {
		step = 7
	}
	for i := 0; i < len(whole); i += step {
		whole[i] ^= 1 << (i % 8)
		writeFile(t, fs, "seg", whole)
		whole[i] ^= 1 << (i % 8)
		wantCorrupt(t, "flip", i, readAll(fs, info, c, true))
		if err := readAll(fs, info, c, false); err == nil {
			unseen++
		} else {
			wantCorrupt(t, "flip, read", i, err)
		}
	}
	t.Logf("%d of %d flips lie where reads do not come by", unseen, len(whole))
	if unseen > len(whole)/5 {
		t.Errorf("reads miss %d of %d flips", unseen, len(whole))
	}
}

// TestACopyThatIsNotTheSealedFileIsRefused cuts, lengthens and flips copies at every byte, rows included, which DescribeCopy does not decode.
func TestACopyThatIsNotTheSealedFileIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	s := withRanks(small())
	info := s.write(t, fs, "seg")
	whole := readFile(t, fs, "seg")
	c := openCache(t, 1<<20)
	got, err := DescribeCopy(fs, "seg", info.Checksum, info.Size, c)
	check(t, err)
	want, err := Describe(fs, "seg", c)
	check(t, err)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("the sealed file is %+v, want %+v", got, want)
	}
	refused := func(what string, at int, b []byte) {
		t.Helper()
		writeFile(t, fs, "seg", b)
		_, err := DescribeCopy(fs, "seg", info.Checksum, info.Size, c)
		wantCorrupt(t, what, at, err)
	}
	for i := range whole {
		refused("truncation", i, whole[:i])
		flipped := slices.Clone(whole)
		flipped[i] ^= 1 << (i % 8)
		refused("flip", i, flipped)
	}
	refused("a byte more", len(whole), append(slices.Clone(whole), 0))
	check(t, fs.Remove("seg"))
	_, err = DescribeCopy(fs, "seg", info.Checksum, info.Size, c)
	wantCorrupt(t, "no file", 0, err)
}

// TestASealedFileThatCannotBeReadIsRefused has the right checksum and no segment in it.
func TestASealedFileThatCannotBeReadIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	writeFile(t, fs, "seg", []byte("no segment at all"))
	sum, size, err := Checksum(fs, "seg")
	check(t, err)
	_, err = DescribeCopy(fs, "seg", sum, size, openCache(t, 0))
	wantCorrupt(t, "not a segment", 0, err)
}

func TestAnotherSegmentsFileIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	s := small()
	info := s.write(t, fs, "seg")
	other := info
	other.ID.Seq++
	c := openCache(t, 0)
	_, err := Open(fs, "seg", other, c)
	wantCorrupt(t, "another id", 0, err)
	_, err = Open(fs, "seg-none", info, c)
	wantCorrupt(t, "no file", 0, err)
}

func TestWriterRefusesWhatIsNotInOrder(t *testing.T) {
	run := rows.Run{Times: []point.Nanos{1, 2}, Values: []float64{1, 2}}
	l := point.MakeLabels("__name__", "up")
	cases := map[string]func(w *Writer) error{
		"times that do not rise":    func(w *Writer) error { return w.Add(1, &rows.Run{Times: []point.Nanos{2, 2}, Values: []float64{1, 2}}) },
		"columns of two lengths":    func(w *Writer) error { return w.Add(1, &rows.Run{Times: []point.Nanos{2}, Values: []float64{1, 2}}) },
		"a series twice":            func(w *Writer) error { _ = w.Add(1, &run); return w.Add(1, &run) },
		"definitions out of order":  func(w *Writer) error { _ = w.Define(2, l); return w.Define(2, l) },
		"definitions after rows":    func(w *Writer) error { _ = w.Add(1, &run); return w.Define(2, l) },
		"labels that are no labels": func(w *Writer) error { return w.Define(2, "\x03abc") },
	}
	for name, f := range cases {
		fs := vfs.NewMem()
		w, err := Create(fs, "seg", Meta{}, Settings{})
		check(t, err)
		if err := f(w); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
		if _, err := w.Finish(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: Finish says %v", name, err)
		}
		check(t, w.Abort())
		if names, _ := fs.List(""); len(names) > 0 {
			t.Errorf("%s: left %v behind", name, names)
		}
	}
}
