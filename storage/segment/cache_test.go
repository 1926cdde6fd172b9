package segment

import (
	"container/list"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// A list is counted in the Cache by the pages that hold it: without a page it must leave no bytes behind.
func TestAListWhosePageIsTooLargeLeavesNothingInTheCache(t *testing.T) {
	c := NewCache(600) // 150 bytes for decoded parts: room for the list of 113, and not for its page of 163
	defer c.Close()
	if got := c.putAnswer(pageKey{group: answersGroup}, "job", []string{"a"}); len(got) != 1 || got[0] != "a" {
		t.Fatalf("the answer is %q", got)
	}
	if c.mu.bytes != 0 || len(c.mu.answers) != 0 || len(c.mu.pages) != 0 {
		t.Fatalf("%d bytes, %d lists and %d pages stay", c.mu.bytes, len(c.mu.answers), len(c.mu.pages))
	}
}

// TestAReaderThatIsClosedLeavesThePartsOfOthers puts, replaces, evicts and forgets parts of several readers, and compares with those that each should have.
func TestAReaderThatIsClosedLeavesThePartsOfOthers(t *testing.T) {
	c := NewCache(4 * 40) // room for 40 parts of one byte
	readers := make([]Reader, 5)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		r := &readers[rng.IntN(len(readers))]
		if rng.IntN(30) == 0 {
			c.forget(r)
			if r.cached != nil {
				t.Fatal("a reader that was forgotten has parts")
			}
		} else {
			c.put(&cached{key: pageKey{reader: r, group: rng.Uint32N(20)}, bytes: 1})
		}
		n := 0
		for i := range readers {
			for p := readers[i].cached; p != nil; p = p.after {
				if e := c.mu.pages[p.key]; e == nil || e.Value.(*cached) != p || p.key.reader != &readers[i] {
					t.Fatal("a part of a reader is not in the cache")
				}
				n++
			}
		}
		if n != len(c.mu.pages) || int64(n) != c.mu.bytes {
			t.Fatalf("readers have %d parts, the cache %d of %d bytes", n, len(c.mu.pages), c.mu.bytes)
		}
	}
	c.Close()
	c.forget(&readers[0]) // a reader that is closed later
}

// BenchmarkForget closes readers of ten parts beside half a million parts of others.
func BenchmarkForget(b *testing.B) {
	c := NewCache(1 << 30)
	defer c.Close()
	others := make([]Reader, 1000)
	for i := range 500_000 {
		c.put(&cached{key: pageKey{reader: &others[i%len(others)], group: uint32(i)}, bytes: 1})
	}
	for b.Loop() {
		var r Reader
		for i := range uint32(10) {
			c.put(&cached{key: pageKey{reader: &r, group: i}, bytes: 1})
		}
		c.forget(&r)
	}
}

// TestSmallPartsCountWithTheirEntry: of thousands of pages of places that a segment lacks, and of short frames, the entries are most of the memory, and half of them was not counted.
func TestSmallPartsCountWithTheirEntry(t *testing.T) {
	size := func(v any) int64 { return int64(reflect.TypeOf(v).Size()) }
	entry := size(cached{}) + size(list.Element{}) + size(pageKey{}) + size((*list.Element)(nil))
	if entryBytes < entry {
		t.Errorf("pages of places and common parts count %d bytes beside their own, an entry has %d", entryBytes, entry)
	}
	fs, cache := vfs.NewMem(), openCache(t, 8<<20)
	r := sparse(t, fs, cache, "s", 1, 1)
	m := cache.Memory()
	defer m.Close()
	before, ids := cache.mu.bytes, []point.DenseID{}
	for i := range 1000 {
		ids = append(ids, point.DenseID(i*pagePlaces))
	}
	check(t, r.ReadInto(m, ids[1:], nil, 0, 10, 0, func(int, rows.Run) error { return nil }))
	if grown := cache.mu.bytes - before; grown < 999*entry {
		t.Errorf("999 pages that are not there count %d bytes, their entries have %d", grown, 999*entry)
	}
}
