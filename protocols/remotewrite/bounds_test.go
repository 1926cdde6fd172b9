package remotewrite

import (
	"fmt"
	"strings"
	"testing"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAHelpTextDoesNotMultiply: a text that stands once in a request and belongs to thousands of families needed gigabytes.
// Text beyond the bound is refused with its name, and the samples are accepted.
func TestAHelpTextDoesNotMultiply(t *testing.T) {
	const families = 3000
	w := writev2.Request{Symbols: []string{"", "__name__", strings.Repeat("h", 16_000)}}
	for i := range families {
		w.Symbols = append(w.Symbols, fmt.Sprintf("f%d", i))
		w.Timeseries = append(w.Timeseries, writev2.TimeSeries{LabelsRefs: []uint32{1, uint32(3 + i)},
			Samples: []writev2.Sample{{Value: 1, Timestamp: 1000}}, Metadata: writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_GAUGE, HelpRef: 2}})
	}
	body, err := w.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var d DecoderV2
	for range 2 {
		b := point.GetBatch(point.NewDict(0))
		if err := d.Decode(body, b); err != nil {
			t.Fatal(err)
		}
		n := 0
		for i := range b.Metadata {
			n += b.Metadata[i].Bytes()
		}
		if n > point.MetadataRequestMax+point.MetadataBytesMax || n < point.MetadataRequestMax {
			t.Errorf("%d rows of metadata hold %d bytes", len(b.Metadata), n)
		}
		if len(b.IDs) != families || b.RefusedRows != 0 || len(b.Refused) == 0 || !strings.Contains(b.Refused[0].Text, "f10") {
			t.Errorf("%d samples, %d refused, %d reasons", len(b.IDs), b.RefusedRows, len(b.Refused))
		}
		b.Put()
	}
}

// TestALabelDoesNotMultiply: series that are refused for one symbol of 60,000 bytes were written out again and again, gigabytes for a body of one
// megabyte. The label beside it decides the way on which the decoder writes them out.
func TestALabelDoesNotMultiply(t *testing.T) {
	const long = 60_000
	for _, name := range []string{"x", "\xff"} {
		w := writev2.Request{Symbols: []string{"", "__name__", "m", "long", strings.Repeat("v", long), name}}
		for range point.LabelsRequestMax/long + 100 {
			w.Timeseries = append(w.Timeseries, writev2.TimeSeries{LabelsRefs: []uint32{1, 2, 3, 4, 5, 2}, Samples: []writev2.Sample{{Value: 1, Timestamp: 1000}}})
		}
		body, err := w.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		dict := point.NewDict(0)
		dict.SetLabelLimits(point.LabelLimits{Count: 64, NameBytes: 1 << 10, ValueBytes: 8 << 10})
		b := point.GetBatch(dict)
		var d DecoderV2
		if err := d.Decode(body, b); !fault.Is(err, fault.TooLarge) {
			t.Errorf("%q: %d series of %d bytes each: %v", name, len(w.Timeseries), long, err)
		}
		b.Put()
		w.Timeseries = w.Timeseries[:100]
		if body, err = w.Marshal(); err != nil {
			t.Fatal(err)
		}
		b = point.GetBatch(dict)
		if err := d.Decode(body, b); err != nil || b.RefusedRows != 100 {
			t.Errorf("%q: of a hundred series %d are refused, %v", name, b.RefusedRows, err)
		}
		b.Put()
	}
}

// TestExemplarsOfOneSymbolDoNotTakeTheProcessMemory: a body of 790 KB, 37 KB as sent, held 517 MiB, as each of its exemplars got a copy of
// one symbol. Those beyond the bound are refused with the name of their series; samples and exemplars before them are kept.
func TestExemplarsOfOneSymbolDoNotTakeTheProcessMemory(t *testing.T) {
	const exemplars, series, long = 131_072, 1024, 4000
	w := writev2.Request{Symbols: []string{"", "__name__", "trace", strings.Repeat("v", long)}}
	for i := range series {
		w.Symbols = append(w.Symbols, fmt.Sprintf("m%d", i))
		s := writev2.TimeSeries{LabelsRefs: []uint32{1, uint32(4 + i)}, Samples: []writev2.Sample{{Value: 1, Timestamp: 1000}}}
		for range exemplars / series {
			s.Exemplars = append(s.Exemplars, writev2.Exemplar{LabelsRefs: []uint32{2, 3}, Value: 1, Timestamp: 1000})
		}
		w.Timeseries = append(w.Timeseries, s)
	}
	body, err := w.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var d DecoderV2
	for range 2 {
		b := point.GetBatch(point.NewDict(0))
		if err := d.Decode(body, b); err != nil {
			t.Fatal(err)
		}
		n := 0
		for i := range b.Exemplars {
			n += len(b.Exemplars[i].Labels)
		}
		if most := point.ExemplarsRequestMax * 11 / 10; n > most || n < point.ExemplarsRequestMax-long {
			t.Errorf("%d exemplars have labels of %d bytes", len(b.Exemplars), n)
		}
		if len(b.IDs) != series || b.RefusedRows != 0 || d.Taken().Exemplars != len(b.Exemplars) {
			t.Errorf("%d samples, %d refused, %+v", len(b.IDs), b.RefusedRows, d.Taken())
		}
		if r := b.Refused; len(r) != point.RefusalsMax || !strings.Contains(r[0].Text, `__name__="m`) || !strings.Contains(r[0].Reason, fmt.Sprint(point.ExemplarsRequestMax)) {
			t.Errorf("%d reasons, %+v", len(r), r[0])
		}
		b.Put()
	}
}

// TestLabelsOfSeriesLookedUpTogetherCount: new series that follow each other were written out on another way, which no bound held for.
func TestLabelsOfSeriesLookedUpTogetherCount(t *testing.T) {
	w := writev2.Request{Symbols: []string{"", "__name__", "m", "i", "shared", strings.Repeat("v", 100)}}
	for i := range 3 * aheadSeries {
		w.Symbols = append(w.Symbols, fmt.Sprint(i))
		w.Timeseries = append(w.Timeseries, writev2.TimeSeries{LabelsRefs: []uint32{1, 2, 3, uint32(6 + i), 4, 5}, Samples: []writev2.Sample{{Value: 1, Timestamp: 1000}}})
	}
	body, err := w.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	b := point.GetBatch(point.NewDict(0))
	defer b.Put()
	var d DecoderV2
	if err := d.Decode(body, b); err != nil || len(b.IDs) != len(w.Timeseries) {
		t.Fatalf("%d samples, %v", len(b.IDs), err)
	}
	n := 0
	for _, id := range b.IDs {
		n += len(b.Dict.Labels(id))
	}
	if used := point.LabelsRequestMax - d.labelsRoom; used != n {
		t.Errorf("labels of %d bytes count as %d", n, used)
	}
}
