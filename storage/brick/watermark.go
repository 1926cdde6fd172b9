package brick

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// watermark identifies a state of the catalogue and its content. Every commit raises seq and stores the watermark with its own
// changes, so a catalogue alone shows whether a key is missing or left over, whatever file of the database lost it. Only an
// outside witness shows whether it is the newest state.
//
// An example: three keys with pair sums 7, 11 and 20, modulo 100 instead of 2^64, are (seq 3, keys 3, sum 38). Commit 4 replaces the value of
// the second one, whose new pair sum is 95: (4, 3, 38 - 11 + 95 = 22). So a commit costs its own keys and not all, and the order of keys does
// not matter. A catalogue that lost the third key has keys 2 and sum 2, unlike its watermark.
type watermark struct {
	seq  uint64 // of commits; 0: a catalogue from before there were watermarks
	keys uint64 // how many there are, without the watermark's own
	sum  uint64 // the sum of all pairSums, modulo 2^64
}

const (
	keyWatermark     = 's'
	watermarkVersion = 1
	watermarkBytes   = 25
)

func watermarkKey() []byte { return []byte{ownKeys, keyWatermark} }

func isWatermarkKey(k []byte) bool { return len(k) == 2 && k[0] == ownKeys && k[1] == keyWatermark }

// append encodes version, seq, keys and sum: 25 bytes.
func (w watermark) append(b []byte) []byte {
	b = append(b, watermarkVersion)
	for _, v := range []uint64{w.seq, w.keys, w.sum} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func decodeWatermark(b []byte) (w watermark, err error) {
	if len(b) != watermarkBytes || b[0] != watermarkVersion {
		return w, fault.Errorf(fault.Corrupt, "watermark of the catalogue: %x", b)
	}
	w = watermark{binary.LittleEndian.Uint64(b[1:]), binary.LittleEndian.Uint64(b[9:]), binary.LittleEndian.Uint64(b[17:])}
	if w.seq == 0 {
		return w, fault.Errorf(fault.Corrupt, "watermark of the catalogue: %x", b)
	}
	return w, nil
}

func (w watermark) String() string { return fmt.Sprintf("commit %d with %d keys", w.seq, w.keys) }

func (w *watermark) add(k, v []byte)    { w.keys, w.sum = w.keys+1, w.sum+pairSum(k, v) }
func (w *watermark) remove(k, v []byte) { w.keys, w.sum = w.keys-1, w.sum-pairSum(k, v) }

// pairSum is a hash of one key and its value.
func pairSum(k, v []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	var n [8]byte
	// The length keeps ("ab", "c") and ("a", "bc") apart.
	binary.LittleEndian.PutUint64(n[:], uint64(len(k)))
	_, _ = d.Write(n[:]) // these never fail
	_, _ = d.Write(k)
	_, _ = d.Write(v)
	return d.Sum64()
}

// change is one key of a batch: set, or deleted.
type change struct {
	key, value []byte
	deleted    bool
}

// distinct returns the last change of each key, in the order of the keys.
func distinct(changes []change) []change {
	// A key that a batch sets twice would otherwise have its old value subtracted twice.
	last := make(map[string]change, len(changes))
	for _, c := range changes {
		last[string(c.key)] = c
	}
	out := make([]change, 0, len(last))
	for _, k := range slices.Sorted(maps.Keys(last)) {
		out = append(out, last[k])
	}
	return out
}

// after returns the watermark once the changes are made. get returns the present value of a key.
func (w watermark) after(changes []change, get func(key []byte) (value []byte, ok bool, err error)) (watermark, error) {
	w.seq++
	for _, c := range changes {
		old, ok, err := get(c.key)
		if err != nil {
			return w, err
		}
		if ok {
			w.remove(c.key, old)
		}
		if !c.deleted {
			w.add(c.key, c.value)
		}
	}
	return w, nil
}

// survey reads a whole catalogue: the claim of its watermark (seq 0: none), and its actual content.
func survey(db pebble.Reader, each func(k, v []byte) error) (says, is watermark, err error) {
	it, err := db.NewIter(nil)
	if err != nil {
		return says, is, err
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = cerr
		}
	}()
	for ok := it.First(); ok; ok = it.Next() {
		k, v := it.Key(), it.Value()
		if isWatermarkKey(k) {
			if says, err = decodeWatermark(v); err != nil {
				return says, is, err
			}
			continue
		}
		is.add(k, v)
		if each != nil {
			if err := each(k, v); err != nil {
				return says, is, err
			}
		}
	}
	is.seq = says.seq
	return says, is, it.Error()
}
