package metafile

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/files"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/storage/brick"
)

// Disk is METADATA files in a brick's catalogue. All methods are safe for concurrent use.
type Disk struct {
	brick *brick.Brick

	mu struct {
		sync.Mutex
		files map[name]place
		users map[name]int // of a root: files that stand on it
	}
}

type name struct {
	table string
	txn   peer.TxnID
}

// place is how a file is kept.
type place struct {
	root  peer.TxnID // zero: whole
	known bool
}

var _ files.Disk = (*Disk)(nil)

// New makes the disk of a brick, which must stay open for as long as it is used.
func New(b *brick.Brick) *Disk {
	d := &Disk{brick: b}
	d.mu.files, d.mu.users = map[name]place{}, map[name]int{}
	return d
}

// A file is kept as ops while there are at most opsMax transactions since its root, and they are a small part of the map.
// More: less is written, and a file that is read after a start takes longer.
const (
	opsMax      = 64
	opsFraction = 8
)

const (
	headPrefix = "m/file/"
	mapPrefix  = "m/map/"
	opsPrefix  = "m/ops/"
)

func key(prefix, table string, txn peer.TxnID) []byte {
	k := make([]byte, 0, len(prefix)+len(table)+1+len(txn))
	return append(append(append(append(k, prefix...), table...), 0), txn[:]...)
}

func parseKey(k []byte) (table string, txn peer.TxnID, ok bool) {
	rest, found := bytes.CutPrefix(k, []byte(headPrefix))
	n := len(rest) - len(txn) - 1
	if !found || n < 1 || rest[n] != 0 {
		return "", txn, false
	}
	copy(txn[:], rest[n+1:])
	return string(rest[:n]), txn, files.CheckName(string(rest[:n])) == nil
}

// Put implements files.Disk. Errors are Invalid, TooLarge, Unavailable (the brick is fenced).
func (d *Disk) Put(f *peer.File) error {
	if err := files.CheckName(f.Table); err != nil {
		return err
	}
	if len(f.Map) > peer.MapBytesMax {
		return fault.Errorf(fault.TooLarge, "the METADATA file of table %q has %d bytes, at most %d are kept", f.Table, len(f.Map), peer.MapBytesMax)
	}
	root, ops := d.rootFor(f)
	h := head{seq: f.Seq, base: f.Base, sum: f.Sum, bytes: uint64(len(f.Map)), root: root}
	b := d.brick.NewBatch()
	b.Set(key(headPrefix, f.Table, f.Txn), h.encode())
	if ops != nil {
		b.Set(key(opsPrefix, f.Table, f.Txn), ops)
	} else {
		b.Set(key(mapPrefix, f.Table, f.Txn), f.Map)
		b.Delete(key(opsPrefix, f.Table, f.Txn)) // of a damaged one
	}
	d.use(name{f.Table, f.Txn}, root)
	return fault.Annotate(b.Commit(true), "METADATA file of table %q", f.Table) // whoever fails has fenced the brick
}

// rootFor chooses how to keep a file: as ops on a root, or whole.
func (d *Disk) rootFor(f *peer.File) (root peer.TxnID, ops []byte) {
	d.mu.Lock()
	base, same := d.mu.files[name{f.Table, f.Base}], d.mu.files[name{f.Table, f.Txn}]
	d.mu.Unlock()
	if f.Ops == nil || !base.known || same.known && same.root == (peer.TxnID{}) { // others may stand on the same one

		return root, nil
	}
	if root = base.root; root == (peer.TxnID{}) {
		root = f.Base
	} else {
		before, ok, err := d.brick.Get(key(opsPrefix, f.Table, f.Base))
		if !ok || err != nil {
			return peer.TxnID{}, nil
		}
		ops = before
	}
	if n := steps(ops); n >= opsMax || (len(ops)+len(f.Ops))*opsFraction > len(f.Map) {
		return peer.TxnID{}, nil
	}
	return root, append(binary.AppendUvarint(ops, uint64(len(f.Ops))), f.Ops...)
}

// steps counts transactions in kept ops.
func steps(b []byte) (n int) {
	for len(b) > 0 {
		_, rest, err := step(b)
		if err != nil {
			return opsMax
		}
		b = rest
		n++
	}
	return n
}

// step takes the ops of one transaction off kept ones. Errors are Corrupt.
func step(b []byte) (ops, rest []byte, err error) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return nil, nil, fault.Errorf(fault.Corrupt, "kept ops end early")
	}
	return b[k : k+int(n)], b[k+int(n):], nil
}

