package columns_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// plans are requests of each form.
func plans() map[string]*columns.Request {
	grid := columns.Grid{Start: 1_700_000_000_000, End: 1_700_000_180_000, Step: 60_000}
	rate := columns.Source{Window: 5 * time.Minute, Offset: -30 * time.Second, Function: columns.FunctionOf("rate"), OneName: true}
	quantile := columns.Source{Window: time.Hour, Function: columns.FunctionOf("quantile_over_time"), Argument: 0.9, Held: 4}
	last := columns.Source{Window: 5 * time.Minute, Function: columns.LastValue, Instant: true}
	twice := columns.Stage{Operator: &columns.Operator{Op: columns.Mul, Number: 2, Swapped: true}, Held: 4}
	minus := columns.Stage{Operator: &columns.Operator{Negate: true}}
	busy := columns.Stage{Operator: &columns.Operator{Op: columns.Greater, Number: 90, AsBool: true}}
	sum := columns.Stage{Aggregation: &columns.Aggregation{Op: columns.Sum, Names: []string{"host", "region"}}}
	top := columns.Stage{Aggregation: &columns.Aggregation{Op: columns.TopK, Without: true, Names: []string{"host"}, Parameter: 3}, Held: 4}
	return map[string]*columns.Request{
		"single": {Form: columns.Single, SamplesMax: 5000, Plan: columns.Plan{Grid: grid, Source: last, Stages: []columns.Stage{busy}}},
		"states": {Form: columns.States, SamplesMax: 50_000_000, Plan: columns.Plan{Grid: grid, Source: rate, Stages: []columns.Stage{twice, minus, sum}}},
		"final":  {Form: columns.Final, SamplesMax: 1, Plan: columns.Plan{Grid: grid, Source: quantile, Stages: []columns.Stage{top}}},
		"raw":    {Form: columns.Raw, SamplesMax: 5000, Plan: columns.Plan{Grid: grid, Source: rate}},
	}
}

func comparePlans() cmp.Option {
	return cmp.Comparer(func(a, b *columns.Function) bool { return a == b })
}

