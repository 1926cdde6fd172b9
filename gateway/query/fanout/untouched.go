package fanout

import (
	"context"
	"sync"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Servers evaluate the steps of a plan that no staged row touches. Those whose windows may have one are read as rows, which asks for staged ones again.
//
//	           ask when              ask to evaluate
//	             │ ▼ staged              │ ▼ partitions
//	─── acked ───┼───────────────────────┼──────────▶ time
//	             │   row ──forwarded──▶  │
//
// The servers on which rows may be staged are asked for their times (peer.StagedRanger) in each query, after it began and before any server evaluates. A row that was acked
// before the query began is then in one of three places:
//
//   - It was not staged, or its leader acked it at level all before the question: partitions have it, which are asked later.
//   - It is staged when the question comes. Its time is among those answered, so every step with it in its window is read as rows: first those that are staged, then
//     those of partitions, and the row counts once by its rank (staged.go). It does not matter that it may be forwarded at any point in between.
//   - It goes from one holder to another meanwhile, which the gateway does not know yet: the one that transferred it answers for it as long as it can be read there (staging.ReadableFor).
//
// No evaluated step has a row twice, whatever moves: a server evaluates rows of partitions alone, and each is in one. Rows staged after the question were not acked when
// the query began, so the answer need not have them: the times of a holder cannot grow by a row that it must have. They are asked for, and not announced in the registry, where they would be older. Times
// are compared with windows as they are: it does not matter whether rows are late, of now, or of the future, nor whether this gateway's map has a partition for them.
//
// A frame has at least topology.Config.StagedHolders holders. With fewer silent ones one holder of every frame answers, as for reads of staged rows (askStaged); else the times
// are not known, and all steps are read.

// times is a range of time, both ends included.
type times struct{ lo, hi point.Nanos }

// stagedTimes returns the times of the rows of a table that are staged on some servers; ok is false if they are not known.
func (s *Source) stagedTimes(ctx context.Context, at []topology.ServerID, table string) (all []times, ok bool) {
	ctx, stop := context.WithTimeout(ctx, stagedTimeout)
	defer stop()
	answers, errs := patiently(ctx, s, at, table, func(ctx context.Context, _ topology.ServerID, st peer.Storage) (t times, err error) {
		ranger, ok := st.(peer.StagedRanger)
		if !ok {
			return t, fault.Errorf(fault.Invalid, "it does not know the times of staged rows")
		}
		t.lo, t.hi, err = ranger.StagedTimes(ctx, table)
		return t, err
	}, func(times) {})
	silent := 0
	for i, err := range errs {
		switch {
		case err != nil:
			silent++
		case answers[i].lo <= answers[i].hi:
			all = append(all, answers[i])
		}
	}
	return all, silent < s.stagedHolders(table)
}

// knownTimes are the times of staged rows, as one query or several divisions of it know them.
type knownTimes struct {
	once sync.Once
	all  []times
	ok   bool
}

// get asks, or returns the answer that another division got: it is from before any server evaluates for this one.
func (k *knownTimes) get(ask func() ([]times, bool)) ([]times, bool) {
	k.once.Do(func() { k.all, k.ok = ask() })
	return k.all, k.ok
}
