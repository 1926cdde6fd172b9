package coord

import "context"

// Revision numbers changes of a store from 1; 0 means: no such row.
type Revision uint64

// Row is one key's value and the revision of its last change. The value belongs to the reader.
type Row struct {
	Key      string
	Value    []byte
	Revision Revision
}

// Condition holds if the row's revision is still the named one; 0: the row does not exist.
type Condition struct {
	Key      string
	Revision Revision
}

// Write puts a value, or deletes the row.
type Write struct {
	Key    string
	Value  []byte
	Delete bool
}

// Event is one change of one row, in the order of revisions. A deleted row has Deleted set and no value.
type Event struct {
	Row
	Deleted bool
}

// Store is a coordination store. All methods are safe for concurrent use. Errors are Unavailable (the store did not
// answer; a Commit may or may not have happened: read again) or Canceled.
type Store interface {
	// Get reads one row; ok is false when there is none.
	Get(ctx context.Context, key string) (row Row, ok bool, err error)

	// List reads all rows under a prefix in key order, as of one revision.
	List(ctx context.Context, prefix string) ([]Row, Revision, error)

	// Commit makes all writes if all conditions hold, durably, and reports whether they did. The revision is the
	// transaction's own when it was committed. Without writes it reports whether all conditions held at one moment after the call.
	Commit(ctx context.Context, conditions []Condition, writes []Write) (Revision, bool, error)

	// Watch calls f with every change under prefix after the given revision, in order, until ctx ends or f returns an
	// error, which is returned. When changes were forgotten meanwhile it returns ErrCompacted: list again, watch again.
	Watch(ctx context.Context, prefix string, after Revision, f func([]Event) error) error

	Close() error
}
