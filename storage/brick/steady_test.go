package brick

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestAClockThatJumpsEmptiesNoLostFound: a process that was up for a day believed its clock, and one that was set a month ahead removed what a person had not looked at yet.
func TestAClockThatJumpsEmptiesNoLostFound(t *testing.T) {
	began := time.Now()
	s := newSteady(began)
	looks := func(from, to int, off time.Duration) (believed int) {
		for h := from; h < to; h++ {
			now := began.Add(time.Duration(h) * time.Hour)
			if s.look(now, now.Round(0).Add(off)) > steadyLeast {
				believed++
			}
		}
		return believed
	}
	for _, c := range []struct {
		why      string
		from, to int
		off      time.Duration
		believed int
	}{
		{"it has just started", 1, 25, 0, 0},
		{"a day later", 25, 40, 0, 15},
		{"NTP corrects it by seconds", 40, 45, 5 * time.Second, 5},
		{"it was set a month ahead", 45, 69, 30 * 24 * time.Hour, 0},
		{"and stays there for a day", 70, 72, 30 * 24 * time.Hour, 2},
		{"it was set right", 72, 90, 0, 0},
	} {
		if n := looks(c.from, c.to, c.off); n != c.believed {
			t.Errorf("%s: believed at %d of %d looks, want %d", c.why, n, c.to-c.from, c.believed)
		}
	}
}

// TestWhatAClockOf1970PutAsideIsKeptForAMonth: machines without a battery begin in 1970, and put files aside at that very moment. A day after the clock was set they
// counted as older than a month, and were removed.
func TestWhatAClockOf1970PutAsideIsKeptForAMonth(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	defer mustClose(t, b)
	writeBytes(t, fs, "/data/stray", []byte("rows"))
	if err := b.PutAside("/data/stray", "a test"); err != nil {
		t.Fatal(err)
	}
	names, _ := fs.List(b.lostFoundDir())
	if len(names) != 1 {
		t.Fatalf("put aside are %q", names)
	}
	early := time.Unix(30, 0).UTC().Format(lostFoundTime) + names[0][len(lostFoundTime):]
	if err := fs.Rename(fs.PathJoin(b.lostFoundDir(), names[0]), fs.PathJoin(b.lostFoundDir(), early)); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, c := range []struct {
		days int
		left int
	}{{1, 1}, {30, 1}, {32, 0}} {
		b.countLostFound(now.Add(time.Duration(c.days)*24*time.Hour), steadyLeast+1)
		if got := b.LostFound(); got.Entries != c.left {
			t.Errorf("after %d days %d entries are left, not %d", c.days, got.Entries, c.left)
		}
	}
}

// TestWhatIsPutAsideExpiresOnAMachineWhoseClockIsNeverSet: its time began anew each hour, so that the disk filled.
func TestWhatIsPutAsideExpiresOnAMachineWhoseClockIsNeverSet(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	defer mustClose(t, b)
	if err := MakeDir(fs, b.lostFoundDir()); err != nil {
		t.Fatal(err)
	}
	boot := time.Unix(30, 0)
	writeBytes(t, fs, fs.PathJoin(b.lostFoundDir(), boot.UTC().Format(lostFoundTime)+lostFoundSep+"stray"), []byte("rows"))
	for hours := range 32 * 24 {
		b.countLostFound(boot.Add(time.Duration(hours)*time.Hour), time.Duration(hours)*time.Hour)
		if got, keeps := b.LostFound().Entries, hours <= 30*24; keeps && got != 1 || !keeps && got != 0 {
			t.Fatalf("after %d hours %d entries are left", hours, got)
		}
	}
}

// TestAClockThatBeginsAtAnotherTimeAtEachBootRemovesNothing: what a boot in 1970 put aside was removed a day after the next boot, at which the clock began in 2020.
func TestAClockThatBeginsAtAnotherTimeAtEachBootRemovesNothing(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	defer mustClose(t, b)
	if err := MakeDir(fs, b.lostFoundDir()); err != nil {
		t.Fatal(err)
	}
	writeBytes(t, fs, fs.PathJoin(b.lostFoundDir(), time.Unix(30, 0).UTC().Format(lostFoundTime)+lostFoundSep+"stray"), []byte("rows"))
	boot := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for days, left := range map[int]int{2: 1, 29: 1} {
		up := time.Duration(days) * 24 * time.Hour
		b.countLostFound(boot.Add(up), up)
		if got := b.LostFound().Entries; got != left {
			t.Errorf("%d days after a boot in 2020 %d entries are left, not %d", days, got, left)
		}
	}
}
