package pages

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/prometheus/prometheus/config"
)

const root = "../../.."

// shown are the blocks for a reader, and files of docker/ that it reads.
func shown(t *testing.T, r Reader, files ...string) map[string]string {
	t.Helper()
	all, err := Blocks(root)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, b := range all {
		if b.Reader == r {
			found[b.String()] = b.Text
		}
	}
	if len(found) < 2 {
		t.Fatalf("only %d blocks are for %s", len(found), r)
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		found[file] = string(text)
	}
	return found
}

// TestPrometheusReadsWhatPagesShow: its library knows every key, and refuses all others.
func TestPrometheusReadsWhatPagesShow(t *testing.T) {
	for where, text := range shown(t, Prometheus, "docker/prometheus.yml", "docker/prometheus-cluster.yml") {
		// The discovery of Kubernetes is no part of the library, and brings a client of it: what surrounds it is read.
		text, discovery, _ := cutLine(text, "kubernetes_sd_configs:")
		if strings.HasPrefix(where, "docs/kubernetes.md") != (discovery != "") {
			t.Errorf("%s: %q was left out", where, discovery)
		}
		c, err := config.Load(text, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		for _, w := range c.RemoteWriteConfigs {
			if err := w.Validate(config.DefaultGlobalConfig.MetricNameValidationScheme); err != nil || !strings.HasSuffix(w.URL.Path, "/api/v1/write") {
				t.Errorf("%s: remote write to %s: %v", where, w.URL, err)
			}
		}
	}
}

// cutLine removes the first line with some words.
func cutLine(text, words string) (rest, line string, found bool) {
	i := strings.Index(text, words)
	if i < 0 {
		return text, "", false
	}
	from, to := strings.LastIndexByte(text[:i], '\n')+1, i+strings.IndexByte(text[i:], '\n')+1
	return text[:from] + text[to:], text[from:to], true
}

// telegraf is a configuration of Telegraf with the plugins and options that our pages and docker/telegraf.conf use. Telegraf refuses options
// that it does not know.
type telegraf struct {
	Agent struct {
		Interval      string `toml:"interval"`
		FlushInterval string `toml:"flush_interval"`
	} `toml:"agent"`
	SecretStores struct {
		Docker []struct {
			ID string `toml:"id"`
		} `toml:"docker"`
	} `toml:"secretstores"`
	Inputs struct {
		CPU, Mem, Disk, Net []struct{}
	} `toml:"inputs"`
	Outputs struct {
		V1 []struct {
			URLs     []string `toml:"urls"`
			Database string   `toml:"database"`
		} `toml:"influxdb"`
		V2 []struct {
			URLs         []string `toml:"urls"`
			Organization string   `toml:"organization"`
			Bucket       string   `toml:"bucket"`
			Token        string   `toml:"token"`
			CA           string   `toml:"tls_ca"`
		} `toml:"influxdb_v2"`
	} `toml:"outputs"`
}

func TestTelegrafReadsWhatPagesShow(t *testing.T) {
	for where, text := range shown(t, Telegraf, "docker/telegraf.conf") {
		var c telegraf
		meta, err := toml.Decode(text, &c)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		if unknown := meta.Undecoded(); len(unknown) > 0 {
			t.Errorf("%s: unknown options: %v", where, unknown)
		}
		writes := 0
		for _, v1 := range c.Outputs.V1 {
			if writes++; len(v1.URLs) == 0 || v1.Database == "" {
				t.Errorf("%s: %+v writes nowhere", where, v1)
			}
		}
		for _, v2 := range c.Outputs.V2 {
			if writes++; len(v2.URLs) == 0 || v2.Organization == "" || v2.Bucket == "" {
				t.Errorf("%s: %+v writes nowhere", where, v2)
			}
		}
		if writes == 0 {
			t.Errorf("%s has no output", where)
		}
	}
}

func TestBlocksAreFound(t *testing.T) {
	text := "# a\n```sh\nx: 1\n```\n```yaml\nstorage: {}\n```\n- b\n  ```toml\n  [a]\n  ```\n```\nno: language\n```\n```yaml\ntokens: []\n```\n"
	got, err := blocks("p.md", text)
	if err != nil || len(got) != 3 {
		t.Fatalf("%v %v", got, err)
	}
	for i, want := range []Block{{"p.md", 6, Spillway, "storage: {}\n"}, {"p.md", 10, Telegraf, "  [a]\n"}, {"p.md", 16, Tokens, "tokens: []\n"}} {
		if got[i] != want {
			t.Errorf("%+v, want %+v", got[i], want)
		}
	}
	if _, err := blocks("p.md", "```yaml\na: [\n```\n"); err == nil || !strings.Contains(err.Error(), "p.md:2") {
		t.Errorf("no YAML: %v", err)
	}
}

func TestCommandsAreFound(t *testing.T) {
	page := filepath.Join(t.TempDir(), "p.md")
	text := "```sh\n# all of it\nfirst --a=b#c   # why\n  second \\\n    --more  # why\n```\n```console\n$ third\n```\n- x\n  ```sh\n  fourth\n  ```\n```sh\n# nothing\n```\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Commands(page)
	if want := `[["first --a=b#c" "second --more"] ["fourth"]]`; err != nil || fmt.Sprintf("%q", got) != want {
		t.Errorf("%q %v, want %s", got, err, want)
	}
}
