package frame

import (
	"strconv"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Kind is the effect of a frame on its partition.
type Kind uint8

const (
	// Rows adds definitions, float rows, histograms and exemplars.
	Rows Kind = 1
	// Delete hides rows that the partition accepted before this entry.
	Delete Kind = 2
	// Freeze ends a head: every placement puts a new one in front of it, so that a segment of the leader covers whole heads
	// of all. It has no content. Written only where other placements follow, and only when all of them read this kind.
	Freeze Kind = 3
)

// known reports whether this program can read frames of the kind.
func (k Kind) known() bool { return k >= Rows && k <= Freeze }

// String gives the kind's name in logs.
func (k Kind) String() string {
	switch k {
	case Rows:
		return "rows"
	case Delete:
		return "delete"
	case Freeze:
		return "freeze"
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Frame is one partition's rows of one insert: row i is (IDs[i], Times[i], Values[i]). A frame of kind Delete is a deletion and
// has no rows and no definitions; one of kind Freeze has neither.
//
// Invariant: every series a row names is defined: its id < FirstDef + len(Defs).
type Frame struct {
	Serial point.Serial // given by the head of the chain, in the order of the log
	Prev   point.Serial // the serial before it in this log; zero for the first frame
	Stamp  point.Stamp  // rank of all rows
	Kind   Kind

	// Foreign says that the rows keep a rank given earlier than their place in the log suggests: they came by staging
	// or by a merge.
	Foreign bool

	// FirstDef is the number of series that the log defined before this frame, also when Defs is empty. Defs[i] is the
	// label set of the series FirstDef+i.
	FirstDef point.DenseID
	Defs     []point.Labels

	IDs    []point.DenseID
	Times  []point.Nanos
	Values []float64

	Hists     []HistRow
	Exemplars []ExemplarRow

	Deletion Deletion

	body []byte // memory that Hists[i].H points into, after Decode
}

// HistRow is one native histogram sample. H is in the encoding of point.AppendHistogram; after Decode it is memory of
// the Frame, overwritten by the next Decode into it.
type HistRow struct {
	ID   point.DenseID
	Time point.Nanos
	H    []byte
}

// ExemplarRow is one exemplar of a series. Labels may lack a metric name.
type ExemplarRow struct {
	ID     point.DenseID
	Time   point.Nanos
	Value  float64
	Labels point.Labels
}

// Bounds of one frame. The filler must cut a frame over them in two: Check reports it.
const (
	// RowsMax bounds float rows, histograms, exemplars and definitions, each.
	RowsMax = 1 << 20
	// BodyMax bounds the body before compression, in bytes, and with it the memory that decoding needs.
	BodyMax = 64 << 20
)

// The most bytes of an item in the body beside its labels or histogram.
const (
	rowBytesMax  = 10 + 14 + 9 // id token and run, time token and run, control and value
	sideBytesMax = 10 + 10 + 8 + 10
	fixedBytes   = 64
)

// Check says why a frame cannot be encoded: TooLarge when it exceeds a bound and must be cut, Invalid when its columns
// do not fit together or name undefined series. It reads every id.
func (f *Frame) Check() error {
	switch {
	case !f.Kind.known():
		return fault.Errorf(fault.Invalid, "frame of %v, known are %v, %v and %v", f.Kind, Rows, Delete, Freeze)
	case f.Kind != Rows && len(f.IDs)+len(f.Times)+len(f.Values)+len(f.Hists)+len(f.Exemplars)+len(f.Defs) > 0:
		return fault.Errorf(fault.Invalid, "frame of kind %v with rows or definitions", f.Kind)
	case f.Kind == Delete:
		return f.Deletion.Check()
	case f.Kind == Freeze:
		return nil
	}
	if len(f.IDs) != len(f.Times) || len(f.IDs) != len(f.Values) {
		return fault.Errorf(fault.Invalid, "frame of %d ids, %d times and %d values", len(f.IDs), len(f.Times), len(f.Values))
	}
	if most := max(len(f.IDs), len(f.Hists), len(f.Exemplars), len(f.Defs)); most > RowsMax {
		return fault.Errorf(fault.TooLarge, "frame of %d rows or definitions, at most %d fit", most, RowsMax)
	}
	if n := f.bodyBound(); n > BodyMax {
		return fault.Errorf(fault.TooLarge, "frame of up to %d bytes, at most %d fit", n, BodyMax)
	}
	return f.checkIDs()
}

// bodyBound is at least the length of the body.
func (f *Frame) bodyBound() int {
	n := fixedBytes + len(f.IDs)*rowBytesMax + len(f.Hists)*sideBytesMax + len(f.Exemplars)*sideBytesMax
	n += defsBound(f.Defs)
	for i := range f.Hists {
		n += len(f.Hists[i].H)
	}
	for i := range f.Exemplars {
		n += len(f.Exemplars[i].Labels)
	}
	return n
}

// idLimit is the number of series defined once the frame is applied.
func (f *Frame) idLimit() uint64 { return uint64(f.FirstDef) + uint64(len(f.Defs)) }

func (f *Frame) checkIDs() error {
	limit := f.idLimit()
	if limit > 1<<32 {
		return fault.Errorf(fault.TooLarge, "frame defines %d series from %d on: a partition numbers at most 2^32", len(f.Defs), f.FirstDef)
	}
	top := point.DenseID(0)
	for _, id := range f.IDs {
		top = max(top, id)
	}
	for i := range f.Hists {
		top = max(top, f.Hists[i].ID)
	}
	for i := range f.Exemplars {
		top = max(top, f.Exemplars[i].ID)
	}
	if f.Samples()+len(f.Exemplars) > 0 && uint64(top) >= limit {
		return fault.Errorf(fault.Invalid, "frame has a row of series %d, defined are %d", top, limit)
	}
	return nil
}

// Samples counts float rows and histograms.
func (f *Frame) Samples() int { return len(f.IDs) + len(f.Hists) }

// Reset empties the frame and keeps its memory.
func (f *Frame) Reset() {
	clear(f.Defs)
	clear(f.Hists)
	clear(f.Exemplars)
	*f = Frame{
		Defs: f.Defs[:0], IDs: f.IDs[:0], Times: f.Times[:0], Values: f.Values[:0],
		Hists: f.Hists[:0], Exemplars: f.Exemplars[:0], body: f.body[:0],
	}
}
