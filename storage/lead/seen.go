package lead

import (
	"encoding/json"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// The highest seq of each table's map that was ever seen here lies in the brick's catalogue:
//
//	key     "m/seen/" ++ table
//	value   {"v":1,"seq":…}
//
// It is durable before anything is deleted by that map: a server that was shown a newer map once is not told by an older
// one what to delete.
const (
	seenPrefix  = "m/seen/"
	seenVersion = 1
)

type seenEntry struct {
	V   int    `json:"v"`
	Seq uint64 `json:"seq"`
}

func decodeSeen(b []byte) (uint64, error) {
	var e seenEntry
	if err := json.Unmarshal(b, &e); err != nil {
		return 0, fault.Wrap(err, fault.Corrupt, "highest seq of a table in the catalogue")
	}
	if e.V != seenVersion {
		return 0, fault.Errorf(fault.Corrupt, "highest seq of a table in the catalogue has version %d; this build reads version %d", e.V, seenVersion)
	}
	return e.Seq, nil
}

func encodeSeen(seq uint64) []byte {
	b, err := json.Marshal(seenEntry{seenVersion, seq})
	if err != nil {
		fault.Bug("a seq does not encode: %v", err)
	}
	return b
}

func loadSeen(b *brick.Brick) (map[string]uint64, error) {
	seen := map[string]uint64{}
	return seen, b.Scan([]byte(seenPrefix), func(k, v []byte) error {
		seq, err := decodeSeen(v)
		seen[strings.TrimPrefix(string(k), seenPrefix)] = seq
		return fault.Annotate(err, "table %q", k)
	})
}

// unsee forgets tables that are gone and of which nothing is here: one that is made again under the name begins anew.
func (l *Lead) unsee(here map[string][]server.Held) error {
	b := l.deps.Brick.NewBatch()
	defer b.Close()
	var gone []string
	for table := range l.seen {
		if _, _, ok := l.deps.Maps.At(table); !ok && len(here[table]) == 0 {
			gone = append(gone, table)
			b.Delete([]byte(seenPrefix + table))
		}
	}
	if len(gone) == 0 {
		return nil
	}
	if err := b.Commit(true); err != nil {
		return fault.Annotate(err, "forget the highest seq of %d tables", len(gone))
	}
	for _, table := range gone {
		delete(l.seen, table)
	}
	return nil
}

// see keeps seqs that are higher than those known, durably.
func (l *Lead) see(seqs map[string]uint64) error {
	if len(seqs) == 0 {
		return nil
	}
	b := l.deps.Brick.NewBatch()
	for table, seq := range seqs {
		b.Set([]byte(seenPrefix+table), encodeSeen(seq))
	}
	if err := b.Commit(true); err != nil {
		return fault.Annotate(err, "keep the highest seq of %d tables", len(seqs))
	}
	for table, seq := range seqs {
		l.seen[table] = seq
	}
	return nil
}
