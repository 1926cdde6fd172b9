package lineproto

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ref "github.com/influxdata/line-protocol/v2/lineprotocol"

	"github.com/spillwaydb/spillway/protocols/point"
)

// row is one sample, in words that can be compared.
type row struct {
	labels string
	time   int64
	bits   uint64
}

func (r row) String() string {
	return fmt.Sprintf("%s %v @%d", point.Labels(r.labels), math.Float64frombits(r.bits), r.time)
}

// reading is the content of a body.
type reading struct {
	rows    []row
	strings int
	bad     string // why it is refused; "" when it is not
	differs string // name of the intended difference to the other decoder that the body runs into
}

// read gives our reading of a body.
func read(t testing.TB, body []byte, prec Precision, now int64) reading {
	t.Helper()
	b := point.GetBatch(point.NewDict(0))
	defer b.Put()
	d := Decoder{Settings: Settings{Precision: prec, Partial: true}}
	if err := d.Decode(body, now, b); err != nil {
		t.Fatal(err)
	}
	if len(b.IDs) != len(b.Times) || len(b.IDs) != len(b.Values) {
		t.Fatalf("columns of %d, %d and %d rows", len(b.IDs), len(b.Times), len(b.Values))
	}
	r := reading{strings: b.StringFields}
	for i, id := range b.IDs {
		r.rows = append(r.rows, row{string(b.Dict.Labels(id)), b.Times[i], math.Float64bits(b.Values[i])})
	}
	if len(b.Refused) > 0 {
		f := b.Refused[0]
		r.bad = fmt.Sprintf("line %d %q: %s", f.Item, f.Text, f.Reason)
	}
	return r
}

// readReference gives the reference decoder's reading up to its first mistake, with our names for the series.
func readReference(body []byte, prec ref.Precision, now int64) reading {
	var r reading
	dec := ref.NewDecoderWithBytes(bytes.Clone(bytes.TrimPrefix(body, []byte("\xEF\xBB\xBF")))) // "byte order mark" in DESIGN.md
	for dec.Next() {
		if err := r.entry(dec, prec, now); err != nil {
			r.bad = err.Error()
			return r
		}
	}
	return r
}

func (r *reading) entry(dec *ref.Decoder, prec ref.Precision, now int64) error {
	m, err := dec.Measurement()
	if err != nil {
		return err
	}
	m = bytes.Clone(m)
	var tags []string
	for {
		k, v, err := dec.NextTag()
		if err != nil {
			return err
		}
		if k == nil {
			break
		}
		tags = append(tags, string(k), string(v))
	}
	type field struct {
		name  string
		value float64
	}
	var fields []field
	for {
		k, v, err := dec.NextField()
		if err != nil {
			return err
		}
		if k == nil {
			break
		}
		f, ok := asFloat(v)
		if !ok {
			r.strings++
			continue
		}
		fields = append(fields, field{string(k), f})
	}
	at, err := dec.Time(prec, time.Unix(0, now))
	if err != nil {
		return err
	}
	if why := tagsWeRefuse(tags); why != "" {
		r.differs = why
		return nil
	}
	for _, f := range fields {
		var b point.LabelsBuilder
		for i := 0; i < len(tags); i += 2 {
			b.Add([]byte(tags[i]), []byte(tags[i+1]))
		}
		name := string(m)
		if f.name != "value" {
			name += "_" + f.name
		}
		b.Add([]byte(point.MetricName), []byte(name))
		l, err := b.Labels()
		if err != nil {
			r.differs = "limits"
			return nil
		}
		r.rows = append(r.rows, row{string(l), at.UnixNano(), math.Float64bits(f.value)})
	}
	return nil
}

// tagsWeRefuse names the intended difference a tag set runs into.
func tagsWeRefuse(tags []string) string {
	var names []string
	for i := 0; i < len(tags); i += 2 {
		switch {
		case tags[i] == point.MetricName:
			return "metric name as tag"
		case slices.Contains(names, tags[i]):
			return "tag twice"
		}
		names = append(names, tags[i])
	}
	if len(names) >= point.LabelsMax {
		return "limits"
	}
	return ""
}

