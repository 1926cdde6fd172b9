package segment

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// noted is a segment of hosts with the same metrics and a long label.
func noted(t *testing.T, hosts, metrics, long int) (*Reader, *Cache) {
	t.Helper()
	s := &source{meta: Meta{Table: "t", Partition: 1, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
	for h := range hosts {
		note := fmt.Sprintf("%05d%s", h, strings.Repeat("x", long))
		for m := range metrics {
			id := point.DenseID(len(s.defs))
			s.defs = append(s.defs, definition{id, point.MakeLabels("__name__", fmt.Sprintf("m%03d", m), "note", note)})
			s.add(id, rows.Run{Times: []point.Nanos{1}, Values: []float64{1}})
		}
	}
	fs, cache := vfs.NewMem(), openCache(t, 4<<20)
	return openSegment(t, fs, "s", s.write(t, fs, "s"), cache), cache
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestAnswersOfFewSeriesKeepOnlyThose: the first three of many series stayed in the cache together with the labels of all that were read for them, which it did not count.
func TestAnswersOfFewSeriesKeepOnlyThose(t *testing.T) {
	const metrics, hosts, long = 64, 256, 500
	r, cache := noted(t, hosts, metrics, long)
	none := func(int64) error { return nil }
	before := heapBytes()
	for m := range metrics {
		of := NewSelector([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", fmt.Sprintf("m%03d", m))})
		within, err := r.Match(of.ms)
		check(t, err)
		found, err := r.First(of, within, true, 3, none)
		check(t, err)
		if len(found) != 3 {
			t.Fatal(len(found))
		}
	}
	grown := int64(heapBytes()) - int64(before)
	if len(cache.mu.answers) < metrics || grown > cache.mu.bytes+metrics*hosts*long/4 {
		t.Errorf("%d answers take %d bytes, of which %d are counted", len(cache.mu.answers), grown, cache.mu.bytes)
	}
	runtime.KeepAlive(r)
}

// TestAnswersOfFewValuesKeepOnlyThose: a value stayed in the cache together with the page of definitions in which it was read.
func TestAnswersOfFewValuesKeepOnlyThose(t *testing.T) {
	const metrics, hosts, long = 64, 256, 500
	r, cache := noted(t, hosts, metrics, long)
	before := heapBytes()
	for h := range metrics {
		ms := []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "note", fmt.Sprintf("%05d%s", h, strings.Repeat("x", long)))}
		found, err := r.Look(ValuesOf("note", ms, 3), roaring.New())
		check(t, err)
		if len(found) != 1 {
			t.Fatal(len(found))
		}
	}
	grown := int64(heapBytes()) - int64(before)
	if len(cache.mu.answers) < metrics || grown > cache.mu.bytes+metrics*hosts*long/4 {
		t.Errorf("%d answers take %d bytes, of which %d are counted", len(cache.mu.answers), grown, cache.mu.bytes)
	}
	runtime.KeepAlive(r)
}

// TestALookupThatWasLeftEndsAmongValuesOfOthers has many values of a label before the first that a series in question has.
func TestALookupThatWasLeftEndsAmongValuesOfOthers(t *testing.T) {
	r, _ := noted(t, 3000, 1, 0)
	names, err := r.names()
	check(t, err)
	asked, met := 0, 0
	err = r.eachWithin(findName(names, "note"), roaring.BitmapOf(2998, 2999), func(int64) error { asked++; return nil }, func(*roaring.Bitmap) bool {
		met++
		return false
	})
	check(t, err)
	if met != 1 || asked < 4 {
		t.Errorf("asked %d times whether to go on", asked)
	}
}
