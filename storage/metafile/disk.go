package metafile

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/storage/brick"
)

// Disk stores METADATA files in a brick's catalogue. All methods are safe for concurrent use.
type Disk struct {
	brick *brick.Brick
	from  catalogue // the brick's, for reading

	// tidying is acquired before mu, and held over a commit: a file that is deleted while it is made whole would come back with its head.
	tidying sync.Mutex // held while files are deleted or made whole

	mu struct {
		sync.Mutex // held for a millisecond at most
		shelf
	}
}

var _ mapstore.Disk = (*Disk)(nil)

// New makes the disk of a brick, which must stay open for as long as it is used.
func New(b *brick.Brick) *Disk {
	d := &Disk{brick: b, from: b}
	d.mu.shelf = newShelf()
	return d
}

// A file is kept as a link while there are few transactions since the whole map below, and they are a small part of the map. From linksDue on
// it is made whole in the background; at linksMax, and if the ops are long, a file is written whole at once. More: less is written, and
// a file that is read after a start needs longer (a tenth of a millisecond each). With n transactions of s bytes on a map of m, each writes s + m/n
// bytes: of 200 bytes on 8 MiB, 8 KiB, mostly in the background.
const (
	linksDue    = 1024
	linksMax    = 2 * linksDue
	opsFraction = 8 // ops of more than an eighth of the map's bytes: the file is written whole
)

// pieceBytes is the size of the pieces of a map in the catalogue: keys beside a value of many megabytes would be
// read together each time.
const pieceBytes = 64 << 10

const (
	headPrefix = "m/file/"
	mapPrefix  = "m/map/"
	linkPrefix = "m/link/"
	opsPrefix  = "m/ops/" // of the former format
)

// key: the zero ends the table's name, which has none, so that no table's keys lie among those of another.
func key(prefix, table string, txn peer.TxnID) []byte {
	k := make([]byte, 0, len(prefix)+len(table)+1+len(txn))
	return append(append(append(append(k, prefix...), table...), 0), txn[:]...)
}

// pieceKey: pieces are numbered in big endian, so a scan finds them in order.
func pieceKey(table string, txn peer.TxnID, n uint32) []byte {
	return binary.BigEndian.AppendUint32(key(mapPrefix, table, txn), n)
}

// parseKey reads what key made. The txn has a fixed length, so it is cut off the end.
func parseKey(prefix string, k []byte) (table string, txn peer.TxnID, ok bool) {
	rest, found := bytes.CutPrefix(k, []byte(prefix))
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
	b, n := d.brick.NewBatch(), name{f.Table, f.Txn}
	h := head{seq: f.Seq, base: f.Base, sum: m.Digest(), bytes: uint64(min(m.EncodedBytes(), peer.MapBytesMax))}
	if err := d.deleteMap(b, f.Table, f.Txn); err != nil { // of a damaged one
		return err
	}
	b.Delete(key(opsPrefix, f.Table, f.Txn))
	l, gone, err := d.stand(f, m)
	if err != nil {
		return err
	}
	if l != nil {
		h.linked = true
		b.Set(key(linkPrefix, f.Table, f.Txn), l.encode())
	} else if err := setMap(b, f, m, &h); err != nil {
		return err
	}
	// Map or link, head, and the deletions of other nodes are one batch: a crash leaves all or nothing of them.
	b.Set(key(headPrefix, f.Table, f.Txn), h.encode())
	if err := d.clear(b, gone); err != nil {
		return err
	}
	return fault.Annotate(b.Commit(true), "METADATA file of table %q", n.table) // any failure has fenced the brick
}

// setMap keeps a file whole.
func setMap(b *brick.Batch, f *peer.File, m *topology.Map, h *head) error {
	whole := f.Map
	if whole == nil {
		whole = m.Encode()
	}
	if err := fits(f.Table, len(whole)); err != nil {
		return err
	}
	h.bytes, h.linked = uint64(len(whole)), false
	n := uint32(0)
	// The pieces alias the map, and Set copies them.
	for piece := range slices.Chunk(whole, pieceBytes) {
		b.Set(pieceKey(f.Table, f.Txn, n), piece)
		n++
	}
	b.Delete(key(linkPrefix, f.Table, f.Txn))
	return nil
}

// fits refuses a file that is too large to be kept whole. Errors are TooLarge.
func fits(table string, bytes int) error {
	if bytes > peer.MapBytesMax {
		return fault.Errorf(fault.TooLarge, "the METADATA file of table %q has %d bytes, at most %d are kept", table, bytes, peer.MapBytesMax)
	}
	return nil
}

// wholeBytes is the length of a file that is kept whole, or a bound of it where it surely fits. Only a map near the bound is encoded for it.
func wholeBytes(f *peer.File, m *topology.Map) int {
	if f.Map != nil {
		return len(f.Map)
	}
	if n := m.EncodedSize(); n <= peer.MapBytesMax {
		return n
	}
	return len(m.Encode())
}

