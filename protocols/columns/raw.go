package columns

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Rows of windows that no server has alone travel as answers of form Raw, beside evaluations: opening a select costs more than a few rows. They are few, or the
// answer is ErrUnknown, and the gateway reads them by a select, which has flow control of its own.

// RawBytesMax bounds the rows and labels of an answer of form Raw.
const RawBytesMax = messageBytes

const (
	seriesSameTimes = 1 << 0 // the times are those of the series before, in the same message

	seriesBytes = 160 // memory of a series without its labels and rows
)

// AsksForRows reports whether the bytes of a request are of form Raw.
func AsksForRows(request []byte) bool {
	return len(request) > 1 && request[0] == requestVersion && Form(request[1]) == Raw
}

// RawWriter encodes an answer of form Raw, a series after the other in label order. It keeps nothing of a series but its bytes. The zero value is empty.
type RawWriter struct {
	body         []byte
	times        []point.Nanos // of the series before
	series, rows int
}

// Add adds a series; one without rows changes nothing. False: the answer would be too long, or the series has histograms, which are not evaluated over columns.
func (w *RawWriter) Add(s *peer.Series) (fits bool) {
	n := len(s.Times)
	if len(s.Hists) > 0 || len(w.body)+len(s.Labels)+8*n > RawBytesMax {
		return false
	}
	if n == 0 {
		return true
	}
	same := slices.Equal(w.times, s.Times)
	w.body = binary.AppendUvarint(w.body, uint64(len(s.Labels)))
	w.body = append(w.body, s.Labels...)
	w.body = append(w.body, bit(same, seriesSameTimes))
	if !same {
		w.times = append(w.times[:0], s.Times...)
		w.body = binary.AppendUvarint(w.body, uint64(n))
		last := point.Nanos(0)
		for _, t := range s.Times {
			w.body = binary.AppendVarint(w.body, t-last)
			last = t
		}
	}
	for _, v := range s.Values {
		w.body = appendFloat(w.body, v)
	}
	w.series, w.rows = w.series+1, w.rows+n
	return len(w.body) <= RawBytesMax
}

// Bytes is the memory of the answer.
func (w *RawWriter) Bytes() int64 { return int64(cap(w.body)) }

// Send gives the answer to a request in messages, each valid until give returns.
func (w *RawWriter) Send(of *Request, give func([]byte) error) error {
	head := Part{Form: Raw, Steps: of.Plan.Grid.Len(), Series: w.series, Rows: w.rows}
	if err := give(head.head()); err != nil || len(w.body) == 0 {
		return err
	}
	m := sending.Get().(*sendBuffers)
	defer m.put()
	m.body = append(m.body, w.body...)
	return give(m.pack())
}

// addRaw copies the series of a message: first it counts them and their rows, then it copies them into memory that they share.
func (r *Receiver) addRaw(body []byte) error {
	n, err := r.countRaw(body)
	if err != nil {
		return err
	}
	if err := r.take(int64(n.series)*seriesBytes + int64(n.labels) + 8*int64(n.times+n.values)); err != nil {
		return err
	}
	times, values := make([]point.Nanos, 0, n.times), make([]float64, 0, n.values)
	var text strings.Builder
	text.Grow(n.labels)
	var column []point.Nanos
	r.part.Found = slices.Grow(r.part.Found, n.series)
	for d := (decoder{b: body}); len(d.b) > 0; {
		at := text.Len()
		text.Write(d.cut(int(d.number(labelsMax))))
		if d.byte() != seriesSameTimes {
			from, last := len(times), point.Nanos(0)
			for range d.number(RawBytesMax) {
				last += d.varint()
				times = append(times, last)
			}
			column = times[from:len(times):len(times)]
		}
		from := len(values)
		for range column {
			values = append(values, d.float())
		}
		s := peer.Series{Labels: point.Labels(text.String()[at:]), Times: column, Values: values[from:len(values):len(values)]}
		if !s.Labels.Valid() {
			return d.corrupt("the labels of a series")
		}
		r.part.Found = append(r.part.Found, s)
	}
	return nil
}

// rawCount is what the series of a message have.
type rawCount struct{ series, labels, times, values int }

// countRaw counts a message, which must be whole, with rising times.
func (r *Receiver) countRaw(body []byte) (n rawCount, err error) {
	rows := 0
	for d := (decoder{b: body}); len(d.b) > 0; n.series++ {
		labels := d.number(labelsMax)
		if d.bad || labels > int64(len(d.b)) || len(r.part.Found)+n.series == r.columns {
			return n, d.corrupt("the labels of a series")
		}
		d.cut(int(labels))
		flags := d.byte()
		if flags == 0 {
			rows = int(d.number(RawBytesMax))
			if !d.rises(rows) {
				return n, d.corrupt("the times of a series")
			}
			n.times += rows
		}
		d.cut(8 * rows)
		if d.bad || flags > seriesSameTimes || rows == 0 {
			return n, d.corrupt("a series")
		}
		n.labels, n.values = n.labels+int(labels), n.values+rows
	}
	return n, nil
}

// rises cuts off so many times, and reports whether each is later than the one before.
func (d *decoder) rises(times int) bool {
	last := int64(math.MinInt64)
	for i := range times {
		next := d.varint()
		if i > 0 {
			if next <= 0 || last > math.MaxInt64-next {
				return false
			}
			next += last
		}
		if last = next; d.bad {
			return false
		}
	}
	return true
}
