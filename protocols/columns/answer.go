package columns

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/s2"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Outcome is how a server answers a request.
type Outcome uint8

// The outcomes.
const (
	Evaluated Outcome = iota
	Unknown           // ErrUnknown
	Abandoned         // ErrAbandoned
	TooMany           // ErrTooManySamples
	outcomeEnd
)

// NamesMax is how many names a part has at most; one with more is not sent.
const NamesMax = 1 << 16

// The way of a part:
//
//	Part ─ head ─────────────────▶ message 0 ─▶ Receiver.head: compared with the request, names and counts
//	     ─ columns, 256 KiB, s2 ─▶ message 1 ─▶ unpack ▶ count ▶ book ▶ one allocation ▶ columns
//	     ─ …                     ▶ message n ─▶ Part: as many columns as the head promised
//
// The receiver trusts no length: a message is counted whole before memory is allocated for it, and each allocation is booked first.

// Messages of an answer: the first is its head, the others have columns, a few hundred KiB each before compression.
const (
	messageBytes  = 256 << 10
	nameBytesMax  = 1 << 16
	labelsMax     = 1 << 20
	columnsMax    = 1 << 26
	headTyped     = 1 << 0
	columnDropped = 1 << 0
	bodyPlain     = 0
	bodyS2        = 1
)

// SendOutcome gives an answer without a part.
func SendOutcome(o Outcome, give func([]byte) error) error {
	return give([]byte{requestVersion, byte(o)})
}

// Send gives a part in messages, each valid until give returns.
// give may keep none of the bytes: the buffers are used for the next message, and then by other answers.
func (part *Part) Send(give func([]byte) error) error {
	if err := give(part.head()); err != nil {
		return err
	}
	m := sending.Get().(*sendBuffers)
	defer m.put()
	for i := range part.Columns {
		c := &part.Columns[i]
		m.body = slices.Grow(m.body, len(c.Labels)+8*len(c.Values)+binary.MaxVarintLen64+1)
		m.body = binary.AppendUvarint(m.body, uint64(len(c.Labels)))
		m.body = append(m.body, c.Labels...)
		m.body = append(m.body, bit(c.Dropped, columnDropped))
		for _, v := range c.Values {
			m.body = appendFloat(m.body, v)
		}
		if len(m.body) >= messageBytes {
			if err := give(m.pack()); err != nil {
				return err
			}
		}
	}
	if len(m.body) > 0 {
		return give(m.pack())
	}
	return nil
}

// sendBuffers are a message of columns before and after its compression.
type sendBuffers struct{ body, packed []byte }

// sending keeps the buffers of answers that were sent.
var sending = sync.Pool{New: func() any { return new(sendBuffers) }}

// sendBuffersMax bounds the bytes of a buffer that is kept.
const sendBuffersMax = 2 * messageBytes

func (m *sendBuffers) put() {
	if cap(m.body) <= sendBuffersMax && cap(m.packed) <= sendBuffersMax {
		m.body = m.body[:0]
		sending.Put(m)
	}
}

// packedMin is from how many bytes on columns are compressed. A shorter message is a packet or two either way: one of a series over 61 steps costs both sides
// together 2.4 µs of processor time instead of 4.8 (BenchmarkAnswer, 100,000 of each in turns three times, 2026-11-28, load 52).
const packedMin = 4 << 10

// pack returns the message, and empties the body.
func (m *sendBuffers) pack() []byte {
	b := m.packed[:0]
	if len(m.body) >= packedMin {
		most := 1 + binary.MaxVarintLen64 + s2.MaxEncodedLen(len(m.body))
		b = append(slices.Grow(b, most), bodyS2)
		b = binary.AppendUvarint(b, uint64(len(m.body)))
		b = b[:len(b)+len(s2.Encode(b[len(b):cap(b)], m.body))]
	}
	// Less than an eighth saved: the receiver copies instead of decompressing.
	if len(b) == 0 || len(b) > len(m.body)/8*7 {
		b = append(append(b[:0], bodyPlain), m.body...)
	}
	m.packed, m.body = b, m.body[:0]
	return b
}

