package segment

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// metered makes a segment of a partition: a row of each series of some hosts, whose ids begin at first.
func metered(t *testing.T, fs vfs.FS, cache *Cache, partition, hosts int, first point.DenseID) *Reader {
	t.Helper()
	s := &source{meta: Meta{Table: "t", Partition: point.PartitionID(partition), ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
	for i := range hosts * 50 {
		id := first + point.DenseID(i)
		s.defs = append(s.defs, definition{id, point.MakeLabels("__name__", fmt.Sprintf("node_metric_%03d_total", i%50), "hostname", fmt.Sprintf("host_%d", i/50))})
		s.add(id, rows.Run{Times: []point.Nanos{1}, Values: []float64{1}})
	}
	name := fmt.Sprint(partition)
	return openSegment(t, fs, name, s.write(t, fs, name), cache)
}

// commonParts counts what segments have in common.
func (c *Cache) commonParts(group uint32) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.mu.pages {
		if k.reader == c.common && k.group == group {
			n++
		}
	}
	return n
}

// TestAFirstQueryOpensTheSameFramesOnce: a metric that is in none of a thousand narrow partitions opened three frames of each the first time.
func TestAFirstQueryOpensTheSameFramesOnce(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 8<<20)
	nowhere := NewSelector([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "node_metric_other")})
	var first []labelName
	for p := range 5 {
		r := metered(t, fs, cache, p, 2, 0)
		found, err := r.Find(nowhere)
		check(t, err)
		if len(found.IDs) != 0 {
			t.Fatalf("partition %d: %d series", p, len(found.IDs))
		}
		names, err := r.names()
		check(t, err)
		if p == 1 { // bytes that are met for the second time stay
			first = names
		}
		if p > 1 && &names[0] != &first[0] {
			t.Errorf("partition %d has a list of names of its own", p)
		}
	}
	if names, frames := cache.commonParts(namesGroup), cache.commonParts(framesGroup); names != 1 || frames != 2 {
		t.Errorf("%d records of names and %d frames were opened in 5 segments of the same series, want 1 and 2", names, frames)
	}
}

// TestSegmentsWithOtherSeriesAnswerForThemselves: equal bytes stand for equal values, wherever they lie, and the ids behind them are each segment's own.
func TestSegmentsWithOtherSeriesAnswerForThemselves(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 8<<20)
	for p, c := range []struct {
		hosts int
		first point.DenseID
	}{{2, 0}, {2, 0}, {2, 7}, {3, 0}, {2, 1000}, {3, 7}, {2, 0}} {
		r := metered(t, fs, cache, p, c.hosts, c.first)
		for _, m := range []int{0, 17, 49} {
			of := NewSelector([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", fmt.Sprintf("node_metric_%03d_total", m))})
			found, err := r.Find(of)
			check(t, err)
			if len(found.IDs) != c.hosts {
				t.Fatalf("partition %d, metric %d: %d series, want %d", p, m, len(found.IDs), c.hosts)
			}
			for h, id := range found.IDs {
				if want := c.first + point.DenseID(50*h+m); id != want {
					t.Errorf("partition %d, metric %d: series %d, want %d", p, m, id, want)
				}
			}
		}
	}
}

// TestACommonFrameOfAnotherLengthIsDamage: the length is not a part of the frame, and a page that names a wrong one was damaged before another was read.
func TestACommonFrameOfAnotherLengthIsDamage(t *testing.T) {
	cache, pk := openCache(t, 1<<20), newPacker()
	raw := bytes.Repeat([]byte("node_metric_"), 20)
	frame := pk.append(nil, raw)
	for _, size := range []int{len(raw), len(raw), len(raw) - 1, len(raw) + 1, len(raw)} {
		c := cursor{b: frame}
		got := c.commonFrame(cache, size)
		if good := size == len(raw); good != c.end() || good && !bytes.Equal(got, raw) {
			t.Errorf("as %d bytes: %q, bad %v", size, got, c.bad)
		}
	}
	if n := cache.commonParts(framesGroup); n != 1 {
		t.Errorf("%d frames stay, want 1", n)
	}
}

// TestCommonPartsStayWithinTheCache, however many different ones are read.
func TestCommonPartsStayWithinTheCache(t *testing.T) {
	cache, pk := openCache(t, 1<<20), newPacker()
	for i := range 5000 {
		raw := bytes.Repeat(fmt.Appendf(nil, "metric_%07d_", i), 20)
		frame := pk.append(nil, raw)
		for range 3 {
			c := cursor{b: frame}
			if got := c.commonFrame(cache, len(raw)); !bytes.Equal(got, raw) {
				t.Fatalf("frame %d: %q", i, got)
			}
		}
	}
	if n, most := cache.commonParts(framesGroup), int(cache.pagesMax/entryBytes); cache.mu.bytes > cache.pagesMax || n == 0 || n > most {
		t.Errorf("%d parts of %d bytes, at most %d", n, cache.mu.bytes, cache.pagesMax)
	}
}

// keptFound counts the answers of a selector that the cache has.
func keptFound(of *Selector, rs []*Reader) (n int) {
	for _, r := range rs {
		if found, _ := r.cache.found(pageKey{reader: r, group: foundGroup, at: r.cache.hash(of.key)}, of.key); found != nil {
			n++
		}
	}
	return n
}

// TestAQueryOverPartitionsOfOtherHostsLeavesTheAnswersOfAnother: where each partition has hosts of its own, as with pods that come and go, frames that no other segment has
// evicted the series that a dashboard's selectors had found, which are a tenth of their size.
func TestAQueryOverPartitionsOfOtherHostsLeavesTheAnswersOfAnother(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 2<<20)
	equal := func(name, value string) *Selector {
		return NewSelector([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, name, value)})
	}
	dashboard := equal("__name__", "node_metric_017_total")
	var watched []*Reader
	for p := range 50 {
		r := metered(t, fs, cache, p, 2, 0)
		_, err := r.Find(dashboard)
		check(t, err)
		watched = append(watched, r)
	}
	for p := range 100 {
		s := &source{meta: Meta{Table: "t", Partition: point.PartitionID(1000 + p), ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
		for i := range 300 {
			s.defs = append(s.defs, definition{point.DenseID(i), point.MakeLabels("__name__", "up", "pod", fmt.Sprintf("pod_%016x", uint64(p*1000+i)*0x9e3779b97f4a7c15))})
			s.add(point.DenseID(i), rows.Run{Times: []point.Nanos{1}, Values: []float64{1}})
		}
		name := fmt.Sprint("pods", p)
		found, err := openSegment(t, fs, name, s.write(t, fs, name), cache).Find(equal("pod", "pod_none"))
		check(t, err)
		if len(found.IDs) != 0 {
			t.Fatalf("partition %d: %d series", p, len(found.IDs))
		}
	}
	if n := keptFound(dashboard, watched); n != len(watched) {
		t.Errorf("of %d answers of the dashboard %d are kept, beside %d frames", len(watched), n, cache.commonParts(framesGroup))
	}
}
