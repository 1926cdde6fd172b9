package archtest

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// programBytesMax bounds the stripped static program on linux/amd64: 44.0 MB on 2026-11-22, and room for a library or two.
// The goal is 30 MB; docs/proofs/speed.md lists the parts of the program and the reasons why it is larger.
const programBytesMax = 48_000_000

// programTags are the build tags of the product, in every recipe.
const programTags = "grpcnotrace"

// programLaw lists packages that the product is built without. Its library may bring them again with its next version.
var programLaw = []struct{ not, because string }{
	{"go.etcd.io/etcd/server/... go.etcd.io/raft/... go.etcd.io/bbolt/...", "an etcd member is a program of its own, cmd/etcd: 6 MB"},
	{"html/template", "text/template calls methods by name, for which the linker keeps every exported method of every type: 11 MB"},
	{"golang.org/x/net/trace", "it imports html/template; grpc leaves it out with the tag grpcnotrace"},
	{"github.com/prometheus/exporter-toolkit/...", "its server brings OAuth2, vsock, systemd and golang.org/x/net/trace; gateway/access reads the file itself"},
	{"github.com/prometheus/common/config", "HTTP clients of scrapers: OAuth2, conntrack, golang.org/x/net/trace"},
	{"github.com/aws/... github.com/Azure/... cloud.google.com/... google.golang.org/api/...", "clouds' SDKs come with service discoveries; a bucket is minio-go's"},
	{"github.com/prometheus/prometheus/discovery/... github.com/prometheus/prometheus/scrape/... github.com/prometheus/prometheus/config", "Spillway scrapes nothing but itself"},
	{"testing", "the product is not a test"},
}

func TestTheProgramIsBuiltWithoutWhatItDoesNotNeed(t *testing.T) {
	for _, found := range bannedIn(goList(t, "-deps", "-tags", programTags, "./cmd/spillway")) {
		t.Error(found)
	}
	// The check itself: planted violations are found.
	if n := len(bannedIn([]string{"go.etcd.io/etcd/server/v3/embed", "html/template", "html", "github.com/aws/smithy-go"})); n != 3 {
		t.Errorf("of four packages, three of them banned, %d are found", n)
	}
}

func bannedIn(packages []string) (found []string) {
	for _, law := range programLaw {
		for _, pattern := range strings.Fields(law.not) {
			for _, p := range packages {
				if match(pattern, p) {
					found = append(found, "cmd/spillway is built with "+p+": "+law.because)
				}
			}
		}
	}
	return found
}

// goList returns what go list prints in the repository's root.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	c := exec.Command("go", append([]string{"list"}, args...)...)
	c.Dir = root
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// Every recipe names the tags: without them the program works, and is a quarter larger.
func TestEveryRecipeBuildsTheProgramAlike(t *testing.T) {
	for _, name := range []string{"Makefile", "docker/Dockerfile", "docker/package/build.sh"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		builds := 0
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "go build") && strings.Contains(line, "./cmd/spillway") {
				builds++
				if !strings.Contains(line, "-tags "+programTags+" ") {
					t.Errorf("%s: without -tags %s: %s", name, programTags, line)
				}
			}
		}
		if builds == 0 {
			t.Errorf("%s builds no cmd/spillway; this test looks in the wrong place", name)
		}
	}
}

// TestTheProgramIsSmall links the stripped program, and is run by make size. The linker's dump names the functions that
// call methods by names which it cannot know; one that is reachable costs a quarter of the program.
func TestTheProgramIsSmall(t *testing.T) {
	if os.Getenv("PROGRAM_SIZE") == "" {
		t.Skip("it links the whole program with other flags; make size does")
	}
	name := filepath.Join(t.TempDir(), "spillway")
	// The go command prints what a program's last link printed when it finds the program built already, whatever the link's flags were: the
	// dump, half a million lines, in the next make build. Another flag of the compiler, here one for its errors, is another program.
	c := exec.Command("go", "build", "-tags", programTags, "-trimpath", "-gcflags", "-e", "-ldflags", "-s -w -dumpdep", "-o", name, "./cmd/spillway")
	c.Dir, c.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	var dump bytes.Buffer
	c.Stderr = &dump
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %.2000s", err, dump.String())
	}
	for _, by := range methodsByName(&dump) {
		t.Error(by + " calls methods by their names, so the linker keeps the methods of everything")
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes, at most %d", info.Size(), int64(programBytesMax))
	if info.Size() > programBytesMax {
		t.Errorf("the stripped program has %d bytes, and should have at most %d: go tool nm -size -sort size of one built without -s -w tells what grew", info.Size(), int64(programBytesMax))
	}
}

// methodsByName returns the functions that a linker's dump marks.
func methodsByName(dump *bytes.Buffer) (found []string) {
	seen := map[string]bool{}
	lines := bufio.NewScanner(dump)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		for _, end := range strings.Split(lines.Text(), " -> ") {
			if by, ok := strings.CutSuffix(end, " <ReflectMethod>"); ok && !seen[by] {
				seen[by] = true
				found = append(found, by)
			}
		}
	}
	return found
}

func TestCallsByNameAreFoundInADump(t *testing.T) {
	dump := bytes.NewBufferString("main.main -> a.b\na.b -> kong.getMethod <ReflectMethod>\nkong.getMethod <ReflectMethod> -> x\n")
	if found := methodsByName(dump); len(found) != 1 || found[0] != "kong.getMethod" {
		t.Errorf("found %q", found)
	}
}