// head draws the first message. All columns of a part have one width (planes).
func (part *Part) head() []byte {
	b := []byte{requestVersion, byte(Evaluated), byte(part.Form), bit(part.Typed, headTyped)}
	width := 0
	if len(part.Columns) > 0 {
		width = len(part.Columns[0].Values) / part.Steps
	}
	columns := len(part.Columns)
	if part.Form == Raw {
		columns = part.Series
	}
	for _, n := range []int{part.Steps, width, columns, part.Series, part.Rows, part.Held, part.Visited, part.Read, part.Peak, len(part.Names), len(part.Counts)} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for _, n := range part.Names {
		b = appendText(b, n)
	}
	for _, of := range part.Counts {
		for _, n := range of {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return b
}

// Receiver puts a part together from the messages of an answer to a request.
type Receiver struct {
	// Of is the request.
	Of *Request
	// Take books bytes of memory before they are allocated; nil: they are not counted.
	Take func(int64) error

	begun   bool
	outcome Outcome
	part    Part
	width   int
	columns int // that the head promises; of form Raw, series
	body    []byte
}

// Add decodes a message and keeps no reference to its memory. Errors are Corrupt, and those of Take.
func (r *Receiver) Add(b []byte) error {
	if !r.begun {
		r.begun = true
		return r.head(b)
	}
	if r.outcome != Evaluated {
		return fault.Errorf(fault.Corrupt, "an answer of outcome %d with columns", r.outcome)
	}
	body, err := r.unpack(b)
	switch {
	case err != nil:
		return err
	case r.part.Form == Raw:
		return r.addRaw(body)
	}
	return r.add(body)
}

// add copies the columns of a message: first it counts them and their bytes, then it copies them into one shared allocation.
func (r *Receiver) add(body []byte) error {
	columns, labels, err := r.count(body)
	if err != nil {
		return err
	}
	values := r.width * r.part.Steps
	if err := r.take(int64(columns)*(int64(8*values)+columnBytes) + int64(labels)); err != nil {
		return err
	}
	// A column's values end at their capacity, so that an append cannot reach those of the next. Labels are parts of one string.
	floats := make([]float64, 0, columns*values)
	var text strings.Builder
	text.Grow(labels)
	r.part.Columns = slices.Grow(r.part.Columns, columns)
	for d := (decoder{b: body}); len(d.b) > 0; {
		at := text.Len()
		text.Write(d.cut(int(d.number(labelsMax))))
		flags := d.byte()
		raw, first := d.cut(8*values), len(floats)
		for i := range values {
			floats = append(floats, math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:])))
		}
		c := Column{Labels: point.Labels(text.String()[at:]), Dropped: flags&columnDropped != 0, Values: floats[first:len(floats):len(floats)]}
		if !c.Labels.Valid() {
			return d.corrupt("the labels of a column")
		}
		r.part.Columns = append(r.part.Columns, c)
	}
	return nil
}

// count returns how many columns a message has, which must be whole, and how many bytes their labels have.
func (r *Receiver) count(body []byte) (columns, labels int, err error) {
	for d := (decoder{b: body}); len(d.b) > 0; columns++ {
		n := d.number(labelsMax)
		if d.bad || n > int64(len(d.b)) || len(r.part.Columns)+columns == r.columns {
			return 0, 0, d.corrupt("the labels of a column")
		}
		d.cut(int(n))
		flags := d.byte()
		d.cut(8 * r.width * r.part.Steps)
		if d.bad || flags > columnDropped {
			return 0, 0, d.corrupt("a column")
		}
		labels += int(n)
	}
	return columns, labels, nil
}

