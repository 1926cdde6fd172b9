package grafana_test

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/template"
	"go.yaml.in/yaml/v3"
)

const alertsFile = "alerts/spillway.yaml"

func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(alertsFile, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return groups.Groups[0].Rules
}

// Every alert asks for metrics that exist, and its page explains it and the remedy.
func TestAlertsHaveRunbooks(t *testing.T) {
	known := knownMetrics(t)
	pages, err := filepath.Glob("../docs/runbooks/Spillway*.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := alerts(t)
	if len(pages) != len(rules) {
		t.Errorf("%d pages for %d alerts", len(pages), len(rules))
	}
	for _, r := range rules {
		text, err := os.ReadFile("../docs/runbooks/" + r.Alert + ".md")
		if err != nil {
			t.Error(err)
			continue
		}
		for _, want := range []string{r.Expr, "## Look", "## Do", "## It is over when", r.Labels["severity"]} {
			if !strings.Contains(string(text), want) {
				t.Errorf("the page of %s lacks %q", r.Alert, want)
			}
		}
		if !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/runbooks/"+r.Alert+".md") {
			t.Errorf("%s: %s", r.Alert, r.Annotations["runbook_url"])
		}
		for _, name := range metricName.FindAllString(r.Expr, -1) {
			if known[name] == nil {
				t.Errorf("%s asks for %s, which nothing exports", r.Alert, name)
			}
		}
	}
}

// unitTests is promtool's file of tests, as far as ours goes.
type unitTests struct {
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []struct {
		Interval model.Duration `yaml:"interval"`
		Input    []struct {
			Series string `yaml:"series"`
			Values string `yaml:"values"`
		} `yaml:"input_series"`
		Alerts []struct {
			At       model.Duration `yaml:"eval_time"`
			Name     string         `yaml:"alertname"`
			Expected []struct {
				Labels      map[string]string `yaml:"exp_labels"`
				Annotations map[string]string `yaml:"exp_annotations"`
			} `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
	} `yaml:"tests"`
}

// Every alert fires when it should, and is silent in a like case when it should not.
func TestAlertsFireWhenTheyShould(t *testing.T) {
	text, err := os.ReadFile("alerts/tests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var u unitTests
	if err := yaml.Unmarshal(text, &u); err != nil {
		t.Fatal(err)
	}
	rules := map[string]rulefmt.Rule{}
	for _, r := range alerts(t) {
		rules[r.Alert] = r
	}
	fired := map[string]bool{}
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	for i, test := range u.Tests {
		load := fmt.Sprintf("load %s\n", test.Interval)
		for _, in := range test.Input {
			load += "  " + in.Series + " " + in.Values + "\n"
		}
		storage := promqltest.LoadedStorage(t, load)
		for _, a := range test.Alerts {
			r, ok := rules[a.Name]
			if !ok {
				t.Errorf("there is no alert %s", a.Name)
				continue
			}
			since := map[string]time.Duration{}
			var v promql.Vector
			for at := time.Duration(0); at <= time.Duration(a.At); at += time.Duration(u.EvaluationInterval) {
				q, err := engine.NewInstantQuery(t.Context(), storage, nil, r.Expr, time.Unix(0, 0).Add(at))
				if err != nil {
					t.Fatal(err)
				}
				found, err := q.Exec(t.Context()).Vector()
				if err != nil {
					t.Fatalf("%s: %v", a.Name, err)
				}
				v = slices.Clone(found)
				since = pending(since, v, at)
				q.Close()
			}
			var got, want []string
			for ls, from := range since {
				if time.Duration(a.At)-from >= time.Duration(r.For) {
					got = append(got, ls+" "+annotations(t, r, v, ls, time.Duration(a.At)))
				}
			}
			for _, e := range a.Expected {
				delete(e.Labels, "severity")
				want = append(want, labels.FromMap(e.Labels).String()+" "+labels.FromMap(e.Annotations).String())
				fired[a.Name] = true
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("test %d: %s after %s: %v, want %v", i, a.Name, a.At, got, want)
			}
		}
		storage.Close()
	}
	for name := range rules {
		if !fired[name] {
			t.Errorf("no test makes %s fire", name)
		}
	}
}

// annotations are those of the alert of a series that an expression found, filled in as Prometheus does.
func annotations(t *testing.T, r rulefmt.Rule, v promql.Vector, series string, at time.Duration) string {
	t.Helper()
	i := slices.IndexFunc(v, func(s promql.Sample) bool { return alertLabels(s) == series })
	filled := map[string]string{}
	for key, text := range r.Annotations {
		// The names that rules may use are variables, which Prometheus defines in this way.
		text = "{{$labels := .Labels}}{{$value := .Value}}" + text
		data := template.AlertTemplateData(v[i].Metric.Map(), nil, "", v[i])
		now := model.TimeFromUnixNano(int64(at))
		expanded, err := template.NewTemplateExpander(t.Context(), text, r.Alert, data, now, nil, &url.URL{}, nil).Expand()
		if err != nil {
			t.Errorf("%s: %s: %v", r.Alert, key, err)
		}
		filled[key] = expanded
	}
	return labels.FromMap(filled).String()
}

// alertLabels are the labels of a series as those of its alert.
func alertLabels(s promql.Sample) string {
	return s.Metric.DropReserved(func(n string) bool { return n == model.MetricNameLabel }).String()
}

// pending is since when each alert has been true without a break.
func pending(before map[string]time.Duration, v promql.Vector, at time.Duration) map[string]time.Duration {
	now := map[string]time.Duration{}
	for _, s := range v {
		ls := alertLabels(s)
		now[ls] = at
		if from, ok := before[ls]; ok {
			now[ls] = from
		}
	}
	return now
}
