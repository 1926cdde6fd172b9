package lineproto

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

var rewrite = flag.Bool("rewrite", false, "write want.txt of every case anew")

// TestCases decodes testdata/cases/<name>/in.lp. Settings stand in its comment lines: "#! precision=s partial=false".
func TestCases(t *testing.T) {
	dirs, err := filepath.Glob("testdata/cases/*")
	if err != nil || len(dirs) < 20 {
		t.Fatalf("%d cases, %v", len(dirs), err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			in, err := os.ReadFile(filepath.Join(dir, "in.lp"))
			if err != nil {
				t.Fatal(err)
			}
			got := describe(t, in, caseSettings(t, in))
			wantPath := filepath.Join(dir, "want.txt")
			if *rewrite {
				if err := os.WriteFile(wantPath, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(wantPath)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

const caseNow = 1700000000123456789

func caseSettings(t *testing.T, in []byte) Settings {
	s := Settings{Partial: true}
	line, _, _ := strings.Cut(string(in), "\n")
	words, ok := strings.CutPrefix(line, "#! ")
	if !ok {
		return s
	}
	for _, w := range strings.Fields(words) {
		name, value, _ := strings.Cut(w, "=")
		var err error
		switch name {
		case "precision":
			if s.Precision, err = V1.Precision(value); err != nil {
				s.Precision, err = V3.Precision(value)
			}
		case "separator":
			s.Separator = value
		case "dblabel":
			s.DBLabel = value
		case "db":
			s.DB = value
		case "strings":
			s.Strings = map[string]StringPolicy{"count": CountStrings, "info": InfoSeries}[value]
		case "partial":
			s.Partial, err = strconv.ParseBool(value)
		default:
			err = fmt.Errorf("setting %q", name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// describe decodes twice with one Dict, first with new series, then with the same, checks that both give the same, and returns it.
func describe(t *testing.T, in []byte, s Settings) string {
	dict := point.NewDict(0)
	d := Decoder{Settings: s}
	var first string
	for pass := range 2 {
		b := point.GetBatch(dict)
		if err := d.Decode(in, caseNow, b); err != nil {
			t.Fatal(err)
		}
		text := lines(b)
		if pass == 0 {
			first = text
		} else if text != first {
			t.Errorf("the known lines say\n%sthe new ones said\n%s", text, first)
		}
		b.Put()
	}
	return first
}

func lines(b *point.Batch) string {
	var w strings.Builder
	for i, id := range b.IDs {
		fmt.Fprintf(&w, "line %d: %s %s @%d\n", b.Item(i), b.Dict.Labels(id), strconv.FormatFloat(b.Values[i], 'g', -1, 64), b.Times[i])
	}
	for _, r := range b.Refused {
		fmt.Fprintf(&w, "line %d refused (%s): %s\n\t%q\n", r.Item, r.Kind, r.Reason, r.Text)
	}
	fmt.Fprintf(&w, "%d rows, %d refused, %d strings\n", b.Rows(), b.RefusedRows, b.StringFields)
	return w.String()
}

func TestKnownLinesAllocateNothing(t *testing.T) {
	f := func(name string, body []byte, s Settings) {
		t.Helper()
		b := point.GetBatch(point.NewDict(0))
		dict := b.Dict
		d := Decoder{Settings: s}
		run := func() {
			b.Reset()
			b.Dict = dict
			if err := d.Decode(body, caseNow, b); err != nil {
				t.Fatal(err)
			}
		}
		run()
		if n := testing.AllocsPerRun(20, run); n != 0 {
			t.Errorf("%s: %v allocations in a body of %d lines", name, n, bytes.Count(body, []byte("\n")))
		}
		if b.Rows() == 0 || b.RefusedRows > 0 {
			t.Errorf("%s: %d rows, %v", name, b.Rows(), b.Refused)
		}
	}
	f("cpu", cpuLines(100, benchTime), Settings{Partial: true})
	f("floats", floatLines(100, benchTime), Settings{Partial: true})
	f("single", singleLines(100, benchTime), Settings{Partial: true, DBLabel: "db", DB: "telegraf"})
	f("mixed", mixedLines(100, benchTime, 1), Settings{Partial: true})
	f("mixed, info", mixedLines(100, benchTime, 1), Settings{Partial: true, Strings: InfoSeries})
	f("wide, backwards", wideLine(2000), Settings{Partial: true})
}

// wideLine has n fields, in falling order at its second appearance.
func wideLine(n int) []byte {
	var fields []string
	for i := range n {
		fields = append(fields, fmt.Sprintf("f%d=%di", i, i))
	}
	up := strings.Join(fields, ",")
	slices.Reverse(fields)
	return []byte("wide,host=a " + up + " 1\nwide,host=a " + strings.Join(fields, ",") + " 2\n")
}

// A wide line is found by position, by comparing and by hash; all must find the same series.
func TestWideLinesFindTheirSeriesInAnyOrder(t *testing.T) {
	const n = 2000
	b := point.GetBatch(point.NewDict(0))
	defer b.Put()
	d := Decoder{Settings: Settings{Partial: true}}
	for range 2 {
		if err := d.Decode(wideLine(n), caseNow, b); err != nil {
			t.Fatal(err)
		}
	}
	if b.Dict.Len() != n || len(b.IDs) != 4*n {
		t.Fatalf("%d series, %d rows, refused %v", b.Dict.Len(), len(b.IDs), b.Refused)
	}
	for i, id := range b.IDs {
		want := fmt.Sprintf("wide_f%d", int(b.Values[i]))
		if got := b.Dict.Labels(id).Get(point.MetricName); got != want {
			t.Fatalf("row %d: %s, want %s", i, got, want)
		}
	}
}

// One Dict serves a table, and settings may differ between requests: none may see names made under others.
func TestSettingsNeverShareTemplates(t *testing.T) {
	dict := point.NewDict(0)
	f := func(s Settings, want string) {
		t.Helper()
		s.Partial = true
		b := point.GetBatch(dict)
		defer b.Put()
		d := Decoder{Settings: s}
		if err := d.Decode([]byte("cpu,host=a user=1\n"), 0, b); err != nil || len(b.IDs) != 1 {
			t.Fatalf("%d rows, %v", len(b.IDs), err)
		}
		if got := dict.Labels(b.IDs[0]).String(); got != want {
			t.Errorf("%+v: %s, want %s", s, got, want)
		}
	}
	for range 2 {
		f(Settings{}, `{__name__="cpu_user", host="a"}`)
		f(Settings{Separator: "."}, `{__name__="cpu.user", host="a"}`)
		f(Settings{DBLabel: "db", DB: "x"}, `{__name__="cpu_user", db="x", host="a"}`)
		f(Settings{DBLabel: "db", DB: "y"}, `{__name__="cpu_user", db="y", host="a"}`)
		f(Settings{DBLabel: "d", DB: "bx"}, `{__name__="cpu_user", d="bx", host="a"}`)
		f(Settings{DBLabel: "host", DB: "x"}, `{__name__="cpu_user", host="a"}`)
	}
}

// Truncation at every byte must neither panic nor invent lines: the lines before the cut are read as ever.
func TestTruncatedAtEveryByte(t *testing.T) {
	whole := []byte("m\\,1,t\\ a=b\\=c f=1i,g\\ =\"x\\\"\\\\\ny\",h=t 1000\r\n# comment\n\n  cpu,host=a,r=é v=-1.5e3,u=18446744073709551615u\ncpu v=.5 -1\n")
	for _, s := range []Settings{{Partial: true}, {}, {Partial: true, Strings: InfoSeries}} {
		all := rowsOf(t, whole, s)
		for n := range whole {
			got := rowsOf(t, whole[:n], s)
			keep := 0
			for i, r := range got {
				if i < len(all) && r == all[i] {
					keep++
				}
			}
			// The rows of the line that is cut may differ; it has at most 3.
			if s.Partial && keep+3 < len(got) {
				t.Errorf("cut at %d: %v", n, got)
			}
		}
	}
}

func rowsOf(t *testing.T, body []byte, s Settings) []row {
	b := point.GetBatch(point.NewDict(0))
	defer b.Put()
	d := Decoder{Settings: s}
	if err := d.Decode(body, caseNow, b); err != nil {
		t.Fatal(err)
	}
	if len(b.IDs) != len(b.Times) || len(b.IDs) != len(b.Values) {
		t.Fatalf("columns of %d, %d and %d rows", len(b.IDs), len(b.Times), len(b.Values))
	}
	var rows []row
	for i, id := range b.IDs {
		rows = append(rows, row{string(b.Dict.Labels(id)), b.Times[i], math.Float64bits(b.Values[i])})
	}
	return rows
}

// A batch may hold the bodies of several records; a refused body removes only its own rows.
func TestRefusedBodyLeavesEarlierBodiesAlone(t *testing.T) {
	b := point.GetBatch(point.NewDict(0))
	defer b.Put()
	var d Decoder
	for _, body := range []string{"a f=1 1\n", "b f=2,s=\"x\" 2\nbad\nc f=3\n", "d f=4 4\n"} {
		if err := d.Decode([]byte(body), caseNow, b); err != nil {
			t.Fatal(err)
		}
	}
	want := "line 1: {__name__=\"a_f\"} 1 @1\nline 2: {__name__=\"d_f\"} 4 @4\n" +
		"line 2 refused (invalid): no fields\n\t\"bad\"\n2 rows, 1 refused, 0 strings\n"
	if got := lines(b); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// A full Dict refuses new series for now; the answer must not miss that among a hundred lines that are bad for ever.
func TestFullDictIsReportedBehindAHundredBadLines(t *testing.T) {
	b := point.GetBatch(point.NewDict(1))
	defer b.Put()
	d := Decoder{Settings: Settings{Partial: true}}
	body := "known f=1 1\n" + strings.Repeat("bad\n", 150) + "new f=2 2\n" + "known f=3 3\n" + strings.Repeat("bad\n", 5)
	if err := d.Decode([]byte(body), caseNow, b); err != nil {
		t.Fatal(err)
	}
	if len(b.IDs) != 2 || b.RefusedRows != 156 || len(b.Refused) != point.RefusalsMax {
		t.Fatalf("%d rows, %d refused, %d reasons", len(b.IDs), b.RefusedRows, len(b.Refused))
	}
	last := b.Refused[point.RefusalsMax-1]
	if last.Kind != fault.Throttled || last.Item != 152 || last.Text != "new f=2 2" {
		t.Errorf("the last reason is %+v", last)
	}
}

// The content of a string came from a log. It must not be read as lines because another field of its line is bad.
func TestTextOfABadLineIsNeverReadAsLines(t *testing.T) {
	for _, body := range []string{
		"log bad=x,msg=\"hello\ncpu,host=a usage=666 1\n\" 1\nok v=1 1\n",
		"log msg=\"hello\ncpu,host=a usage=666 1\n\"x 1\nok v=1 1\n",
		"log msg=\"hello\ncpu,host=a usage=666 1\n\" 12x\nok v=1 1\n",
		"log msg=\"hello\ncpu,host=a usage=666 1\n\xff\" 1\nok v=1 1\n",
		"log,a=b,a=c msg=\"hello\ncpu,host=a usage=666 1\n\" 1\nok v=1 1\n",
		"log,bad msg=\"hello \\\" \ncpu,host=a usage=666 1\n\" 1\nok v=1 1\n",
	} {
		b := point.GetBatch(point.NewDict(0))
		d := Decoder{Settings: Settings{Partial: true}}
		if err := d.Decode([]byte(body), caseNow, b); err != nil {
			t.Fatal(err)
		}
		if len(b.IDs) != 1 || b.Dict.Labels(b.IDs[0]).Get(point.MetricName) != "ok_v" || b.Item(0) != 4 || b.RefusedRows != 1 {
			t.Errorf("%q:\n%s", body, lines(b))
		}
		b.Put()
	}
}

// The cost of a body must stay linear in its length, however it is malformed. Work is seen by the bytes that are allocated and
// by this test ending at all: if quadratic, 4 MB would last hours.
func TestMalformedBodiesCostLinearWork(t *testing.T) {
	const size = 4 << 20
	work := func(start, piece string) {
		t.Helper()
		body := []byte(start + strings.Repeat(piece, size/len(piece)))
		b := point.GetBatch(point.NewDict(1000))
		d := Decoder{Settings: Settings{Partial: true}}
		if err := d.Decode(body, caseNow, b); err != nil {
			t.Fatal(err)
		}
		if len(b.Refused) > point.RefusalsMax || len(b.ItemRows) > len(body) {
			t.Errorf("%q: %d reasons, %d items", piece, len(b.Refused), len(b.ItemRows))
		}
	}
	work("m ", "f=1,")
	work("m ", "f=1,g=2,h=3,")
	work("m ", `s="x",`)
	work("m ", `s="\\",`)
	work(`m s="`, `\`)
	work(`m s="`, `\"`)
	work("m,t=", "\\ ")
	work("m", ",t=a")
	work("m f=", "1")
	work("m f=0.", "1")
	work("m f=1 ", "1")
	work("x ", `="",`)
	for _, piece := range []string{
		"m f=1,f=2\n", "a\n", "\n", "#\n", "a,", "a=\"", "m f=\"", "m f=1,", "m f=\\", "\\", "m,a=b", "m,a=b,a=c f=1\n", "m f=x,s=\"\n", " ",
		"m f=1 1\n", "m f=x\n", "m f=1,f=2,", "\"", "m,t=\\ ",
	} {
		work("", piece)
	}
}

// TestABadLineOfManyStringsTakesNoProcessorForMinutes: the end of the line was looked for again after each of its strings, 42 s for a body of
// 2 MiB. Strings that hold ends of lines are as cheap, and the line behind is read.
func TestABadLineOfManyStringsTakesNoProcessorForMinutes(t *testing.T) {
	for _, piece := range []string{`="",`, `="a` + "\n" + `b",`, `="\"",`} {
		body := []byte("x " + strings.Repeat(piece, 20_000) + "\nm f=1\n")
		b := point.GetBatch(point.NewDict(0))
		d := Decoder{Settings: Settings{Partial: true}}
		if err := d.Decode(body, caseNow, b); err != nil {
			t.Fatal(err)
		}
		if d.searched > len(body) {
			t.Errorf("%q: a body of %d bytes was searched for ends of lines over %d bytes", piece, len(body), d.searched)
		}
		if n := bytes.Count(body, newline); b.RefusedRows != 1 || b.Rows() != 1 || b.Item(0) != n {
			t.Errorf("%q: %d refused, %d rows, line %d of %d", piece, b.RefusedRows, b.Rows(), b.Item(0), n)
		}
		b.Put()
	}
}

func TestSharedNamesAreBounded(t *testing.T) {
	var d Decoder
	for i := range 3 * namesShared {
		d.sharedName(fmt.Appendf(nil, "f%d", i))
	}
	d.sharedName(bytes.Repeat([]byte("x"), 2*tokenTextMax))
	if len(d.names) > namesShared {
		t.Errorf("%d names are kept", len(d.names))
	}
}

// TestSplicedLabelsAreTheBuilders puts the metric's name among tags that sort before and behind it, once for all fields
// of a line, and says the same as the builder where it cannot.
func TestSplicedLabelsAreTheBuilders(t *testing.T) {
	var many []string
	for i := range point.LabelsMax {
		many = append(many, fmt.Sprintf("t%03d=v", i))
	}
	for _, tags := range []string{"", ",host=a", ",A=1", ",Z=1,_=2,a=3", ",a=3,_a=2,B=1", ",__name=x,__name_=y,__namf__=z", ",é=ü,0=1", ",empty=,a=1",
		"," + strings.Join(many[1:], ","), "," + strings.Join(many, ",")} {
		for _, label := range []string{"", "db", "ZDB", point.MetricName} {
			for _, field := range []string{"value", "usage", strings.Repeat("f", 200), "\xff", strings.Repeat("f", point.LabelValueMax)} {
				line := "m" + tags + " first=1," + field + "=2"
				d := Decoder{Settings: Settings{Partial: true, DBLabel: label, DB: "x"}}
				b := point.GetBatch(point.NewDict(0))
				if err := d.Decode([]byte(line), 0, b); err != nil {
					t.Fatal(err)
				}
				metric := "m_" + field
				if field == "value" {
					metric = "m"
				}
				want, why := builtLabels(tags, label, metric)
				if why == nil && (len(b.IDs) != 2 || b.Dict.Labels(b.IDs[1]) != want) {
					t.Errorf("%.40q %q %.20q: rows %v, refused %v, want %s", tags, label, field, b.IDs, b.Refused, want)
				}
				if why != nil && (len(b.IDs) != 0 || len(b.Refused) != 1) {
					t.Errorf("%.40q %q %.20q: rows %v, refused %v, the builder says %v", tags, label, field, b.IDs, b.Refused, why)
				}
				b.Put()
			}
		}
	}
}

func builtLabels(tags, dbLabel, metric string) (point.Labels, error) {
	var b point.LabelsBuilder
	for tag := range strings.SplitSeq(strings.TrimPrefix(tags, ","), ",") {
		if name, value, ok := strings.Cut(tag, "="); ok {
			b.Add([]byte(name), []byte(value))
		}
	}
	if dbLabel != "" && !b.Has(dbLabel) {
		b.Add([]byte(dbLabel), []byte("x"))
	}
	b.Add([]byte(point.MetricName), []byte(metric))
	return b.Labels()
}
