package lead

import (
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/lead/rules"
)

// The highest transaction of each table's map that this server ever saw is stored in the brick's catalogue:
//
//	key     "m/seen/" ++ table
//	value   {"v":1,"seq":…,"txn":"…"}      txn: 32 hex digits; absent where a build from before it wrote the entry
//
// It is durable before the server acts by that map: so a server that once saw a newer map deletes nothing by an older one, and the repair of a table after a
// restore of the coordination store sees which transaction of a number was committed (Acted).
const (
	seenPrefix  = "m/seen/"
	seenVersion = 1
)

type seenEntry struct {
	V   int    `json:"v"`
	Seq uint64 `json:"seq"`
	Txn string `json:"txn,omitempty"`
}

func decodeSeen(table string, b []byte) (rules.Seen, error) {
	s := rules.Seen{Table: table}
	var e seenEntry
	if err := json.Unmarshal(b, &e); err != nil {
		return s, fault.Wrap(err, fault.Corrupt, "highest seq of a table in the catalogue")
	}
	if e.V != seenVersion {
		return s, fault.Errorf(fault.Corrupt, "highest seq of a table in the catalogue has version %d; this build reads version %d", e.V, seenVersion)
	}
	if s.Seq = e.Seq; e.Txn == "" {
		return s, nil
	}
	if n, err := hex.Decode(s.Txn[:], []byte(e.Txn[:min(len(e.Txn), 2*len(s.Txn))])); err != nil || 2*n != len(e.Txn) || n != len(s.Txn) {
		return s, fault.Errorf(fault.Corrupt, "highest transaction of a table in the catalogue: %q is not 32 hex digits", e.Txn)
	}
	return s, nil
}

func encodeSeen(s rules.Seen) []byte {
	e := seenEntry{V: seenVersion, Seq: s.Seq}
	if s.Txn != (peer.TxnID{}) {
		e.Txn = hex.EncodeToString(s.Txn[:])
	}
	b, err := json.Marshal(e)
	if err != nil {
		fault.Bug("a seq does not encode: %v", err)
	}
	return b
}

// loadSeen returns the highest transactions of all tables, in order of names.
func loadSeen(b *brick.Brick) (seen []rules.Seen, err error) {
	return seen, b.Scan([]byte(seenPrefix), func(k, v []byte) error {
		s, err := decodeSeen(strings.TrimPrefix(string(k), seenPrefix), v)
		seen = append(seen, s)
		return fault.Annotate(err, "table %q", k)
	})
}

// record stores seqs durably; 0 forgets one.
func record(d *brick.Brick, seqs []rules.Seen) error {
	b := d.NewBatch()
	defer b.Close()
	for _, s := range seqs {
		if s.Seq == 0 {
			b.Delete([]byte(seenPrefix + s.Table))
		} else {
			b.Set([]byte(seenPrefix+s.Table), encodeSeen(s))
		}
	}
	return fault.Annotate(b.Commit(true), "record the highest transaction of %d tables", len(seqs))
}

// Acted returns the newest transaction of a table that the server of a brick ever acted by, and zero if it is not known: none was recorded, the
// entry is damaged, or a build that records only numbers wrote it.
func Acted(b *brick.Brick, table string) (a peer.Acted) {
	v, ok, err := b.Get([]byte(seenPrefix + table))
	if err != nil || !ok {
		return a
	}
	if s, err := decodeSeen(table, v); err == nil && s.Txn != (peer.TxnID{}) {
		a = peer.Acted{Txn: s.Txn, Seq: s.Seq}
	}
	return a
}
