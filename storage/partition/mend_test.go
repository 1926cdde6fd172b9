package partition

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// breakSegment flips two bytes in the middle of the i-th segment's file.
func (b *bench) breakSegment(i int) point.SegmentID {
	b.t.Helper()
	info := b.Segments()[i]
	f, err := b.brick.FS().OpenReadWrite(b.brick.SegmentPath(ident.Placement, info.ID), vfs.WriteCategoryUnspecified)
	b.must(err)
	var two [2]byte
	_, err = f.ReadAt(two[:], info.Size/2)
	b.must(err)
	_, err = f.WriteAt([]byte{^two[0], ^two[1]}, info.Size/2)
	b.must(errors.Join(err, f.Sync(), f.Close()))
	return info.ID
}

// copied is a leader with three segments and a row in its head, and a follower with the same.
func copied(t *testing.T, fs vfs.FS) (l, f *bench) {
	t.Helper()
	l, c := leading(t, vfs.NewMem(), 1)
	f = following(t, fs, 1)
	c.await = func(point.Serial) error { return f.catchUp(l, 1) }
	for i := range 3 {
		l.must(l.put("a", point.Nanos(i), float64(i)))
		l.must(l.put(fmt.Sprint("b", i), 10, 1))
		l.must(l.Flush(t.Context(), ByAge))
		f.must(f.catchUp(l, 1))
		f.must(f.fetch(l, 1))
	}
	l.must(l.put("c", 20, 2))
	f.must(f.catchUp(l, 1))
	same(t, l, f)
	c.await = nil
	return l, f
}

// refetch adopts the leader's copy of a segment.
func (b *bench) refetch(from *bench, i int) error {
	info := from.Segments()[i]
	return b.Adopt(1, info, copySegment(b.t, from, b, info.ID))
}

// TestAFlippedBitAtAFollowerIsMendedByItsLeadersSegment: found by the scrub, each segment in turn. Meanwhile nothing is read, and frames are
// accepted.
func TestAFlippedBitAtAFollowerIsMendedByItsLeadersSegment(t *testing.T) {
	l, f := copied(t, vfs.NewMem())
	defer l.close()
	defer f.close()
	for i := range 3 {
		id := f.breakSegment(i)
		found, err := f.CheckSegment(t.Context(), id, func(int) error { return nil })
		if f.must(err); found != FoundDamaged {
			t.Fatalf("segment %d is found %v", i, found)
		}
		if _, err := f.View(); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("a read of a damaged follower: %v, want corrupt", err)
		}
		l.must(l.put("d", point.Nanos(100+i), 3))
		f.must(f.catchUp(l, 1))
		f.must(f.refetch(l, i))
		if ids, mendable := f.Broken(); len(ids) > 0 || !mendable || f.Damaged() != nil {
			t.Fatalf("after the segment was fetched: broken %v, mendable %t, %v", ids, mendable, f.Damaged())
		}
		same(t, l, f)
	}
	// Or a minor replaces two, or a major all.
	id := f.breakSegment(2)
	_, err := f.CheckSegment(t.Context(), id, func(int) error { return nil })
	f.must(err)
	l.foldFrom(1)
	f.must(f.fetch(l, 1))
	same(t, l, f)
	id = f.breakSegment(1)
	_, err = f.CheckSegment(t.Context(), id, func(int) error { return nil })
	f.must(err)
	l.must(l.Compact(t.Context(), ByRequest))
	f.must(f.fetch(l, 1))
	same(t, l, f)
}

// TestASegmentThatCannotBeOpenedAtAFollowerIsMended: found at the start, so that the log was not replayed; the heads are rebuilt from it.
func TestASegmentThatCannotBeOpenedAtAFollowerIsMended(t *testing.T) {
	for _, c := range []struct {
		by   string
		lost bool // the file is missing, not damaged
	}{{"segment", true}, {"segment", false}, {"major", true}, {"major", false}, {"minor", true}, {"minor", false}} {
		t.Run(fmt.Sprintf("by=%s,lost=%t", c.by, c.lost), func(t *testing.T) {
			fs := vfs.NewMem()
			l, f := copied(t, fs)
			defer l.close()
			path := f.brick.SegmentPath(ident.Placement, f.Segments()[1].ID)
			f.breakSegment(1)
			f.close()
			if c.lost {
				l.must(fs.Remove(path))
			}
			f = following(t, fs, 1)
			defer f.close()
			if ids, mendable := f.Broken(); len(ids) != 1 || !mendable || !fault.Is(f.Damaged(), fault.Corrupt) {
				t.Fatalf("broken %v, mendable %t: %v", ids, mendable, f.Damaged())
			}
			l.must(l.put("e", 30, 2))
			f.must(f.catchUp(l, 1)) // its writers do not wait for the file
			if f.Last() != l.Last() || f.Damaged() == nil {
				t.Fatalf("the log ends with %v, the leader's with %v; %v", f.Last(), l.Last(), f.Damaged())
			}
			switch c.by {
			case "major":
				l.must(l.Compact(t.Context(), ByRequest))
				f.must(f.fetch(l, 1))
			case "minor": // of the damaged one and another
				l.foldFrom(1)
				f.must(f.fetch(l, 1))
			default:
				f.must(f.refetch(l, 1))
			}
			if f.Damaged() != nil {
				t.Fatal(f.Damaged())
			}
			f.must(f.catchUp(l, 1))
			same(t, l, f)
			if files, err := fs.List(f.brick.SegmentDir(ident.Placement)); err != nil || len(files) != len(f.Segments()) {
				t.Errorf("%d segments, files %v, %v", len(f.Segments()), files, err)
			}
		})
	}
}

// TestFramesLoggedBeforeTheFileWasMendedAreReadAtTheNextLeader: a follower starts with a damaged file, logs frames, restarts, logs more, and leads before the file is here: it accepts no row until then,
// and the rows of those frames are read.
func TestFramesLoggedBeforeTheFileWasMendedAreReadAtTheNextLeader(t *testing.T) {
	fs := vfs.NewMem()
	l, f := copied(t, fs)
	defer l.close()
	f.breakSegment(1)
	for i := range 2 {
		f.close()
		f = following(t, fs, 1)
		l.must(l.put("e", point.Nanos(30+i), 2))
		l.must(l.put(fmt.Sprint("new", i), 40, 1))
		f.must(f.catchUp(l, 1))
	}
	defer f.close()
	f.stamp = l.stamp + 1<<32
	f.must(f.LeadChain(2, new(byHand)))
	if err := f.put("e", 50, 2); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("a row for a leader without heads: %v, want unavailable", err)
	}
	info := l.Segments()[1]
	f.must(f.Adopt(2, info, copySegment(t, l, f, info.ID)))
	f.must(f.Damaged())
	same(t, l, f)
	f.must(f.put("e", 50, 2))
	l.must(l.FollowLeader(2))
	l.must(l.catchUp(f, 2))
	same(t, f, l)
}
