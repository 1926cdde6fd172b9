package process

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/storage/server"
)

// lending answers the reads of peers within the memory of the process: each read has a loan, like a query of a standalone
// process. The loan covers the search for series, and a chunk for the rows on their way. Reads run by turns, so that they leave their half to rows that come
// in.
type lending struct {
	*server.Server
	queries *budget.Account
}

// lendTimeMax bounds how long a read waits for its first memory. A gateway that has begun to read from one server waits
// for another while it holds the loan of the first, so no read may wait for long.
const lendTimeMax = 2 * time.Second

// borrow begins the loan of one read. The error is Throttled.
func (l lending) borrow(ctx context.Context) (context.Context, *budget.Loan, error) {
	loan, err := l.queries.BorrowWithin(ctx, lendTimeMax, 0)
	if err != nil && ctx.Err() == nil {
		err = fault.Wrap(err, fault.Throttled, "too many reads at once; try again later")
	}
	return budget.WithLoan(ctx, loan), loan, err
}

// Select implements peer.Storage.
func (l lending) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	ctx, loan, err := l.borrow(ctx)
	if err != nil {
		return nil, err
	}
	lent := false
	defer func() {
		if !lent { // also after a panic, which ends the call alone
			loan.Close()
		}
	}()
	set, err := l.Server.SelectInTurns(ctx, q)
	if err != nil {
		return nil, err
	}
	lent = true
	return lentSet{set, loan}, nil
}

// Evaluate implements peer.Evaluator.
func (l lending) Evaluate(ctx context.Context, q *peer.Select, request []byte, give func([]byte) error) error {
	ctx, loan, err := l.borrow(ctx)
	if err != nil {
		return err
	}
	defer loan.Close()
	return l.Server.Evaluate(ctx, q, request, give)
}

// lentSet returns the loan when it is closed.
type lentSet struct {
	peer.SeriesSet
	loan *budget.Loan
}

// Close implements peer.SeriesSet.
func (s lentSet) Close() error {
	defer s.loan.Close()
	return s.SeriesSet.Close()
}

// LabelNames implements peer.Storage.
func (l lending) LabelNames(ctx context.Context, q *peer.Select, limit int) ([]string, bool, error) {
	ctx, loan, err := l.borrow(ctx)
	if err != nil {
		return nil, false, err
	}
	defer loan.Close()
	end, err := l.Turn(ctx)
	if err != nil {
		return nil, false, err
	}
	defer end()
	return l.Server.LabelNames(ctx, q, limit)
}

// LabelValues implements peer.Storage.
func (l lending) LabelValues(ctx context.Context, q *peer.Select, name string, limit int) ([]string, bool, error) {
	ctx, loan, err := l.borrow(ctx)
	if err != nil {
		return nil, false, err
	}
	defer loan.Close()
	end, err := l.Turn(ctx)
	if err != nil {
		return nil, false, err
	}
	defer end()
	return l.Server.LabelValues(ctx, q, name, limit)
}

// Exemplars implements peer.Storage.
func (l lending) Exemplars(ctx context.Context, q *peer.Select, sets [][]peer.Matcher) ([]peer.SeriesExemplars, error) {
	ctx, loan, err := l.borrow(ctx)
	if err != nil {
		return nil, err
	}
	defer loan.Close()
	end, err := l.Turn(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return l.Server.Exemplars(ctx, q, sets)
}
