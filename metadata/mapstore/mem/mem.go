// Package mem is a disk of METADATA files that lives and dies with its process: for tests and simulations.
package mem

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Disk implements mapstore.Disk.
type Disk struct {
	mu struct {
		sync.Mutex
		files map[key]*peer.File
	}
}

type key struct {
	table string
	txn   peer.TxnID
}

var _ mapstore.Disk = (*Disk)(nil)

// New makes an empty disk.
func New() *Disk {
	d := &Disk{}
	d.mu.files = map[key]*peer.File{}
	return d
}

// Put implements mapstore.Disk.
func (d *Disk) Put(f *peer.File, m *topology.Map) error {
	own := *f
	own.Map, own.Ops = slices.Clone(f.Map), nil
	if own.Map == nil {
		own.Map = m.Encode()
		own.Sum = xxhash.Sum64(own.Map)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.files[key{f.Table, f.Txn}] = &own
	return nil
}

// Get implements mapstore.Disk.
func (d *Disk) Get(table string, txn peer.TxnID) (*peer.File, *topology.Map, error) {
	d.mu.Lock()
	f := d.mu.files[key{table, txn}]
	d.mu.Unlock()
	if f == nil {
		return nil, nil, fault.Errorf(fault.NotFound, "no METADATA file of transaction %x of table %q is here", txn, table)
	}
	own := *f
	own.Map = slices.Clone(f.Map)
	m, err := mapstore.Decode(&own)
	return &own, m, err
}

// List implements mapstore.Disk.
func (d *Disk) List() ([]mapstore.Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]mapstore.Info, 0, len(d.mu.files))
	for _, f := range d.mu.files {
		out = append(out, mapstore.Info{Table: f.Table, Txn: f.Txn, Base: f.Base, Seq: f.Seq, Digest: f.Digest, Sum: f.Sum, Bytes: len(f.Map)})
	}
	return out, nil
}

// Tidy implements mapstore.Disk: there is nothing to do.
func (d *Disk) Tidy() error { return nil }

// Delete implements mapstore.Disk.
func (d *Disk) Delete(gone ...mapstore.Info) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, i := range gone {
		delete(d.mu.files, key{i.Table, i.Txn})
	}
	return nil
}

// NewServer makes a metadata server on a disk of this kind that is the only one there is.
func NewServer(store coord.Store, self topology.ServerID) *mapstore.Server {
	s, err := mapstore.New(mapstore.Deps{
		Store: store, Peers: func(topology.ServerID) (peer.Metadata, bool) { return nil, false },
		Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		Self: self, Disk: New(),
	}, mapstore.Settings{})
	if err != nil {
		fault.Bug("a metadata server in memory: %v", err)
	}
	return s
}
