package partition

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// badSector is a file system on which, once on, operations of a kind on some paths fail as on a bad sector.
type badSector struct {
	on   atomic.Bool
	kind errorfs.OpKind
	part string
}

func (s *badSector) MaybeError(op errorfs.Op) error {
	if s.on.Load() && op.Kind == s.kind && strings.Contains(op.Path, s.part) {
		return syscall.EIO
	}
	return nil
}

func (s *badSector) String() string { return "bad sector" }

// TestADirectoryThatCannotBeListedIsNotEmpty: surplus in it, rows that only this placement had, was not handed over until the next start, and a repair called a
// placement empty.
func TestADirectoryThatCannotBeListedIsNotEmpty(t *testing.T) {
	mem := vfs.NewMem()
	b := openBench(t, mem, 1)
	b.must(b.put("a", 1, 10))
	b.must(b.Flush(t.Context(), ByAge))
	surplus := b.surplusPath(point.Serial{Epoch: 1, Seq: 1}, 0)
	f, err := mem.Create(surplus, vfs.WriteCategoryUnspecified)
	b.must(err)
	b.must(f.Close())
	b.close()

	t.Run("the disk is busy", func(t *testing.T) {
		fs := &failing{kind: errorfs.OpList, part: "segments/"}
		b := openBench(t, errorfs.Wrap(mem, fs), 2)
		defer b.close()
		fs.on.Store(true)
		if err := b.Tidy(true); !fault.Is(err, fault.Unavailable) {
			t.Errorf("the start goes on: %v", err)
		} else if dir := b.brick.SegmentDir(ident.Placement); !strings.Contains(err.Error(), fmt.Sprintf("%s/%d", ident.Table, ident.Partition)) ||
			!strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), DoList) {
			t.Errorf("the error lacks partition, directory or remedy: %v", err)
		}
		fs.on.Store(false)
		b.must(b.Tidy(true))
		if !b.HasSurplus() {
			t.Error("the surplus was overlooked")
		}
	})
	t.Run("a bad sector", func(t *testing.T) {
		fs := &badSector{kind: errorfs.OpList, part: "segments/"}
		b := openBench(t, errorfs.Wrap(mem, fs), 3)
		defer b.close()
		fs.on.Store(true)
		b.must(b.Tidy(true))
		if b.Damaged() == nil {
			t.Error("the partition counts as whole")
		}
		dir := b.brick.SegmentDir(ident.Placement)
		r := Rebuild(errorfs.Wrap(mem, fs), dir, ident.Placement, nil, false, b.cache, func(uint64) (to, last uint64) { return 0, 0 })
		if !r.Found || r.Problem == nil {
			t.Errorf("a repair finds nothing there, and no problem: %+v", r)
		}
	})
}

// TestDamageThatALookUpMeetsIsLookedInto: only damage that reads of rows met was, and the segment of a table that dashboards ask for label values alone waited for the
// next pass of the scrub.
func TestDamageThatALookUpMeetsIsLookedInto(t *testing.T) {
	mem := vfs.NewMem()
	b := openBench(t, mem, 1)
	for i := range 3000 { // more than one block of definitions and postings
		b.must(b.put(fmt.Sprintf("%d-%s", i, strings.Repeat("x", i%50)), 1, 1))
	}
	b.must(b.Flush(t.Context(), ByAge))
	want := b.State().Segments[0].ID
	b.close()

	fs := &badSector{kind: errorfs.OpFileReadAt, part: ".seg"}
	b = openBench(t, errorfs.Wrap(mem, fs), 2)
	defer b.close()
	v, err := b.View()
	b.must(err)
	defer v.Close()
	fs.on.Store(true)
	if _, err := LabelValues([]*View{v}, nil, "i", 0); err == nil {
		t.Fatal("label values come from a bad sector")
	}
	if ids := b.Doubted(); len(ids) != 1 || ids[0] != want {
		t.Errorf("doubted are %v, not %v", ids, want)
	}
}

// TestARepairFollowsTheMinorsThatWereAdopted: a file of an earlier leader's minor, which a later leader's had replaced and a power cut brought back, ended the chain: the
// later minors were left out, and the partition was closed.
func TestARepairFollowsTheMinorsThatWereAdopted(t *testing.T) {
	id := func(epoch point.Epoch, seq uint64) point.SegmentID { return point.SegmentID{Epoch: epoch, Seq: seq} }
	of := func(name, base point.SegmentID, ends ...point.EpochEnd) segment.Info {
		return segment.Info{Meta: segment.Meta{ID: name, Base: base, Major: base == point.SegmentID{}, Ends: ends}}
	}
	old := point.EpochEnd{Epoch: 1, Seq: 5}
	found := []segment.Info{
		of(id(1, 1), point.SegmentID{}, point.EpochEnd{Epoch: 1, Seq: 3}),
		of(id(1, 2), id(1, 1), old),
		of(id(2, 2), id(1, 1), old, point.EpochEnd{Epoch: 2, Seq: 7}),
		of(id(2, 3), id(2, 2), point.EpochEnd{Epoch: 2, Seq: 9}),
	}
	var names []string
	for _, g := range bestChain(found) {
		names = append(names, g.ID.String())
	}
	if got, want := strings.Join(names, " "), "1-1 2-2 2-3"; got != want {
		t.Errorf("the chain is %s, not %s", got, want)
	}
}

// TestADroppedPartitionsFilesDoNotComeBackWithAPowerCut: the note that they were to go went for good, and their removal did not. The next start put the directory aside in
// lost+found as one without an owner, with an error, and kept dropped rows there for a month.
func TestADroppedPartitionsFilesDoNotComeBackWithAPowerCut(t *testing.T) {
	mem := vfs.NewCrashableMem()
	b := openBench(t, mem, 1)
	defer b.close()
	b.must(b.put("a", 1, 10))
	b.must(b.Flush(t.Context(), ByAge))
	dir := b.brick.SegmentDir(ident.Placement)
	b.must(b.Drop())
	b.removeDropped()
	b.must(b.brick.RaiseEpoch(7, 1)) // a durable commit, and those before it
	if names, err := mem.CrashClone(vfs.CrashCloneCfg{}).List(dir); err == nil {
		t.Errorf("%s is there with %q", dir, names)
	}
}
