package intake

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Writer is the store behind the front doors. All methods may be called from many goroutines. Errors carry their Kind.
type Writer interface {
	// Table finds a table, and makes it if tables are made on first write; otherwise the error is NotFound.
	Table(ctx context.Context, name string) (Table, error)

	// Existing finds a table that is there, to read it, describe it or delete from it. It never makes one; the error is NotFound.
	Existing(ctx context.Context, name string) (Table, error)

	// Create makes a table that keeps its rows for a time (0: for ever; nil: as new tables do). One that is there already is
	// no error, unless it keeps them for another time than the one given: Invalid.
	Create(ctx context.Context, name string, keep *time.Duration) error

	// List names the tables, sorted.
	List(ctx context.Context) ([]string, error)
}

// Table accepts rows.
type Table interface {
	// Dict is the dictionary of the generation in force, for one batch.
	Dict() *point.Dict

	// Write accepts everything in b: rows, histograms, exemplars, metadata. It returns when they are as safe as the level
	// says, and does not keep b. It may refuse single rows by b.Refuse. After an error rows may or may not be kept;
	// sending them again does no harm.
	Write(ctx context.Context, b *point.Batch, level point.Level) error

	// Bounds are the oldest and newest time that the table keeps at time now, both included.
	Bounds(now point.Nanos) (lo, hi point.Nanos)
}

// Catalogue is an optional extension of a Table, for SHOW MEASUREMENTS and the like. Its look-ups count as queries of the table; errors are those of queries.
type Catalogue interface {
	// MetricNames gives at most limit names of metrics, sorted.
	MetricNames(ctx context.Context, limit int) ([]string, error)

	// Series gives at most limit series in label order, of one metric, or of all ("").
	Series(ctx context.Context, metric string, limit int) ([]point.Labels, error)
}

// Deleter is an optional extension of a Table, for Influx' deletions.
type Deleter interface {
	// Delete removes, durably, the rows in [lo, hi] of the series that all matchers match. NotFound: the table has no rows.
	Delete(ctx context.Context, lo, hi point.Nanos, ms []peer.Matcher) error
}

// Tables changes tables that are there, as an administrator does; by is the sender's name, for the audit. Errors carry their Kind;
// NotFound: there is no such table.
type Tables interface {
	// Drop drops a table with all its rows.
	Drop(ctx context.Context, table, by string) error

	// Keep sets for how long a table keeps its rows; 0: for ever.
	Keep(ctx context.Context, table string, keep time.Duration, by string) error
}

// Replicas removes rows that another sender of the same series sends too. Safe for concurrent use.
type Replicas interface {
	// Resolve comes first of all that follows decoding. Rows of a sender too many are refused in b; the returned ones count as accepted. of are the senders of those left.
	Resolve(table string, b *point.Batch) (n point.Dropped, of []point.Sender)
	// Accepted follows with the senders of which rows are within the bounds: the rows of one pair are no sign of life of another's.
	Accepted(table string, of []point.Sender)
}
