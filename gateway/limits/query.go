package limits

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// Query bounds what one query uses of its table: it holds the limits in force when the query began. A nil Query has no
// limits. Safe for concurrent use.
type Query struct {
	name    string
	table   *Table // nil: the table may not exist
	values  *Values
	refused [limitsNum]atomic.Bool // counted as refused
}

type queryKey struct{}

// QueryOf returns the query that EnterQuery put into ctx; nil: none.
func QueryOf(ctx context.Context) *Query {
	q, _ := ctx.Value(queryKey{}).(*Query)
	return q
}

// refuse counts a refusal once a query, and is nil in dry run.
func (q *Query) refuse(l Limit, format string, args ...any) error {
	if !q.refused[l].Swap(true) {
		q.table.Refused(l, 0)
	}
	if q.values.DryRun {
		return nil
	}
	return refusal(q.name, l, fault.TooLarge, 0, format, args...)
}

// Loads says whether a query may have loaded so many series and samples. The error is TooLarge.
func (q *Query) Loads(series, samples int) error {
	if q == nil {
		return nil
	}
	if most := int(q.values.QuerySeries); most > 0 && series > most {
		if err := q.refuse(QuerySeries, "the query loads more than %d series; select fewer", most); err != nil {
			return err
		}
	}
	if most := int(q.values.QuerySamples); most > 0 && samples > most {
		return q.refuse(QuerySamples, "the query loads more than %d samples; select fewer series or a shorter range", most)
	}
	return nil
}

// Reads says whether a query may read from one time to another, in milliseconds. The error is TooLarge.
func (q *Query) Reads(from, to int64) error {
	if q == nil || q.values.QueryRange == 0 || to <= from {
		return nil
	}
	most := time.Duration(q.values.QueryRange)
	if span := uint64(to) - uint64(from); span > uint64(most.Milliseconds()) {
		return q.refuse(QueryRange, "the query reads %s of time, ranges included, at most %s is allowed; choose a shorter range",
			setting.Span(time.Duration(min(span, uint64(longest.Milliseconds())))*time.Millisecond), q.values.QueryRange)
	}
	return nil
}

// longest is the longest duration that a Span can express.
const longest = 290 * 365 * 24 * time.Hour

// BytesMax is the memory that a query may use where it might use most otherwise (0: any).
func (q *Query) BytesMax(most int64) int64 {
	if q == nil || q.values.DryRun || q.values.QueryBytes == 0 || most > 0 && most < int64(q.values.QueryBytes) {
		return most
	}
	return int64(q.values.QueryBytes)
}

// Took records how many bytes a query held, or asked for where err says that it was refused more. The error is
// the table's refusal where its limit was the reason, else err.
func (q *Query) Took(bytes, processMax int64, tooMany bool, err error) error {
	if q == nil || q.values.QueryBytes == 0 {
		return err
	}
	most := int64(q.values.QueryBytes)
	switch {
	case q.values.DryRun && bytes > most:
		_ = q.refuse(QueryBytes, "")
	case tooMany && q.BytesMax(processMax) == most:
		return q.refuse(QueryBytes, "the query needs more than %d bytes of memory; select fewer series or a shorter range", most)
	}
	return err
}
