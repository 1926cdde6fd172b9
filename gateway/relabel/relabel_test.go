package relabel

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func settings(t *testing.T, text string) (s Settings) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

const example = `
write_relabel_configs:
- {source_labels: [__name__], regex: "go_.*", action: drop}
- {regex: "replica|__replica__", action: labeldrop}
tables:
  team-a:
    write_relabel_configs:
    - {source_labels: [host], regex: "(.+)\\.example\\.com", target_label: host}
    - {source_labels: [instance], modulus: 4, target_label: shard, action: hashmod}
  strict:
    write_relabel_configs:
    - {source_labels: [env], regex: prod, action: keep}
    - {regex: __name__, action: labeldrop}
`

func TestRules(t *testing.T) {
	r, err := New(settings(t, example))
	if err != nil {
		t.Fatal(err)
	}
	f := func(table, want string, pairs ...string) {
		t.Helper()
		out, keep, err := r.Of(table).Relabel(point.MakeLabels(pairs...))
		got := out.String()
		if err != nil {
			got = fault.KindOf(err).String() + ": " + err.Error()
		} else if !keep {
			got = "dropped"
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s %q: %s, want %s", table, pairs, got, want)
		}
	}
	f("other", `{__name__="up", job="x"}`, "__name__", "up", "job", "x", "replica", "1")
	f("other", "dropped", "__name__", "go_threads", "job", "x")
	f("other", `{__name__="up", host="a.example.com"}`, "__name__", "up", "host", "a.example.com")
	f("team-a", `{__name__="up", host="a", instance="i", shard="`, "__name__", "up", "host", "a.example.com", "instance", "i")
	f("team-a", "dropped", "__name__", "go_threads")
	f("strict", "dropped", "__name__", "up", "env", "test")
	f("strict", "invalid: write_relabel_configs make of", "__name__", "up", "env", "prod")
}

func TestMistakesAreNamed(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		s := settings(t, text)
		if _, err := New(s); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	f("write_relabel_configs: [{action: hashmod, target_label: x}]", "relabel.write_relabel_configs: rule 1: relabel configuration for hashmod requires non-zero modulus")
	f("tables: {a: {write_relabel_configs: [{action: drop}, {action: replace}]}}", "relabel.tables.a.write_relabel_configs: rule 2")
	f("write_relabel_configs: [null]", "rule 1 is empty")
}

// TestAReloadKeepsRulesThatDidNotChange: other rules cost a dictionary for each table.
func TestAReloadKeepsRulesThatDidNotChange(t *testing.T) {
	r, err := New(settings(t, example))
	if err != nil {
		t.Fatal(err)
	}
	before, other := r.Of("team-a"), r.Of("x")
	if err := r.Reload(settings(t, strings.Replace(example, "regex: prod", "regex: production", 1))); err != nil {
		t.Fatal(err)
	}
	if r.Of("team-a") != before || r.Of("x") != other {
		t.Error("rules that did not change were replaced")
	}
	if err := r.Reload(settings(t, strings.Replace(example, "go_.*", "node_.*", 1))); err != nil {
		t.Fatal(err)
	}
	if r.Of("team-a") == before || r.Of("x") == other {
		t.Error("rules that changed were kept")
	}
	if err := r.Reload(Settings{}); err != nil || r.Of("x") != nil {
		t.Errorf("no rules: %v %v", r.Of("x"), err)
	}
}
