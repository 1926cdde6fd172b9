package mapstore

import (
	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Decode returns the map of a whole file, checked against the file's sum, digest, table and sequence number. Errors are Corrupt.
func Decode(f *peer.File) (*topology.Map, error) {
	if f.Sum != 0 || f.Digest == 0 {
		if sum := xxhash.Sum64(f.Map); sum != f.Sum {
			return nil, fault.Errorf(fault.Corrupt, "table %q: the METADATA file of transaction %d has the sum %016x, not %016x", f.Table, f.Seq, sum, f.Sum)
		}
	}
	m, err := topology.Decode(f.Map)
	if err != nil {
		return nil, fault.Annotate(err, "METADATA file of transaction %d", f.Seq)
	}
	return m, Check(f, m)
}

// Check compares a map that was made from a file with the file's header. Errors are Corrupt.
func Check(f *peer.File, m *topology.Map) error {
	if m.Table != f.Table || m.Seq != f.Seq {
		return fault.Errorf(fault.Corrupt, "the METADATA file of transaction %d of %q holds transaction %d of %q", f.Seq, f.Table, m.Seq, m.Table)
	}
	if d := m.Digest(); f.Digest != 0 && d != f.Digest {
		return fault.Errorf(fault.Corrupt, "table %q: the METADATA file of transaction %d has the digest %016x, not %016x", f.Table, f.Seq, d, f.Digest)
	}
	return nil
}

// Replay applies the ops of transactions, one after the other. Errors are Corrupt.
func Replay(m *topology.Map, steps ...[]byte) (*topology.Map, error) {
	for i, b := range steps {
		ops, err := topology.DecodeOps(b)
		if err == nil {
			m, err = m.Apply(ops...)
		}
		if err != nil {
			return nil, fault.Wrap(err, fault.Corrupt, "step %d of %d of METADATA ops", i+1, len(steps))
		}
	}
	return m, nil
}

// Open checks the answer to a query and gives its map: transaction seq of the table, and no other. since is the map of
// q.Since. It keeps nothing of the answer. Errors are Corrupt.
func Open(q *peer.FileQuery, seq uint64, since *topology.Map, f *peer.File) (*topology.Map, error) {
	if err := Answers(q, seq, f); err != nil {
		return nil, err
	}
	if f.Map != nil {
		return Decode(f)
	}
	if since == nil || f.Since != q.Since || f.Digest == 0 {
		return nil, fault.Errorf(fault.Corrupt, "table %q: an answer without a map, on another one than is here", q.Table)
	}
	m, err := Replay(since, f.Steps...)
	if err != nil {
		return nil, err
	}
	return m, Check(f, m)
}

// Answers reports whether a file is the one that was asked for, as far as its header shows. Errors are Corrupt.
func Answers(q *peer.FileQuery, seq uint64, f *peer.File) error {
	if f.Table != q.Table || f.Txn != q.Txn || f.Seq != seq {
		return fault.Errorf(fault.Corrupt, "asked for transaction %d (%x) of table %q, got %d (%x) of %q", seq, q.Txn, q.Table, f.Seq, f.Txn, f.Table)
	}
	return nil
}

// withMap gives a file whole: with its encoded map and that one's sum.
func withMap(f *peer.File, m *topology.Map) *peer.File {
	w := *f
	w.Ops, w.Since, w.Steps = nil, peer.TxnID{}, nil
	if w.Map == nil {
		w.Map = m.Encode()
		w.Sum = xxhash.Sum64(w.Map)
	}
	w.Digest = m.Digest()
	return &w
}