// stand chooses how to keep a file, and returns its link; nil: it is to be whole. Gone are the nodes that are not needed any more. Errors are TooLarge; the graph is as before then.
// stand changes the graph before the commit. That is safe, as a commit that fails fences the brick: nothing is put or read any more.
func (d *Disk) stand(f *peer.File, m *topology.Map) (l *link, gone []name, err error) {
	whole := wholeBytes(f, m) // before the lock
	from, added := f.Base, [][]byte{f.Ops}
	if f.Ops == nil {
		from, added = f.Since, f.Steps
	}
	l = &link{from: from}
	for _, one := range added {
		l.ops = append(binary.AppendUvarint(l.ops, uint64(len(one))), one...)
	}
	n := name{f.Table, f.Txn}
	d.mu.Lock()
	defer d.mu.Unlock()
	below, same := d.mu.nodes[name{f.Table, from}], d.mu.nodes[n]
	switch {
	case len(added) == 0 || below == nil || below.alone || from == f.Txn,
		same != nil && same.users > 0, // it may stand on one that stands on it
		below.steps+len(added) > linksMax || (below.bytes+len(l.ops))*opsFraction > m.EncodedBytes():
		if err := fits(f.Table, whole); err != nil {
			return nil, nil, err
		}
		l = nil
		gone = d.mu.stand(n, peer.TxnID{}, 0, 0)
	default:
		gone = d.mu.stand(n, from, len(added), len(l.ops))
	}
	x := d.mu.node(n)
	x.file = true
	if x.steps >= linksDue {
		d.mu.due[f.Table] = due{n, m}
	}
	return l, gone, nil
}

// Tidy implements mapstore.Disk: of each table it makes whole one file on which many links stand, so that later ones stand on that.
// Its caller waits for an fsync a table, and no Put waits for it: mu is held for the graph alone.
func (d *Disk) Tidy() error {
	d.mu.Lock()
	all := maps.Clone(d.mu.due)
	d.mu.Unlock()
	for _, x := range all {
		if err := d.makeWhole(x); err != nil {
			return err
		}
	}
	return nil
}

// makeWhole writes a file whole that is kept as a link. A crash before the commit leaves the link, one behind it the map: head, pieces and the
// deletion of the link are one batch. Puts go on meanwhile: one that stands on the file needs its map and not its form.
func (d *Disk) makeWhole(x due) error {
	d.tidying.Lock()
	defer d.tidying.Unlock()
	k := key(headPrefix, x.file.table, x.file.txn)
	v, ok, err := d.from.Get(k)
	if err != nil || !ok {
		return err
	}
	h, err := decodeHead(v)
	if err != nil {
		return nil // its reader reports the error
	}
	b := d.brick.NewBatch()
	if err := setMap(b, &peer.File{Table: x.file.table, Txn: x.file.txn}, x.m, &h); err != nil {
		return err
	}
	b.Set(k, h.encode())
	d.mu.Lock()
	at := d.mu.nodes[x.file]
	if d.mu.due[x.file.table] == x {
		delete(d.mu.due, x.file.table)
	}
	if at == nil || !at.file || at.from == (peer.TxnID{}) {
		d.mu.Unlock()
		b.Close()
		return nil
	}
	gone := d.mu.whole(x.file)
	d.mu.Unlock()
	if err := d.clear(b, gone); err != nil {
		return err
	}
	return fault.Annotate(b.Commit(true), "METADATA file of table %q", x.file.table)
}

// clear deletes everything that is kept under names.
func (d *Disk) clear(b *brick.Batch, gone []name) error {
	for _, n := range gone {
		b.Delete(key(linkPrefix, n.table, n.txn))
		b.Delete(key(opsPrefix, n.table, n.txn))
		if err := d.deleteMap(b, n.table, n.txn); err != nil {
			return err
		}
	}
	return nil
}

