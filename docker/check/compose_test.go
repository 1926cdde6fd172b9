package check

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// project loads a compose file as Docker Compose does, with its own library: by its schema, with variables, and with what services refer to.
func project(t *testing.T, file string, env ...string) (*types.Project, error) {
	t.Helper()
	o, err := cli.NewProjectOptions([]string{file}, cli.WithEnv(env), cli.WithResolvedPaths(true), cli.WithInterpolation(true), cli.WithNormalization(true), cli.WithConsistency(true))
	if err != nil {
		t.Fatal(err)
	}
	return o.LoadProject(t.Context())
}

// TestComposeReadsTheFilesAsTheyAreMeant: images, volumes, secrets and files of the repository are what the library makes of the text.
func TestComposeReadsTheFilesAsTheyAreMeant(t *testing.T) {
	for file, ours := range map[string][]string{"compose.yaml": {"spillway"}, "cluster.yaml": {"g1", "g2", "s1", "s2", "s3"}} {
		p, err := project(t, filepath.Join("..", file))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if p, err := project(t, filepath.Join("..", file), "SPILLWAY_IMAGE=registry.example/spillway:v7"); err != nil || p.Services[ours[0]].Image != "registry.example/spillway:v7" {
			t.Errorf("%s: SPILLWAY_IMAGE names no image: %v", file, err)
		}
		var found []string
		for name, s := range p.Services {
			if s.Image == "spillway:local" {
				found = append(found, name)
				if s.StopGracePeriod == nil || time.Duration(*s.StopGracePeriod) != time.Minute {
					t.Errorf("%s: %s has %v to stop", file, name, s.StopGracePeriod)
				}
			}
			if s.Build != nil {
				if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
					t.Errorf("%s: %s is built of nothing: %v", file, name, err)
				}
			}
			for _, v := range s.Volumes {
				if _, err := os.Stat(v.Source); v.Type == types.VolumeTypeBind && (err != nil || !v.ReadOnly) {
					t.Errorf("%s: %s mounts %s, which it may write to or which is not there: %v", file, name, v.Source, err)
				}
			}
			for _, port := range s.Ports {
				if port.HostIP != "127.0.0.1" {
					t.Errorf("%s: %s publishes %s on %q", file, name, port.Published, port.HostIP)
				}
			}
			for _, secret := range s.Secrets {
				if of := p.Secrets[secret.Source].File; filepath.Base(filepath.Dir(of)) != "secrets" {
					t.Errorf("%s: %s has the secret %s from %q, where docker/secrets.sh puts none", file, name, secret.Source, of)
				}
			}
		}
		if slices.Sort(found); !slices.Equal(found, ours) {
			t.Errorf("%s runs %v, want %v", file, found, ours)
		}
	}
}

// TestComposeRefusesWhatTheFilesMustNotSay: were these accepted, the test above would show nothing.
func TestComposeRefusesWhatTheFilesMustNotSay(t *testing.T) {
	text, err := os.ReadFile("../compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for what, harm := range map[string][2]string{
		"a service that is none": {"depends_on: [spillway]", "depends_on: [spilway]"},
		"a volume that is none":  {`volumes: ["spillway:/data"]`, `volumes: ["spilway:/data"]`},
		"a secret that is none":  {"secrets: [tokens]", "secrets: [token]"},
		"a key that is none":     {"restart:", "restarts:"},
		"a time that is none":    {"stop_grace_period: 1m", "stop_grace_period: long"},
	} {
		file := filepath.Join(t.TempDir(), "compose.yaml")
		harmed := strings.Replace(string(text), harm[0], harm[1], 1)
		if harmed == string(text) {
			t.Fatalf("the file has no %q", harm[0])
		}
		if err := os.WriteFile(file, []byte(harmed), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := project(t, file); err == nil {
			t.Errorf("the library takes %s", what)
		}
	}
}
