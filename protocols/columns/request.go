package columns

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Request asks a server for a part of a plan. FORMAT.md draws its bytes.
type Request struct {
	Plan Plan
	Form Form
	// SamplesMax is Env's.
	SamplesMax int
}

// Bounds of a request. A plan beyond them is evaluated by the gateway.
const (
	// RequestSteps is how many steps a part has at most.
	RequestSteps  = 1 << 16
	requestStages = 64
	requestNames  = 256
	requestText   = 1 << 10
)

// requestVersion is of the form of requests and parts.
const requestVersion = 1

// ErrUnknown means that a request is of another version, or asks for something that this build does not evaluate.
var ErrUnknown = errors.New("this build does not evaluate the plan")

const (
	stageOperator    = 1
	stageAggregation = 2

	sourceInstant = 1 << 0
	sourceOneName = 1 << 1

	operatorNegate  = 1 << 0
	operatorSwapped = 1 << 1
	operatorAsBool  = 1 << 2
)

// An example, rate(x[5m]) at 2 steps, as Append draws it:
//
//	01 01 │ start │ step │ 02 │ samples │ 04 "rate" │ flags 00 │ window 5·60·10⁹ │ offset 00 │ 8 bytes │ held │ stages 00

// Requestable reports whether a part of the plan can be asked for.
func (p *Plan) Requestable() bool {
	a := p.first()
	return p.Grid.Len() <= RequestSteps && len(p.Stages) <= requestStages && (a == nil ||
		len(a.Names) <= requestNames && !slices.ContainsFunc(a.Names, func(n string) bool { return len(n) > requestText }))
}

// Append appends the request. Of the plan's stages those up to the first aggregation travel.
func (q *Request) Append(b []byte) []byte {
	p := &q.Plan
	b = append(b, requestVersion, byte(q.Form))
	b = binary.AppendVarint(b, p.Grid.Start)
	b = binary.AppendUvarint(b, uint64(p.Grid.Step))
	b = binary.AppendUvarint(b, uint64(p.Grid.Len()))
	b = binary.AppendUvarint(b, uint64(q.SamplesMax))
	s := &p.Source
	b = appendText(b, s.Function.Name)
	b = append(b, bit(s.Instant, sourceInstant)|bit(s.OneName, sourceOneName))
	b = binary.AppendUvarint(b, uint64(s.Window))
	b = binary.AppendVarint(b, int64(s.Offset))
	b = appendFloat(b, s.Argument)
	b = binary.AppendUvarint(b, uint64(s.Held))
	// Up to the first aggregation and with it: the stages above need all parts.
	stages := p.Stages[:min(len(p.Stages), p.head()+1)]
	b = binary.AppendUvarint(b, uint64(len(stages)))
	for _, st := range stages {
		if o := st.Operator; o != nil {
			b = append(b, stageOperator, byte(o.Op), bit(o.Negate, operatorNegate)|bit(o.Swapped, operatorSwapped)|bit(o.AsBool, operatorAsBool))
			b = appendFloat(b, o.Number)
		} else {
			a := st.Aggregation
			b = append(b, stageAggregation, byte(a.Op), bit(a.Without, 1))
			b = appendFloat(b, a.Parameter)
			b = binary.AppendUvarint(b, uint64(len(a.Names)))
			for _, n := range a.Names {
				b = appendText(b, n)
			}
		}
		b = binary.AppendUvarint(b, uint64(st.Held))
	}
	return b
}

// DecodeRequest reads a request. Errors are Corrupt, and ErrUnknown.
func DecodeRequest(b []byte) (*Request, error) {
	if len(b) == 0 {
		return nil, fault.Errorf(fault.Corrupt, "an evaluation without a plan")
	}
	if b[0] != requestVersion {
		return nil, ErrUnknown
	}
	d := decoder{b: b[1:]}
	q := &Request{Form: Form(d.byte())}
	start, step, steps := d.varint(), d.number(math.MaxInt64), d.number(RequestSteps)
	q.SamplesMax = int(d.number(math.MaxInt64))
	// The last step, start + (steps-1)·step, must not overflow: it is checked by a division.
	if d.bad || step == 0 || steps == 0 || (math.MaxInt64/2-start)/steps < step {
		return nil, d.corrupt("its steps")
	}
	p := &q.Plan
	p.Grid = Grid{Start: start, End: start + (steps-1)*step, Step: step}
	name := d.text(requestText)
	flags := d.byte()
	s := &p.Source
	s.Window, s.Offset = time.Duration(d.number(math.MaxInt64)), time.Duration(d.varint())
	s.Argument, s.Held = d.float(), int(d.number(math.MaxInt32))
	s.Instant, s.OneName = flags&sourceInstant != 0, flags&sourceOneName != 0
	stages := d.number(requestStages)
	for range stages {
		p.Stages = append(p.Stages, d.stage())
	}
	if d.bad || len(d.b) > 0 {
		return nil, d.corrupt("its stages")
	}
	if s.Function = FunctionOf(name); s.Instant && name == "" {
		s.Function = LastValue
	}
	if s.Function == nil || flags&^(sourceInstant|sourceOneName) != 0 || d.unknown || q.Form == 0 || q.Form >= formEnd {
		return nil, ErrUnknown
	}
	return q, q.check()
}

