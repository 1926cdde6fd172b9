package lead

import (
	"encoding/json"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/lead/rules"
)

// The highest seq of each table's map that this server ever saw is stored in the brick's catalogue:
//
//	key     "m/seen/" ++ table
//	value   {"v":1,"seq":…}
//
// It is durable before anything is deleted by that map: a server that once saw a newer map deletes nothing by an older one.
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

// loadSeen returns the highest transactions of all tables, in order of names.
func loadSeen(b *brick.Brick) (seen []rules.Seen, err error) {
	return seen, b.Scan([]byte(seenPrefix), func(k, v []byte) error {
		seq, err := decodeSeen(v)
		seen = append(seen, rules.Seen{Table: strings.TrimPrefix(string(k), seenPrefix), Seq: seq})
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
			b.Set([]byte(seenPrefix+s.Table), encodeSeen(s.Seq))
		}
	}
	return fault.Annotate(b.Commit(true), "record the highest transaction of %d tables", len(seqs))
}
