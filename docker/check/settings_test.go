package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// program builds the product once for a test.
func program(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "spillway")
	build := exec.Command("go", "build", "-o", bin, "./cmd/spillway")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// processEnv is the environment of a process as the kubelet would make it for the first pod on node-1.
func processEnv(w workload) []string {
	pod, out := w.name+"-0", []string{}
	for _, e := range w.container().Env {
		value := strings.ReplaceAll(e.Value, "$(POD_NAME)", pod)
		if e.ValueFrom != nil {
			value = map[string]string{"metadata.name": pod, "spec.nodeName": "node-1"}[e.ValueFrom.FieldRef.FieldPath]
		}
		out = append(out, e.Name+"="+value)
	}
	return out
}

// withAccess replaces the settings of the tokens file and the web-config file by files that exist: the program reads both when it checks settings.
func withAccess(t *testing.T, env []string) []string {
	t.Helper()
	texts := map[string]string{"SPILLWAY_HTTP_WEB_CONFIG_FILE": "http_server_config: {http2: true}", "SPILLWAY_HTTP_TOKENS_FILE": "tokens: []"}
	out := []string{}
	for _, e := range env {
		name, path, _ := strings.Cut(e, "=")
		if text, ok := texts[name]; ok {
			path = filepath.Join(t.TempDir(), filepath.Base(path))
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, name+"="+path)
	}
	return out
}

// TestTheProgramTakesItsSettings has the real program check the rendered file with the rendered variables: it refuses keys that it does not know.
func TestTheProgramTakesItsSettings(t *testing.T) {
	bin := program(t)
	eachWorkload(t, func(t *testing.T, m manifests, w workload) {
		file := filepath.Join(t.TempDir(), "spillway.yml")
		text := get[*corev1.ConfigMap](t, m, "ConfigMap m-spillway-"+w.component).Data["spillway.yml"]
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for verb, want := range map[string]string{"check": "the settings are good", "show": "shutdown_timeout: "} {
			cmd := exec.Command(bin, "config", verb, file)
			cmd.Env = withAccess(t, processEnv(w))
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
				t.Errorf("config %s: %v\n%s\n%s", verb, err, out, text)
			}
		}
		cmd := exec.Command(bin, "config", "check", file)
		cmd.Env = append(withAccess(t, processEnv(w)), "SPILLWAY_PORT=tcp://10.0.0.1:8428")
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("a variable that Kubernetes makes of a Service is taken: %s", out)
		}
	})
}
