package record_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/record"
)

// at is the time of every record here.
const at = point.Nanos(1_772_366_400_000_000_000)

func decoder(t testing.TB, change ...func(*record.Settings)) *record.Decoder {
	t.Helper()
	var s record.Settings
	for _, f := range change {
		f(&s)
	}
	d, err := record.NewDecoder(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// dump prints a batch: a row a line, then the refusals.
func dump(b *point.Batch, err error) string {
	var s strings.Builder
	for i, id := range b.IDs {
		fmt.Fprintf(&s, "%d: %v %v @%d\n", b.Item(i), b.Dict.Labels(id), b.Values[i], b.Times[i])
	}
	for _, r := range b.Hists {
		fmt.Fprintf(&s, "histogram %v @%d\n", b.Dict.Labels(r.ID), r.Time)
	}
	for _, m := range b.Metadata {
		fmt.Fprintf(&s, "metadata %s %s %q\n", m.Metric, m.Type, m.Help)
	}
	if b.StringFields > 0 {
		fmt.Fprintf(&s, "strings %d\n", b.StringFields)
	}
	for _, r := range b.Refused {
		fmt.Fprintf(&s, "refused %d (%v): %s | %s\n", r.Item, r.Kind, r.Reason, strings.TrimRight(r.Text, "\n"))
	}
	if err != nil {
		fmt.Fprintf(&s, "%v: %v\n", fault.KindOf(err), err)
	}
	return s.String()
}

// TestCases runs the scripts in testdata: a record each, options as arguments, headers as header=(name,value).
func TestCases(t *testing.T) {
	datadriven.Walk(t, "testdata/cases", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			var o record.Options
			d := decoder(t, func(s *record.Settings) {
				if td.HasArg("info") {
					s.Strings = lineproto.InfoSeries
				}
				if td.HasArg("dblabel") {
					s.DBLabel = "db"
				}
			})
			for _, a := range td.CmdArgs {
				var err error
				switch a.Key {
				case "format":
					o.Format, err = record.ParseFormat(a.Vals[0])
				case "precision":
					o.Precision, err = record.ParsePrecision(a.Vals[0])
				case "table":
					o.Table = a.Vals[0]
				case "atomic":
					o.Atomic = true
				case "header":
					err = o.Header(a.Vals[0], []byte(a.Vals[1]))
				case "info", "dblabel":
				default:
					t.Fatalf("argument %q", a.Key)
				}
				if err != nil {
					return dump(new(point.Batch), err)
				}
			}
			b := point.GetBatch(point.NewDict(0))
			value := td.Input
			if td.Cmd == "quoted" { // bytes that a text file would not keep
				var err error
				if value, err = strconv.Unquote(td.Input); err != nil {
					t.Fatal(err)
				}
			}
			return dump(b, d.Decode([]byte(value), &o, at, b))
		})
	})
}

func TestSecondReadingAddsNothingNew(t *testing.T) {
	for name, c := range samples(t) {
		d, dict := decoder(t), point.NewDict(0)
		var first, second string
		series := 0
		for i, out := range []*string{&first, &second} {
			b := point.GetBatch(dict)
			*out = dump(b, d.Decode(c.value, &c.options, at, b))
			if i == 0 {
				series = dict.Len()
			}
		}
		if first != second || dict.Len() != series || first == "" {
			t.Errorf("%s: known series read differently:\n%s\n%s", name, first, second)
		}
	}
}

func TestTelegrafMeansWhatLineProtocolMeans(t *testing.T) {
	read := func(f record.Format, value string) string {
		b := point.GetBatch(point.NewDict(0))
		d := decoder(t, func(s *record.Settings) { s.Strings, s.DBLabel, s.Separator = lineproto.InfoSeries, "db", "." })
		if err := d.Decode([]byte(value), &record.Options{Format: f, Table: "tenant"}, at, b); err != nil {
			t.Fatal(err)
		}
		return dump(b, nil)
	}
	line := read(record.Line, `cpu,host=a\ b,core=1 user=1.5,idle=98i,on=true,value=-2,state="so so" 1772366400000000000`)
	json := read(record.TelegrafJSON, `{"fields":{"user":1.5,"idle":98,"on":true,"value":-2,"state":"so so"},"name":"cpu","tags":{"host":"a b","core":"1"},"timestamp":1772366400}`)
	if line != json {
		t.Errorf("line protocol:\n%sTelegraf:\n%s", line, json)
	}
}

