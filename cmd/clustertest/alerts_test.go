package clustertest

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// watcher scrapes processes and evaluates the expressions of the alert rules over those metrics, as a Prometheus server does; `for` is left out.
type watcher struct {
	t       *testing.T
	rules   map[string]rulefmt.Rule
	engine  *promql.Engine
	store   storage.Storage
	targets map[string]string // URL of the metrics by instance
	seen    map[string]map[string]labels.Labels
	last    time.Time // of the last scrape
}

// newWatcher returns one for processes, by the addresses at which they have their metrics. It reads the rules that users get.
func newWatcher(t *testing.T, addrs map[string]string) *watcher {
	t.Helper()
	groups, errs := rulefmt.ParseFile("../../grafana/alerts/spillway.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	p := &watcher{t: t, rules: map[string]rulefmt.Rule{}, targets: map[string]string{}, seen: map[string]map[string]labels.Labels{},
		engine: promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery), store: promqltest.LoadedStorage(t, "")}
	for _, r := range groups.Groups[0].Rules {
		p.rules[r.Alert] = r
	}
	for instance, addr := range addrs {
		p.targets[instance] = "http://" + addr + "/metrics"
	}
	return p
}

// scrape reads the metrics of all processes. Series that are gone become stale.
func (p *watcher) scrape() {
	p.t.Helper()
	at := time.Now()
	if next := p.last.Add(time.Millisecond); at.Before(next) {
		at = next
	}
	p.last = at
	app := p.store.Appender(p.t.Context())
	add := func(ls labels.Labels, v float64) {
		p.t.Helper()
		if _, err := app.Append(0, ls, at.UnixMilli(), v); err != nil {
			p.t.Fatal(err)
		}
	}
	for instance, url := range p.targets {
		samples, err := scraped(url)
		up, now := 1.0, map[string]labels.Labels{}
		if err != nil {
			up, samples = 0, nil
		}
		for _, s := range samples {
			s.Metric["instance"], s.Metric["job"] = model.LabelValue(instance), "spillway"
			ls := labelsOf(s.Metric)
			now[ls.String()] = ls
			add(ls, float64(s.Value))
		}
		for name, ls := range p.seen[instance] {
			if _, there := now[name]; !there {
				add(ls, math.Float64frombits(value.StaleNaN))
			}
		}
		p.seen[instance] = now
		add(labels.FromStrings("__name__", "up", "instance", instance, "job", "spillway"), up)
	}
	if err := app.Commit(); err != nil {
		p.t.Fatal(err)
	}
}

// scraped reads the metrics of a process.
func scraped(url string) (model.Vector, error) {
	client := http.Client{Timeout: processtest.Patience} // one that is slow on a busy machine is not down
	answer, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, answer.Status)
	}
	text := expfmt.NewTextParser(model.UTF8Validation)
	families, err := text.TextToMetricFamilies(io.LimitReader(answer.Body, 64<<20))
	var all model.Vector
	for _, f := range families {
		more, failed := expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: model.Now()}, f)
		if failed != nil {
			return nil, failed
		}
		all = append(all, more...)
	}
	return all, err
}

func labelsOf(m model.Metric) labels.Labels {
	all := map[string]string{}
	for name, v := range m {
		all[string(name)] = string(v)
	}
	return labels.FromMap(all)
}

// firing returns the alerts of a rule by its expression at the last scrape, each by its labels.
func (p *watcher) firing(alert string) (all []string) {
	p.t.Helper()
	r, ok := p.rules[alert]
	if !ok {
		p.t.Fatalf("there is no alert %s", alert)
	}
	for _, s := range p.query(r.Expr) {
		all = append(all, s.Metric.DropReserved(func(n string) bool { return n == model.MetricNameLabel }).String())
	}
	slices.Sort(all)
	return all
}

// value returns the only value of an expression at the last scrape; NaN: it has none.
func (p *watcher) value(expr string) float64 {
	p.t.Helper()
	if found := p.query(expr); len(found) == 1 {
		return found[0].F
	}
	return math.NaN()
}

func (p *watcher) query(expr string) promql.Vector {
	p.t.Helper()
	q, err := p.engine.NewInstantQuery(p.t.Context(), p.store, nil, expr, p.last)
	if err != nil {
		p.t.Fatal(err)
	}
	defer q.Close()
	found, err := q.Exec(p.t.Context()).Vector()
	if err != nil {
		p.t.Fatalf("%s: %v", expr, err)
	}
	return slices.Clone(found) // it is the engine's again after Close
}

// fires scrapes until a rule has an alert with all of some labels, `name="value"` each. more is done before each scrape but the first.
func (p *watcher) fires(alert string, more func(), of ...string) {
	p.t.Helper()
	began := time.Now()
	for {
		p.scrape()
		all := p.firing(alert)
		if slices.ContainsFunc(all, func(ls string) bool {
			return !slices.ContainsFunc(of, func(l string) bool { return !strings.Contains(ls, l) })
		}) {
			p.t.Logf("%s fires after %v: %v", alert, time.Since(began).Round(time.Millisecond), all)
			return
		}
		if time.Since(began) > 2*processtest.Patience {
			p.t.Errorf("%s does not fire: %s gives %v", alert, p.rules[alert].Expr, all)
			return
		}
		if time.Sleep(200 * time.Millisecond); more != nil {
			more()
		}
	}
}

