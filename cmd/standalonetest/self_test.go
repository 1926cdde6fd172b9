package standalonetest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/scrape"
	"github.com/spillwaydb/spillway/gateway/ui"
)

// TestAProcessAloneShowsItsOwnHistory: a process without other servers keeps its metrics of the time before a user looks.
func TestAProcessAloneShowsItsOwnHistory(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_SELF_SCRAPE_INTERVAL=1s", "SPILLWAY_API_ADMIN=true")
	p.Start()
	if code, text, err := p.Do(http.MethodPost, "/write?db=default", nil, []byte("cpu,host=a usage=1")); code != http.StatusNoContent {
		t.Fatalf("%d %s %v", code, text, err)
	}
	p.UntilOwn(`sum(spillway_intake_rows_accepted_total{job="spillway"})`, func(v float64) bool { return v == 1 })
	scrapes := p.UntilOwn(`count_over_time(up[1h])`, func(v float64) bool { return v >= 3 })

	// Writing must not make series, or the table would grow by being there.
	before, _ := p.Own(`count({__name__!=""})`)
	for at := scrapes; ; at++ {
		p.UntilOwn(`count_over_time(up[1h])`, func(v float64) bool { return v > at+2 })
		after, _ := p.Own(`count({__name__!=""})`)
		if after == before {
			break
		}
		if at > scrapes+20 {
			t.Fatalf("still %v series after %v", after, before)
		}
		before = after
	}
	if v, ok := p.Own(`sum(spillway_intake_rows_accepted_total)`); !ok || v != 1 {
		t.Errorf("its own rows are counted as a user's: %v", v)
	}
	if v, ok := p.Own(`sum(spillway_limits_accepted_samples_total)`); ok && v > 1 {
		t.Errorf("its own rows count towards a user's limits: %v", v)
	}
	keeps := func() string {
		code, text, err := p.Get(ui.Path)
		if err != nil || code != http.StatusOK {
			t.Fatalf("%d %v", code, err)
		}
		var s struct{ Data ui.Status }
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		for _, table := range s.Data.Tables {
			if table.Name == scrape.Table {
				return table.Retention.String()
			}
		}
		return "no table " + scrape.Table
	}
	if got := keeps(); got != "168h0m0s" {
		t.Errorf("its own table keeps rows for %s", got)
	}

	// A table that a user drops comes back with its own retention, not with that of users' tables.
	if code, text, err := p.Do(http.MethodPost, "/query?"+url.Values{"q": {`DROP DATABASE "` + scrape.Table + `"`}}.Encode(), nil, nil); code != http.StatusOK || strings.Contains(string(text), "error") {
		t.Fatalf("%d %s %v", code, text, err)
	}
	p.UntilOwn(`count_over_time(up[1h])`, func(v float64) bool { return v >= 2 })
	if got := keeps(); got != "168h0m0s" {
		t.Errorf("its own table, made anew, keeps rows for %s", got)
	}
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &p.Log)
	}

	// Switched off, it leaves the history and adds nothing.
	p.Env = append(p.Env, "SPILLWAY_SELF_SCRAPE_INTERVAL=0")
	p.Start()
	was := p.UntilOwn(`count_over_time(up[1h])`, func(v float64) bool { return v >= 2 })
	time.Sleep(1500 * time.Millisecond) // longer than the interval was
	if v, _ := p.Own(`count_over_time(up[1h])`); v > was {
		t.Errorf("switched off, and %v more scrapes", v-was)
	}
	if strings.Contains(p.Log.String(), "cannot write its own metrics") {
		t.Errorf("%s", &p.Log)
	}
}

// TestDashboardsShowAProcessAlone: every expression of grafana/ is one that the process evaluates over its own table, and the panels at
// the top of the dashboards that a process alone can fill has values.
func TestDashboardsShowAProcessAlone(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_SELF_SCRAPE_INTERVAL=1s")
	p.Start()
	if code, text, err := p.Do(http.MethodPost, "/write?db=default", nil, []byte("cpu,host=a usage=1")); code != http.StatusNoContent {
		t.Fatalf("%d %s %v", code, text, err)
	}
	if code, text, err := p.Get("/api/v1/query?query=cpu_usage"); code != http.StatusOK {
		t.Fatalf("%d %s %v", code, text, err)
	}
	p.UntilOwn(`sum(count_over_time(spillway_query_queries_total{outcome="ok"}[1h]))`, func(v float64) bool { return v >= 3 })
	p.Boards("overview", "ingest", "storage", "query", "tenant")
}
