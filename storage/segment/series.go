package segment

import (
	"encoding/binary"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/klauspost/compress/zstd"
)

// packSeries writes a set of ids: raw length, frame of runs as (gap, length).
func packSeries(ids *roaring.Bitmap, pk *packer) []byte {
	var r runs
	for it := ids.Iterator(); it.HasNext(); {
		r.add(it.Next())
	}
	r.flush()
	out := binary.AppendUvarint(nil, uint64(len(r.buf)))
	return pk.append(out, r.buf)
}

func parseSeries(b []byte, d *zstd.Decoder) (*roaring.Bitmap, error) {
	c := cursor{b: b}
	raw, _ := c.frame(d, c.count(postingsMax), nil)
	if !c.end() {
		return nil, errForm("set of series")
	}
	ids := roaring.New()
	if err := addRuns(ids, cursor{b: raw}); err != nil {
		return nil, err
	}
	return ids, nil
}
