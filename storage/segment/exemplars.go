package segment

import (
	"encoding/binary"
	"math"

	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/point"
)

// exemplarsMax bounds the exemplars of one series, raw: some 100,000 traces.
const exemplarsMax = 16 << 20

// exemplarBytes is at least the raw size of an exemplar.
// 10 bytes of time, 8 of value, 10 of length of the labels are the most that packExemplars adds to them.
func exemplarBytes(e *point.ExemplarRow) int { return 28 + len(e.Labels) }

// NewestExemplars returns the newest of a series' exemplars, as many as a segment holds of one series, and how many are
// left out. ex is in order of time, and is only cut.
func NewestExemplars(ex []point.ExemplarRow) (kept []point.ExemplarRow, left int) {
	size := 0
	for i := len(ex) - 1; i >= 0; i-- {
		if size += exemplarBytes(&ex[i]); size > exemplarsMax {
			return ex[i+1:], i + 1
		}
	}
	return ex, 0
}

// packExemplars writes one series' exemplars: raw length, frame of (time step, value bits, labels).
func packExemplars(ex []point.ExemplarRow, pk *packer) []byte {
	var raw []byte
	last := point.Nanos(0)
	for i := range ex {
		raw = binary.AppendUvarint(raw, zigzag(ex[i].Time-last))
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(ex[i].Value))
		raw = appendString(raw, string(ex[i].Labels))
		last = ex[i].Time
	}
	out := binary.AppendUvarint(nil, uint64(len(raw)))
	return pk.append(out, raw)
}

// parseExemplars reads what packExemplars wrote. The labels are parts of one slab. Errors: Corrupt.
func parseExemplars(b []byte, d *zstd.Decoder) ([]point.ExemplarRow, error) {
	c := cursor{b: b}
	raw, _ := c.frame(d, c.count(exemplarsMax), nil)
	if !c.end() {
		return nil, errForm("exemplars")
	}
	c = cursor{b: raw}
	var out []point.ExemplarRow
	last := point.Nanos(0)
	for len(c.b) > 0 {
		last += c.varint()
		e := point.ExemplarRow{Time: last, Value: math.Float64frombits(c.uint64())}
		e.Labels = point.Labels(c.bytes(c.count(len(c.b))))
		if c.bad || !e.Labels.Valid() {
			return nil, errForm("exemplars")
		}
		out = append(out, e)
	}
	if c.bad {
		return nil, errForm("exemplars")
	}
	return out, nil
}