func TestAFullDictionaryIsThrottledNotInvalid(t *testing.T) {
	for name, c := range samples(t) {
		dict := point.NewDict(1)
		if _, err := dict.InternLabels(point.MakeLabels(point.MetricName, "taken"), point.Hash{}); err != nil {
			t.Fatal(err)
		}
		b := point.GetBatch(dict)
		err := decoder(t).Decode(c.value, &c.options, at, b)
		throttled := fault.Is(err, fault.Throttled)
		for _, r := range b.Refused {
			throttled = throttled || r.Kind == fault.Throttled
		}
		if !throttled {
			t.Errorf("%s: nothing says that trying again helps:\n%s", name, dump(b, err))
		}
	}
}

func TestAtomicRecordsKeepAllOrNothing(t *testing.T) {
	b := point.GetBatch(point.NewDict(0))
	d := decoder(t)
	o := record.Options{Atomic: true}
	if err := d.Decode([]byte("m v=1 1\n"), &o, at, b); err != nil {
		t.Fatal(err)
	}
	if err := d.Decode([]byte("m v=2 2\nm v=x 3\nm v=4 4\n"), &o, at, b); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(b.Values) != "[1]" || len(b.Refused) != 1 {
		t.Errorf("%s", dump(b, nil))
	}
}

func TestARecordThatCannotBeReadLeavesTheBatchAlone(t *testing.T) {
	b := point.GetBatch(point.NewDict(0))
	d := decoder(t)
	if err := d.Decode([]byte("m v=1 1\nm v=\n"), &record.Options{}, at, b); err != nil {
		t.Fatal(err)
	}
	before := dump(b, nil)
	for _, bad := range []string{`{"fields":{"a":1},"name":"m"}{"fields":{"a":1},"name":"m"`, `{"name":"m","fields":{"a":[`, `[{"fields":{"a":{}},"name":"m"},7]`} {
		err := d.Decode([]byte(bad), &record.Options{Format: record.TelegrafJSON}, at, b)
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if after := dump(b, nil); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestPrecisionsAreThoseOfLineProtocol(t *testing.T) {
	for _, name := range []string{"ns", "us", "ms", "s", "m", "h", "auto"} {
		p, err := record.ParsePrecision(name)
		if err != nil || p.String() != name {
			t.Fatalf("%q: %v %v", name, p, err)
		}
		read := func(f record.Format, value string) point.Nanos {
			b := point.GetBatch(point.NewDict(0))
			if err := decoder(t).Decode([]byte(value), &record.Options{Format: f, Precision: p}, at, b); err != nil || len(b.Times) != 1 {
				t.Fatalf("%s", dump(b, err))
			}
			return b.Times[0]
		}
		for _, ts := range []string{"0", "-7", "123456", "2000000"} {
			line := read(record.Line, "m v=1 "+ts)
			if json := read(record.PrometheusJSON, `{"name":"m","value":1,"timestamp":`+ts+`}`); json != line {
				t.Errorf("%s %s: line protocol %d, JSON %d", name, ts, line, json)
			}
		}
	}
}

func TestNamesOfFormatsReadBack(t *testing.T) {
	for f := record.Line; f <= record.OTLP; f++ {
		text, _ := f.MarshalText()
		var back record.Format
		if err := back.UnmarshalText(text); err != nil || back != f {
			t.Errorf("%v: %v %v", f, back, err)
		}
	}
	if _, err := record.ParseFormat("avro"); !fault.Is(err, fault.Invalid) {
		t.Errorf("avro: %v", err)
	}
}
