package peer

import "context"

// TxnID names a METADATA transaction. Whoever proposes it draws it at random, so that proposing again is recognised (C05).
type TxnID [16]byte

// Metadata is one metadata server as others see it: it keeps METADATA files, each a table's partition map as of one
// transaction, and coordinates transactions. Every storage server can be one. All methods may be called from many
// goroutines.
//
// What lies in Ops and File.Map is package metadata/topology's; here it is bytes with a bound.
type Metadata interface {
	// Change commits a transaction: applies the ops to the map of Base, has a majority of the table's metadata servers
	// store the result durably, then swaps the table's row (C06–C09). Proposing the same transaction again gives the same
	// answer. Errors: Stale (Base is not the committed transaction, or not here; the answer's row is newer: look, and
	// propose a new transaction), Invalid (an op refuses), Unavailable (no majority, or the coordination store does not
	// answer: the transaction may or may not be committed), NotFound.
	Change(ctx context.Context, c *Change) (*Changed, error)

	// Store keeps a file durably before it returns; the same file again is fine. With Ops instead of Map the receiver
	// applies them to Base itself and compares the sum. Errors: Stale (Base is not here: send the whole file), Corrupt
	// (another content under the same name, or the sum differs), TooLarge, Unavailable.
	Store(ctx context.Context, f *File) error

	// Fetch gives a table's file of a transaction, whole. Errors: NotFound (not here; a server that lags says so rather
	// than answer with an older one, C14).
	Fetch(ctx context.Context, table string, txn TxnID) (*File, error)
}

// MapBytesMax bounds an encoded map, and with it every METADATA message.
const MapBytesMax = 256 << 20

// Change is a proposed transaction.
type Change struct {
	Table string
	Base  TxnID
	Txn   TxnID
	Ops   []byte // topology.EncodeOps
	// Round is one more than the round of proposals in the table's row that the proposer planned on: in a later round the
	// change is Stale. 0: not compared; so earlier builds propose.
	Round uint64
}

// Changed tells what was committed.
type Changed struct {
	Txn TxnID
	Seq uint64
}

// File is a METADATA file: whole (Map), or as the ops that lead to it from Base.
type File struct {
	Table string
	Txn   TxnID
	Seq   uint64
	Sum   uint64 // xxhash64 of the encoded map
	Map   []byte // topology.Map.Encode; nil: Base and Ops stand for it
	Base  TxnID  // the transaction before it, beside Map too: it tells which proposals were committed
	Ops   []byte
}
