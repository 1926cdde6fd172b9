package ha

import (
	"encoding/json"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Prefix covers the rows of all pairs in the coordination store.
const Prefix = "ha/"

// Pair is the senders of one table with the same cluster label.
type Pair struct{ Table, Cluster string }

// Row is the value of a pair's row, as JSON.
type Row struct {
	Replica string `json:"replica"` // that is elected
	Updates uint64 `json:"updates"` // since it was: each is a sign of life
	// SilentMS is how long before this update the replica last sent rows.
	SilentMS int64 `json:"silent_ms,omitempty"`
}

// key is that of a pair's row. Names of tables have no slash; that of a cluster is the rest, whatever it is.
func key(p Pair) string { return Prefix + p.Table + "/" + p.Cluster }

// parseKey returns the pair of a row's key.
func parseKey(k string) (p Pair, ok bool) {
	path, ok := strings.CutPrefix(k, Prefix)
	p.Table, p.Cluster, _ = strings.Cut(path, "/")
	return p, ok && p.Table != "" && p.Cluster != ""
}

func (r Row) encode() []byte {
	b, err := json.Marshal(r)
	if err != nil {
		fault.Bug("the row of a pair does not encode: %v", err)
	}
	return b
}

// decodeRow reads a row. An unreadable one names no replica, and is replaced at the next election.
func decodeRow(b []byte) (r Row) {
	if err := json.Unmarshal(b, &r); err != nil {
		return Row{}
	}
	return r
}