// Part is the answer's part, after its last message. Errors are Corrupt, ErrUnknown, ErrAbandoned and ErrTooManySamples.
func (r *Receiver) Part() (*Part, error) {
	switch {
	case !r.begun || len(r.part.Columns)+len(r.part.Found) != r.columns:
		return nil, fault.Errorf(fault.Corrupt, "an answer ended after %d of %d columns", len(r.part.Columns)+len(r.part.Found), r.columns)
	case r.outcome == Unknown:
		return nil, ErrUnknown
	case r.outcome == Abandoned:
		return nil, ErrAbandoned
	case r.outcome == TooMany:
		return nil, ErrTooManySamples
	}
	return &r.part, nil
}

func (r *Receiver) take(n int64) error {
	if r.Take == nil {
		return nil
	}
	return r.Take(n)
}

// head reads the first message. It must fit the request: its form, steps and width decide how all others are read.
func (r *Receiver) head(b []byte) error {
	d := decoder{b: b}
	version := d.byte()
	if r.outcome = Outcome(d.byte()); d.bad || version != requestVersion || r.outcome >= outcomeEnd {
		return d.corrupt("the outcome")
	}
	if r.outcome != Evaluated {
		if len(d.b) > 0 {
			return d.corrupt("the outcome")
		}
		return nil
	}
	p := &r.part
	p.Form = Form(d.byte())
	flags := d.byte()
	p.Typed = flags&headTyped != 0
	// Sums of the counts of several parts must not overflow.
	const most = math.MaxInt64 / 4
	p.Steps, r.width, r.columns = int(d.number(RequestSteps)), int(d.number(8)), int(d.number(columnsMax))
	for _, to := range []*int{&p.Series, &p.Rows, &p.Held, &p.Visited, &p.Read, &p.Peak} {
		*to = int(d.number(most))
	}
	names, counts := int(d.number(NamesMax)), int(d.number(requestStages+1))
	plan := &r.Of.Plan
	if d.bad || flags > headTyped || p.Form != r.Of.Form || p.Steps != plan.Grid.Len() || r.columns > 0 && r.width != plan.planes(p.Form) ||
		// Counts are there for each operator and for the function before them: without operators there are none.
		counts != 0 && (counts != plan.head()+1 || counts == 1) {
		return d.corrupt("its head is not of the request")
	}
	if err := r.take(int64(len(b)) + int64(counts*p.Steps)*8); err != nil {
		return err
	}
	for range names {
		p.Names = append(p.Names, d.text(nameBytesMax))
		if d.bad {
			return d.corrupt("a name")
		}
	}
	for range counts {
		of := make([]int, p.Steps)
		for i := range of {
			of[i] = int(d.number(math.MaxInt32))
		}
		if d.bad {
			return d.corrupt("the counts")
		}
		p.Counts = append(p.Counts, of)
	}
	if d.bad || len(d.b) > 0 {
		return d.corrupt("its head")
	}
	return nil
}

// unpack returns the columns of a message.
func (r *Receiver) unpack(b []byte) ([]byte, error) {
	d := decoder{b: b}
	switch d.byte() {
	case bodyPlain:
		return d.b, nil
	case bodyS2:
	default:
		return nil, d.corrupt("its compression")
	}
	// A message is sent as soon as it has messageBytes, so it has less than one column more.
	n := d.number(messageBytes + labelsMax + 16 + int64(r.width*r.part.Steps)*8)
	if length, err := s2.DecodedLen(d.b); d.bad || err != nil || int64(length) != n {
		return nil, d.corrupt("its length")
	}
	if n > int64(cap(r.body)) {
		if err := r.take(n); err != nil {
			return nil, err
		}
		r.body = make([]byte, n)
	}
	body, err := s2.Decode(r.body[:cap(r.body)], d.b)
	if err != nil {
		return nil, fault.Wrap(err, fault.Corrupt, "columns of an evaluation")
	}
	return body, nil
}
