package grafana_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// metricsLists are the lists that cmd/spillway/process's tests compare with running processes, alone, gateway and storage server: a
// name and a type a line.
const metricsLists = "../cmd/spillway/process/testdata/metrics*.txt"

// fromLibraries are metrics of client_golang, as it names them.
var fromLibraries = regexp.MustCompile(`^(go|process)_`)

var metricName = regexp.MustCompile(`\b(spillway|go|process)_[a-z0-9_]+`)

// knownMetrics are all that processes export, parts of histograms among them, with their labels.
func knownMetrics(t *testing.T) map[string][]string {
	t.Helper()
	lists, err := filepath.Glob(metricsLists)
	if err != nil || len(lists) != 3 {
		t.Fatalf("lists of metrics: %v %v", lists, err)
	}
	known := map[string][]string{}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Split(line, "\t") // name, type, labels, help
			name, labels := f[0], []string{"instance", "job"}
			if f[2] != "" {
				labels = append(labels, strings.Split(f[2], ",")...)
			}
			if known[name] = labels; f[1] == "histogram" {
				known[name+"_bucket"], known[name+"_sum"], known[name+"_count"] = append(slices.Clone(labels), "le"), labels, labels
			}
		}
	}
	return known
}

func TestDashboardsAskForMetricsThatExist(t *testing.T) {
	known := knownMetrics(t)
	files, err := filepath.Glob("dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no dashboards", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var board any
		if err := json.Unmarshal(text, &board); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		asked := 0
		for _, name := range metricName.FindAllString(string(text), -1) {
			asked++
			if known[name] == nil && !fromLibraries.MatchString(name) {
				t.Errorf("%s asks for %s, which nothing exports", file, name)
			}
		}
		if asked == 0 {
			t.Errorf("%s asks for no metric: the test looks in the wrong place", file)
		}
	}
}

func TestProvisioningIsYAMLAndNamesTheDashboardsFolder(t *testing.T) {
	for _, file := range []string{"provisioning/datasources/spillway.yaml", "provisioning/dashboards/spillway.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var doc map[string]any
		if err := yaml.Unmarshal(text, &doc); err != nil || len(doc) == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestPanelsDoNotLieOverEachOther: two rows of panels once had the same place, and Grafana showed one of them.
func TestPanelsDoNotLieOverEachOther(t *testing.T) {
	files, err := filepath.Glob("dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no dashboards", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			Panels []struct {
				ID      int
				Title   string
				GridPos struct{ H, W, X, Y int }
			}
		}
		if err := json.Unmarshal(text, &board); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		ids, taken := map[int]string{}, map[[2]int]string{}
		for _, p := range board.Panels {
			if other, ok := ids[p.ID]; ok {
				t.Errorf("%s: %q and %q have the same id", file, p.Title, other)
			}
			ids[p.ID] = p.Title
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if other, ok := taken[at]; ok && other != p.Title {
						t.Errorf("%s: %q lies over %q", file, p.Title, other)
					}
					taken[at] = p.Title
				}
			}
		}
	}
}
