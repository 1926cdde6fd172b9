package intake

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestRowsOfASmallTableAreTakenWhileAnothersBodiesFillTheBudget: one table's large bodies had the writes of all others answered
// with 503.
func TestRowsOfASmallTableAreTakenWhileAnothersBodiesFillTheBudget(t *testing.T) {
	const most = 96 << 20
	of := budget{max: most}
	large := charge{of: &of, table: "large"}
	for large.held < most {
		if err := large.take(1 << 20); err != nil {
			t.Fatalf("one alone gets %d bytes of %d: %v", large.held, int64(most), err)
		}
	}
	for table, n := 'a', 0; table < 'a'+10; table, n = table+1, n+1 {
		small := charge{of: &of, table: string(table)}
		if err := small.take(most/smallParts - 1); err != nil {
			t.Fatalf("small table number %d: %v", n, err)
		}
		if err := small.take(1); !fault.Is(err, fault.Throttled) {
			t.Errorf("no longer small: %v", err)
		}
	}
	total := of.used.Load()
	for of.take("b", 1<<10) == nil || of.take("z", 1<<10) == nil {
		total = of.used.Load()
	}
	if total > most+most/reserveParts {
		t.Errorf("%d bytes are in flight", total)
	}
	large.release()
	if len(of.tables) != 11 || of.take("b", 1<<20) != nil {
		t.Errorf("what was given back is not there again: %v", of.tables)
	}
	for table, n := range of.tables {
		of.add(table, -n)
	}
	if of.used.Load() != 0 || len(of.tables) != 0 {
		t.Errorf("left behind: %d, %v", of.used.Load(), of.tables)
	}
}

// TestRowsBeingDecodedAreRefusedWhereOthersHoldTheMemory: rows counted when all of a body were there. A request that is alone is decoded, however
// many it has: a sender that is asked to come again would come for ever.
func TestRowsBeingDecodedAreRefusedWhereOthersHoldTheMemory(t *testing.T) {
	const most = 96 << 20
	of := budget{max: most}
	large, other := charge{of: &of, table: "large"}, charge{of: &of, table: "other"}
	for range 200 {
		if err := large.Reserve(1 << 20); err != nil {
			t.Fatalf("alone with %d bytes: %v", large.held, err)
		}
	}
	if err := other.Reserve(1 << 20); !fault.Is(err, fault.Throttled) || other.held != 0 {
		t.Errorf("beside another: %v, %d held", err, other.held)
	}
	large.noteRows(10 << 20)
	if of.used.Load() != 10<<20 || large.held != 10<<20 {
		t.Errorf("%d bytes are in flight of 10 MiB of rows, %d held", of.used.Load(), large.held)
	}
	if err := other.Reserve(80 << 20); err != nil {
		t.Error(err)
	}
	if err := large.Reserve(10 << 20); !fault.Is(err, fault.Throttled) {
		t.Errorf("beyond the budget beside another: %v", err)
	}
	large.release()
	other.release()
	if of.used.Load() != 0 {
		t.Errorf("%d bytes are left behind", of.used.Load())
	}
}

// TestRowsOfASmallTableAreTakenWhileALargeRequestHasItsTurn: the memory that the large one holds beyond the budget had the writes of all others answered with
// 503.
func TestRowsOfASmallTableAreTakenWhileALargeRequestHasItsTurn(t *testing.T) {
	const most = 96 << 20
	of := budget{max: most}
	of.add("large", most+most/4)
	var total int64
	for table := 'a'; of.take(string(table), most/smallParts-1) == nil; table++ {
		total += most/smallParts - 1
	}
	if total > most/reserveParts || total < most/reserveParts-most/smallParts {
		t.Errorf("small tables get %d bytes, want about %d", total, int64(most/reserveParts))
	}
	for table, n := range of.tables {
		of.add(table, -n)
	}
	if of.little != 0 {
		t.Errorf("left behind: %d", of.little)
	}
}