// quiet waits until none of some alerts fires, over two scrapes, so that rates have samples. What fired while processes started is forgotten.
func (p *watcher) quiet(alerts ...string) {
	p.t.Helper()
	for began := time.Now(); ; time.Sleep(time.Second) {
		p.store, p.seen = promqltest.LoadedStorage(p.t, ""), map[string]map[string]labels.Labels{}
		p.scrape()
		p.scrape()
		var loud []string
		for _, alert := range alerts {
			for _, ls := range p.firing(alert) {
				loud = append(loud, alert+ls)
			}
		}
		if len(loud) == 0 {
			return
		}
		if time.Since(began) > processtest.Patience {
			p.t.Fatalf("these fire though there is no harm: %v", loud)
		}
	}
}

// sooner shortens the time that a rule waits for, which is a number of its expression: a test does not wait for it.
func (p *watcher) sooner(alert, number, instead string) {
	p.t.Helper()
	r := p.rules[alert]
	if strings.Count(r.Expr, number) != 1 {
		p.t.Fatalf("%s has no %q, or more than one: %s", alert, number, r.Expr)
	}
	r.Expr = strings.Replace(r.Expr, number, instead, 1)
	p.rules[alert] = r
}

// only scrapes until all alerts of a rule have some labels: a machine that is busy may delay what others are compared with.
func (p *watcher) only(alert string, of string) {
	p.t.Helper()
	p.until(alert+" is of "+of+" alone", alert, func(all []string) bool {
		return !slices.ContainsFunc(all, func(ls string) bool { return !strings.Contains(ls, of) })
	})
}

// ends scrapes until a rule has no alert.
func (p *watcher) ends(alert string) {
	p.t.Helper()
	p.until(alert+" ends", alert, func(all []string) bool { return len(all) == 0 })
}

func (p *watcher) until(what, alert string, holds func(all []string) bool) {
	p.t.Helper()
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		p.scrape()
		all := p.firing(alert)
		if holds(all) {
			p.t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond))
			return
		}
		if time.Since(began) > 2*processtest.Patience {
			p.t.Errorf("not yet: %s: %s gives %v", what, p.rules[alert].Expr, all)
			return
		}
	}
}

// endsLater evaluates a scrape as if it came a while after the last one, with nothing counted in between, so that alerts on rates end without a wait.
func (p *watcher) endsLater(after time.Duration, alert string) {
	p.t.Helper()
	p.last = p.last.Add(after)
	p.scrape()
	p.scrape()
	if all := p.firing(alert); len(all) > 0 {
		p.t.Errorf("%s fires %v later: %v", alert, after, all)
	}
}

// later evaluates a rule as it would be a while behind the last scrape, if the metrics were scraped no more.
func (p *watcher) later(after time.Duration, alert string) []string {
	p.t.Helper()
	last := p.last
	defer func() { p.last = last }()
	p.last = last.Add(after)
	return p.firing(alert)
}

func (p *watcher) quietLater(after time.Duration, alert string) {
	p.t.Helper()
	if all := p.later(after, alert); len(all) > 0 {
		p.t.Errorf("%s fires %v later: %v", alert, after, all)
	}
}

func (p *watcher) firesLater(after time.Duration, alert string) {
	p.t.Helper()
	if len(p.later(after, alert)) == 0 {
		p.t.Errorf("%s does not fire %v later: %s", alert, after, p.rules[alert].Expr)
	}
}

// alone starts a process that is alone, and a watcher of it.
func alone(t *testing.T, file string, env ...string) (*processtest.Process, *watcher) {
	t.Helper()
	d := processtest.NewOf(t, program(t), append([]string{"SPILLWAY_STORAGE_FREE_BYTES_MIN=1", "SPILLWAY_STORAGE_FLUSH_IDLE=1s"}, env...)...)
	if file != "" {
		name := filepath.Join(t.TempDir(), "spillway.yaml")
		if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		d.Env = append(d.Env, "SPILLWAY_CONFIG_FILE="+name)
	}
	d.Start()
	return d, newWatcher(t, map[string]string{"a": d.Addr})
}

// program is the one that is tested.
func program(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("CLUSTER_BIN"); bin != "" {
		return bin
	}
	return processtest.Program(t)
}

// put writes rows, and returns the status of the answer.
func put(d *processtest.Process, lines string) int {
	status, _, err := processtest.PutLine(d, "default", lines)
	if err != nil {
		return 0
	}
	return status
}

// acked writes rows until they are acked.
func acked(d *processtest.Process, lines string) {
	d.T.Helper()
	soon(d, "rows are acked", func() bool { return put(d, lines) == http.StatusNoContent })
}

// flushed waits until rows are in a segment.
func flushed(d *processtest.Process) {
	d.T.Helper()
	soon(d, "rows are in a segment", func() bool { return processtest.SegmentsIn(d.Dir) > 0 })
}

func soon(d *processtest.Process, what string, holds func() bool) {
	d.T.Helper()
	for began := time.Now(); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > processtest.Patience {
			d.T.Fatalf("after %v not yet: %s\n%s", processtest.Patience, what, &d.Log)
		}
	}
}