func asFloat(v ref.Value) (float64, bool) {
	switch v.Kind() {
	case ref.Int:
		return float64(v.IntV()), true
	case ref.Uint:
		return float64(v.UintV()), true
	case ref.Float:
		return v.FloatV(), true
	case ref.Bool:
		if v.BoolV() {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// weTakeMore names the intended difference behind a mistake that only the reference finds; "" when there is none.
// DESIGN.md has the list.
func weTakeMore(theirs string) string {
	switch {
	case strings.Contains(theirs, "invalid character found in comment line"),
		strings.Contains(theirs, `invalid utf-8 sequence in token "#`),
		strings.Contains(theirs, "invalid character ' ' found at start of measurement"): // the same, indented
		return "control bytes in comments"
	case strings.Contains(theirs, "expected tag value after tag key"):
		return "empty tag value"
	}
	return ""
}

var precisions = map[Precision]ref.Precision{
	Nanosecond: ref.Nanosecond, Microsecond: ref.Microsecond, Millisecond: ref.Millisecond, Second: ref.Second,
}

// agree checks our reading of a body against the reference's and returns the name of the intended difference that
// excuses it from agreeing.
func agree(t testing.TB, body []byte, prec Precision, now int64) (difference string) {
	t.Helper()
	ours, theirs := read(t, body, prec, now), readReference(body, precisions[prec], now)
	switch {
	case theirs.differs != "":
		return theirs.differs
	case theirs.bad == "" && strings.Contains(ours.bad, notDecimal):
		return "numbers of the Go language"
	case theirs.bad == "" && ours.bad != "":
		t.Errorf("%q: only we refuse: %s", body, ours.bad)
	case theirs.bad != "" && ours.bad == "":
		if d := weTakeMore(theirs.bad); d != "" {
			return d
		}
		t.Errorf("%q: only the reference refuses: %s", body, theirs.bad)
	case theirs.bad == "":
		if !slices.Equal(ours.rows, theirs.rows) {
			t.Errorf("%q: rows\n  ours   %v\n  theirs %v", body, ours.rows, theirs.rows)
		}
		if ours.strings != theirs.strings {
			t.Errorf("%q: %d strings, the reference has %d", body, ours.strings, theirs.strings)
		}
	}
	return ""
}

// corpusBody is a text of the corpus, which is a string, or base64 where JSON strings cannot hold it.
type corpusBody []byte

func (c *corpusBody) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		var s string
		err := json.Unmarshal(b, &s)
		*c = corpusBody(s)
		return err
	}
	var v struct{ Binary string }
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	raw, err := base64.StdEncoding.DecodeString(v.Binary)
	*c = raw
	return err
}

type corpusCase struct {
	Input struct {
		Text        corpusBody
		DefaultTime int64
		Precision   string
	}
	Output struct{ Error string }
}

// loadCorpus reads the corpus that is shipped with the reference decoder's module.
func loadCorpus(t testing.TB) map[string]corpusCase {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/influxdata/line-protocol/v2").Output()
	if err != nil {
		t.Fatalf("where is the reference decoder's source? %v", err)
	}
	raw, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "lineprotocol", "testdata", "corpus.json"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct{ Decode map[string]corpusCase }
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	return c.Decode
}

func corpusPrecision(t testing.TB, s string) Precision {
	p, ok := map[string]Precision{"1ns": Nanosecond, "1us": Microsecond, "1µs": Microsecond, "1ms": Millisecond, "1s": Second}[s]
	if !ok {
		t.Fatalf("precision %q", s)
	}
	return p
}

func TestCorpusOfTheReferenceDecoder(t *testing.T) {
	corpus := loadCorpus(t)
	if len(corpus) < 6000 {
		t.Fatalf("only %d cases", len(corpus))
	}
	accepted, excused := 0, map[string]int{}
	for key, c := range corpus {
		t.Run(key, func(t *testing.T) {
			if d := agree(t, c.Input.Text, corpusPrecision(t, c.Input.Precision), c.Input.DefaultTime); d != "" {
				excused[d]++
			} else if c.Output.Error == "" {
				accepted++
			}
		})
	}
	t.Logf("%d cases, %d accepted by both, excused %v", len(corpus), accepted, excused)
	if accepted < 390 {
		t.Errorf("only %d cases are accepted by both: the corpus says too little", accepted)
	}
}

// Each intended difference, by the name it has in DESIGN.md.
func TestIntendedDifferences(t *testing.T) {
	design, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	f := func(name, body string) {
		t.Helper()
		if got := agree(t, []byte(body), Nanosecond, caseNow); got != name {
			t.Errorf("%q: the difference is %q, want %q", body, got, name)
		}
		if !bytes.Contains(design, []byte("| "+name+" |")) {
			t.Errorf("DESIGN.md does not tell of %q", name)
		}
	}
	f("control bytes in comments", "# a\ttab\nm f=1 1\n")
	f("control bytes in comments", "  # indented\ttab\nm f=1 1\n")
	f("control bytes in comments", "#\xff\t\nm f=1 1\n")
	f("empty tag value", "m,a=,b=x f=1 1\n")
	f("tag twice", "m,a=1,a=2 f=1 1\n")
	f("metric name as tag", "m,__name__=x f=1 1\n")
	f("numbers of the Go language", "m f=0x1p4 1\n")
	f("numbers of the Go language", "m f=1_000 1\n")
	f("limits", "m f"+strings.Repeat("x", point.LabelValueMax)+"=1 1\n")
	f("limits", "m,"+strings.Repeat("t", point.LabelNameMax+1)+"=x f=1 1\n")
	if !bytes.Contains(design, []byte("| strings of bad lines |")) {
		t.Error("DESIGN.md does not tell of strings of bad lines")
	}
	body := []byte("log level=x,msg=\"hello\ncpu usage=666 1\n\" 1\n")
	if ours := read(t, body, Nanosecond, caseNow); len(ours.rows) != 0 {
		t.Errorf("a string was read as lines: %v", ours.rows)
	}
}
