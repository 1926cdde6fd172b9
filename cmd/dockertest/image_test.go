//go:build docker

package dockertest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTheImageNeedsNoRights: it runs as nonroot, without a capability, on a root that is read only, becomes healthy, and ends with 0.
func TestTheImageNeedsNoRights(t *testing.T) {
	build(t)
	name := start(t, "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", image)
	c := healthy(t, name)
	if c.Config.User != "nonroot" || !slices.Equal(c.Config.Entrypoint, []string{"/spillway"}) {
		t.Errorf("it is run by %s as %v", c.Config.User, c.Config.Entrypoint)
	}
	if r := rights(t, c.State.Pid); r["Uid"] != "65532" || r["Gid"] != "65532" || strings.Trim(r["CapEff"], "0") != "" || r["NoNewPrivs"] != "1" {
		t.Errorf("it has the rights %v", r)
	}
	if soft, hard := openFiles(t, c.State.Pid); soft != hard {
		t.Errorf("it may open %s files and could open %s: it did not raise its limit", soft, hard)
	}
	if out := run(t, "", "docker", "exec", name, "/spillway", "version"); !strings.Contains(out, "dev") {
		t.Errorf("the program says it is %s", out)
	}
	a := api{url: "http://127.0.0.1:8428"}
	check(t, a.write("cpu,host=a usage=42"))
	check(t, a.has("last_over_time(cpu_usage[1d])", "42"))
	run(t, "", "docker", "stop", "--time=300", name)
	if c := inspect(t, name); c.State.ExitCode != 0 {
		t.Errorf("it ended with %d", c.State.ExitCode)
	}
}

// TestADirectoryOfAnotherUserIsNamed: a directory of the machine, made by root, is no place for the data of nonroot.
func TestADirectoryOfAnotherUserIsNamed(t *testing.T) {
	build(t)
	dir := filepath.Join(os.Getenv("DOCKER_WORK"), "of-root")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	out, err := try("", "docker", "run", "--rm", "--volume="+dir+":/data", image)
	if err == nil || !strings.Contains(out, "/data") || !strings.Contains(out, "permission denied") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("it printed:\n%s", out)
	if err := os.Chown(dir, 65532, 65532); err != nil {
		t.Fatal(err)
	}
	healthy(t, start(t, "--volume="+dir+":/data", image))
}

// build builds the image as compose does; the engine keeps its layers.
func build(t *testing.T) {
	t.Helper()
	run(t, checkout(t), "docker", "compose", "--file=docker/compose.yaml", "build", "--quiet")
}
