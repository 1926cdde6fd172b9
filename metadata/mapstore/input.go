package mapstore

import (
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Input is an input of a Txn: the answer to one of its effects, with the round it was asked in.
type Input interface{ input() }

// Begin starts a transaction.
type Begin struct{}

// RowRead answers ReadRow. OK is false where there is no row.
type RowRead struct {
	Row coord.Row
	OK  bool
	Err error
}

// Loaded answers Load: a file and its map; the file need not hold the encoded map. Both are shared: they are not changed.
type Loaded struct {
	File *peer.File
	Map  *topology.Map
	Err  error
}

// Stored answers Store: nil means durable.
type Stored struct {
	Round  int
	Server topology.ServerID
	Err    error
}

// GuardsRead answers ReadGuards; rows that are not there are missing.
type GuardsRead struct {
	Round int
	Rows  map[string]coord.Row
	Err   error
}

// RowsMarked answers MarkRows. An error leaves open whether it happened.
type RowsMarked struct {
	Round int
	OK    bool
	Err   error
}

// Swapped answers Swap. An error leaves open whether it happened.
type Swapped struct {
	OK       bool
	Revision coord.Revision
	Err      error
}

// Link is one step of a table's history.
type Link struct {
	Txn, Base peer.TxnID
	Seq       uint64
}

// History answers Look: the transaction and those before it, newest first, as far back as they are kept.
type History struct{ Links []Link }

// Expired reports that no caller waits any longer.
type Expired struct{}

func (Begin) input()      {}
func (RowRead) input()    {}
func (Loaded) input()     {}
func (Stored) input()     {}
func (GuardsRead) input() {}
func (RowsMarked) input() {}
func (Swapped) input()    {}
func (History) input()    {}
func (Expired) input()    {}

// Effect is one action that a Txn asks for.
type Effect interface{ effect() }

// ReadRow reads the table's row, linearizably: as of after it was asked. After Failed requests that were not answered a pause
// comes first.
type ReadRow struct{ Round, Failed int }

// Load finds the file of a transaction: on the own disk, else at one of the servers.
type Load struct {
	Round   int
	Table   string
	Txn     peer.TxnID
	Seq     uint64
	Servers []topology.ServerID
}

// Store asks a server to keep a file durably. File is sent. Whole and Map are for the server in this process: the
// file with its ops, and its map.
type Store struct {
	Round  int
	Server topology.ServerID
	File   *peer.File
	Whole  *peer.File
	Map    *topology.Map
}

// ReadGuards reads rows of the lease table, each linearizably.
type ReadGuards struct {
	Round int
	Keys  []string
}

// MarkRows writes into lease rows, before the swap, which transaction may come, if these and the table's row are still as they were.
type MarkRows struct {
	Round      int
	Conditions []coord.Condition
	Writes     []coord.Write
}

// Swap is the commit point (C08): write if the rows are still as read (C09). The table's row comes first in both.
type Swap struct {
	Round      int
	Conditions []coord.Condition
	Writes     []coord.Write
}

// Look asks for the transactions before one, at least until a step that is Sought or stands on Base.
type Look struct {
	Round   int
	Table   string
	Txn     peer.TxnID
	Sought  peer.TxnID
	Base    peer.TxnID
	Servers []topology.ServerID
}

// Alarm is something that must never happen and that a person must look at.
type Alarm struct {
	Table  string
	Server topology.ServerID
	Text   string
}

// Done ends a transaction. Answers to Store may still come and be of use: Step goes on handling them.
type Done struct {
	Changed  peer.Changed
	Row      Row            // as it is now
	Revision coord.Revision // of the row
	Map      *topology.Map  // the committed map, where it was made here
	Err      error
}

func (ReadRow) effect()    {}
func (Load) effect()       {}
func (Store) effect()      {}
func (ReadGuards) effect() {}
func (MarkRows) effect()   {}
func (Swap) effect()       {}
func (Look) effect()       {}
func (Alarm) effect()      {}
func (Done) effect()       {}
