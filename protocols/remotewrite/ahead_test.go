package remotewrite_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// aheadRequest is a request of n new series. Every seventh has its sample before its labels or among them, every eleventh
// repeats the one before, every thirteenth has no metric name; so some are looked up ahead and some are not.
func aheadRequest(version string, n int) []byte {
	var body []byte
	field := func(dst []byte, num protowire.Number, m []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(dst, num, protowire.BytesType), m)
	}
	table, symbols := field(nil, 4, nil), []string{""}
	ref := func(s string) uint64 {
		if i := slices.Index(symbols, s); i >= 0 {
			return uint64(i)
		}
		table, symbols = field(table, 4, []byte(s)), append(symbols, s)
		return uint64(len(symbols) - 1)
	}
	pair := func(name, value string) []byte {
		if version == "v1" {
			return field(nil, 1, pairMessage(name, value))
		}
		return field(nil, 1, protowire.AppendVarint(protowire.AppendVarint(nil, ref(name)), ref(value)))
	}
	both := func(name, value string) []byte { // in one field, where the version has that
		if version == "v1" {
			return slices.Concat(pair(name, "m"), pair("i", value))
		}
		m := protowire.AppendVarint(protowire.AppendVarint(nil, ref(name)), ref("m"))
		return field(nil, 1, protowire.AppendVarint(protowire.AppendVarint(m, ref("i")), ref(value)))
	}
	for i := range n {
		name, of := "__name__", i
		if i%13 == 12 {
			name = "a_job"
		}
		if i%11 == 10 {
			of--
		}
		value := fmt.Sprint(of)
		smp := field(nil, 2, protowire.AppendVarint([]byte{tagTime}, uint64(t0+i)))
		ts := slices.Concat(both(name, value), smp)
		switch {
		case i%7 == 5:
			ts = slices.Concat(smp, both(name, value))
		case i%7 == 6:
			ts = slices.Concat(pair(name, "m"), smp, pair("i", value))
		}
		num := protowire.Number(1)
		if version == "v2" {
			num = 5
		}
		body = field(body, num, ts)
	}
	if version == "v2" {
		return slices.Concat(table, body)
	}
	return body
}

// rowsOf lists the rows of a batch, without numbers.
func rowsOf(b *point.Batch) (rows []string) {
	for i, id := range b.IDs {
		rows = append(rows, fmt.Sprint(b.Dict.Labels(id), b.Times[i], " of item ", b.Item(i)))
	}
	for _, r := range b.Refused {
		rows = append(rows, fmt.Sprint(r.Item, r.Text, r.Reason, r.Kind))
	}
	return rows
}

// TestSeriesLookedUpAheadAreTheSeries decodes with a Dict that has the series in another spelling, with an empty
// one, and with one that has every spelling: then nothing is looked up ahead.
func TestSeriesLookedUpAheadAreTheSeries(t *testing.T) {
	for _, version := range []string{"v1", "v2"} {
		body := aheadRequest(version, 500)
		knows := point.NewDict(0)
		for i := range 500 {
			l := point.MakeLabels("__name__", "m", "i", fmt.Sprint(i))
			if _, err := knows.Intern(knows.Hash([]byte(l)), l); err != nil {
				t.Fatal(err)
			}
		}
		dec := newDecoder(version)
		var got [3][]string
		for turn, dict := range []*point.Dict{knows, point.NewDict(0), knows} {
			b := point.GetBatch(dict)
			if err := dec.Decode(body, b); err != nil {
				t.Fatal(err)
			}
			got[turn] = rowsOf(b)
			b.Put()
		}
		if len(got[0]) != 500 || !slices.Equal(got[0], got[1]) || !slices.Equal(got[0], got[2]) {
			t.Errorf("%s: %d, %d and %d rows and refusals, or others", version, len(got[0]), len(got[1]), len(got[2]))
		}
	}
}

// TestLookingAheadStopsAtAFullDictionary refuses as many as it would one by one, and accepts those that are in the Dict.
func TestLookingAheadStopsAtAFullDictionary(t *testing.T) {
	for _, version := range []string{"v1", "v2"} {
		body := aheadRequest(version, 200)
		b := point.GetBatch(point.NewDict(50))
		if err := newDecoder(version).Decode(body, b); err != nil {
			t.Fatal(err)
		}
		full := 0
		for _, r := range b.Refused {
			if r.Kind == fault.Throttled {
				full++
			}
		}
		if b.Dict.Len() != 50 || len(b.IDs) < 50 || len(b.IDs)+b.RefusedRows != 200 || full == 0 {
			t.Errorf("%s: %d series, %d rows, %d refused, %d for want of room", version, b.Dict.Len(), len(b.IDs), b.RefusedRows, full)
		}
		b.Put()
	}
}

// BenchmarkDecodeNew decodes 100 k new series.
func BenchmarkDecodeNew(b *testing.B) {
	for _, version := range []string{"v1", "v2"} {
		bodies := benchV1(b, 50)
		if version == "v2" {
			bodies = benchV2(b, 50)
		}
		b.Run(version, func(b *testing.B) {
			dec := newDecoder(version)
			b.ReportAllocs()
			n, cpu := 0, cputime.Used()
			for b.Loop() {
				dict := point.NewDict(0)
				for _, body := range bodies {
					batch := point.GetBatch(dict)
					if err := dec.Decode(body, batch); err != nil {
						b.Fatal(err)
					}
					batch.Put()
				}
				n += len(bodies) * benchSamples
			}
			b.ReportMetric(float64(cputime.Used()-cpu)/float64(n), "cpu-ns/series")
		})
	}
}
