package peer

import "errors"

// Copies says which placements of a partition may answer a select.
type Copies uint8

const (
	// LeaderOnly asks the leader.
	LeaderOnly Copies = iota
	// SureCopies asks any placement that surely has every row acknowledged as kept by all. One that is not sure answers with an error
	// marked by Unsure.
	SureCopies
	// UnsureCopies asks any placement that once had every such row, and has lost none since: it may lack the newest.
	UnsureCopies
)

// Valid reports whether it is a known one of reads.
func (c Copies) Valid() bool { return c <= StagedRows }

// Deletes reports whether it is a known one of deletions.
func (c Copies) Deletes() bool { return c.Valid() && c != StagedRows || c.DeletesStaged() }

// DeletesStaged reports whether it is one of deletions in staged rows.
func (c Copies) DeletesStaged() bool { return c >= StagedDeletes && c <= StagedReleases }

// unsureError is the error of a placement that could answer, but may lack rows.
type unsureError struct{ error }

func (e *unsureError) Unwrap() error { return e.error }

// Unsure marks a Stale error: the placement may lack rows, and answers a request for UnsureCopies.
func Unsure(err error) error {
	if err == nil {
		return nil
	}
	return &unsureError{err}
}

// IsUnsure reports whether an error in err's chain is marked by Unsure.
func IsUnsure(err error) bool {
	var e *unsureError
	return errors.As(err, &e)
}
