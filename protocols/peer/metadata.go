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
	// applies them to Base itself and compares the digest, or the sum where the sender knows no digests. Errors: Stale (Base
	// is not here, or the receiver knows no digests: send the whole file), Corrupt (another content under the same name, or
	// the digest or sum differs), TooLarge, Unavailable.
	Store(ctx context.Context, f *File) error

	// Fetch gives a table's file of a transaction: as the ops of each transaction since q.Since, where these are still known
	// and short, or whole. Errors: NotFound (not here; a server that lags says so rather than answer with an older one, C14).
	Fetch(ctx context.Context, q *FileQuery) (*File, error)
}

// FileQuery asks for the file of a transaction.
type FileQuery struct {
	Table string
	Txn   TxnID // zero: the newest that is there, committed or not, for the repair of a table
	Since TxnID // a transaction whose map the asker has; zero: none
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

// StepsMax bounds the transactions, and StepsBytesMax the bytes of their ops, by which an answer of Fetch leads from a map
// that the asker has to the one that it asks for. Beyond, the file is sent whole.
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
}
