package segment

import (
	"encoding/binary"

	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/point"
)

// definition is a series' labels under its dense id.
type definition struct {
	id     point.DenseID
	labels point.Labels
}

// A page holds up to 256 definitions, or about 256 KiB of labels.
const (
	pageDefinitions = 256
	pageLabelBytes  = 256 << 10
	pageLabelMax    = pageLabelBytes + point.LabelsBytesMax
)

// packDefinitions writes a page: count, ids as distances, the labels' lengths and bytes.
func packDefinitions(dst []byte, defs []definition, pk *packer) []byte {
	var head, body []byte
	prev := point.DenseID(0)
	for _, d := range defs {
		head = binary.AppendUvarint(head, uint64(d.id-prev))
		prev = d.id
	}
	for _, d := range defs {
		head = binary.AppendUvarint(head, uint64(len(d.labels)))
		body = append(body, d.labels...)
	}
	dst = binary.AppendUvarint(dst, uint64(len(defs)))
	dst = binary.AppendUvarint(dst, uint64(len(head)))
	dst = pk.append(dst, head)
	dst = binary.AppendUvarint(dst, uint64(len(body)))
	return pk.append(dst, body)
}

// parseDefinitions reads a page; ids rise strictly and labels are in canonical form.
func parseDefinitions(b []byte, d *zstd.Decoder) ([]definition, error) {
	c := cursor{b: b}
	n := c.count(pageDefinitions)
	rawHead, _ := c.frame(d, c.count(2*5*pageDefinitions), nil)
	rawBody, _ := c.frame(d, c.count(pageLabelMax), nil)
	if !c.end() {
		return nil, errForm("page of definitions")
	}
	head, body := cursor{b: rawHead}, string(rawBody)
	defs := make([]definition, n)
	prev := uint64(0)
	for i := range defs {
		step := head.uvarint()
		prev += step
		if prev > 1<<32-1 || step > 1<<32-1 || i > 0 && step == 0 {
			return nil, errForm("page of definitions")
		}
		defs[i].id = point.DenseID(prev)
	}
	for i := range defs {
		size := head.count(len(body))
		defs[i].labels, body = point.Labels(body[:size]), body[size:]
		if head.bad || !defs[i].labels.Valid() {
			return nil, errForm("labels of a series")
		}
	}
	if !head.end() || body != "" {
		return nil, errForm("page of definitions")
	}
	return defs, nil
}
