package processtest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/gateway/scrape"
)

// Own asks the process's own table for an expression of one value; false: it has none.
func (p *Process) Own(expr string) (float64, bool) {
	p.T.Helper()
	code, text, err := p.Get("/t/" + scrape.Table + "/api/v1/query?" + url.Values{"query": {"scalar(" + expr + ")"}}.Encode())
	if err == nil && (code == http.StatusNotFound || code == http.StatusServiceUnavailable) {
		return 0, false // the table is made by the first scrape; a server that is needed may stand still, or was killed
	}
	if err != nil || code != http.StatusOK {
		p.T.Fatalf("%s: %d %.300s %v", expr, code, text, err)
	}
	var answer struct {
		Data struct{ Result []any }
	}
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.Data.Result) != 2 {
		p.T.Fatalf("%s: %.300s %v", expr, text, err)
	}
	value := answer.Data.Result[1].(string)
	if value == "NaN" {
		return 0, false
	}
	var v float64
	if err := json.Unmarshal([]byte(value), &v); err != nil {
		p.T.Fatalf("%s: %q %v", expr, value, err)
	}
	return v, true
}

// UntilOwn waits for a condition on a value of the process's own table.
func (p *Process) UntilOwn(expr string, good func(float64) bool) float64 {
	p.T.Helper()
	deadline := time.Now().Add(Patience)
	for {
		v, ok := p.Own(expr)
		if ok && good(v) {
			return v
		}
		if time.Now().After(deadline) {
			p.T.Fatalf("%s is %v (%v) after %v\n%s", expr, v, ok, Patience, &p.Log)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Boards evaluates every expression of grafana/ over the processes' own table. Single figures of the filled dashboards must have values.
func (p *Process) Boards(filled ...string) {
	t := p.T
	t.Helper()
	// Variables are Grafana's business: here they have its values for all, and for the step of a short interval.
	values := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$table", ".*", "$cluster", ".*", "$topic", ".*")
	files, err := filepath.Glob("../../grafana/dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			Panels []struct {
				Title, Type string
				Targets     []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(text, &board); err != nil {
			t.Fatal(err)
		}
		name, series := strings.TrimSuffix(filepath.Base(file), ".json"), 0
		for _, panel := range board.Panels {
			for _, target := range panel.Targets {
				code, text := Ask(p, scrape.Table, values.Replace(target.Expr), time.Now())
				var answer struct {
					Data struct{ Result []any }
				}
				if code != http.StatusOK || json.Unmarshal([]byte(text), &answer) != nil {
					t.Errorf("%s, %s: %s: %d %.300s", name, panel.Title, target.Expr, code, text)
				}
				series += len(answer.Data.Result)
				if panel.Type == "stat" && slices.Contains(filled, name) && len(answer.Data.Result) == 0 {
					t.Errorf("%s, %s is empty: %s", name, panel.Title, target.Expr)
				}
			}
		}
		t.Logf("%s: %d series", name, series)
	}
}