func (d *Disk) use(n name, root peer.TxnID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.mu.files[n]; old.root != (peer.TxnID{}) {
		d.mu.users[name{n.table, old.root}]--
	}
	d.mu.files[n] = place{root, true}
	if root != (peer.TxnID{}) {
		d.mu.users[name{n.table, root}]++
	}
}

// Get implements files.Disk.
func (d *Disk) Get(table string, txn peer.TxnID) (*peer.File, error) {
	v, ok, err := d.brick.Get(key(headPrefix, table, txn))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fault.Errorf(fault.NotFound, "no METADATA file of transaction %x of table %q is here", txn, table)
	}
	h, err := decodeHead(v)
	if err != nil {
		return nil, fault.Annotate(err, "table %q, transaction %x", table, txn)
	}
	m, err := d.read(table, txn, h)
	switch {
	case err != nil:
		return nil, err
	case uint64(len(m)) != h.bytes || xxhash.Sum64(m) != h.sum:
		return nil, fault.Errorf(fault.Corrupt, "the METADATA file of transaction %d of table %q does not match its sum; it is fetched from another metadata server if it is needed", h.seq, table)
	}
	return &peer.File{Table: table, Txn: txn, Seq: h.seq, Sum: h.sum, Map: m, Base: h.base}, nil
}

func (d *Disk) read(table string, txn peer.TxnID, h head) ([]byte, error) {
	whole := txn
	if h.root != (peer.TxnID{}) {
		whole = h.root
	}
	m, err := d.need(key(mapPrefix, table, whole))
	if err != nil || whole == txn {
		return m, err
	}
	ops, err := d.need(key(opsPrefix, table, txn))
	if err != nil {
		return nil, err
	}
	return replay(m, ops)
}

func (d *Disk) need(k []byte) ([]byte, error) {
	v, ok, err := d.brick.Get(k)
	if err == nil && !ok {
		err = fault.Errorf(fault.Corrupt, "the catalogue lacks %q, which belongs to a METADATA file", k)
	}
	return v, err
}

// replay makes a map of a root's map and kept ops. Errors are Corrupt.
func replay(root, ops []byte) ([]byte, error) {
	m, err := topology.Decode(root)
	if err != nil {
		return nil, err
	}
	for len(ops) > 0 {
		var one []byte
		if one, ops, err = step(ops); err != nil {
			return nil, err
		}
		decoded, err := topology.DecodeOps(one)
		if err != nil {
			return nil, fault.Wrap(err, fault.Corrupt, "kept ops")
		}
		if m, err = m.Apply(decoded...); err != nil {
			return nil, fault.Wrap(err, fault.Corrupt, "kept ops")
		}
	}
	return m.Encode(), nil
}

// List implements files.Disk.
func (d *Disk) List() ([]files.Info, error) {
	var out []files.Info
	d.mu.Lock()
	clear(d.mu.files)
	clear(d.mu.users)
	d.mu.Unlock()
	err := d.brick.Scan([]byte(headPrefix), func(k, v []byte) error {
		table, txn, ok := parseKey(slices.Clone(k))
		if !ok {
			return fault.Errorf(fault.Corrupt, "the catalogue's key %q is not a METADATA file's", k)
		}
		h, err := decodeHead(v)
		if err != nil {
			return fault.Annotate(err, "table %q, transaction %x", table, txn)
		}
		d.use(name{table, txn}, h.root)
		out = append(out, files.Info{Table: table, Txn: txn, Base: h.base, Seq: h.seq, Sum: h.sum, Bytes: int(h.bytes)})
		return nil
	})
	return out, err
}

// Delete implements files.Disk: the files are gone for good with the next Put. A map that others stand on stays for them.
func (d *Disk) Delete(gone ...files.Info) error {
	b := d.brick.NewBatch()
	d.mu.Lock()
	for _, i := range gone {
		n := name{i.Table, i.Txn}
		b.Delete(key(headPrefix, i.Table, i.Txn))
		p := d.mu.files[n]
		delete(d.mu.files, n)
		if p.root == (peer.TxnID{}) {
			d.dropLocked(b, n)
			continue
		}
		b.Delete(key(opsPrefix, i.Table, i.Txn))
		root := name{i.Table, p.root}
		d.mu.users[root]--
		if !d.mu.files[root].known {
			d.dropLocked(b, root)
		}
	}
	d.mu.Unlock()
	return b.Commit(false)
}

// dropLocked deletes a map that nobody stands on.
func (d *Disk) dropLocked(b *brick.Batch, n name) {
	if d.mu.users[n] <= 0 {
		delete(d.mu.users, n)
		b.Delete(key(mapPrefix, n.table, n.txn))
	}
}
