package database

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(string, ...any) {}

// openings opens and closes the database n times; each Open flushes the row that the one before left in the log. It returns the disk.
func openings(t *testing.T, n int) *vfs.MemFS {
	t.Helper()
	disk := vfs.NewCrashableMem()
	for i := range n {
		db, err := Open("db", &pebble.Options{FS: disk, Logger: silent{}, DisableAutomaticCompactions: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Set([]byte("key"), fmt.Append(nil, i), pebble.Sync); err != nil {
			t.Fatal(err)
		}
		left := disk.CrashClone(vfs.CrashCloneCfg{})
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		disk = left
	}
	return disk
}

// TestCompactionsThatAreDueAtAStartAreMade: they wait until the database is open, and begin then without another write.
func TestCompactionsThatAreDueAtAStartAreMade(t *testing.T) {
	db, err := Open("db", &pebble.Options{FS: openings(t, 8), Logger: silent{}, L0CompactionThreshold: 2})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); db.Metrics().Levels[0].TablesCount > 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d tables are in L0, and no compaction is made", db.Metrics().Levels[0].TablesCount)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestACompactionWaitsForTheDatabaseToBeOpen: none is granted while an Open may still fail, nor after it has failed, nor
// after a fatal error.
func TestACompactionWaitsForTheDatabaseToBeOpen(t *testing.T) {
	for state, want := range map[state]bool{opening: false, inUse: true, abandoned: false, ended: false} {
		a := &attempt{state: state}
		s := newScheduler(a)
		s.Register(1, oneCompaction{})
		if got, _ := s.TrySchedule(); got != want {
			t.Errorf("in state %d a compaction is granted: %t", state, got)
		}
	}
}

type oneCompaction struct{ pebble.DBForCompaction }

func (oneCompaction) GetAllowedWithoutPermission() int { return 1 }

// TestTheDiskIsNotFilledByCompactionsAfterAFatalError: when a compaction ended, the next one began. No MANIFEST lists its tables, so they are not deleted before the next
// start.
func TestTheDiskIsNotFilledByCompactionsAfterAFatalError(t *testing.T) {
	for _, fatal := range []bool{false, true} {
		a := &attempt{state: inUse}
		s := newScheduler(a)
		db := &waitingCompactions{left: 3}
		s.Register(1, db)
		granted, running := s.TrySchedule()
		if !granted {
			t.Fatal("no compaction is granted")
		}
		want := 2
		if fatal {
			a.fatal()
			want = 3
		}
		if running.Done(); db.left != want {
			t.Errorf("after a fatal error: %t: %d compactions wait, want %d", fatal, db.left, want)
		}
	}
}

// waitingCompactions is a database with some compactions that wait.
type waitingCompactions struct {
	oneCompaction
	left int
}

func (w *waitingCompactions) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	return w.left > 0, pebble.WaitingCompaction{}
}

func (w *waitingCompactions) Schedule(pebble.CompactionGrantHandle) bool {
	w.left--
	return true
}

// TestADatabaseThatAFailureHasHaltedIsNotHandedOut: a flush that fails at the moment Open has succeeded halts with the lock of the
// database. Every call would wait for ever.
func TestADatabaseThatAFailureHasHaltedIsNotHandedOut(t *testing.T) {
	a := &attempt{over: make(chan error, 1)}
	cause := errors.New("no space")
	go a.failed(cause)
	if err := <-a.over; !errors.Is(err, cause) {
		t.Error(err)
	}
	if a.end(inUse) {
		t.Error("the database is handed out")
	}

	passed := make(chan error, 1)
	a = &attempt{over: make(chan error, 1), background: func(err error) { passed <- err }}
	if !a.end(inUse) {
		t.Error("the database is not handed out")
	}
	a.failed(cause) // returns: the database is the caller's
	if err := <-passed; !errors.Is(err, cause) {
		t.Error(err)
	}
}

// TestTheNextOpenFindsTheFilesItHasListed: Pebble deletes old logs beside an Open. Were one deleted after the Open was abandoned, the
// next Open could have listed it, and a healthy store would be refused.
func TestTheNextOpenFindsTheFilesItHasListed(t *testing.T) {
	disk := vfs.NewMem()
	if _, err := disk.Create("1.log", vfs.WriteCategoryUnspecified); err != nil {
		t.Fatal(err)
	}
	a := &attempt{over: make(chan error, 1)}
	f := &files{FS: disk, a: a}
	go a.failed(errors.New("no space"))
	_ = a.free(<-a.over)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.Remove("1.log")
	}()
	select {
	case <-ended:
		t.Error("a database that was abandoned has deleted a file")
	case <-time.After(20 * time.Millisecond):
	}
	if _, err := disk.Stat("1.log"); err != nil {
		t.Error(err)
	}
}