// check holds what evaluations rely on.
func (q *Request) check() error {
	p := &q.Plan
	head := p.head()
	switch {
	case p.Source.Window <= 0 || p.Source.Offset == math.MinInt64 || !p.Representable():
		return fault.Errorf(fault.Corrupt, "a plan with a window of %v and an offset of %v", p.Source.Window, p.Source.Offset)
	case p.Source.Instant != (p.Source.Function == LastValue):
		return fault.Errorf(fault.Corrupt, "a plan of an instant selector with a function over ranges, or the other way round")
	case q.Form == Raw && len(p.Stages) == 0:
	case q.Form == Raw, head+1 < len(p.Stages), (p.first() == nil) != (q.Form == Single), p.planes(q.Form) == 0:
		return fault.Errorf(fault.Corrupt, "a plan of %d stages for form %d", len(p.Stages), q.Form)
	}
	if a := p.first(); a != nil && (!slices.IsSorted(a.Names) || a.Ranks() && !(a.Parameter >= 1)) {
		return fault.Errorf(fault.Corrupt, "a plan whose aggregation has names out of order, or ranks the first %v", a.Parameter)
	}
	return nil
}

// stage reads one stage. A stage that is well formed and not evaluated here is unknown, which is not an error of the sender.
func (d *decoder) stage() (st Stage) {
	switch kind := d.byte(); kind {
	case stageOperator:
		o := &Operator{Op: Op(d.byte())}
		flags := d.byte()
		o.Negate, o.Swapped, o.AsBool = flags&operatorNegate != 0, flags&operatorSwapped != 0, flags&operatorAsBool != 0
		o.Number = d.float()
		d.unknown = d.unknown || flags > operatorNegate|operatorSwapped|operatorAsBool || !o.Negate && !o.Op.Compares() && o.Op.Arithmetic() == nil
		st.Operator = o
	case stageAggregation:
		a := &Aggregation{Op: Op(d.byte())}
		without := d.byte()
		a.Without, a.Parameter = without == 1, d.float()
		for range d.number(requestNames) {
			a.Names = append(a.Names, d.text(requestText))
		}
		d.unknown = d.unknown || without > 1 || !a.Op.Aggregates()
		st.Aggregation = a
	default:
		d.bad = true
	}
	st.Held = int(d.number(math.MaxInt32))
	return st
}

func bit(on bool, b byte) byte {
	if on {
		return b
	}
	return 0
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendFloat keeps the bits, those of markers and of NaN payloads too.
func appendFloat(b []byte, v float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
}

// decoder cuts values off bytes. After a mistake all are zero.
type decoder struct {
	b       []byte
	bad     bool
	unknown bool // well-formed, and of a later build
}

func (d *decoder) corrupt(where string) error {
	return fault.Errorf(fault.Corrupt, "an evaluation is malformed: %s", where)
}

// Behind a mistake the zeros returned have the length of the longest fixed field, so that callers need not look at bad between fields.
func (d *decoder) cut(n int) []byte {
	if d.bad = d.bad || n > len(d.b); d.bad {
		d.b = nil
		return make([]byte, min(n, 8))
	}
	part := d.b[:n:n]
	d.b = d.b[n:]
	return part
}

func (d *decoder) byte() byte { return d.cut(1)[0] }

// number is an unsigned number of at most that size.
func (d *decoder) number(most int64) int64 {
	v, n := binary.Uvarint(d.b)
	if d.bad = d.bad || n <= 0 || v > uint64(most); d.bad {
		d.b = nil
		return 0
	}
	d.b = d.b[n:]
	return int64(v)
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if d.bad = d.bad || n <= 0; d.bad {
		d.b = nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) float() float64 { return math.Float64frombits(binary.LittleEndian.Uint64(d.cut(8))) }

func (d *decoder) text(most int64) string {
	n := d.number(most)
	if d.bad || n > int64(len(d.b)) {
		d.bad = true
		return ""
	}
	return string(d.cut(int(n)))
}
