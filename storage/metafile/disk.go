package metafile

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/mapstore"
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

var _ mapstore.Disk = (*Disk)(nil)

// New makes the disk of a brick, which must stay open for as long as it is used.
func New(b *brick.Brick) *Disk {
	d := &Disk{brick: b}
	d.mu.files, d.mu.users = map[name]place{}, map[name]int{}
	return d
}

// A file is kept as ops while there are at most opsMax transactions since its root, and they are a small part of the map.
// More: less is written, and a file that is read after a start takes longer. Each file holds all ops since its root, so n
// transactions of s bytes on a map of m write n·s/2 + m/n bytes each: of 200 bytes on 8 MiB, 58 KiB.
const (
	opsMax      = 256
	opsFraction = 8
)

// pieceBytes is the size of the pieces in which a map lies in the catalogue: keys beside a value of many megabytes would be
// read together with it, each time.
const pieceBytes = 64 << 10

const (
	headPrefix = "m/file/"
	mapPrefix  = "m/map/"
	opsPrefix  = "m/ops/"
)

func key(prefix, table string, txn peer.TxnID) []byte {
	k := make([]byte, 0, len(prefix)+len(table)+1+len(txn))
	return append(append(append(append(k, prefix...), table...), 0), txn[:]...)
}

func pieceKey(table string, txn peer.TxnID, n uint32) []byte {
	return binary.BigEndian.AppendUint32(key(mapPrefix, table, txn), n)
}

func parseKey(k []byte) (table string, txn peer.TxnID, ok bool) {
	rest, found := bytes.CutPrefix(k, []byte(headPrefix))
	n := len(rest) - len(txn) - 1
	if !found || n < 1 || rest[n] != 0 {
		return "", txn, false
	}
	copy(txn[:], rest[n+1:])
	return string(rest[:n]), txn, mapstore.CheckName(string(rest[:n])) == nil
}

// Put implements mapstore.Disk. Errors are Invalid, TooLarge, Unavailable (the brick is fenced).
func (d *Disk) Put(f *peer.File, m *topology.Map) error {
	if err := mapstore.CheckName(f.Table); err != nil {
		return err
	}
	root, ops := d.rootFor(f, m.EncodedBytes())
	h := head{seq: f.Seq, base: f.Base, sum: m.Digest(), bytes: uint64(min(m.EncodedBytes(), peer.MapBytesMax)), root: root}
	b := d.brick.NewBatch()
	if ops != nil {
		b.Set(key(opsPrefix, f.Table, f.Txn), ops)
	} else {
		whole := f.Map
		if whole == nil {
			whole = m.Encode()
		}
		if len(whole) > peer.MapBytesMax {
			return fault.Errorf(fault.TooLarge, "the METADATA file of table %q has %d bytes, at most %d are kept", f.Table, len(whole), peer.MapBytesMax)
		}
		h.bytes = uint64(len(whole))
		if err := d.deleteMap(b, f.Table, f.Txn); err != nil { // of a damaged one
			return err
		}
		n := uint32(0)
		for piece := range slices.Chunk(whole, pieceBytes) {
			b.Set(pieceKey(f.Table, f.Txn, n), piece)
			n++
		}
		b.Delete(key(opsPrefix, f.Table, f.Txn))
	}
	b.Set(key(headPrefix, f.Table, f.Txn), h.encode())
	d.use(name{f.Table, f.Txn}, root)
	return fault.Annotate(b.Commit(true), "METADATA file of table %q", f.Table) // whoever fails has fenced the brick
}

// rootFor chooses how to keep a file whose map has some bytes: as ops on a root, or whole.
func (d *Disk) rootFor(f *peer.File, bytes int) (root peer.TxnID, ops []byte) {
	from, added := f.Base, [][]byte{f.Ops}
	if f.Ops == nil {
		from, added = f.Since, f.Steps
	}
	d.mu.Lock()
	base, same := d.mu.files[name{f.Table, from}], d.mu.files[name{f.Table, f.Txn}]
	d.mu.Unlock()
	if len(added) == 0 || !base.known || same.known && same.root == (peer.TxnID{}) { // others may stand on the same one
		return root, nil
	}
	if root = base.root; root == (peer.TxnID{}) {
		root = from
	} else {
		before, ok, err := d.brick.Get(key(opsPrefix, f.Table, from))
		if !ok || err != nil {
			return peer.TxnID{}, nil
		}
		ops = before
	}
	n := len(added) + steps(ops)
	for _, one := range added {
		ops = append(binary.AppendUvarint(ops, uint64(len(one))), one...)
	}
	if n > opsMax || len(ops)*opsFraction > bytes {
		return peer.TxnID{}, nil
	}
	return root, ops
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

// Get implements mapstore.Disk.
func (d *Disk) Get(table string, txn peer.TxnID) (*peer.File, *topology.Map, error) {
	v, ok, err := d.brick.Get(key(headPrefix, table, txn))
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, fault.Errorf(fault.NotFound, "no METADATA file of transaction %x of table %q is here", txn, table)
	}
	h, err := decodeHead(v)
	if err != nil {
		return nil, nil, fault.Annotate(err, "table %q, transaction %x", table, txn)
	}
	m, err := d.read(table, txn, h)
	if err != nil {
		if fault.Is(err, fault.Corrupt) {
			err = fault.Annotate(err, "the METADATA file of transaction %d of table %q is damaged; it is fetched from another metadata server if it is needed", h.seq, table)
		}
		return nil, nil, err
	}
	return &peer.File{Table: table, Txn: txn, Seq: h.seq, Digest: m.Digest(), Base: h.base}, m, nil
}

