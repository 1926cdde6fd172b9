package limits

import (
	"errors"
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Limit is one of the limits a table has, as it is counted. Its String is its key in the configuration.
type Limit uint8

// The limits of a table.
const (
	SamplesPerSecond Limit = iota
	BytesPerSecond
	RequestBytes
	RequestConcurrency
	ActiveSeries
	NewSeriesPerSecond
	Labels // labels_per_series, label_name_bytes and label_value_bytes together
	PastMax
	FutureMax
	QuerySamples
	QuerySeries
	QueryBytes
	QueryRange
	QueryTimeout
	QueryConcurrency
	limitsNum
)

var limitNames = [limitsNum]string{
	"samples_per_second", "bytes_per_second", "request_bytes", "request_concurrency",
	"active_series", "new_series_per_second", "labels",
	"past_max", "future_max",
	"query_samples", "query_series", "query_bytes", "query_range", "query_timeout", "query_concurrency",
}

// String is the limit's key in the configuration.
func (l Limit) String() string { return limitNames[l] }

// Refusal is the error of a request, a series or a query that a limit refuses.
type Refusal struct {
	Table string
	Limit Limit
	// RetryAfter is the time until the same may be accepted; 0: never, or unknown.
	RetryAfter time.Duration

	err error // with the Kind
}

// Error names the table, the limit, the refused part and the remedy.
func (r *Refusal) Error() string { return r.err.Error() }

// Unwrap gives the error with the Kind.
func (r *Refusal) Unwrap() error { return r.err }

// retryAfterMax bounds the wait that senders are asked for: Telegraf's v2 output waits no longer than 10 min, and a limit
// may be raised meanwhile.
const retryAfterMax = time.Minute

func refusal(table string, l Limit, k fault.Kind, wait time.Duration, format string, args ...any) *Refusal {
	text := fmt.Sprintf(format, args...)
	return &Refusal{Table: table, Limit: l, RetryAfter: min(wait, retryAfterMax), err: fault.Errorf(k, "table %q: %s (limit %s)", table, text, l)}
}

// shortly is a wait for people, in whole seconds.
func shortly(d time.Duration) time.Duration {
	return (min(d, retryAfterMax) + time.Second - 1).Truncate(time.Second)
}

// RetryAfter returns the time after which the refused request may be sent again, def if no limit gives one.
func RetryAfter(err error, def time.Duration) time.Duration {
	if r := refusalOf(err); r != nil && r.RetryAfter > 0 {
		return r.RetryAfter
	}
	return def
}

// Limited reports whether err is a refusal by a table's limit.
func Limited(err error) bool {
	return refusalOf(err) != nil
}

func refusalOf(err error) *Refusal {
	if err == nil {
		return nil // before there is a variable, which would be allocated
	}
	var r *Refusal
	errors.As(err, &r)
	return r
}
