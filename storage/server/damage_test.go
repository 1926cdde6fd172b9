package server_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// wreck is a store with two segments in each of partitions 1 and 2, newer rows of both in the log, and the bytes of a
// segment of partition 1.
type wreck struct {
	fs    vfs.FS
	maps  oneMap
	truth model
	file  string
	bytes []byte
}

func newWreck(t *testing.T, segment int) *wreck {
	w := &wreck{fs: vfs.NewMem(), maps: newMap(t), truth: model{}}
	p := start(t, w.fs, w.maps, 1)
	in := newWriter(t, p.server)
	for i := range int64(3) {
		in.insert(t, point.Stamp(1024*(i+1)), []row{{int(i), (10 + i) * 1e9, float64(i)}, {int(i + 1), (20 + i) * 1e9, 7}, {int(i), (110 + i) * 1e9, float64(i)}}, w.truth)
		if i < 2 {
			in.flush(t, false)
		}
	}
	p.stop(t)
	dir := "data/segments/" + point.PlacementID(101).String()
	names, err := w.fs.List(dir)
	if err != nil || len(names) != 2 {
		t.Fatal(names, err)
	}
	w.file = dir + "/" + names[segment]
	w.bytes = w.get(t)
	return w
}

func (w *wreck) get(t *testing.T) []byte {
	f, err := w.fs.Open(w.file)
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

func (w *wreck) put(t *testing.T, b []byte) {
	f, err := w.fs.Create(w.file, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(slices.Clone(b)); err != nil { // under -race the file system keeps the slice
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// rows reads a partition: its rows, or why they cannot be read.
func (w *wreck) rows(p process, id point.PartitionID) (got, want string, err error) {
	lo := int64(id-1) * 100e9
	q := &peer.Select{Table: "t", Lo: lo, Hi: lo + 99e9}
	want = w.truth.String(q.Lo, q.Hi, func(point.Labels) bool { return true })
	set, err := p.server.Select(context.Background(), q)
	if err != nil {
		return "", want, err
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
		return "", want, err
	}
	return b.String(), want, set.Close()
}

// TestDamagedSegmentStopsOnlyItsPartition: the server starts, everything else is read and written; requests to the
// damaged partition are refused with the file and the remedy; the segment is never dropped; and when the file is
// restored, every acked row is there, those of the log too.
func TestDamagedSegmentStopsOnlyItsPartition(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, w *wreck){
		"cut off": func(t *testing.T, w *wreck) { w.put(t, w.bytes[:len(w.bytes)/2]) },
		"empty":   func(t *testing.T, w *wreck) { w.put(t, nil) },
		"gone":    func(t *testing.T, w *wreck) { must(t, w.fs.Remove(w.file)) },
		"zeroed":  func(t *testing.T, w *wreck) { w.put(t, make([]byte, len(w.bytes))) },
		"all gone": func(t *testing.T, w *wreck) {
			must(t, w.fs.RemoveAll("data/segments/"+point.PlacementID(101).String()))
		},
		"other end": func(t *testing.T, w *wreck) { w.put(t, append(w.bytes[:len(w.bytes)-1:len(w.bytes)-1], 'x')) },
	} {
		for segment := range 2 {
			t.Run(fmt.Sprint(name, segment), func(t *testing.T) {
				w := newWreck(t, segment)
				harm(t, w)
				w.refused(t)
				if name == "all gone" {
					return
				}
				w.put(t, w.bytes)
				p := start(t, w.fs, w.maps, 3)
				defer p.stop(t)
				must(t, p.server.FlushAll(t.Context(), true))
				for id := range point.PartitionID(2) {
					if got, want, err := w.rows(p, id+1); err != nil || got != want {
						t.Errorf("restored, partition %d:\n%s%v, want\n%s", id+1, got, err, want)
					}
				}
			})
		}
	}
}

// refused starts a server on a damaged partition 1.
func (w *wreck) refused(t *testing.T) {
	t.Helper()
	p := start(t, w.fs, w.maps, 2)
	defer p.stop(t)
	file := w.file[strings.LastIndexByte(w.file, '/')+1:]
	says := func(what string, err error, kind fault.Kind) {
		t.Helper()
		if !fault.Is(err, kind) || !strings.Contains(err.Error(), file) && !strings.Contains(err.Error(), ".seg") || !strings.Contains(err.Error(), "restore") {
			t.Errorf("%s: %v, want %v, the file %s and what to do", what, err, kind, file)
		}
	}
	if got, want, err := w.rows(p, 2); err != nil || got != want {
		t.Errorf("partition 2:\n%s%v, want\n%s", got, err, want)
	}
	_, _, err := w.rows(p, 1)
	says("a select", err, fault.Corrupt)
	all := &peer.Select{Table: "t", Lo: 0, Hi: 300e9, Matchers: []peer.Matcher{{Name: "i", Value: "1"}}}
	_, err = p.server.Select(t.Context(), all)
	says("a select of everything", err, fault.Corrupt)
	_, _, err = p.server.LabelNames(t.Context(), all, 0)
	says("names", err, fault.Corrupt)
	_, _, err = p.server.LabelValues(t.Context(), all, "i", 0)
	says("values", err, fault.Corrupt)
	_, err = p.server.Exemplars(t.Context(), all, [][]peer.Matcher{nil})
	says("exemplars", err, fault.Corrupt)
	says("a deletion", p.server.DeleteSeries(t.Context(), all), fault.Corrupt)

	st := openStream(t, p.server)
	defer st.Close()
	insert := func(id point.PartitionID, at int64) error {
		return st.Insert(t.Context(), &peer.Insert{Partition: id, Stamp: 1 << 40, IDs: []point.SeriesID{0}, Times: []int64{at}, Values: []float64{5}})
	}
	says("an insert", insert(1, 50e9), fault.Unavailable)
	must(t, insert(2, 150e9))
	w.truth.put(point.MakeLabels("__name__", "m", "i", "1"), 150e9, 5)
	says("a compaction by hand", p.server.FlushAll(t.Context(), true), fault.Corrupt)
	stats, err := p.server.Stats(t.Context(), "t", 0)
	if err != nil || len(stats.ByPartition) != 2 || !strings.Contains(stats.ByPartition[0].Damaged, ".seg") || stats.ByPartition[1].Damaged != "" || stats.ByPartition[0].Rows == 0 {
		t.Errorf("statistics %+v, %v", stats, err)
	}
	if got, want, err := w.rows(p, 2); err != nil || got != want {
		t.Errorf("partition 2 after an insert:\n%s%v, want\n%s", got, err, want)
	}
}

// TestDamagedPartitionIsDropped: by order or by retention, with its file and its log records.
func TestDamagedPartitionIsDropped(t *testing.T) {
	w := newWreck(t, 0)
	w.put(t, w.bytes[:20])
	p := start(t, w.fs, w.maps, 2)
	must(t, p.server.DropPartition("t", 1))
	if got, _, err := w.rows(p, 1); got != "" || err != nil {
		t.Errorf("dropped: %q %v", got, err)
	}
	p.stop(t)
	p = start(t, w.fs, w.maps, 3)
	defer p.stop(t)
	if got, _, err := w.rows(p, 1); got != "" || err != nil {
		t.Errorf("after a restart: %q %v", got, err)
	}
	p.removeDropped(t)
	if _, err := w.fs.Stat(w.file); err == nil {
		t.Error("its file is still there")
	}
}

// TestNoByteOfASegmentCanGoUnnoticed: if any byte changes, a read of the partition returns all rows or an error.
func TestNoByteOfASegmentCanGoUnnoticed(t *testing.T) {
	for segment := range 2 {
		w := newWreck(t, segment)
		refused := 0
		for i := 0; i < len(w.bytes); i += 13 {
			bad := append([]byte(nil), w.bytes...)
			bad[i] ^= 0x41
			w.put(t, bad)
			p := start(t, w.fs, w.maps, point.Epoch(2+i))
			got, want, err := w.rows(p, 1)
			switch {
			case fault.Is(err, fault.Corrupt) && strings.Contains(err.Error(), ".seg"):
				refused++
			case err != nil || got != want:
				t.Errorf("byte %d of %d:\n%s%v, want\n%s", i, len(bad), got, err, want)
			}
			if got, want, err := w.rows(p, 2); err != nil || got != want {
				t.Errorf("byte %d, partition 2:\n%s%v, want\n%s", i, got, err, want)
			}
			p.stop(t)
		}
		if refused == 0 {
			t.Error("no byte matters")
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
