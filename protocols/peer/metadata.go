package peer

import "context"

// TxnID names a METADATA transaction. The proposer draws it at random, so that a repeated proposal is recognised (C05).
type TxnID [16]byte

// Metadata is one metadata server as others see it: it keeps METADATA files, each a table's partition map as of one
// transaction, and coordinates transactions. Every storage server can be one. All methods may be called from many
// goroutines.
//
// Package metadata/topology defines the contents of Ops and File.Map; here they are bytes with a bound.
type Metadata interface {
	// Change commits a transaction: applies the ops to the map of Base, has a majority of the table's metadata servers
	// store the result durably, then swaps the table's row (C06–C09). Proposing the same transaction again gives the same
	// answer. Errors: Stale (Base is not the committed transaction, or not here; the answer's row is newer: look, and
	// propose a new transaction), Invalid (an op refuses), Unavailable (no majority, or the coordination store does not
	// answer: the transaction may or may not be committed), NotFound.
	Change(ctx context.Context, c *Change) (*Changed, error)

	// Store keeps a file durably before it returns; storing the same file again is fine. With Ops instead of Map the receiver
	// applies them to Base itself and compares the digest, or the sum if the sender's build has no digests. Errors: Stale (Base
	// is not here, or the receiver's build has no digests: send the whole file), Corrupt (another content under the same name, or
	// the digest or sum differs), TooLarge, Unavailable.
	Store(ctx context.Context, f *File) error

	// Fetch returns a table's file of a transaction: as the ops of each transaction since q.Since, if they are still kept and
	// short, or whole. Errors: NotFound (not here; a server that lags answers so rather than with an older file, C14).
	Fetch(ctx context.Context, q *FileQuery) (*File, error)
}

// FileQuery asks for the file of a transaction.
type FileQuery struct {
	Table string
	Txn   TxnID // zero: the newest on this server, committed or not, for the repair of a table
	Since TxnID // the transaction of the asker's map; zero: none
	// Acted, with a zero Txn: a server without files that knows File.Acted answers with it alone, a file without a transaction.
	Acted bool
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

// Changed is the outcome of a committed change.
type Changed struct {
	Txn TxnID
	Seq uint64
}

// StepsMax bounds the transactions, and StepsBytesMax the bytes of their ops, that an answer of Fetch holds as steps between
// the asker's map and the one asked for. Beyond them the file is sent whole.
const (
	StepsMax      = 1024
	StepsBytesMax = 1 << 20
)

// File is a METADATA file: whole (Map), as the ops that lead to it from Base (Ops), or as the ops of each transaction that
// lead to it from Since (Steps, in an answer of Fetch).
type File struct {
	Table  string
	Txn    TxnID
	Seq    uint64
	Digest uint64 // topology.Map.Digest; 0: a build from before digests made the file
	Sum    uint64 // xxhash64 of Map; 0 where there is no Map
	Map    []byte // topology.Map.Encode; nil: Base and Ops, or Since and Steps, stand for it
	Base   TxnID  // the transaction before it, beside Map too: it shows which proposals were committed
	Ops    []byte
	Since  TxnID
	Steps  [][]byte
	// Acted, in an answer to a query with a zero Txn, is the newest transaction that this server ever acted by, so that it was
	// committed. Zero: none, or a build from before this field.
	Acted Acted
}

// Acted names a transaction that a storage server acted by.
type Acted struct {
	Txn TxnID
	Seq uint64
}
