package frame

import (
	"encoding/binary"
	"math"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Histograms and exemplars are few beside rows: plain varints, and s2 finds repetitions.

func appendHists(b []byte, hists []HistRow) []byte {
	var place sidePlace
	for i := range hists {
		h := &hists[i]
		b = place.append(b, h.ID, h.Time)
		b = binary.AppendUvarint(b, uint64(len(h.H)))
		b = append(b, h.H...)
	}
	return b
}

func (r *reader) hists(hists []HistRow, limit uint64) {
	var place sidePlace
	for i := range hists {
		h := &hists[i]
		h.ID, h.Time = place.read(r, limit)
		h.H = r.bytes()
	}
}

func appendExemplars(b []byte, exemplars []ExemplarRow) []byte {
	var place sidePlace
	for i := range exemplars {
		x := &exemplars[i]
		b = place.append(b, x.ID, x.Time)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x.Value))
		b = binary.AppendUvarint(b, uint64(len(x.Labels)))
		b = append(b, x.Labels...)
	}
	return b
}

func (r *reader) exemplars(exemplars []ExemplarRow, limit uint64) {
	var place sidePlace
	for i := range exemplars {
		x := &exemplars[i]
		x.ID, x.Time = place.read(r, limit)
		x.Value = math.Float64frombits(r.u64())
		x.Labels = point.Labels(r.bytes())
		if !x.Labels.Valid() {
			r.fail("the labels of an exemplar are malformed")
		}
		if r.err != nil {
			return
		}
	}
}

// sidePlace writes and reads (series, time) as differences to the row before.
type sidePlace struct {
	id   int64
	time point.Nanos
}

func (p *sidePlace) append(b []byte, id point.DenseID, t point.Nanos) []byte {
	b = binary.AppendVarint(b, int64(id)-p.id)
	b = binary.AppendVarint(b, t-p.time) // wraps around
	p.id, p.time = int64(id), t
	return b
}

func (p *sidePlace) read(r *reader, limit uint64) (point.DenseID, point.Nanos) {
	p.id += unzigzag(r.uvarint())
	p.time += unzigzag(r.uvarint())
	if uint64(p.id) >= limit {
		r.fail("a histogram or exemplar names a series that is not defined")
		p.id = 0
	}
	return point.DenseID(p.id), p.time
}
