package columnar

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func parsed(t *testing.T, text string) parser.Expr {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		t.Fatal(err)
	}
	return expr
}

// TestWhatIsCompiled: chains are plans, operations between vectors trees, and the rest is the engine's.
func TestWhatIsCompiled(t *testing.T) {
	grid := Grid{Start: 0, End: 60_000, Step: 15_000}
	f := func(expr, want string) {
		t.Helper()
		got := "engine"
		if _, ok := Compile(parsed(t, expr), grid, time.Minute); ok {
			got = "chain"
		} else if tree, ok := CompileTree(parsed(t, expr), grid, time.Minute); ok {
			got = "tree of " + strings.Repeat("I", len(tree.chains))
		}
		if got != want {
			t.Errorf("%s: %s, want %s", expr, got, want)
		}
	}
	f(`up`, "chain")
	f(`sum by (job) (rate(a_total{x="1"}[5m] offset 1m)) * 100 > 5`, "chain")
	f(`-quantile(0.9, (up))`, "chain")
	f(`topk(3, up)`, "chain")
	f(`up / (1 + 1)`, "chain")
	f(`a / on (x) b`, "tree of II")
	f(`sum(a or b unless c)`, "tree of III")
	f(`label_replace(rate(a[5m]), "x", "$1", "y", "(.*)")`, "tree of I")
	f(`a * on (x) group_left (y) b`, "tree of II")
	f(`topk(0.5, up)`, "engine")
	f(`a * on (x) group_left (__name__) b`, "engine")
	f(`up @ 10`, "engine")
	f(`rate(up[5m:1m])`, "engine")
	f(`a + absent(b)`, "engine")
	f(`label_join(a, "x", ",", "y")`, "engine")
	f(`vector(1)`, "engine")

	if _, ok := Compile(parsed(t, `up`), Grid{Start: 1, End: 0, Step: 1}, time.Minute); ok {
		t.Error("a grid that ends before it begins was compiled")
	}
}

// store has series with a row of value at 1 s, of which a selector finds those with its name.
type store map[string]float64

func (s store) find(_ context.Context, _, _ int64, _ bool, ms []*labels.Matcher) (columns.Rows, error) {
	r := &found{}
	for _, text := range slices.Sorted(maps.Keys(s)) {
		pairs := strings.Fields(text)
		if pairs[0] == ms[0].Value {
			l := point.MakeLabels(append([]string{"__name__"}, pairs...)...)
			r.page.Series = append(r.page.Series, peer.Series{Labels: l, Times: []point.Nanos{1e9}, Values: []float64{s[text]}})
		}
	}
	return r, nil
}

// found is rows of one page.
type found struct{ page peer.Page }

func (f *found) Pager(int) peer.Pager { return &pager{page: f.page} }

func (f *found) Close() error { return nil }

type pager struct {
	page peer.Page
	read bool
}

func (p *pager) Next() (peer.Page, bool, error) {
	if p.read || len(p.page.Series) == 0 {
		return peer.Page{}, false, nil
	}
	p.read, p.page.Last = true, true
	return p.page, true, nil
}

func (p *pager) Close() {}

// TestTreesAreEvaluated at 2 s.
func TestTreesAreEvaluated(t *testing.T) {
	st := store{"a x 1": 10, "a x 2": 20, "b x 1": 2, "b x 3": 3, "c x 1 y 1": 1, "c x 1 y 2": 2}
	f := func(expr, want string, wantErr error) {
		t.Helper()
		tree, ok := CompileTree(parsed(t, expr), Grid{Start: 2000, End: 2000, Step: 1}, time.Minute)
		if !ok {
			t.Fatalf("%s is not compiled", expr)
		}
		a, err := tree.Run(t.Context(), Env{Env: columns.Env{SamplesMax: 100, Workers: 1}, Find: st.find})
		if !errors.Is(err, wantErr) {
			t.Fatalf("%s: %v, want %v", expr, err, wantErr)
		}
		if err != nil {
			return
		}
		var got []string
		for _, s := range a.Vector() {
			got = append(got, s.String())
		}
		if got := strings.Join(got, "; "); got != want {
			t.Errorf("%s: %s, want %s", expr, got, want)
		}
	}
	f(`a / b`, `{x="1"} => 5 @[2000]`, nil)
	f(`a and b`, `{__name__="a", x="1"} => 10 @[2000]`, nil)
	f(`a unless b`, `{__name__="a", x="2"} => 20 @[2000]`, nil)
	f(`sum(a or b)`, `{} => 33 @[2000]`, nil)
	f(`c * on (x) group_left () b`, `{x="1", y="1"} => 2 @[2000]; {x="1", y="2"} => 4 @[2000]`, nil)
	f(`label_replace(b, "x", "z", "", "")`, "", columns.ErrAbandoned) // two series would be equal
	f(`b * on (x) c`, "", columns.ErrAbandoned)                       // two of c match one of b
	f(`missing + a`, "", nil)
}
