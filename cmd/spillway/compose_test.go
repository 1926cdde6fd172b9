package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/process"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
)

// composeFile is a file of Docker Compose, with the keys that ours have: another key is an error.
type composeFile struct {
	Name       string                    `yaml:"name"`
	Services   map[string]composeService `yaml:"services"`
	Volumes    map[string]struct{}       `yaml:"volumes"`
	Secrets    map[string]composeSecret  `yaml:"secrets"`
	Extensions map[string]any            `yaml:",inline"` // x-…: what services share
}

type composeService struct {
	Image string `yaml:"image"`
	Build struct {
		Context    string `yaml:"context"`
		Dockerfile string `yaml:"dockerfile"`
	} `yaml:"build"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Ports       []string          `yaml:"ports"`
	Volumes     []string          `yaml:"volumes"`
	Secrets     []string          `yaml:"secrets"`
	DependsOn   []string          `yaml:"depends_on"`
	Grace       time.Duration     `yaml:"stop_grace_period"`
	Restart     string            `yaml:"restart"`
}

type composeSecret struct {
	File string `yaml:"file"`
}

const dockerDir = "../../docker"

// composeImage is our image in every file: its name is a variable, so that one that is built elsewhere can be run.
const composeImage = "${SPILLWAY_IMAGE:-spillway:local}"

// keptAt are the directories where the programs of images keep data.
var keptAt = map[string]string{composeImage: "/data", "prom/prometheus": "/prometheus", "grafana/grafana": "/var/lib/grafana", "quay.io/coreos/etcd": "/etcd"}

func readCompose(t *testing.T, name string) composeFile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dockerDir, name))
	if err != nil {
		t.Fatal(err)
	}
	var f composeFile
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for key := range f.Extensions {
		if !strings.HasPrefix(key, "x-") {
			t.Errorf("%s: %s is no key of a compose file", name, key)
		}
	}
	return f
}

// TestComposeFilesKeepDataAndAreOpenToThisMachineAlone: they once published on all addresses, gave every visitor Grafana's administration,
// kept nothing of Prometheus and Grafana, and gave a process ten seconds to flush its memory.
func TestComposeFilesKeepDataAndAreOpenToThisMachineAlone(t *testing.T) {
	for _, name := range []string{"compose.yaml", "cluster.yaml"} {
		f := readCompose(t, name)
		builds, used := 0, map[string]bool{}
		for service, s := range f.Services {
			where := name + ": " + service
			if s.Image == composeImage {
				checkOurService(t, where, s)
			}
			if s.Build.Context != "" {
				builds++
				if _, err := os.Stat(filepath.Join(dockerDir, s.Build.Context, s.Build.Dockerfile)); err != nil || s.Image != composeImage {
					t.Errorf("%s builds %s: %v", where, s.Image, err)
				}
			}
			for _, port := range s.Ports {
				if !strings.HasPrefix(port, "127.0.0.1:") {
					t.Errorf("%s publishes %s to other machines", where, port)
				}
			}
			for _, on := range s.DependsOn {
				if _, ok := f.Services[on]; !ok {
					t.Errorf("%s depends on %s, which is none", where, on)
				}
			}
			for _, secret := range s.Secrets {
				if used["secret "+secret] = true; f.Secrets[secret].File == "" {
					t.Errorf("%s: no secret %s", where, secret)
				}
			}
			for key, value := range s.Environment {
				file := strings.HasPrefix(value, "/run/secrets/") && strings.HasSuffix(key, "__FILE")
				if strings.Contains(key, "ANONYMOUS") || strings.Contains(key, "PASSWORD") && !file || file && !slices.Contains(s.Secrets, filepath.Base(value)) {
					t.Errorf("%s: %s=%s: secrets are files, and every visitor has one", where, key, value)
				}
			}
			checkVolumes(t, where, f, s, used)
		}
		if builds != 1 {
			t.Errorf("%s: the image is built %d times", name, builds)
		}
		for volume := range f.Volumes {
			if !used[volume] {
				t.Errorf("%s: nothing lies in the volume %s", name, volume)
			}
		}
		for secret := range f.Secrets {
			if !used["secret "+secret] {
				t.Errorf("%s: no service reads the secret %s", name, secret)
			}
		}
	}
}

// checkOurService: the program understands the service's command and variables, and has the time to stop.
func checkOurService(t *testing.T, where string, s composeService) {
	t.Helper()
	if stops := time.Duration(settings.Default().HTTP.ShutdownTimeout) + process.LeaveTimeout + process.CopiesTimeout + process.UnstageTimeout + process.EndMax; s.Grace <= stops {
		t.Errorf("%s is killed after %s, and may need %s to stop", where, s.Grace, stops)
	}
	processtest.NoSettings(t)
	for key, value := range s.Environment {
		t.Setenv(key, value)
	}
	c := newCLI()
	k, err := kong.New(&c, kong.Name("spillway"), kong.Writers(io.Discard, io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse(k, kong.HelpOptions{}, s.Command); err != nil {
		t.Errorf("%s: %v: %v", where, s.Command, err)
	}
	if out, err := exec.Command(processtest.Program(t), "config", "check").CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %v\n%s", where, s.Environment, err, out)
	}
	for _, arg := range s.Command {
		if _, secret, ok := strings.Cut(arg, "=/run/secrets/"); ok && !slices.Contains(s.Secrets, secret) {
			t.Errorf("%s reads the secret %s, which it has not", where, secret)
		}
	}
}

// checkVolumes: files of the repository that are mounted exist and are read only, and data lies in a volume with a name.
func checkVolumes(t *testing.T, where string, f composeFile, s composeService, used map[string]bool) {
	t.Helper()
	image, _, tagged := strings.Cut(s.Image, ":")
	if s.Image == composeImage {
		image = composeImage
	} else if !tagged || strings.HasSuffix(s.Image, ":latest") {
		t.Errorf("%s: %s may be another tomorrow", where, s.Image)
	}
	kept := keptAt[image] == ""
	for _, v := range s.Volumes {
		from, at, _ := strings.Cut(v, ":")
		if !strings.HasPrefix(from, ".") {
			_, ok := f.Volumes[from]
			if used[from] = true; !ok {
				t.Errorf("%s: no volume %s", where, from)
			}
			kept = kept || at == keptAt[image]
			continue
		}
		if _, err := os.Stat(filepath.Join(dockerDir, from)); err != nil || !strings.HasSuffix(at, ":ro") {
			t.Errorf("%s: %s: %v, or it can be written to", where, v, err)
		}
	}
	if !kept {
		t.Errorf("%s keeps its data nowhere: no volume at %s", where, keptAt[image])
	}
}

// TestPrometheusOfComposeScrapesEveryProcess: and asks no process that there is none of.
func TestPrometheusOfComposeScrapesEveryProcess(t *testing.T) {
	for name, config := range map[string]string{"compose.yaml": "prometheus.yml", "cluster.yaml": "prometheus-cluster.yml"} {
		f := readCompose(t, name)
		if !slices.ContainsFunc(f.Services["prometheus"].Volumes, func(v string) bool { return strings.HasPrefix(v, "./"+config+":") }) {
			t.Errorf("%s: Prometheus does not read %s", name, config)
		}
		text, err := os.ReadFile(filepath.Join(dockerDir, config))
		if err != nil {
			t.Fatal(err)
		}
		var c struct {
			Jobs []struct {
				Static []struct {
					Targets []string `yaml:"targets"`
				} `yaml:"static_configs"`
			} `yaml:"scrape_configs"`
		}
		if err := yaml.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		scraped := map[string]string{}
		for _, job := range c.Jobs {
			for _, static := range job.Static {
				for _, target := range static.Targets {
					host, port, _ := strings.Cut(target, ":")
					scraped[host] = port
				}
			}
		}
		for service, s := range f.Services {
			want := "8428"
			if _, admin, ok := strings.Cut(s.Environment["SPILLWAY_ADMIN_LISTEN"], ":"); ok {
				want = admin // a storage server's, the only port of its that speaks HTTP
			}
			if s.Image == composeImage && scraped[service] != want {
				t.Errorf("%s: Prometheus scrapes port %q of %s, want %s", config, scraped[service], service, want)
			}
			delete(scraped, service)
		}
		delete(scraped, "localhost")
		if len(scraped) > 0 {
			t.Errorf("%s: no services of %s: %v", config, name, scraped)
		}
	}
}

// TestSecretsOfComposeLetItsProgramsIn makes the secrets and asks a process that has them what each program asks.
func TestSecretsOfComposeLetItsProgramsIn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	for range 2 { // the second time nothing changes
		before, _ := os.ReadFile(filepath.Join(dir, "tokens.yml"))
		if out, err := exec.Command("sh", filepath.Join(dockerDir, "secrets.sh"), dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if after, err := os.ReadFile(filepath.Join(dir, "tokens.yml")); err != nil || len(before) > 0 && !bytes.Equal(before, after) {
			t.Fatalf("the tokens changed: %v", err)
		}
	}
	secret := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, filepath.Base(readCompose(t, "compose.yaml").Secrets[name].File)))
		if err != nil || len(text) < 32 {
			t.Fatalf("secret %s: %q %v", name, text, err)
		}
		return string(text)
	}
	secret("grafana_admin_password")
	p := processtest.New(t)
	p.More = []string{"--tokens.file=" + filepath.Join(dir, "tokens.yml")}
	p.Start()
	for _, ask := range []struct {
		method, path, scheme, token string
		want                        int
	}{
		{"POST", "/api/v2/write?bucket=default&org=any", "Token", "telegraf_token", 204},
		{"GET", "/metrics", "Bearer", "prometheus_token", 200},
		{"POST", "/api/v1/write", "Bearer", "prometheus_token", 400}, // it may write; a line is no remote write
		{"GET", "/api/v1/query?query=cpu_usage", "Bearer", "grafana_token", 200},
		{"GET", "/t/_spillway/api/v1/query?query=up", "Bearer", "grafana_token", 404}, // it may read; the test's process does not keep its own metrics
		{"GET", "/api/v1/query?query=cpu_usage", "Bearer", "telegraf_token", 403},
		{"POST", "/api/v2/write?bucket=default&org=any", "Bearer", "grafana_token", 403},
		{"GET", "/api/v1/query?query=cpu_usage", "", "", 401},
	} {
		header := http.Header{}
		if ask.token != "" {
			header.Set("Authorization", fmt.Sprintf("%s %s", ask.scheme, secret(ask.token)))
		}
		if got, body, err := p.Do(ask.method, ask.path, header, []byte("cpu,host=a usage=42")); err != nil || got != ask.want {
			t.Errorf("%s %s with %s: %d %s %v, want %d", ask.method, ask.path, ask.token, got, body, err, ask.want)
		}
	}
}
