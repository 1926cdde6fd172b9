package mapstore

import (
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Prefix covers the rows of all tables.
const Prefix = "tables/"

// Key is the key of a table's row.
func Key(table string) string { return Prefix + table }

// TableOf is the table that a row's key names.
func TableOf(key string) string { return strings.TrimPrefix(key, Prefix) }

// Row is a table's row in the coordination store: the committed transaction, and the servers that keep its file (C04).
// All else, configuration too, lies in the map: there is one truth.
type Row struct {
	Txn peer.TxnID
	Seq uint64
	// Servers are the metadata servers, sorted.
	Servers []topology.ServerID
	// Dropped means that the table is gone. The row stays, so that a table of the same name made later goes on counting:
	// neither sequence numbers nor partition ids come twice.
	Dropped bool
	// NextID is the partition id that a table of the same name made later begins with; 0: the file of Txn has it. Only with Dropped.
	NextID point.PartitionID
	// Dropping means that the table is being dropped: no transaction gives out partition ids any more, so that
	// writers cannot bring it back while servers release their partitions. A drop that has begun must be ended.
	Dropping bool
	// Round is of the proposals that may be committed: a new one rules out every change that was proposed before it and is
	// not committed yet, whichever coordinator has it and whenever it goes on (NewRuleOut). It only rises.
	Round uint64
	// Begun is the sequence number of the table's first map: lower ones are of tables of this name that were dropped. 0: a build made the
	// table that did not keep it.
	Begun uint64
	// Over is the highest number of the files that a person decided against, naming an older one in a repair: up to it they are no sign that the
	// coordination store was set back. 0: none is higher than Seq.
	Over uint64
}

// afterUnknown is the first id of a table made again where no record is left of the ids that its predecessor gave out: rows of builds that did not
// keep NextID, with a lost file. No map of such a build came near it, and a drop by this build keeps NextID.
const afterUnknown point.PartitionID = 1 << 32

const (
	rowVersion = 2 // version 1 was the whole map, as JSON: see Adopt
	rowMax     = 64 << 10
	// ServersMax bounds the metadata servers of a table.
	ServersMax = 15
	// TableNameMax bounds a table's name in bytes.
	TableNameMax = 255
)

type storedRow struct {
	V        int                 `json:"v"`
	Txn      string              `json:"txn"`
	Seq      uint64              `json:"seq"`
	Servers  []topology.ServerID `json:"servers"`
	Dropped  bool                `json:"dropped,omitempty"`
	Dropping bool                `json:"dropping,omitempty"`
	Round    uint64              `json:"round,omitempty"`
	NextID   point.PartitionID   `json:"next_id,omitempty"`
	Begun    uint64              `json:"begun,omitempty"`
	Over     uint64              `json:"over,omitempty"`
}

// Encode gives the row's stored form: JSON with a version.
func (r Row) Encode() []byte {
	b, err := json.Marshal(storedRow{rowVersion, hex.EncodeToString(r.Txn[:]), r.Seq, r.Servers, r.Dropped, r.Dropping, r.Round, r.NextID, r.Begun, r.Over})
	if err != nil {
		fault.Bug("a table's row does not encode: %v", err)
	}
	return b
}

// DecodeRow reads a row and checks it. Errors are Corrupt.
func DecodeRow(row coord.Row) (Row, error) {
	bad := func(form string, args ...any) (Row, error) {
		return Row{}, fault.Annotate(fault.Errorf(fault.Corrupt, form, args...), "row %s", row.Key)
	}
	if len(row.Value) > rowMax {
		return bad("%d bytes are more than %d", len(row.Value), rowMax)
	}
	var s storedRow
	if err := json.Unmarshal(row.Value, &s); err != nil {
		return Row{}, fault.Wrap(err, fault.Corrupt, "row %s", row.Key)
	}
	switch {
	case s.V == 1:
		return bad("it holds a whole map, as before metadata servers; a standalone process of this build moves it when it starts")
	case s.V != rowVersion:
		return bad("version %d; this build reads version %d", s.V, rowVersion)
	case s.Seq == 0:
		return bad("no sequence number")
	case len(s.Servers) == 0 || len(s.Servers) > ServersMax:
		return bad("%d metadata servers", len(s.Servers))
	case !slices.IsSorted(s.Servers) || len(slices.Compact(slices.Clone(s.Servers))) < len(s.Servers) || s.Servers[0] == "":
		return bad("metadata servers %q are not in order, double or without a name", s.Servers)
	case s.Dropped && s.Dropping:
		return bad("the table is dropped and about to be")
	case s.Begun > s.Seq:
		return bad("the table's first map has sequence number %d, and the newest %d", s.Begun, s.Seq)
	case s.NextID != 0 && !s.Dropped:
		return bad("the next partition id %d of a table that is not dropped", s.NextID)
	}
	r := Row{Seq: s.Seq, Servers: s.Servers, Dropped: s.Dropped, Dropping: s.Dropping, Round: s.Round, NextID: s.NextID, Begun: s.Begun, Over: s.Over}
	if b, err := hex.DecodeString(s.Txn); err != nil || len(b) != len(r.Txn) {
		return bad("transaction id %q", s.Txn)
	} else {
		copy(r.Txn[:], b)
	}
	if r.Txn == (peer.TxnID{}) {
		return bad("transaction id is zero")
	}
	return r, nil
}

// CheckName refuses table names that cannot be a key. Errors are Invalid.
func CheckName(table string) error {
	if table == "" || len(table) > TableNameMax || strings.ContainsRune(table, 0) {
		return fault.Errorf(fault.Invalid, "table name %q: one to %d bytes, none of them zero", table, TableNameMax)
	}
	return nil
}

// has reports whether s keeps the table's files.
func (r Row) has(s topology.ServerID) bool { return slices.Contains(r.Servers, s) }

// with and without give lists of servers; the row is not changed.
func (r Row) with(s topology.ServerID) []topology.ServerID {
	return sorted(append(slices.Clone(r.Servers), s))
}

func (r Row) without(s topology.ServerID) []topology.ServerID {
	return slices.DeleteFunc(slices.Clone(r.Servers), func(x topology.ServerID) bool { return x == s })
}

func sorted(ids []topology.ServerID) []topology.ServerID {
	slices.Sort(ids)
	return slices.Compact(ids)
}

// majority is the smallest number that is more than half of n.
func majority(n int) int { return n/2 + 1 }
