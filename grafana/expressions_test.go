package grafana_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// board is what the tests read of a dashboard.
type board struct {
	UID, Title string
	Tags       []string
	Links      []struct {
		Type                  string
		Tags                  []string
		IncludeVars, KeepTime bool
	}
	Templating struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
	Panels []struct {
		Title, Type string
		Targets     []struct{ Expr, LegendFormat string }
	}
}

// boards reads all dashboards, by file.
func boards(t *testing.T) map[string]board {
	t.Helper()
	files, err := filepath.Glob("dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no dashboards", err)
	}
	out := map[string]board{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var b board
		if err := json.Unmarshal(text, &b); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out[strings.TrimSuffix(filepath.Base(file), ".json")] = b
	}
	return out
}

// variable finds the variables in a text of Grafana.
var variable = regexp.MustCompile(`\$\{?([a-z_]+)\}?`)

// labelOf finds the labels in a legend.
var labelOf = regexp.MustCompile(`\{\{(\w+)\}\}`)

// TestThereIsADashboardForEachTopic, each with links to the others that keep time and variables.
func TestThereIsADashboardForEachTopic(t *testing.T) {
	all, uids := boards(t), map[string]string{}
	for _, name := range []string{"overview", "ingest", "storage", "query", "cluster", "kafka", "tenant"} {
		b, ok := all[name]
		if !ok {
			t.Errorf("no dashboard %s", name)
			continue
		}
		if b.UID != "spillway-"+name || uids[b.Title] != "" {
			t.Errorf("%s has the uid %q and the title %q", name, b.UID, b.Title)
		}
		uids[b.Title] = b.UID
		if len(b.Links) != 1 || b.Links[0].Type != "dashboards" || !slices.Equal(b.Links[0].Tags, b.Tags) || !b.Links[0].IncludeVars || !b.Links[0].KeepTime {
			t.Errorf("%s: links %+v, tags %v", name, b.Links, b.Tags)
		}
	}
}

// TestEveryVariableOfADashboardIsUsedAndDefined: a variable that nothing uses looks as if it filtered.
func TestEveryVariableOfADashboardIsUsedAndDefined(t *testing.T) {
	for name, b := range boards(t) {
		defined := map[string]bool{}
		for _, v := range b.Templating.List {
			defined[v.Name] = false
		}
		for _, p := range b.Panels {
			for _, target := range p.Targets {
				for _, m := range variable.FindAllStringSubmatch(target.Expr, -1) {
					if _, ok := defined[m[1]]; !ok && m[1] != "__rate_interval" {
						t.Errorf("%s, %s: $%s is not defined", name, p.Title, m[1])
					}
					defined[m[1]] = true
				}
			}
		}
		for v, used := range defined {
			if !used && v != "datasource" { // every target and variable names it
				t.Errorf("%s: $%s is not used", name, v)
			}
		}
	}
}

// TestExpressionsOfDashboardsNameLabelsThatTheirMetricsHave: a sum by a label that a metric lacks is one line without a name.
func TestExpressionsOfDashboardsNameLabelsThatTheirMetricsHave(t *testing.T) {
	known := knownMetrics(t)
	for name, b := range boards(t) {
		for _, p := range b.Panels {
			if p.Type != "row" && len(p.Targets) == 0 {
				t.Errorf("%s, %s asks for nothing", name, p.Title)
			}
			for _, target := range p.Targets {
				for _, mistake := range mistakes(known, target.Expr, target.LegendFormat) {
					t.Errorf("%s, %s: %s: %s", name, p.Title, target.Expr, mistake)
				}
			}
		}
		for _, v := range b.Templating.List {
			query, ok := v.Query.(map[string]any)
			if !ok {
				continue // the kind of data source
			}
			m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(query["query"].(string))
			if m == nil || !slices.Contains(known[m[1]], m[2]) {
				t.Errorf("%s: variable %s asks for %v", name, v.Name, query["query"])
			}
		}
	}
}

// mistakes lists the mistakes of an expression and its legend.
func mistakes(known map[string][]string, expr, legend string) (out []string) {
	plain := strings.ReplaceAll(expr, "$__rate_interval", "1m")
	plain = variable.ReplaceAllString(plain, "x")
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(plain)
	if err != nil {
		return []string{err.Error()}
	}
	labelsIn := func(e parser.Node) (all []string) {
		parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
			if v, ok := n.(*parser.VectorSelector); ok {
				labels := known[v.Name]
				if fromLibraries.MatchString(v.Name) {
					labels = []string{"instance", "job"}
				}
				all = append(all, labels...)
			}
			return nil
		})
		return all
	}
	shown := labelsIn(parsed)
	grouped := false
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			for _, m := range n.LabelMatchers {
				if m.Name != "__name__" && !slices.Contains(labelsIn(n), m.Name) {
					out = append(out, n.Name+" has no label "+m.Name)
				}
			}
		case *parser.AggregateExpr:
			if n.Op == parser.TOPK {
				return nil
			}
			if !grouped { // the outermost comes first, and decides what a legend may show
				grouped, shown = true, n.Grouping
			}
			has := labelsIn(n.Expr)
			for _, l := range n.Grouping {
				if !slices.Contains(has, l) {
					out = append(out, "nothing in it has the label "+l)
				}
			}
		}
		return nil
	})
	for _, m := range labelOf.FindAllStringSubmatch(legend, -1) {
		if !slices.Contains(shown, m[1]) {
			out = append(out, "the legend shows "+m[1]+", which the result lacks")
		}
	}
	return out
}

func TestMistakesInExpressionsAreSeen(t *testing.T) {
	known := map[string][]string{"a_total": {"instance", "job", "reason"}}
	f := func(expr, legend, want string) {
		t.Helper()
		if got := strings.Join(mistakes(known, expr, legend), "; "); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s %q: %q, want %q", expr, legend, got, want)
		}
	}
	f(`sum by (reason) (rate(a_total{instance=~"$instance"}[$__rate_interval]))`, "{{reason}}", "")
	f(`topk(3, sum by (reason) (a_total))`, "{{reason}}", "")
	f(`sum by (code) (a_total)`, "", "nothing in it has the label code")
	f(`a_total{code="1"}`, "", "a_total has no label code")
	f(`sum(a_total)`, "{{reason}}", "the legend shows reason")
	f(`sum by (reason) (a_total`, "", "unclosed")
}
