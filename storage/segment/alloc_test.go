package segment

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// TestAddAllocatesByTheBlock: the allocations of a group of 32 × 360 rows do not depend on its rows.
func TestAddAllocatesByTheBlock(t *testing.T) {
	s := devops(32, 360, 15)
	w, err := Create(discard{vfs.NewMem()}, "seg", s.meta, Settings{})
	check(t, err)
	next := point.DenseID(0)
	addGroup := func() {
		for _, of := range s.order[:groupSeries] {
			r := s.runs[of]
			check(t, w.Add(next, &r))
			next++
		}
	}
	addGroup() // sizes the buffers, and stores the columns of times
	if n := testing.AllocsPerRun(50, addGroup); n > 12 {
		t.Errorf("%v allocations a group of %d rows, want at most 12", n, groupSeries*360)
	}
	check(t, w.Abort())
}

// discard keeps no bytes, so that the memory of a file in memory is not counted.
type discard struct{ vfs.FS }

func (d discard) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	return discardFile{f}, err
}

type discardFile struct{ vfs.File }

func (discardFile) Write(p []byte) (int, error) { return len(p), nil }

// TestScanAllocatesNothingARow: a cursor reuses its group's memory.
func TestScanAllocatesNothingARow(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes pools forget")
	}
	fs := vfs.NewMem()
	s := devops(20, 360, 0)
	r := openSegment(t, fs, "seg", s.write(t, fs, "seg"), openCache(t, 64<<20))
	scan := func() {
		check(t, r.Scan(func(point.DenseID, rows.Run) error { return nil }))
	}
	scan()
	if n := testing.AllocsPerRun(20, scan); n > 40 {
		t.Errorf("%v allocations a scan of %d rows in %d groups, want at most 40", n, s.rows(), len(s.order)/groupSeries)
	}
}

// TestMemoryOfADaysExemplarsIsFreeDuringACompaction: a compaction held the encoded exemplars of all series until its end, and flushes add
// up to 100,000 each. After EndRows each series' go to the file at once, and the file is the same.
func TestMemoryOfADaysExemplarsIsFreeDuringACompaction(t *testing.T) {
	fs := vfs.NewMem()
	s := small()
	late := s.write(t, fs, "late")
	w, err := Create(fs, "early", s.meta, Settings{})
	check(t, err)
	for _, d := range s.defs {
		check(t, w.Define(d.id, d.labels))
	}
	for _, id := range s.order {
		r := s.runs[id]
		check(t, w.Add(id, &r))
	}
	check(t, w.EndRows())
	for _, d := range s.defs { // by rising id
		check(t, w.AddExemplars(d.id, s.exemplars[d.id]))
		if len(w.exemplars) > 0 {
			t.Fatalf("exemplars of %d series are held", len(w.exemplars))
		}
	}
	early, err := w.Finish()
	check(t, err)
	if early.Checksum != late.Checksum || early.Size != late.Size || early.Exemplars == 0 {
		t.Errorf("the file is another:\n%+v, held in memory\n%+v", early, late)
	}

	w, err = Create(fs, "refused", s.meta, Settings{})
	check(t, err)
	check(t, w.EndRows())
	ex := s.exemplars[s.defs[0].id]
	for _, d := range s.defs {
		if len(ex) == 0 {
			ex = s.exemplars[d.id]
		}
	}
	check(t, w.AddExemplars(7, ex))
	if err := w.AddExemplars(7, ex); err == nil {
		t.Error("exemplars of one series were written twice")
	}
	check(t, w.Abort())
}
