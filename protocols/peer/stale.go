package peer

import "errors"

// MapAt says where to fetch a table's partition map of one transaction: from a metadata server, without the coordination
// store. It is the sender's claim and is verified when the map is fetched.
type MapAt struct {
	Txn     TxnID
	Seq     uint64   // 0: no map
	Servers []string // the metadata servers that keep it
}

// Bounds of a MapAt on its way. Beyond them a sender leaves it out, and a receiver ignores it.
const (
	MapServersMax     = 15
	MapServerBytesMax = 255
)

// Valid reports whether a MapAt names a transaction and servers, within the bounds.
func (m MapAt) Valid() bool {
	if m.Seq == 0 || m.Txn == (TxnID{}) || len(m.Servers) == 0 || len(m.Servers) > MapServersMax {
		return false
	}
	for _, s := range m.Servers {
		if s == "" || len(s) > MapServerBytesMax {
			return false
		}
	}
	return true
}

// staleError is an error with the newest map that its sender has.
type staleError struct {
	error
	at MapAt
}

func (e *staleError) Unwrap() error { return e.error }

// WithMap puts the newest map of a server on its Stale answer; an at that is not Valid changes nothing.
func WithMap(err error, at MapAt) error {
	if err == nil || !at.Valid() {
		return err
	}
	return &staleError{err, at}
}

// MapOf returns the map that the outermost WithMap in err's chain attached.
func MapOf(err error) (MapAt, bool) {
	var e *staleError
	if !errors.As(err, &e) {
		return MapAt{}, false
	}
	return e.at, true
}
