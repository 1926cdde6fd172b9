package staging

import (
	"encoding/binary"
	"hash/crc32"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// The witness of the log (FORMAT.md): how much of each file was durable, in a file of its own. A file that was cut off between two records looks
// as if it had ended there, and so does a log that lost its newest file: only something outside of them notices.
const (
	// WitnessFile is its name, beside the files of the log.
	WitnessFile = "WITNESS"
	// WitnessBytes is the length that the file has at most.
	WitnessBytes = 2 * witnessHalf

	witnessMagic   = 0x54575353 // "SSWT"
	witnessVersion = 1
	witnessSlot    = 64
	witnessSlots   = 1 << 10 // files whose marks are kept: more than the log has at its bound
	witnessHalf    = witnessSlots * witnessSlot
)

// Mark is the durable part of a file of the log.
type Mark struct {
	Number uint64 // of the file
	Bytes  uint64 // that were durable, from its beginning on
	Sum    uint32 // their CRC-32C
	First  uint64 // number of the oldest file: those before it were removed, or are about to be
}

// Witness are the marks that were read. The zero value has none, and finds nothing wrong.
type Witness struct {
	// Damaged counts places that hold no mark and are not empty.
	Damaged int

	writes uint64 // of the newest mark
	newest Mark
	marks  map[uint64]Mark // by file
}

// Newest returns the mark that was written last, and the number of writes up to it; 0: there is none.
func (w *Witness) Newest() (m Mark, writes uint64) { return w.newest, w.writes }

func sumOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// AppendMark appends the slot of a mark, and returns where in the file it belongs. The halves are used in turn, so that a write that a power cut tears
// leaves the mark before it.
func AppendMark(dst []byte, writes uint64, m Mark) (b []byte, at int64) {
	from := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, witnessMagic)
	dst = binary.LittleEndian.AppendUint32(dst, witnessVersion)
	for _, n := range []uint64{writes, m.Number, m.Bytes, m.First} {
		dst = binary.LittleEndian.AppendUint64(dst, n)
	}
	dst = binary.LittleEndian.AppendUint32(dst, m.Sum)
	dst = append(dst, make([]byte, 16)...)
	dst = binary.LittleEndian.AppendUint32(dst, sumOf(dst[from:]))
	return dst, int64(writes%2)*witnessHalf + int64(m.Number%witnessSlots)*witnessSlot
}

// cutMark reads the slot at a place of the file; ok is false if it holds no mark, or one of another place.
func cutMark(b []byte, at int) (writes uint64, m Mark, ok bool) {
	if len(b) < witnessSlot || binary.LittleEndian.Uint32(b) != witnessMagic || binary.LittleEndian.Uint32(b[4:]) != witnessVersion ||
		sumOf(b[:60]) != binary.LittleEndian.Uint32(b[60:]) {
		return 0, m, false
	}
	writes = binary.LittleEndian.Uint64(b[8:])
	m = Mark{Number: binary.LittleEndian.Uint64(b[16:]), Bytes: binary.LittleEndian.Uint64(b[24:]), First: binary.LittleEndian.Uint64(b[32:]), Sum: binary.LittleEndian.Uint32(b[40:])}
	_, belongs := AppendMark(nil, writes, m)
	return writes, m, belongs == int64(at)
}

// ReadWitness reads a witness. Of each file the newest mark counts; places that cannot be read are left out and counted, since a mark less hides a
// loss at worst, and is none.
func ReadWitness(b []byte) *Witness {
	w := &Witness{marks: map[uint64]Mark{}}
	written := map[uint64]uint64{} // writes of each mark
	for at := 0; at < min(len(b), WitnessBytes); at += witnessSlot {
		slot := b[at:min(at+witnessSlot, len(b))]
		if !slices.ContainsFunc(slot, func(x byte) bool { return x != 0 }) {
			continue
		}
		writes, m, ok := cutMark(slot, at)
		if !ok {
			w.Damaged++
			continue
		}
		if writes >= written[m.Number] {
			written[m.Number], w.marks[m.Number] = writes, m
		}
		if writes >= w.writes {
			w.writes, w.newest = writes, m
		}
	}
	if len(b) > WitnessBytes {
		w.Damaged++
	}
	return w
}

// Examine compares a file with its mark. Errors are Corrupt: it is shorter than its durable part, or begins with other bytes.
func (w *Witness) Examine(number uint64, content []byte) error {
	m, ok := w.marks[number]
	switch {
	case !ok:
		return nil
	case uint64(len(content)) < m.Bytes:
		return fault.Errorf(fault.Corrupt, "it has %d bytes, and %d were durable: its end is lost", len(content), m.Bytes)
	case sumOf(content[:m.Bytes]) != m.Sum:
		return fault.Errorf(fault.Corrupt, "its first %d bytes are not those that were durable: it is an older file, or another one", m.Bytes)
	}
	return nil
}

// Missing returns the numbers of files that were durable, were not removed, and are not among those that there are.
func (w *Witness) Missing(there []uint64) (lost []uint64) {
	for n, m := range w.marks {
		if n >= w.newest.First && n <= w.newest.Number && m.Bytes > 0 && !slices.Contains(there, n) {
			lost = append(lost, n)
		}
	}
	slices.Sort(lost)
	return lost
}
