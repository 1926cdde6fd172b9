package transfer

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// blockRows are the times of all rows in a directory of blocks, in order.
func blockRows(t *testing.T, dir string) (times []point.Nanos) {
	t.Helper()
	all, err := findBlocks(dir)
	if err != nil {
		t.Fatal(err)
	}
	src, err := newBlockSource(all, &resume{}, TimeMin, TimeMax, &Losses{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.close()
	for {
		b, err := src.next(context.Background())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range b.lines {
			times = append(times, l.Times...)
		}
	}
	slices.Sort(times)
	return times
}

// TestAnExportOfBlocksThatIsKilledWritesNoWindowTwice: a run that ended between the name of a block and the note of it wrote the window once more, and Prometheus refuses to
// start on blocks that overlap, or reads each row twice. One that ended between its first block and its first note was refused when it was given again.
func TestAnExportOfBlocksThatIsKilledWritesNoWindowTwice(t *testing.T) {
	for _, c := range []struct {
		name  string
		read  int  // the window that is written when the run ends
		noted bool // it ends behind the note, before the block has its name
	}{{"before the first note", 1, false}, {"behind the first note", 1, true}, {"before the second note", 2, false}, {"behind the second note", 2, true}} {
		t.Run(c.name, func(t *testing.T) {
			s, from := newStore(t, 300)
			to := filepath.Join(t.TempDir(), "blocks")
			run := func() (int64, error) {
				e := export(t, s, from, to)
				e.Format, e.Window = FormatBlocks, BlockWindow
				rows, _, err := e.Run(context.Background())
				return rows, err
			}
			note := filepath.Join(to, "export"+ResumeSuffix)
			inTheWay := note + ".new" // the note cannot be written where a directory has its name
			reads := 0
			s.mu.refusing = func(int) bool {
				if reads++; reads == 1 && c.read == 1 || reads > 1 && c.read == 2 {
					_ = os.Mkdir(inTheWay, 0o755)
				}
				return false
			}
			if _, err := run(); err == nil {
				t.Fatal("the run did not end")
			}
			s.mu.refusing = nil
			if err := os.Remove(inTheWay); err != nil {
				t.Fatal(err)
			}
			if c.noted {
				whole, err := filepath.Glob(filepath.Join(to, blockTemp+"*"))
				if err != nil || len(whole) != 1 {
					t.Fatal(whole, err)
				}
				b, err := readBlock(whole[0])
				if err != nil {
					t.Fatal(err)
				}
				was, err := loadResume(note, "test")
				if err != nil {
					t.Fatal(err)
				}
				was.Block, was.Next, was.Bytes = strings.TrimPrefix(filepath.Base(whole[0]), blockTemp), b.meta.MaxTime, was.Bytes+1
				was.Rows += int64(b.meta.Stats.Samples)
				if err := was.save(note); err != nil {
					t.Fatal(err)
				}
			}
			if rows, err := run(); err != nil || rows != 300 {
				t.Fatalf("the next run: %d rows, %v", rows, err)
			}
			if got := blockRows(t, to); len(got) != 300 || len(slices.Compact(got)) != 300 {
				t.Errorf("%d rows are there, of 300", len(got))
			}
			if left, _ := filepath.Glob(filepath.Join(to, ".*")); len(left) > 0 {
				t.Errorf("%v are left", left)
			}
		})
	}
}

// TestAnOlderProgramRefusesANoteOfABlock: it reads version 1 alone, and did not know the block: it removed it, went on behind its window, and the rows were missing.
func TestAnOlderProgramRefusesANoteOfABlock(t *testing.T) {
	for _, c := range []struct {
		block   string
		version int
	}{{"", 1}, {"01JDQ0000000000000000000AA", 2}} {
		path := filepath.Join(t.TempDir(), "note")
		if err := (&resume{What: "test", Block: c.block, Next: 7}).save(path); err != nil {
			t.Fatal(err)
		}
		r, err := loadResume(path, "test")
		if err != nil || r.Version != c.version || r.Block != c.block || r.Next != 7 {
			t.Errorf("block %q: %+v, %v, want version %d", c.block, r, err, c.version)
		}
	}
	path := filepath.Join(t.TempDir(), "note")
	if err := os.WriteFile(path, []byte(`{"version":3,"what":"test"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadResume(path, "test"); !fault.Is(err, fault.Invalid) {
		t.Errorf("a later version: %v", err)
	}
}