// read gives the map of a file, held against its head.
func (d *Disk) read(table string, txn peer.TxnID, h head) (*topology.Map, error) {
	f := &peer.File{Table: table, Txn: txn, Seq: h.seq, Digest: h.sum}
	whole := txn
	if h.root != (peer.TxnID{}) {
		whole = h.root
	}
	b, err := d.readMap(table, whole)
	if err != nil {
		return nil, err
	}
	if whole == txn && uint64(len(b)) != h.bytes {
		return nil, fault.Errorf(fault.Corrupt, "%d bytes, not %d", len(b), h.bytes)
	}
	m, err := topology.Decode(b)
	if err != nil {
		return nil, err
	}
	if whole != txn {
		ops, err := d.need(key(opsPrefix, table, txn))
		if err != nil {
			return nil, err
		}
		if m, err = replay(m, ops); err != nil {
			return nil, err
		}
		b = nil
	}
	if h.old {
		if b == nil {
			b = m.Encode()
		}
		if xxhash.Sum64(b) != h.sum {
			return nil, fault.Errorf(fault.Corrupt, "its sum is not %016x", h.sum)
		}
		f.Digest = 0
	}
	return m, mapstore.Check(f, m)
}

// readMap puts the pieces of a map together. Older builds kept it in one.
func (d *Disk) readMap(table string, txn peer.TxnID) (b []byte, err error) {
	err = d.brick.Scan(key(mapPrefix, table, txn), func(_, v []byte) error {
		if len(b)+len(v) > peer.MapBytesMax {
			return fault.Errorf(fault.Corrupt, "a map of more than %d bytes", peer.MapBytesMax)
		}
		b = append(b, v...)
		return nil
	})
	return b, err
}

// deleteMap takes the pieces of a map away.
func (d *Disk) deleteMap(b *brick.Batch, table string, txn peer.TxnID) error {
	return d.brick.Scan(key(mapPrefix, table, txn), func(k, _ []byte) error {
		b.Delete(k)
		return nil
	})
}

func (d *Disk) need(k []byte) ([]byte, error) {
	v, ok, err := d.brick.Get(k)
	if err == nil && !ok {
		err = fault.Errorf(fault.Corrupt, "the catalogue lacks %q, which belongs to a METADATA file", k)
	}
	return v, err
}

// replay makes a map of a root's map and kept ops. Errors are Corrupt.
func replay(m *topology.Map, ops []byte) (*topology.Map, error) {
	for len(ops) > 0 {
		one, rest, err := step(ops)
		if err == nil {
			m, err = mapstore.Replay(m, one)
		}
		if err != nil {
			return nil, fault.Annotate(err, "kept ops")
		}
		ops = rest
	}
	return m, nil
}

// List implements mapstore.Disk.
func (d *Disk) List() ([]mapstore.Info, error) {
	var out []mapstore.Info
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
		i := mapstore.Info{Table: table, Txn: txn, Base: h.base, Seq: h.seq, Digest: h.sum, Bytes: int(h.bytes)}
		if h.old {
			i.Digest, i.Sum = 0, h.sum
		}
		out = append(out, i)
		return nil
	})
	return out, err
}

// Delete implements mapstore.Disk: the files are gone for good with the next Put. A map that others stand on stays for them.
func (d *Disk) Delete(gone ...mapstore.Info) error {
	b := d.brick.NewBatch()
	for _, n := range d.release(b, gone) {
		if err := d.deleteMap(b, n.table, n.txn); err != nil {
			return err
		}
	}
	return b.Commit(false)
}

// release takes files off what is known and lists those whose maps nothing stands on any more.
func (d *Disk) release(b *brick.Batch, gone []mapstore.Info) (maps []name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	drop := func(n name) {
		if d.mu.users[n] <= 0 {
			delete(d.mu.users, n)
			maps = append(maps, n)
		}
	}
	for _, i := range gone {
		n := name{i.Table, i.Txn}
		b.Delete(key(headPrefix, i.Table, i.Txn))
		p := d.mu.files[n]
		delete(d.mu.files, n)
		if p.root == (peer.TxnID{}) {
			drop(n)
			continue
		}
		b.Delete(key(opsPrefix, i.Table, i.Txn))
		root := name{i.Table, p.root}
		d.mu.users[root]--
		if !d.mu.files[root].known {
			drop(root)
		}
	}
	return maps
}
