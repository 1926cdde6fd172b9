package partition

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

// M has a frame that defines series 1 otherwise than the next leader does (history 2 of replication).
func TestSurplusIsSetAsideAndItsNumbersAreGivenAnew(t *testing.T) {
	fs := vfs.NewMem()
	h, _ := leading(t, vfs.NewMem(), 1)
	m := following(t, fs, 1)
	tail := following(t, vfs.NewMem(), 1)
	defer h.close()
	defer tail.close()
	h.must(h.put("a", 1, 1))
	m.must(m.catchUp(h, 1))
	tail.must(tail.catchUp(h, 1))
	h.must(h.put("A", 2, 2)) // reaches M alone
	h.must(h.put("a", 3, 3))
	m.must(m.catchUp(h, 1))

	tail.must(tail.Lead(2))
	tail.must(tail.put("B", 4, 4))
	m.must(m.FollowLeader(2))
	var mm *Mismatch
	if err := m.catchUp(tail, 2); !errors.As(err, &mm) {
		_ = tail.EachFrame(point.Serial{}, func(s point.Serial, rec []byte) error {
			if s.Epoch == 2 {
				_, err = m.Follow(2, rec)
			}
			return nil
		})
		if !errors.As(err, &mm) || fmt.Sprint(mm.Ends) != "[{1 3}]" {
			t.Fatalf("a frame of the new leader before the cut: %v", err)
		}
	}
	s, err := m.Cut(point.Serial{Epoch: 1, Seq: 1})
	m.must(err)
	m.want("a 1:1")
	m.must(m.catchUp(tail, 2))
	same(t, tail, m)
	if again, err := m.Cut(point.Serial{Epoch: 2, Seq: 2}); again != nil || err != nil {
		t.Errorf("a second cut: %v, %v", again, err)
	}
	// The surplus is there after a restart, with the labels of its series.
	m.close()
	m = following(t, fs, 2)
	defer m.close()
	same(t, tail, m)
	list, err := m.SurplusFiles()
	if err != nil || len(list) != 1 || list[0].Path != s.Path || s.Frames != 2 {
		t.Fatalf("surplus %v of %+v, %v", list, s, err)
	}
	var got string
	m.must(m.ReadSurplus(&list[0], func(f *frame.Frame) error {
		for i, id := range f.IDs {
			got += fmt.Sprintf("%s %d:%v foreign %v; ", f.Defs[id].Get("i"), f.Times[i], f.Values[i], f.Foreign)
		}
		return nil
	}))
	if want := "A 2:2 foreign true; a 3:3 foreign true; "; got != want {
		t.Errorf("surplus %q, want %q", got, want)
	}
	m.must(m.ForgetSurplus(&list[0]))
	if list, _ := m.SurplusFiles(); len(list) > 0 {
		t.Errorf("%v is left", list)
	}
}

func TestADamagedSurplusFileIsNotHandedOver(t *testing.T) {
	h, _ := leading(t, vfs.NewMem(), 1)
	defer h.close()
	m := following(t, vfs.NewMem(), 1)
	defer m.close()
	h.must(h.put("a", 1, 1))
	h.must(h.put("b", 2, 2))
	m.must(m.catchUp(h, 1))
	s, err := m.Cut(point.Serial{})
	m.must(err)
	whole, err := readAll(m.brick.FS(), s.Path)
	m.must(err)
	if int64(len(whole)) != s.Bytes {
		t.Errorf("%d bytes, said are %d", len(whole), s.Bytes)
	}
	read := func(b []byte) error {
		n := 0
		err := m.eachSurplus(b, s.After, func(*frame.Frame) error { n++; return nil })
		if err == nil && n != 2 {
			t.Errorf("%d frames, want 2", n)
		}
		return err
	}
	checked := func(b []byte, path string) (SurplusContent, error) {
		t.Helper()
		fs := m.brick.FS()
		m.must(fs.MkdirAll(fs.PathDir(path), 0o755))
		f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		m.must(err)
		_, err = f.Write(bytes.Clone(b))
		m.must(errors.Join(err, f.Close()))
		return CheckSurplus(fs, path)
	}
	m.must(read(whole))
	if c, err := checked(whole, s.Path); err != nil || c.Rows != 2 || c.Frames != 2 || c.Table != m.ident.Table || c.Placement != m.ident.Placement {
		t.Errorf("%+v, %v", c, err)
	}
	for _, wrong := range []string{s.Path + "/../0-1.surplus", s.Path + "/../1-0.surplus"} {
		if _, err := checked(whole, filepath.Clean(wrong)); !fault.Is(err, fault.Corrupt) {
			t.Errorf("as %s: %v", wrong, err)
		}
	}
	for n := range whole {
		if _, err := checked(whole[:n], s.Path); !fault.Is(err, fault.Corrupt) {
			t.Errorf("cut to %d bytes, checked: %v, want corrupt", n, err)
		}
		if err := read(whole[:n]); !fault.Is(err, fault.Corrupt) {
			t.Errorf("cut to %d bytes: %v, want corrupt", n, err)
		}
		flipped := bytes.Clone(whole)
		flipped[n] ^= 0x10
		if _, err := checked(flipped, s.Path); !fault.Is(err, fault.Corrupt) {
			t.Errorf("byte %d flipped, checked: %v, want corrupt", n, err)
		}
		if err := read(flipped); !fault.Is(err, fault.Corrupt) {
			t.Errorf("byte %d flipped: %v, want corrupt", n, err)
		}
	}
}