func golden(t *testing.T, name string, b []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".hex")
	if *update {
		if err := os.WriteFile(path, []byte(hex.EncodeToString(b)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := hex.DecodeString(strings.TrimSpace(string(text))); !bytes.Equal(want, b) {
		t.Errorf("%s: is\n%x, was\n%x", name, b, want)
	}
}

func TestRequestsAreAsInTheGoldenFiles(t *testing.T) {
	for name, q := range plans() {
		b := q.Append(nil)
		golden(t, "request-"+name, b)
		got, err := columns.DecodeRequest(b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(q, got, comparePlans()); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// TestStagesBehindTheFirstAggregationStayAtTheGateway, because they need all its columns.
func TestStagesBehindTheFirstAggregationStayAtTheGateway(t *testing.T) {
	q := plans()["states"]
	want := len(q.Plan.Stages)
	q.Plan.Stages = append(q.Plan.Stages, q.Plan.Stages[0], q.Plan.Stages[2])
	got, err := columns.DecodeRequest(q.Append(nil))
	if err != nil || len(got.Plan.Stages) != want {
		t.Errorf("%v, %d stages of %d", err, len(got.Plan.Stages), want)
	}
}

// TestWhatALaterBuildAsksForIsUnknown, so that the gateway reads the rows: another version, and functions, operations and forms of later
// builds.
func TestWhatALaterBuildAsksForIsUnknown(t *testing.T) {
	unknown := func(what string, b []byte) {
		t.Helper()
		if _, err := columns.DecodeRequest(b); !errors.Is(err, columns.ErrUnknown) {
			t.Errorf("%s: %v", what, err)
		}
	}
	b := plans()["states"].Append(nil)
	unknown("a version", append([]byte{2}, b[1:]...))
	unknown("a form", append([]byte{1, 9}, b[2:]...))
	unknown("a function", bytes.Replace(b, []byte("\x04rate"), []byte("\x05drift"), 1))
	q := plans()["final"]
	q.Plan.Stages[0].Aggregation.Op = 77
	unknown("an aggregation", q.Append(nil))
	q = plans()["single"]
	q.Plan.Stages[0].Operator.Op = 78
	unknown("an operation", q.Append(nil))
}

// TestRequestsBeyondTheirBoundsAreRefused before anything of their size is allocated.
func TestRequestsBeyondTheirBoundsAreRefused(t *testing.T) {
	refused := func(what string, change func(*columns.Request)) {
		t.Helper()
		q := plans()["states"]
		change(q)
		if _, err := columns.DecodeRequest(q.Append(nil)); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("steps", func(q *columns.Request) { q.Plan.Grid = columns.Grid{Start: 0, End: columns.RequestSteps, Step: 1} })
	refused("times that overflow", func(q *columns.Request) { q.Plan.Grid = columns.Grid{Start: 1 << 62, End: 1<<62 + 1, Step: 1} })
	refused("no window", func(q *columns.Request) { q.Plan.Source.Window = 0 })
	refused("an instant selector with a function", func(q *columns.Request) { q.Plan.Source.Instant = true })
	refused("states of a ranking", func(q *columns.Request) { q.Plan.Stages[2] = plans()["final"].Plan.Stages[0] })
	refused("no aggregation", func(q *columns.Request) { q.Plan.Stages = nil })
	refused("names out of order", func(q *columns.Request) { q.Plan.Stages[2].Aggregation.Names = []string{"b", "a"} })
	refused("rows of a plan with stages", func(q *columns.Request) { q.Form = columns.Raw })
	refused("the first NaN", func(q *columns.Request) {
		*q = *plans()["final"]
		q.Plan.Stages[0].Aggregation.Parameter = math.NaN()
	})
}

// TestRequestsCutOrChangedAnywhereAreRefusedOrWhole: no byte makes the decoder fail in another way, or read a request that it would not write.
func TestRequestsCutOrChangedAnywhereAreRefusedOrWhole(t *testing.T) {
	for name, q := range plans() {
		b := q.Append(nil)
		for i := range b {
			if _, err := columns.DecodeRequest(b[:i]); err == nil {
				t.Errorf("%s: cut at %d of %d it is decoded", name, i, len(b))
			}
			for bit := range 8 {
				c := bytes.Clone(b)
				c[i] ^= 1 << bit
				checkRequest(t, c)
			}
		}
	}
}

// checkRequest wants bytes to be refused, or to decode to what encodes and decodes alike.
func checkRequest(t *testing.T, b []byte) {
	t.Helper()
	q, err := columns.DecodeRequest(b)
	switch {
	case errors.Is(err, columns.ErrUnknown) || fault.Is(err, fault.Corrupt):
		return
	case err != nil:
		t.Fatalf("%x: %v", b, err)
	}
	again, err := columns.DecodeRequest(q.Append(nil))
	if err != nil {
		t.Fatalf("%x: %v", b, err)
	}
	if d := cmp.Diff(q, again, comparePlans(), cmpopts.EquateNaNs()); d != "" {
		t.Fatalf("%x: %s", b, d)
	}
}

func FuzzRequest(f *testing.F) {
	for _, q := range plans() {
		f.Add(q.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) { checkRequest(t, b) })
}

// partOf is an answer to the request for states.
func partOf(groups int) *columns.Part {
	p := &columns.Part{Form: columns.States, Steps: 4, Typed: true, Names: []string{"cpu", "mem"}, Series: 100, Rows: 36000, Held: 7, Visited: 9000, Read: 300, Peak: 12,
		Counts: [][]int{{1, 2, 3, 4}, {0, 1, 200, 3}, {0, 0, 0, 1}}}
	for i := range groups {
		c := columns.Column{Labels: point.MakeLabels("__name__", "m", "host", strings.Repeat("h", 1+i%200), "region", "eu"), Values: make([]float64, 8)}
		for j := range c.Values {
			c.Values[j] = float64(i) * math.Sqrt(float64(j))
		}
		c.Values[1] = columns.Absent
		p.Columns = append(p.Columns, c)
	}
	return p
}

func messages(t testing.TB, p *columns.Part) (out [][]byte) {
	t.Helper()
	if err := p.Send(func(b []byte) error { out = append(out, bytes.Clone(b)); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func receive(q *columns.Request, all [][]byte, take func(int64) error) (*columns.Part, error) {
	r := columns.Receiver{Of: q, Take: take}
	for _, b := range all {
		if err := r.Add(b); err != nil {
			return nil, err
		}
	}
	return r.Part()
}

// sameBits compares parts, NaNs by their bits.
func sameBits(a, b *columns.Part) string {
	return cmp.Diff(a, b, cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }))
}

func TestPartsAreAsInTheGoldenFiles(t *testing.T) {
	q := plans()["states"]
	for _, groups := range []int{0, 3, 5000} {
		want := partOf(groups)
		all := messages(t, want)
		if groups == 3 {
			golden(t, "part-head", all[0])
			golden(t, "part-columns-plain", all[1])
		}
		if groups == 5000 && len(all) < 3 {
			t.Errorf("%d columns in %d messages", groups, len(all))
		}
		got, err := receive(q, all, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := sameBits(want, got); d != "" {
			t.Error(d)
		}
	}
	got, err := receive(q, compressed(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := sameBits(partOf(3), got); d != "" {
		t.Errorf("compressed columns: %s", d)
	}
	for outcome, want := range map[columns.Outcome]error{columns.Unknown: columns.ErrUnknown, columns.Abandoned: columns.ErrAbandoned, columns.TooMany: columns.ErrTooManySamples} {
		r := columns.Receiver{Of: q}
		if err := columns.SendOutcome(outcome, r.Add); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Part(); !errors.Is(err, want) {
			t.Errorf("outcome %d: %v", outcome, err)
		}
	}
}

// compressed are the messages of partOf(3) as a server sends them that compresses short ones too.
func compressed(t testing.TB) [][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/part-columns.hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return [][]byte{messages(t, partOf(3))[0], b}
}

// TestAnAnswerThatEndsEarlyIsNoAnswer: a sum over some of the groups would be wrong in silence.
func TestAnAnswerThatEndsEarlyIsNoAnswer(t *testing.T) {
	q, all := plans()["states"], messages(t, partOf(5000))
	for n := range all {
		if _, err := receive(q, all[:n], nil); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%d messages of %d: %v", n, len(all), err)
		}
	}
	for _, other := range []string{"single", "final", "raw"} {
		if _, err := receive(plans()[other], all, nil); !fault.Is(err, fault.Corrupt) {
			t.Errorf("an answer to another request: %v", err)
		}
	}
}

// TestAnswersCutOrChangedAnywhereAreRefusedOrWhole.
func TestAnswersCutOrChangedAnywhereAreRefusedOrWhole(t *testing.T) {
	cutAndChanged(t, messages(t, partOf(3)))
	cutAndChanged(t, compressed(t))
}

func cutAndChanged(t *testing.T, all [][]byte) {
	t.Helper()
	q := plans()["states"]
	for m := range all {
		for i := range all[m] {
			changed := func(b []byte) {
				t.Helper()
				with := append([][]byte{}, all...)
				with[m] = b
				p, err := receive(q, with, nil)
				switch {
				case err == nil && (p.Steps != 4 || len(p.Columns) != 3 || len(p.Columns[0].Values) != 8):
					t.Errorf("message %d, byte %d: a part of another shape", m, i)
				case err != nil && !fault.Is(err, fault.Corrupt) && !errors.Is(err, columns.ErrUnknown) && !errors.Is(err, columns.ErrAbandoned) && !errors.Is(err, columns.ErrTooManySamples):
					t.Errorf("message %d, byte %d: %v", m, i, err)
				}
			}
			if _, err := receive(q, append(append([][]byte{}, all[:m]...), all[m][:i]), nil); err == nil {
				t.Errorf("message %d cut at %d is decoded", m, i)
			}
			for bit := range 8 {
				c := bytes.Clone(all[m])
				c[i] ^= 1 << bit
				changed(c)
			}
		}
	}
}

func FuzzPart(f *testing.F) {
	q := plans()["states"]
	for _, n := range []int{0, 1, 3} {
		all := messages(f, partOf(n))
		f.Add(all[0], bytes.Join(all[1:], nil))
	}
	all := compressed(f)
	f.Add(all[0], all[1])
	f.Fuzz(func(t *testing.T, head, body []byte) {
		taken := int64(0)
		p, err := receive(q, [][]byte{head, body}, func(n int64) error {
			if taken += n; taken > 64<<20 {
				return fault.Errorf(fault.TooLarge, "enough")
			}
			return nil
		})
		if err == nil && len(p.Columns) > 0 && len(p.Columns[0].Values) != 8 {
			t.Errorf("%d values", len(p.Columns[0].Values))
		}
	})
}

// TestAnAnswerIsBookedBeforeItIsAllocated.
func TestAnAnswerIsBookedBeforeItIsAllocated(t *testing.T) {
	all, taken := messages(t, partOf(5000)), int64(0)
	_, err := receive(plans()["states"], all, func(n int64) error {
		if taken += n; taken > 100_000 {
			return fault.Errorf(fault.TooLarge, "no more than that")
		}
		return nil
	})
	if !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
}

// BenchmarkAnswer sends and receives an answer of one series.
func BenchmarkAnswer(b *testing.B) {
	q := *plans()["single"]
	q.Plan.Grid.End = q.Plan.Grid.Start + 60*q.Plan.Grid.Step
	p := &columns.Part{Form: columns.Single, Steps: q.Plan.Grid.Len(), Columns: []columns.Column{{Labels: partOf(9).Columns[8].Labels}}}
	for i := range p.Steps {
		p.Columns[0].Values = append(p.Columns[0].Values, math.Sqrt(float64(i)))
	}
	b.ReportAllocs()
	for b.Loop() {
		r := columns.Receiver{Of: &q}
		if err := p.Send(r.Add); err != nil {
			b.Fatal(err)
		}
		if _, err := r.Part(); err != nil {
			b.Fatal(err)
		}
	}
}
