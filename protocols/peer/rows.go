package peer

import (
	"context"
	"errors"
)

// Row is a row of the coordination store: a key, a small value and the revision of its last change.
type Row struct {
	Key      string
	Value    []byte
	Revision uint64
}

// RowCondition holds if the row's revision is still the named one; 0: the row does not exist.
type RowCondition struct {
	Key      string
	Revision uint64
}

// RowWrite puts a value, or deletes the row.
type RowWrite struct {
	Key    string
	Value  []byte
	Delete bool
}

// RowEvent is one change of one row. A deleted row has no value.
type RowEvent struct {
	Row
	Deleted bool
}

// ErrRowsForgotten ends a WatchRows from a revision with changes that are no longer kept: list the rows, then watch from there.
var ErrRowsForgotten = errors.New("the changes since that revision are no longer kept")

// Rows is the coordination store as a storage server passes it on to administrators, so that they need no access of their
// own. Errors are Unavailable (the store did not answer; a commit may have happened or not), Denied (a key that is not
// an administrator's to write), Canceled, or TooLarge.
type Rows interface {
	// GetRow reads one row; ok is false when there is none.
	GetRow(ctx context.Context, key string) (row Row, ok bool, err error)

	// ListRows reads all rows under a prefix in key order, as of one revision.
	ListRows(ctx context.Context, prefix string) (rows []Row, revision uint64, err error)

	// CommitRows makes all writes if all conditions hold, and reports whether they did.
	CommitRows(ctx context.Context, conditions []RowCondition, writes []RowWrite) (revision uint64, ok bool, err error)

	// WatchRows calls f with every change under prefix after the revision, in order, until ctx ends or f returns an error,
	// which is returned. It returns ErrRowsForgotten when changes are missing.
	WatchRows(ctx context.Context, prefix string, after uint64, f func([]RowEvent) error) error
}
