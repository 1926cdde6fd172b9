package metafile

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// catalogue is read for files.
type catalogue interface {
	Get(k []byte) (v []byte, ok bool, err error)
	Scan(prefix []byte, f func(k, v []byte) error) error
}

// entries are the keys of a catalogue that no process uses.
// A nil value is a key that was deleted.
type entries map[string][]byte

func (e entries) Get(k []byte) ([]byte, bool, error) {
	v, ok := e[string(k)]
	return v, ok && v != nil, nil
}

func (e entries) Scan(prefix []byte, f func(k, v []byte) error) error {
	var keys []string
	for k, v := range e {
		if v != nil && strings.HasPrefix(k, string(prefix)) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if err := f([]byte(k), e[k]); err != nil {
			return err
		}
	}
	return nil
}

// Site is the partition that a placement is of.
type Site struct {
	Table     string
	Partition topology.Partition
}

// Sites finds the partitions of placements in the METADATA files among a catalogue's entries: in the newest file of each table that can be read.
// A placement that only an older one names was replaced, and is left out.
func Sites(catalogue map[string][]byte, placements map[point.PlacementID]bool) map[point.PlacementID]Site {
	type file struct {
		txn peer.TxnID
		h   head
	}
	d := &Disk{from: entries(catalogue)}
	byTable := map[string][]file{}
	_ = d.from.Scan([]byte(headPrefix), func(k, v []byte) error { // entries return no error, and neither does this
		table, txn, ok := parseKey(headPrefix, k)
		if h, err := decodeHead(v); ok && err == nil {
			byTable[table] = append(byTable[table], file{txn, h})
		}
		return nil
	})
	found := map[point.PlacementID]Site{}
	for table, files := range byTable {
		slices.SortFunc(files, func(a, b file) int { return cmp.Or(cmp.Compare(b.h.seq, a.h.seq), slices.Compare(a.txn[:], b.txn[:])) })
		for _, f := range files {
			// A file that cannot be read is passed over for the one before it: repair is called for damaged stores.
			m, err := d.read(table, f.txn, f.h)
			if err != nil {
				continue
			}
			for p := range m.All() {
				note(found, placements, table, p)
				for _, c := range p.Children() {
					note(found, placements, table, c)
				}
			}
			break
		}
	}
	return found
}

// note adds the placements of a partition that are looked for.
func note(found map[point.PlacementID]Site, wanted map[point.PlacementID]bool, table string, p *topology.Partition) {
	for _, list := range [][]topology.Placement{p.Placements, p.Joining} {
		for _, at := range list {
			if wanted[at.ID] {
				found[at.ID] = Site{table, *p}
			}
		}
	}
}
