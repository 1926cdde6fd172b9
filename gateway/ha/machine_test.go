package ha

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// TestScripts plays stories in testdata. Every second each gateway has its tick, and each sender named sends one row.
//
//	gateways 2 [clusters=3] [failover=30s] [update=15s]     of one cluster; 0: a standalone process
//	run 20s g1=x/a g2=x/b                                   time goes by; replica a of x sends to g1, b of x to g2
//	cut g1 | heal g1                                        the store is away for g1; it answers again, and g1 lists
//	restart g1                                              it begins with the rows of the store
//	spoil x                                                 the row of x cannot be read
//	rows                                                    of the store
//
// The answer of run has the elections, the rows of each sender that were kept, duplicates or refused, and the transactions of each gateway.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "gateways" {
				w = newWorld(t, d)
				return "ok"
			}
			w.lines = nil
			w.command(d)
			return strings.Join(append(w.lines, ""), "\n")
		})
	})
}

type world struct {
	now      time.Duration
	settings Settings
	rows     map[string]coord.Row
	rev      coord.Revision
	gateways []*gateway
	lines    []string
}

type gateway struct {
	name    string
	m       *Machine
	cut     bool
	commits int
}

func newWorld(t *testing.T, d *datadriven.TestData) *world {
	w := &world{now: time.Second, rows: map[string]coord.Row{}}
	n, err := strconv.Atoi(d.CmdArgs[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	span := func(name string, to *setting.Span) {
		if d.HasArg(name) {
			var text string
			d.ScanArgs(t, name, &text)
			v, err := time.ParseDuration(text)
			if err != nil {
				t.Fatal(err)
			}
			*to = setting.Span(v)
		}
	}
	if d.HasArg("clusters") {
		d.ScanArgs(t, "clusters", &w.settings.ClustersMax)
	}
	span("failover", &w.settings.FailoverTimeout)
	span("update", &w.settings.UpdateInterval)
	for i := range max(n, 1) {
		w.gateways = append(w.gateways, &gateway{name: fmt.Sprintf("g%d", i+1), m: New(w.settings, n == 0, uint64(i))})
	}
	return w
}

func (w *world) gateway(name string) *gateway {
	i := slices.IndexFunc(w.gateways, func(g *gateway) bool { return g.name == name })
	return w.gateways[i]
}

func (w *world) command(d *datadriven.TestData) {
	arg := d.CmdArgs[0:]
	switch d.Cmd {
	case "run":
		span, _ := time.ParseDuration(arg[0].Key)
		w.run(span, arg[1:])
	case "cut":
		w.gateway(arg[0].Key).cut = true
	case "heal":
		g := w.gateway(arg[0].Key)
		g.cut = false
		w.perform(g, g.m.Step(w.now, Listed{w.list()}, nil))
	case "restart":
		g := w.gateway(arg[0].Key)
		g.m = New(w.settings, false, 7)
		w.perform(g, g.m.Step(w.now, Listed{w.list()}, nil))
	case "spoil":
		w.rev++
		r := coord.Row{Key: key(Pair{"t", arg[0].Key}), Value: []byte("{"), Revision: w.rev}
		w.rows[r.Key] = r
		w.spread(coord.Event{Row: r})
	case "rows":
		for _, r := range w.list() {
			w.lines = append(w.lines, fmt.Sprintf("%s %s", r.Key, r.Value))
		}
	}
}

func (w *world) list() (all []coord.Row) {
	for _, r := range w.rows {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b coord.Row) int { return strings.Compare(a.Key, b.Key) })
	return all
}

var verdicts = [...]string{"kept", "duplicates", "refused"}

func (w *world) run(span time.Duration, senders []datadriven.CmdArg) {
	counts := make([][3]int, len(senders))
	before := make([]int, len(w.gateways))
	for i, g := range w.gateways {
		before[i] = g.commits
	}
	for end := w.now + span; w.now < end; w.now += time.Second {
		for i, s := range senders {
			g := w.gateway(s.Key)
			cluster, replica, _ := strings.Cut(s.Vals[0], "/")
			replica, late := strings.CutSuffix(replica, "!") // its rows are outside the bounds of time
			v, out := g.m.Decide(w.now, Pair{"t", cluster}, replica, nil)
			counts[i][v]++
			if v == Keep && !late {
				g.m.Accepted(w.now, Pair{"t", cluster}, replica)
			}
			w.perform(g, out)
		}
		for _, g := range w.gateways {
			w.perform(g, g.m.Step(w.now, Tick{}, nil))
		}
	}
	for i, s := range senders {
		text := s.Key + " " + s.Vals[0] + ":"
		for v, n := range counts[i] {
			if n > 0 {
				text += fmt.Sprintf(" %d %s", n, verdicts[v])
			}
		}
		w.lines = append(w.lines, text)
	}
	for i, g := range w.gateways {
		if n := g.commits - before[i]; n > 0 {
			w.lines = append(w.lines, fmt.Sprintf("%s: %d transactions", g.name, n))
		}
	}
}

// perform carries effects out; the store answers before anything else happens.
func (w *world) perform(g *gateway, effects []Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case Elected:
			w.lines = append(w.lines, fmt.Sprintf("%v %s elects %q of %s: %s", w.now-time.Second, g.name, e.To, e.Pair.Cluster, e.Why))
		case Commit:
			g.commits++
			rev, ok, events := w.commit(g, e)
			w.perform(g, g.m.Step(w.now, Answer{ID: e.ID, OK: ok, Revision: rev}, nil))
			for _, ev := range events {
				w.spread(ev)
			}
		}
	}
}

