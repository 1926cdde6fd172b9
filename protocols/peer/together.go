package peer

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Together is a Stream that accepts several inserts of staging in one call: the frames of one write that wait for different times, or frames
// that are forwarded, or forgotten, at the same moment. One message, one ack and one wait for the disk serve all.
type Together interface {
	// InsertTogether is Insert for several inserts of staging that CheckTogether accepts. It returns when all are as safe as their level says. After an error
	// each of them may or may not be kept.
	InsertTogether(ctx context.Context, all []*Insert) error
}

// TogetherMax bounds the inserts of one call.
const TogetherMax = 256

// InsertTogether inserts by one call where the stream has that, else side by side. all is as for Together.
func InsertTogether(ctx context.Context, to Stream, all []*Insert) error {
	if len(all) == 1 {
		return to.Insert(ctx, all[0])
	}
	if t, ok := to.(Together); ok {
		return t.InsertTogether(ctx, all)
	}
	return InsertEach(ctx, to, all)
}

// InsertEach inserts side by side, one call each. The error is the first one.
func InsertEach(ctx context.Context, to Stream, all []*Insert) error {
	var g errgroup.Group
	for _, in := range all {
		g.Go(func() error { return to.Insert(ctx, in) })
	}
	return g.Wait()
}

// CheckTogether reports why inserts cannot go together: they are none, too many, not of staging, or differ in more than their rows, stamps, nonces and due times.
// Errors are Invalid.
func CheckTogether(all []*Insert) error {
	if len(all) == 0 || len(all) > TogetherMax {
		return fault.Errorf(fault.Invalid, "%d inserts together, 1 to %d may go together", len(all), TogetherMax)
	}
	first := all[0]
	for _, in := range all {
		if in.Staging == nil {
			return fault.Errorf(fault.Invalid, "an insert together with others that is not of staging")
		}
		if err := in.Staging.Validate(); err != nil {
			return err
		}
		if in.Partition != first.Partition || in.MapSeq != first.MapSeq || in.Level != first.Level || in.Staging.Do != first.Staging.Do || !slices.Equal(in.Staging.Holders, first.Staging.Holders) ||
			!sameSlice(in.Staging.From, first.Staging.From) {
			return fault.Errorf(fault.Invalid, "inserts together that are of different partitions, maps, levels, holders, slices, or do different things")
		}
	}
	return nil
}

func sameSlice(a, b *Slice) bool { return a == b || a != nil && b != nil && *a == *b }

// RowsOf counts the float rows and histograms of inserts.
func RowsOf(all []*Insert) (n int) {
	for _, in := range all {
		n += len(in.IDs) + len(in.Hists)
	}
	return n
}
