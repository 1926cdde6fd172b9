package database

import "github.com/cockroachdb/pebble/v2"

// scheduler lets compactions begin once the database is open. One that began earlier would go on beside an Open that fails, with the
// caches that this Open closes, in a directory that the next Open already uses. Without it, Pebble's own scheduler would also ask a
// database whose Open has failed for compactions, ten times a second until the process ends.
//
// Compactions that were due meanwhile are granted by begin. Nothing asks for them periodically: that would matter only where the number of
// concurrent compactions varies, and it is one.
type scheduler struct {
	*pebble.ConcurrencyLimitScheduler
	a *attempt
}

func newScheduler(a *attempt) *scheduler {
	return &scheduler{pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest(), a}
}

// TrySchedule implements pebble.CompactionScheduler. Pebble remembers a compaction that it refuses.
func (s *scheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if s.a.now() != inUse {
		return false, nil
	}
	return s.ConcurrencyLimitScheduler.TrySchedule()
}

// Register implements pebble.CompactionScheduler.
func (s *scheduler) Register(goroutines int, db pebble.DBForCompaction) {
	s.ConcurrencyLimitScheduler.Register(goroutines, ofUse{db, s.a})
}

// ofUse is a database that has no compactions to make after a fatal error: the end of the one before would grant the next, without TrySchedule.
type ofUse struct {
	pebble.DBForCompaction
	a *attempt
}

// GetWaitingCompaction implements pebble.DBForCompaction.
func (d ofUse) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	if d.a.now() != inUse {
		return false, pebble.WaitingCompaction{}
	}
	return d.DBForCompaction.GetWaitingCompaction()
}

// begin grants a compaction that was refused: the end of one compaction grants the next.
func (s *scheduler) begin() {
	if granted, none := s.ConcurrencyLimitScheduler.TrySchedule(); granted {
		none.Done()
	}
}