func (w *world) commit(g *gateway, c Commit) (rev coord.Revision, ok bool, events []coord.Event) {
	if g.cut {
		return 0, false, nil
	}
	if len(c.Writes) > RowsPerCommit {
		w.lines = append(w.lines, fmt.Sprintf("BROKEN: %d rows in a transaction", len(c.Writes)))
	}
	for _, cond := range c.Conditions {
		if w.rows[cond.Key].Revision != cond.Revision {
			return 0, false, nil
		}
	}
	w.rev++
	for _, wr := range c.Writes {
		r := coord.Row{Key: wr.Key, Value: wr.Value, Revision: w.rev}
		if wr.Delete {
			delete(w.rows, wr.Key)
		} else {
			w.rows[wr.Key] = r
		}
		events = append(events, coord.Event{Row: r, Deleted: wr.Delete})
	}
	return w.rev, true, events
}

func (w *world) spread(ev coord.Event) {
	for _, g := range w.gateways {
		if !g.cut {
			w.perform(g, g.m.Step(w.now, Changed{[]coord.Event{ev}}, nil))
		}
	}
}

// TestPairsAreBounded: of all tables together, and the transactions of a tick.
func TestPairsAreBounded(t *testing.T) {
	m := New(Settings{ClustersMax: 1000}, false, 1)
	for i := range EntriesMax {
		if v, _ := m.Decide(1, Pair{fmt.Sprint(i / 1000), fmt.Sprint(i)}, "a", nil); v != Keep {
			t.Fatalf("pair %d: %v", i, v)
		}
	}
	if v, _ := m.Decide(1, Pair{"other", "x"}, "a", nil); v != TooMany {
		t.Errorf("one more: %v", v)
	}
	rows := 0
	for _, e := range m.Step(1, Tick{}, nil) {
		rows += len(e.(Commit).Writes)
	}
	if rows != RowsPerCommit*CommitsPerTick {
		t.Errorf("%d rows in a tick", rows)
	}
	if out := m.Step(2, Listed{[]coord.Row{{Key: key(Pair{"new", "y"}), Value: Row{Replica: "a"}.encode(), Revision: 1}}}, nil); len(out) != 0 || m.Len() != EntriesMax {
		t.Errorf("a row beyond: %v, %d pairs", out, m.Len())
	}
}

func TestKeysNameTheirPairs(t *testing.T) {
	for _, p := range []Pair{{"t", "x"}, {"a", "c/d%2F"}, {"t", "\x00/"}} {
		if got, ok := parseKey(key(p)); !ok || got != p {
			t.Errorf("%q: %q %v", p, got, ok)
		}
	}
	for _, k := range []string{"", "ha/", "ha/t", "ha/t/", "ha//x", "other/t/x"} {
		if p, ok := parseKey(k); ok {
			t.Errorf("%q names %q", k, p)
		}
	}
}

func TestSettings(t *testing.T) {
	f := func(s Settings, want string) {
		t.Helper()
		s.SetDefaults()
		err := s.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	second := setting.Span(time.Second)
	f(Settings{}, "")
	f(Settings{ClusterLabel: "a", ReplicaLabel: "a"}, "two labels")
	f(Settings{ReplicaLabel: "__name__"}, "two labels")
	f(Settings{UpdateInterval: 20 * second}, "shorter than two")
	f(Settings{Tables: map[string]Table{"x": {ClustersMax: 1001}}}, "ha.tables.x.clusters_max 1001")
	off, on := false, true
	s := Settings{Enabled: true, Tables: map[string]Table{"off": {Enabled: &off}}}
	s.SetDefaults()
	if s.Labels("off").Cluster != "" || s.Labels("x").Replica != "__replica__" {
		t.Errorf("%v %v", s.Labels("off"), s.Labels("x"))
	}
	s = Settings{Tables: map[string]Table{"on": {Enabled: &on}}}
	s.SetDefaults()
	if s.Labels("on").Cluster != "cluster" || s.Labels("x").Cluster != "" {
		t.Errorf("%v %v", s.Labels("on"), s.Labels("x"))
	}
}
