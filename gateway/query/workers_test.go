package query

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWorkersAreUsedAgainAndNoneWaits: a long job delays no other, a worker goes on with the next job, and ends when none comes.
func TestWorkersAreUsedAgainAndNoneWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, hung, ran := newWorkers(), make(chan struct{}), 0
		w.run(func() { <-hung })
		w.run(func() { ran++ })
		synctest.Wait()
		if ran != 1 {
			t.Fatal("a job waits for another")
		}
		idle := func() bool {
			select {
			case w.jobs <- func() { ran++ }:
				synctest.Wait()
				return true
			default:
				return false
			}
		}
		time.Sleep(workerIdle / 2)
		if !idle() || ran != 2 {
			t.Error("the worker is not used again")
		}
		time.Sleep(workerIdle / 2) // less than workerIdle since its last job
		if !idle() || ran != 3 {
			t.Error("the worker ended although it had a job a moment ago")
		}
		time.Sleep(workerIdle + 1)
		synctest.Wait()
		if idle() {
			t.Error("an idle worker does not end")
		}
		close(hung)
		time.Sleep(workerIdle + 1)
	})
}
