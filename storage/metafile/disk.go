package metafile

import (
	"bytes"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/files"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/storage/brick"
)

// Disk is METADATA files in a brick's catalogue. All methods are safe for concurrent use.
type Disk struct{ brick *brick.Brick }

var _ files.Disk = (*Disk)(nil)

// New makes the disk of a brick, which must stay open for as long as it is used.
func New(b *brick.Brick) *Disk { return &Disk{b} }

const (
	headPrefix = "m/file/"
	mapPrefix  = "m/map/"
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
	h := head{seq: f.Seq, base: f.Base, sum: f.Sum, bytes: uint64(len(f.Map))}
	b := d.brick.NewBatch()
	b.Set(key(headPrefix, f.Table, f.Txn), h.encode())
	b.Set(key(mapPrefix, f.Table, f.Txn), f.Map)
	return fault.Annotate(b.Commit(true), "METADATA file of table %q", f.Table)
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
	m, ok, err := d.brick.Get(key(mapPrefix, table, txn))
	switch {
	case err != nil:
		return nil, err
	case !ok || uint64(len(m)) != h.bytes || xxhash.Sum64(m) != h.sum:
		return nil, fault.Errorf(fault.Corrupt, "the METADATA file of transaction %d of table %q does not match its sum; it is fetched from another metadata server if it is needed", h.seq, table)
	}
	return &peer.File{Table: table, Txn: txn, Seq: h.seq, Sum: h.sum, Map: m, Base: h.base}, nil
}

// List implements files.Disk.
func (d *Disk) List() ([]files.Info, error) {
	var out []files.Info
	err := d.brick.Scan([]byte(headPrefix), func(k, v []byte) error {
		table, txn, ok := parseKey(slices.Clone(k))
		if !ok {
			return fault.Errorf(fault.Corrupt, "the catalogue's key %q is not a METADATA file's", k)
		}
		h, err := decodeHead(v)
		if err != nil {
			return fault.Annotate(err, "table %q, transaction %x", table, txn)
		}
		out = append(out, files.Info{Table: table, Txn: txn, Base: h.base, Seq: h.seq, Sum: h.sum, Bytes: int(h.bytes)})
		return nil
	})
	return out, err
}

// Delete implements files.Disk: the files are gone for good with the next Put.
func (d *Disk) Delete(gone ...files.Info) error {
	b := d.brick.NewBatch()
	for _, i := range gone {
		b.Delete(key(headPrefix, i.Table, i.Txn))
		b.Delete(key(mapPrefix, i.Table, i.Txn))
	}
	return b.Commit(false)
}