// TestRowsThatOnlyARemovedCopyHadArePutBack: a person moves their file from lost+found to another copy of the partition, from where the start hands it over.
func TestRowsThatOnlyARemovedCopyHadArePutBack(t *testing.T) {
	h, _ := leading(t, vfs.NewMem(), 1)
	defer h.close()
	m := following(t, vfs.NewMem(), 1)
	h.must(h.put("a", 1, 1))
	m.must(m.catchUp(h, 1))
	s, err := m.Cut(point.Serial{})
	m.must(err)
	rows, err := readAll(m.brick.FS(), s.Path)
	m.must(err)
	m.must(m.PutSurplusAside())
	m.close()

	fs, other := vfs.NewMem(), ident
	other.Placement++
	c := openBenchAs(t, fs, 0, Settings{}, other)
	c.must(c.FollowLeader(1))
	put := func(name string) {
		c.must(c.brick.MakeSegmentDir(other.Placement))
		f, err := fs.Create(fs.PathJoin(c.brick.SegmentDir(other.Placement), name), vfs.WriteCategoryUnspecified)
		c.must(err)
		_, err = f.Write(bytes.Clone(rows))
		c.must(errors.Join(err, f.Close()))
	}
	put("0-0.surplus")
	put("1-1.surplus") // another name
	c.must(c.Tidy(true))
	if !c.HasSurplus() {
		t.Error("the rows are not looked for")
	}
	list, err := c.SurplusFiles()
	if err != nil || len(list) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	slices.SortFunc(list, func(a, b Surplus) int { return cmp.Compare(a.After.Seq, b.After.Seq) })
	n := 0
	c.must(c.ReadSurplus(&list[0], func(f *frame.Frame) error { n += f.Samples(); return nil }))
	if n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	if err := c.ReadSurplus(&list[1], func(*frame.Frame) error { return nil }); !fault.Is(err, fault.Corrupt) {
		t.Errorf("under another name: %v", err)
	}
	c.close()
}

// A segment of the next leader lacks frames that only this placement has: they must be cut before, or would be in neither log nor segments.
func TestASegmentIsNotAdoptedOverSurplus(t *testing.T) {
	old, _ := leading(t, vfs.NewMem(), 1)
	defer old.close()
	l, m := following(t, vfs.NewMem(), 1), following(t, vfs.NewMem(), 1)
	defer l.close()
	defer m.close()
	old.must(old.put("a", 1, 1))
	l.must(l.catchUp(old, 1))
	old.must(old.put("surplus", 2, 2))
	m.must(m.catchUp(old, 1))
	l.must(l.Lead(2))
	l.must(l.put("b", 3, 3))
	l.must(l.Flush(t.Context(), ByAge))
	m.must(m.FollowLeader(2))
	if err := m.fetch(l, 2); !fault.Is(err, fault.Stale) {
		t.Errorf("adopted over surplus: %v", err)
	}
	m.want("a 1:1; surplus 2:2")
	_, err := m.Cut(point.Serial{Epoch: 1, Seq: 1})
	m.must(err)
	m.must(m.fetch(l, 2))
	same(t, l, m)
}
