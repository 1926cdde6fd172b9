package otlp

import (
	"encoding/hex"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

var (
	labelTraceID = []byte("trace_id")
	labelSpanID  = []byte("span_id")
)

// exemplarRunesMax bounds the labels of an exemplar, in characters (OpenMetrics 1.0, "Exemplars"). Where they are more,
// the ids are kept and the attributes are not.
const exemplarRunesMax = 128

// exemplar is the message Exemplar.
type exemplar struct {
	time     uint64
	value    float64
	valued   bool
	trace    []byte
	spanID   []byte
	filtered []byte // the message itself: its fields 7 are attributes
}

// readExemplars adds the exemplars of the data point being read, each to the series that pick gives for its value. The
// error is one of the wire; a mistake in an exemplar refuses that one alone.
func (d *Decoder) readExemplars(pick func(float64) point.SeriesID) error {
	if len(d.p.exemplars.data) == 0 {
		return nil
	}
	return each(d.p.exemplars.data, d.p.exemplar, func(m []byte) error {
		if err := d.spend(1); err != nil {
			return err
		}
		e, err := readExemplar(m)
		if err != nil {
			return err
		}
		row, reason, err := d.exemplarRow(&e)
		if err != nil {
			return err
		}
		if reason != nil {
			d.b.RefuseExemplars(1, d.item, d.pointText, fault.Annotate(reason, "exemplar").Error())
			return nil
		}
		row.ID = pick(e.value)
		d.b.Exemplars = append(d.b.Exemplars, row)
		return nil
	})
}

func readExemplar(m []byte) (e exemplar, err error) {
	e.filtered = m
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		switch {
		case err != nil:
		case f.Num == 2:
			e.time = f.Expect(wire.Fixed64, &err)
		case f.Num == 3:
			e.value, e.valued = f.Double(&err), true
		case f.Num == 4:
			e.spanID = f.Bytes(&err)
		case f.Num == 5:
			e.trace = f.Bytes(&err)
		case f.Num == 6:
			e.value, e.valued = float64(int64(f.Expect(wire.Fixed64, &err))), true
		}
		if err != nil {
			return e, err
		}
		i = next
	}
	return e, nil
}

// exemplarRow makes a row, still without its series. An exemplar without a time has that of its data point.
func (d *Decoder) exemplarRow(e *exemplar) (row point.ExemplarRow, reason, err error) {
	if e.time == 0 {
		e.time = d.p.time
	}
	switch {
	case e.time > math.MaxInt64:
		return row, fault.Errorf(fault.Invalid, "timestamp %d ns is out of range", e.time), nil
	case !e.valued:
		return row, errNoValue, nil
	case math.IsNaN(e.value):
		return row, fault.Errorf(fault.Invalid, "the value is not a number"), nil
	}
	d.arena, d.p.parsed = d.arena[:0], false // pairs are used for another purpose now
	pairs, reason, err := d.readAttributes(d.pairs[:0], e.filtered, 7)
	if reason != nil || err != nil {
		return row, reason, err
	}
	trace, span := d.hexID(e.trace), d.hexID(e.spanID)
	runes := idRunes(labelTraceID, trace) + idRunes(labelSpanID, span)
	for _, p := range pairs {
		runes += utf8.RuneCount(p.name) + utf8.RuneCount(p.value)
	}
	if runes > exemplarRunesMax {
		pairs = pairs[:0]
	}
	// No label is empty: set would fill an empty attribute with the id, and leave another attribute of its name behind.
	pairs = slices.DeleteFunc(pairs, func(p pair) bool { return len(p.value) == 0 })
	if len(trace) > 0 {
		pairs = set(pairs, labelTraceID, trace)
	}
	if len(span) > 0 {
		pairs = set(pairs, labelSpanID, span)
	}
	d.pairs = pairs
	d.labels.Reset()
	for _, p := range pairs {
		d.labels.Add(p.name, p.value)
	}
	labels, reason := d.labels.Exemplar()
	return point.ExemplarRow{Time: point.Nanos(e.time), Value: e.value, Labels: labels}, reason, nil
}

func idRunes(name, id []byte) int {
	if len(id) == 0 {
		return 0
	}
	return len(name) + len(id)
}

// idBytesMax is the length of a trace id; longer ones are none.
const idBytesMax = 16

// hexID writes an id in the arena; one of nothing but zeros is none.
func (d *Decoder) hexID(id []byte) []byte {
	zeros := true
	for _, c := range id {
		zeros = zeros && c == 0
	}
	if zeros || len(id) > idBytesMax {
		return nil
	}
	from := len(d.arena)
	d.arena = hex.AppendEncode(d.arena, id)
	return d.arena[from:len(d.arena):len(d.arena)]
}
