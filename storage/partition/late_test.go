package partition

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// applied reports whether any frame of the leader is in the heads.
func (b *bench) applied() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.frames > 0 || len(b.mu.frozen) > 0
}

func TestACopyDropsFramesUnreadWhenTheSegmentComesFirst(t *testing.T) {
	fs := vfs.NewMem()
	l, _ := leading(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, fs, 1)
	want := ""
	for round := range 3 {
		for i := range 20 {
			l.must(l.put("a", point.Nanos(100*round+i), 1))
			want += fmt.Sprintf(" %d:1", 100*round+i)
		}
		l.must(l.put(fmt.Sprint("b", round), 1, 1)) // a series that only a late frame defines
		f.must(f.catchUp(l, 1))
		if f.applied() || f.isWarm() || f.HeadRows() != 21 {
			t.Fatalf("round %d: frames were applied, or the names loaded, though no read asked for them; %d rows counted", round, f.HeadRows())
		}
		l.must(l.Flush(t.Context(), ByAge))
		f.must(f.catchUp(l, 1)) // the FREEZE
		f.must(f.fetch(l, 1))
		if f.applied() || f.HeadRows() != 0 || f.mu.late.frames != 0 || f.Last() != l.Last() {
			t.Fatalf("round %d: after the segment %d rows and %d frames are late; the log ends at %v, want %v", round, f.HeadRows(), f.mu.late.frames, f.Last(), l.Last())
		}
	}
	f.want("a" + want + "; b0 1:1; b1 1:1; b2 1:1")
	f.close()
	f = following(t, fs, 1)
	defer f.close()
	f.want("a" + want + "; b0 1:1; b1 1:1; b2 1:1")
}

// The leader flushes while later frames are late: these must stay.
func TestRowsBehindASegmentAreReadFromACopyThatHadAppliedNone(t *testing.T) {
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, vfs.NewMem(), 1)
	defer f.close()
	l.must(l.put("a", 1, 1))
	l.must(l.Flush(t.Context(), ByAge))
	l.must(l.put("a", 2, 2))
	l.must(l.put("b", 2, 2))
	for _, rec := range c.passed {
		_, err := f.Follow(1, rec)
		f.must(err)
	}
	f.must(f.fetch(l, 1))
	if f.HeadRows() != 2 || f.applied() {
		t.Errorf("%d rows behind the segment, want 2 late ones", f.HeadRows())
	}
	f.want("a 1:1 2:2; b 2:2")
	if !f.applied() || f.HeadRows() != 2 {
		t.Errorf("a read applied nothing; %d rows", f.HeadRows())
	}
	l.must(l.put("a", 3, 3))
	f.must(f.catchUp(l, 1))
	f.want("a 1:1 2:2 3:3; b 2:2")
}

func TestACopyThatTakesOverHasEveryLateRow(t *testing.T) {
	l, _ := leading(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, vfs.NewMem(), 1)
	defer f.close()
	for i := range 9 {
		l.must(l.put(fmt.Sprint("s", i), 1, 1))
	}
	f.must(f.catchUp(l, 1))
	f.stamp = point.Stamp(2) << 32
	f.must(f.LeadChain(2, new(byHand)))
	f.must(f.put("s0", 2, 2)) // a number of a series that a late frame defined
	f.must(f.Flush(t.Context(), ByAge))
	f.want("s0 1:1 2:2; s1 1:1; s2 1:1; s3 1:1; s4 1:1; s5 1:1; s6 1:1; s7 1:1; s8 1:1")
}

// Late frames are bounded: the oldest are applied by and by, and each once.
func TestManyLateFramesAreAppliedBeforeATakeOverHasToWaitForThem(t *testing.T) {
	l, _ := leading(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, vfs.NewMem(), 1)
	defer f.close()
	for i := range 40 {
		l.must(l.put("a", point.Nanos(i), float64(i)))
	}
	f.must(f.catchUp(l, 1))
	f.lateMu.Lock()
	err := f.catchUpOrdered(f.mu.late.cost / 2)
	f.lateMu.Unlock()
	f.must(err)
	if left := f.mu.late.frames; !f.applied() || left != 20 {
		t.Errorf("%d of 40 frames are late after half of them were applied", left)
	}
	f.mu.late.cost = lateDue // as if each were large
	f.must(f.Maintain(t.Context(), time.Now(), NotDue))
	if left := f.mu.late.frames; left != 0 {
		t.Errorf("%d large frames are late after maintenance", left)
	}
	l.must(l.put("a", 40, 40))
	f.must(f.catchUp(l, 1))
	f.mu.late.cost = lateMost
	l.must(l.put("a", 41, 41))
	f.must(f.catchUp(l, 1))
	if f.mu.late.frames != 0 || f.HeadRows() != 42 {
		t.Errorf("a frame was taken while %d frames were late; %d rows", f.mu.late.frames, f.HeadRows())
	}
}

// A bit of the log flips while frames are late: the copy is not read, and does not lead, without them; a segment heals it.
func TestLateRowsOfADamagedLogAreNotLeftOut(t *testing.T) {
	fs := vfs.NewMem()
	l, _ := leading(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, fs, 1)
	defer f.close()
	for i := range 9 {
		l.must(l.put("a", point.Nanos(i), 1))
	}
	f.must(f.catchUp(l, 1))
	flipLastLog(t, fs)
	if v, err := f.View(); !fault.Is(err, fault.Corrupt) {
		t.Fatalf("view %v of a copy with a damaged log, error %v", v, err)
	}
	if err := f.LeadChain(2, new(byHand)); !fault.Is(err, fault.Corrupt) {
		t.Fatalf("it leads: %v", err)
	}
	l.must(l.Flush(t.Context(), ByAge))
	f.must(f.fetch(l, 1))
	f.want("a 0:1 1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1")
}

// flipLastLog flips a bit of the newest frame in the log's file.
func flipLastLog(t *testing.T, fs vfs.FS) {
	t.Helper()
	names, err := fs.List("data/log")
	if err != nil {
		t.Fatal(err)
	}
	path := "data/log/" + slices.Max(slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".log") }))
	file, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	b, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	at := len(bytes.TrimRight(b, "\x00")) - 8
	if _, err := file.WriteAt([]byte{b[at] ^ 1}, int64(at)); err != nil {
		t.Fatal(err)
	}
}
