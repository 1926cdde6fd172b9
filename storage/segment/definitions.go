package segment

import (
	"encoding/binary"
	"slices"
	"unsafe"

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
	// A look-up of one series decodes a whole page, hence few; a page of fewer compresses worse. pageLabelMax: a page is closed by the
	// series that makes it full, so it may be longer by the labels of one.
	pageDefinitions = 256
	pageLabelBytes  = 256 << 10
	pageLabelMax    = pageLabelBytes + point.LabelsBytesMax
)

// packDefinitions writes a page: count, ids as distances, the labels' lengths and bytes.
func packDefinitions(dst []byte, defs []definition, pk *packer) []byte {
	head, body := pk.defHead[:0], pk.defBody[:0]
	prev := point.DenseID(0)
	for _, d := range defs {
		head = binary.AppendUvarint(head, uint64(d.id-prev))
		prev = d.id
	}
	for _, d := range defs {
		head = binary.AppendUvarint(head, uint64(len(d.labels)))
		body = append(body, d.labels...)
	}
	pk.defHead, pk.defBody = head, body
	dst = binary.AppendUvarint(dst, uint64(len(defs)))
	dst = binary.AppendUvarint(dst, uint64(len(head)))
	dst = pk.append(dst, head)
	dst = binary.AppendUvarint(dst, uint64(len(body)))
	return pk.append(dst, body)
}

// parseDefinitions reads a page; ids rise strictly and labels are in canonical form.
func parseDefinitions(b []byte, d *zstd.Decoder) ([]definition, error) {
	var m definitionsMemory
	n, ok := m.open(b, d)
	if !ok {
		return nil, errForm("page of definitions")
	}
	return splitDefinitions(make([]definition, n), m.head, string(m.body))
}

// definitionsMemory is used again from page to page where definitions are only looked at: strings of their own are most of the cost of a page.
type definitionsMemory struct {
	defs               []definition
	head, body         []byte
	headFrom, bodyFrom []byte // memory of opened frames
}

// parse is parseDefinitions; the definitions are valid until the next call.
func (m *definitionsMemory) parse(b []byte, d *zstd.Decoder) ([]definition, error) {
	n, ok := m.open(b, d)
	if !ok {
		return nil, errForm("page of definitions")
	}
	m.defs = slices.Grow(m.defs[:0], n)[:n]
	return splitDefinitions(m.defs, m.head, unsafe.String(unsafe.SliceData(m.body), len(m.body)))
}

// open reads the count of a page, and opens its frames.
func (m *definitionsMemory) open(b []byte, d *zstd.Decoder) (n int, ok bool) {
	c := cursor{b: b}
	n = c.count(pageDefinitions)
	// Two uvarints a definition, of at most 5 bytes each. The body becomes one string, of which all labels are parts.
	m.head, m.headFrom = c.frame(d, c.count(2*5*pageDefinitions), m.headFrom)
	m.body, m.bodyFrom = c.frame(d, c.count(pageLabelMax), m.bodyFrom)
	return n, c.end()
}

// splitDefinitions fills defs, which has the length of the page's count.
func splitDefinitions(defs []definition, rawHead []byte, body string) ([]definition, error) {
	head := cursor{b: rawHead}
	prev := uint64(0)
	for i := range defs {
		step := head.uvarint()
		prev += step
		// Both are looked at: a huge step would wrap prev around to a small number.
		if prev > 1<<32-1 || step > 1<<32-1 || i > 0 && step == 0 {
			return nil, errForm("page of definitions")
		}
		defs[i].id = point.DenseID(prev)
	}
	for i := range defs {
		size := head.count(len(body))
		defs[i].labels, body = point.Labels(body[:size]), body[size:]
		before := point.Labels("")
		if i > 0 {
			before = defs[i-1].labels
		}
		if head.bad || !validAfter(before, defs[i].labels) {
			return nil, errForm("labels of a series")
		}
	}
	if !head.end() || body != "" {
		return nil, errForm("page of definitions")
	}
	return defs, nil
}

// sharedRest returns the offset from which labels equal the valid ones before, if both begin with a label of the same
// name; 0: they do not. A host's series differ in their metric's name alone, and this comparison needs a tenth of the
// time of reading all labels.
func sharedRest(before, l point.Labels) int {
	name, _, rest, ok := l.Next()
	nameBefore, _, restBefore, _ := before.Next()
	if !ok || name != nameBefore || rest != restBefore {
		return 0
	}
	return len(l) - len(rest)
}

// validAfter is Valid of labels that come after valid ones.
// An example of labels that share their rest: of __name__="cpu_user",dc="a",host="h1" after __name__="cpu_idle",dc="a",host="h1"
// all from dc on is equal, and valid as it was before. Only the first label is left to check.
func validAfter(before, l point.Labels) bool { return validShared(l, sharedRest(before, l)) }

// validShared is Valid of labels that from an offset on are those of valid ones.
func validShared(l point.Labels, shared int) bool {
	if shared > 0 {
		return len(l) <= point.LabelsBytesMax && l[:shared].Valid()
	}
	return l.Valid()
}