// Get implements mapstore.Disk.
func (d *Disk) Get(table string, txn peer.TxnID) (*peer.File, *topology.Map, error) {
	v, ok, err := d.from.Get(key(headPrefix, table, txn))
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

// read returns the map of a file, checked against its head.
func (d *Disk) read(table string, txn peer.TxnID, h head) (*topology.Map, error) {
	f := &peer.File{Table: table, Txn: txn, Seq: h.seq, Digest: h.sum}
	whole, ops, err := d.below(table, txn, h)
	if err != nil {
		return nil, err
	}
	b, err := d.readMap(table, whole)
	if err != nil {
		return nil, err
	}
	// bytes is exact for a file that is whole, and an estimate for a link.
	if whole == txn && uint64(len(b)) != h.bytes {
		return nil, fault.Errorf(fault.Corrupt, "%d bytes, not %d", len(b), h.bytes)
	}
	m, err := topology.Decode(b)
	if err != nil {
		return nil, err
	}
	// The newest link was found first: ops are applied from the whole map upwards.
	for _, one := range slices.Backward(ops) {
		if m, err = replay(m, one); err != nil {
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

// below follows the links of a file down to the map that is whole. ops lead from there to the file, the last ones first.
func (d *Disk) below(table string, txn peer.TxnID, h head) (whole peer.TxnID, ops [][]byte, err error) {
	if h.root != (peer.TxnID{}) { // the former format
		all, err := d.need(key(opsPrefix, table, txn))
		return h.root, [][]byte{all}, err
	}
	if !h.linked {
		return txn, nil, nil
	}
	for at := txn; len(ops) <= linksMax; {
		v, ok, err := d.from.Get(key(linkPrefix, table, at))
		if err != nil {
			return whole, nil, err
		}
		if !ok && at != txn {
			return at, ops, nil
		}
		l, err := decodeLink(v)
		if err != nil {
			return whole, nil, fault.Annotate(err, "the link of transaction %x", at)
		}
		ops, at = append(ops, l.ops), l.from
	}
	return whole, nil, fault.Errorf(fault.Corrupt, "more than %d links lead to it", linksMax)
}

// readMap puts the pieces of a map together. Older builds kept it in one.
func (d *Disk) readMap(table string, txn peer.TxnID) (b []byte, err error) {
	err = d.from.Scan(key(mapPrefix, table, txn), func(_, v []byte) error {
		if len(b)+len(v) > peer.MapBytesMax {
			return fault.Errorf(fault.Corrupt, "a map of more than %d bytes", peer.MapBytesMax)
		}
		b = append(b, v...)
		return nil
	})
	return b, err
}

// deleteMap deletes the pieces of a map.
// deleteMap scans, since a map of an earlier try may have more pieces than this one.
func (d *Disk) deleteMap(b *brick.Batch, table string, txn peer.TxnID) error {
	return d.from.Scan(key(mapPrefix, table, txn), func(k, _ []byte) error {
		b.Delete(k)
		return nil
	})
}

func (d *Disk) need(k []byte) ([]byte, error) {
	v, ok, err := d.from.Get(k)
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

// List implements mapstore.Disk. Remains of files on which nothing stands are deleted with the next commit.
func (d *Disk) List() ([]mapstore.Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.shelf = newShelf()
	var out []mapstore.Info
	err := d.from.Scan([]byte(headPrefix), func(k, v []byte) error {
		table, txn, ok := parseKey(headPrefix, slices.Clone(k))
		if !ok {
			return fault.Errorf(fault.Corrupt, "the catalogue's key %q is not a METADATA file's", k)
		}
		h, err := decodeHead(v)
		if err != nil {
			return fault.Annotate(err, "table %q, transaction %x", table, txn)
		}
		d.mu.stand(name{table, txn}, h.root, 0, 0)
		x := d.mu.node(name{table, txn})
		x.file, x.alone = true, h.root != (peer.TxnID{})
		i := mapstore.Info{Table: table, Txn: txn, Base: h.base, Seq: h.seq, Digest: h.sum, Bytes: int(h.bytes)}
		if h.old {
			i.Digest, i.Sum = 0, h.sum
		}
		out = append(out, i)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, d.findLinks()
}

// findLinks loads the links.
// findLinks runs once, at a start, when heads are known already: mu is held over its reads, which nothing else waits for then.
func (d *Disk) findLinks() error {
	ops := map[name][2]int{}
	err := d.from.Scan([]byte(linkPrefix), func(k, v []byte) error {
		table, txn, ok := parseKey(linkPrefix, slices.Clone(k))
		if !ok {
			return fault.Errorf(fault.Corrupt, "the catalogue's key %q is not a METADATA file's", k)
		}
		n := name{table, txn}
		l, err := decodeLink(v)
		if err != nil { // a file that stands on it cannot be read, and is fetched; no new file may stand on it
			d.mu.node(n).alone = true
			return nil
		}
		steps, _ := countSteps(l.ops)
		ops[n] = [2]int{steps, len(l.ops)}
		d.mu.stand(n, l.from, 0, 0)
		return nil
	})
	if err != nil {
		return err
	}
	d.mu.count(ops)
	b := d.brick.NewBatch()
	for n, x := range d.mu.nodes {
		if x.file || x.users > 0 {
			continue
		}
		x.users++ // the rest of a deleted file, left by a crash
		if err := d.clear(b, d.mu.leave(n)); err != nil {
			return err
		}
	}
	return b.Commit(false)
}

// Delete implements mapstore.Disk: the files are gone for good with the next Put. Nodes on which others stand are kept for them.
// Delete needs no fsync: a crash brings the files back, and the server deletes them again after its start.
func (d *Disk) Delete(files ...mapstore.Info) error {
	d.tidying.Lock()
	defer d.tidying.Unlock()
	b := d.brick.NewBatch()
	var gone []name
	d.mu.Lock()
	for _, i := range files {
		b.Delete(key(headPrefix, i.Table, i.Txn))
		gone = append(gone, d.mu.drop(name{i.Table, i.Txn})...)
	}
	d.mu.Unlock()
	if err := d.clear(b, gone); err != nil {
		return err
	}
	return b.Commit(false)
}
