package process

import (
	"cmp"
	"context"
	"flag"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/connect"
	"github.com/spillwaydb/spillway/cmd/spillway/credentials"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/protocols/record"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// open starts every part in a directory of the test's own, without signals and listeners of others.
func open(t *testing.T) *standalone {
	t.Helper()
	return openIn(t, t.TempDir())
}

// openIn is open in a directory that may hold a store.
func openIn(t *testing.T, dir string) *standalone {
	t.Helper()
	return openWith(t, dir, config{Config: settings.Default()})
}

// openWith is openIn with settings.
func openWith(t *testing.T, dir string, cfg config) *standalone {
	t.Helper()
	cfg.DataDir = dir
	cfg.HTTP.Listen, cfg.Admin.Listen = "127.0.0.1:0", ""
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	p, err := openStandalone(t.Context(), &cfg, newLog(io.Discard, "", slog.LevelInfo, registry), registry)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.drain()
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// do sends a request as a client would, without a socket.
func (p *standalone) do(t *testing.T, method, target, body string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	p.front.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	text, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(text)
}

var describes = regexp.MustCompile(`fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)",(?: unit: "[^"]*",)? constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}`)

// unreadTopics gives a process the metrics of Kafka: without Run it connects to no broker.
var unreadTopics = []kafka.Cluster{{Brokers: []string{"127.0.0.1:1"}, Topics: []kafka.Topic{{Name: "telegraf", Format: record.Line}}}}

// unseenKind is the kind of a metric by its name, where nothing has had its labels yet.
func unseenKind(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_duration_seconds"):
		return "histogram"
	}
	return "gauge"
}

// Metrics are an interface: dashboards and alerts of users name them. Their list changes on purpose or not at all.
func TestMetricsAreTheListedOnes(t *testing.T) {
	cfg := config{Config: settings.Default()}
	cfg.Kafka = unreadTopics
	p := openWith(t, t.TempDir(), cfg)
	if code, text := p.do(t, http.MethodPost, "/write?db=default", "cpu,host=a usage=1\nbad line"); code != http.StatusBadRequest {
		t.Fatalf("a half good body: %d %s", code, text)
	}
	if err := p.server.FlushAll(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if code, text := p.do(t, http.MethodGet, "/api/v1/query?query=cpu_usage", ""); code != http.StatusOK {
		t.Fatalf("a query: %d %s", code, text)
	}
	holdMetrics(t, p.registry, "testdata/metrics.txt")
}

// TestClusterProcessesHaveTheListedMetrics: the processes of a cluster have metrics that a standalone process has not.
func TestClusterProcessesHaveTheListedMetrics(t *testing.T) {
	if testing.Short() || os.Getenv("CLUSTER") == "" {
		t.Skip("it needs a cluster: `make test-cluster`")
	}
	dir := t.TempDir()
	c, err := processes.Layout(processes.Plan{Bin: cmp.Or(os.Getenv("CLUSTER_BIN"), processtest.Program(t)), Dir: dir, Memory: "512MiB", Etcd: 1, Storage: 1, Gateways: 1, Certs: true,
		Env: []string{"SPILLWAY_STORAGE_FREE_BYTES_MIN=1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	ctx, stop := context.WithTimeout(t.Context(), processtest.Patience)
	defer stop()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, "certs", name) }
	if _, err := (&credentials.Certs{OutDir: filepath.Join(dir, "certs"), Storage: []string{"s9=127.0.0.1"}, Days: 1}).Make(); err != nil {
		t.Fatal(err)
	}
	cfg := config{Config: settings.Default()}
	cfg.Coord = connect.Coord{URL: c.Coord, CA: file("etcd-ca.crt"), Cert: file("etcd-user-spillway.crt"), Key: file("etcd-user-spillway.key")}
	cfg.Peer.CA, cfg.Peer.Cert, cfg.Peer.Key = file("ca.crt"), file("s9.crt"), file("s9.key")
	cfg.HTTP.Listen, cfg.Admin.Listen, cfg.Peer.Listen = "127.0.0.1:0", "", "127.0.0.1:0"
	cfg.Server.ID, cfg.Server.Host, cfg.DataDir = "s9", "h9", t.TempDir()
	cfg.Storage.Copies, cfg.Storage.Staging = true, true

	registry := prometheus.NewRegistry()
	s := &storage{cfg: &cfg, log: newLog(io.Discard, "", slog.LevelInfo, registry), registerer: registry, id: "s9"}
	if err := s.open(ctx, false, true); err != nil {
		t.Error(err)
	} else {
		holdMetrics(t, registry, "testdata/metrics_storage.txt")
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}

	registry, cfg.DataDir, cfg.Kafka = prometheus.NewRegistry(), t.TempDir(), unreadTopics
	cfg.Peer.Listen, cfg.Peer.Cert, cfg.Peer.Key = "", file("g1.crt"), file("g1.key")
	g, err := openGateway(ctx, &cfg, newLog(io.Discard, "", slog.LevelInfo, registry), registry)
	if err != nil {
		t.Fatal(err)
	}
	holdMetrics(t, registry, "testdata/metrics_gateway.txt")
	if err := g.close(); err != nil {
		t.Error(err)
	}
}

// holdMetrics compares the metrics of a process with a golden list.
func holdMetrics(t *testing.T, registry *prometheus.Registry, golden string) {
	t.Helper()
	kinds := map[string]string{}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "spillway_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	descs := make(chan *prometheus.Desc, 1024)
	registry.Describe(descs)
	close(descs)
	var lines []string
	for d := range descs {
		m := describes.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("%s is not understood", d)
		}
		name, kind := m[1], kinds[m[1]]
		if !strings.HasPrefix(name, "spillway_") {
			continue
		}
		if kind == "" {
			kind = unseenKind(name)
		} else if unseenKind(name) == "histogram" && kind != "histogram" {
			t.Errorf("%s is a %s: its name says that it is a histogram", name, kind)
		}
		help, err := strconv.Unquote(`"` + m[2] + `"`)
		if err != nil || help == "" {
			t.Errorf("%s: help %q: %v", name, m[2], err)
		}
		lines = append(lines, strings.Join([]string{name, kind, m[3], help}, "\t")+"\n")
	}
	slices.Sort(lines)
	got := strings.Join(slices.Compact(lines), "")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("metrics are\n%s\n%s says\n%s\nrun the test with -update if that is meant, and TestTheReferenceOfMetricsIsCurrent with it", got, golden, want)
	}
}

// metricRow is one row of the reference.
type metricRow struct {
	name, kind, labels, help string
	of                       []string // processes
}

// TestTheReferenceOfMetricsIsCurrent: docs/metrics.md is made of the lists that processes were compared with.
func TestTheReferenceOfMetricsIsCurrent(t *testing.T) {
	metrics := map[string]*metricRow{}
	for _, l := range []struct{ process, file string }{{"standalone", "metrics.txt"}, {"gateway", "metrics_gateway.txt"}, {"storage", "metrics_storage.txt"}} {
		text, err := os.ReadFile("testdata/" + l.file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
			if len(f) != 4 {
				t.Fatalf("%s: %q", l.file, line)
			}
			m := metrics[f[0]]
			if m == nil {
				m = &metricRow{name: f[0], kind: f[1], labels: f[2], help: f[3]}
				metrics[f[0]] = m
			}
			m.kind = max(m.kind, f[1])
			m.of = append(m.of, l.process)
		}
	}
	got := metricsPage(metrics)
	const file = "../../../docs/metrics.md"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if has, err := os.ReadFile(file); err != nil || string(has) != got {
		t.Errorf("docs/metrics.md is not of the lists in testdata (%v): go test ./cmd/spillway/process -run Metrics -update", err)
	}
}

func metricsPage(metrics map[string]*metricRow) string {
	var b strings.Builder
	b.WriteString("# Metrics\n\n" +
		"Every process serves these at `/metrics`: a gateway and a process that is alone at their HTTP address, a storage server at its admin\n" +
		"address. Beside them are those of the Go runtime and of the process (`go_…`, `process_…`).\n" +
		"The label `table` has `limits.metrics_tables_max` values at most; the rest is counted as `(other)`.\n\n" +
		"Every process also writes them into the table `_spillway`, every `self.scrape_interval`, for `self.retention` (15 s and 7 days unless they\n" +
		"are set; `--self.scrape-interval=0` ends it for that process). The page's explorer plots them there, and the dashboards in `grafana/` show\n" +
		"them with the data source `http://127.0.0.1:8428/t/_spillway` (in a cluster the address of any gateway), without another server. The series\n" +
		"are those that a Prometheus has that scrapes the process, with `job=\"spillway\"` and the process's address as `instance`; in a cluster with\n" +
		"the host's name in place of an address such as 127.0.0.1 or 0.0.0.0, so that processes can be distinguished. A process writes at most 10,000\n" +
		"of them at a time; what it cannot write is left out, and `spillway_scrape_failures_total` counts it. Their rows count towards no limit of a\n" +
		"sender's rate and show in no `spillway_intake_…`.\n")
	part := ""
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		m := metrics[name]
		if p := strings.Split(name, "_")[1]; p != part {
			part = p
			b.WriteString("\n## `spillway_" + part + "_…`\n\n| metric | type | labels | of | what it counts |\n|---|---|---|---|---|\n")
		}
		b.WriteString("| `" + name + "` | " + m.kind + " | " + strings.ReplaceAll(m.labels, ",", ", ") + " | " + strings.Join(m.of, ", ") + " | " + strings.ReplaceAll(m.help, "|", "\\|") + " |\n")
	}
	return b.String()
}
