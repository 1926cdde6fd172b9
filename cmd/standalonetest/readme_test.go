package standalonetest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/pages"
	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// notRun are the lines of the README that TestEveryLineOfTheREADMERuns leaves to other tests: each with the tests, or the target of the
// Makefile, that run the line or its command. All others are run, in their order.
var notRun = map[string]string{
	"docker/secrets.sh": "make test-docker: TestComposeRunsAsTheREADMESays",
	`curl -H "Authorization: Bearer $(cat docker/secrets/telegraf_token)" 'http://127.0.0.1:8428/write?db=default' --data-binary 'cpu,host=a usage=42'`: "make test-docker: TestComposeRunsAsTheREADMESays",
	"docker compose -f docker/compose.yaml down":                                                                   "make test-docker: TestComposeRunsAsTheREADMESays",
	"docker compose -f docker/compose.yaml up --build":                                                             "make test-docker: TestComposeRunsAsTheREADMESays",
	"spillway standalone --kafka.brokers=k1:9092,k2:9092 --kafka.topics=telegraf,/metrics-.*/ --kafka.format=line": "make test-kafka: TestRealKafkaIsReadAsTheREADMESays",
	"make cluster": "runs until ctrl-C: make test-browser runs cmd/cluster",
	"make demo":    "runs until ctrl-C: make test-cluster: TestClusterDemoShowsAllThatItSays",
	"spillway storage --id s1 --zone z1 --data-dir /var/lib/spillway --peer.listen 0.0.0.0:8430 --coord etcds://e1:2379,e2:2379,e3:2379 --peer.tls.ca ca.crt --peer.tls.cert s1.crt --peer.tls.key s1.key": "machines of a cluster: TestClusterObeysAdministratorsAlone",
	"spillway gateway --http.listen 0.0.0.0:8428 --coord etcds://e1:2379,e2:2379,e3:2379 --peer.tls.ca ca.crt --peer.tls.cert g1.crt --peer.tls.key g1.key":                                                "machines of a cluster: TestClusterObeysAdministratorsAlone",
	"spillway table create metrics --retention 30d --partition-width 1h --replicas 3":                                                                                                                      "a cluster's: TestAdmin, TestClusterIsAdministeredThroughAGateway",
	"spillway partition list metrics":                                   "a cluster's: TestAdmin",
	"spillway server drain s1 --reason disk":                            "a cluster's: TestClusterDrainMovesWhatHasNoRows",
	"spillway partition merge metrics p7 p8 p9 --reason narrow":         "a cluster's: TestClusterIsAdministeredThroughAGateway; the master's own: TestClusterNarrowPartitionsAreMerged",
	"spillway partition move metrics p7 --from s2 --to s4 --reason hot": "a cluster's: TestClusterAPartitionMovesToTheServerNamed",
	`spillway partition force-join metrics p7 s2 --reason "fire"`:       "a cluster's: TestAdmin, TestClusterGoesOnWithoutALostDisk",
	`spillway partition restore metrics p7 --holds s1 --reason "…"`:     "a cluster's: TestAdmin",
	`spillway table repair metrics --reason "restored"`:                 "a cluster's: TestClusterGoesByTheNewestMapAgain",
}

// Lines that set a variable of the shell for those below them.
var setsVariable = regexp.MustCompile(`^(?:export )?((?:SPILLWAY|OTEL)_\w+)=(\S+)$`)

// readme runs the lines of the README before a process of its own.
type readme struct {
	t      *testing.T
	p      *processtest.Process
	served string // the address of the server that a line started last
	dir    string
	env    []string
	ran    int
}

// run runs a line as a person would, but for addresses and directories.
func (r *readme) run(line string) {
	r.t.Helper()
	r.ran++
	if args, ok := strings.CutPrefix(line, "spillway standalone "); ok {
		r.serve(args)
		return
	}
	c := exec.Command("bash", "-c", strings.NewReplacer("127.0.0.1:8428", r.p.Addr, "localhost:8428", r.served).Replace(line))
	c.Dir, c.Env = r.dir, r.env
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	if err := c.Run(); err != nil {
		r.t.Errorf("README.md: %s\n%v: %s%s", line, err, &out, &said)
	}
	if strings.HasPrefix(line, "spillway token create ") {
		r.letIn(out.String())
	}
}

// serve starts a server that runs until the end of the test, on an address and in a directory that are free.
func (r *readme) serve(args string) {
	r.t.Helper()
	p := processtest.NewOf(r.t, r.p.Bin)
	for _, arg := range strings.Fields(args) {
		p.More = append(p.More, strings.NewReplacer("0.0.0.0:8428", p.Addr, "/var/lib/spillway", filepath.Join(p.Dir, "data"),
			"web.yml", filepath.Join(r.dir, "web.yml"), "tokens.yml", filepath.Join(r.dir, "tokens.yml")).Replace(arg))
	}
	p.Spawn()
	ready := []string{"health", "--quiet", "--url=http://" + p.Addr}
	if strings.Contains(args, "web.yml") {
		ready = []string{"health", "--quiet", "--url=https://" + p.Addr, "--ca-file=" + filepath.Join(r.dir, "tls.crt")}
	}
	for exec.Command(p.Bin, ready...).Run() != nil {
		select {
		case <-p.Done:
			r.t.Fatalf("README.md: spillway standalone %s: %v\n%s", args, p.Err, &p.Log)
		case <-time.After(20 * time.Millisecond):
		}
	}
	r.served = p.Addr
}

// letIn writes what `spillway token create` printed into the tokens file and the variable TOKEN, and makes a certificate.
func (r *readme) letIn(printed string) {
	r.t.Helper()
	token := tokenPrinted.FindString(printed)
	_, entry, ok := strings.Cut(printed, "- name:")
	if !ok || token == "" {
		r.t.Fatalf("no token and entry were printed: %s", printed)
	}
	r.env = append(r.env, "TOKEN="+token)
	selfSigned(r.t, r.dir)
	for name, text := range map[string]string{
		"tokens.yml": "tokens:\n- name:" + entry,
		"web.yml":    "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n",
	} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
}

var tokenPrinted = regexp.MustCompile(`(?m)^spwt_\S+$`)

// selfSigned writes a certificate of this machine and its key: tls.crt and tls.key.
func selfSigned(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: cert}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEveryLineOfTheREADMERuns runs the lines of the README's blocks of commands, but for those of notRun. A new line is run
// from then on, or needs a reason not to be.
func TestEveryLineOfTheREADMERuns(t *testing.T) {
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	admin, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	p := processtest.New(t)
	p.More = []string{"--admin.listen=" + admin}
	p.Start()
	r := &readme{t: t, p: p, dir: t.TempDir()}
	r.env = append(p.Env, "SPILLWAY_URL=http://"+p.Addr, "SPILLWAY_ADMIN_URL=http://"+admin, "PATH="+filepath.Dir(p.Bin)+":"+os.Getenv("PATH"), "NO_PROXY=127.0.0.1")
	met, variables := map[string]bool{}, map[string]string{}
	for _, line := range processtest.Scripts(t, "../../README.md") {
		if set := setsVariable.FindStringSubmatch(line); set != nil {
			variables[set[1]] = set[2]
		} else if notRun[line] != "" {
			met[line] = true
		} else {
			r.run(line)
		}
	}
	if r.ran < 14 {
		t.Errorf("only %d lines were run", r.ran)
	}
	endpoint, protocol := variables["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"], variables["OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"]
	path, ok := strings.CutPrefix(endpoint, "http://127.0.0.1:8428")
	if status, body, err := p.Do("POST", path, http.Header{"Content-Type": {"application/x-protobuf"}}, nil); !ok || err != nil || status != http.StatusOK || protocol != "http/protobuf" {
		t.Errorf("an SDK sends %s to %s: %d %s %v", protocol, endpoint, status, body, err)
	}
	for _, line := range slices.Sorted(maps.Keys(notRun)) {
		if !met[line] {
			t.Errorf("the README has no line %q any more: it is not to be left out either", line)
		}
	}
}

// TestLinesThatAreNotRunNameTestsThatExist: a line without a test runs nowhere, and a test that was renamed ran nothing of the README any more.
// The tests of make test-docker and make test-kafka read their lines from the README.
func TestLinesThatAreNotRunNameTestsThatExist(t *testing.T) {
	exist := map[string]bool{}
	for _, of := range []struct{ files, pattern string }{
		{"*_test.go", `(?m)^func (Test\w+)\(`},
		{"../spillway/*_test.go", `(?m)^func (Test\w+)\(`},
		{"../spillway/*/*_test.go", `(?m)^func (Test\w+)\(`},
		{"../clustertest/*_test.go", `(?m)^func (Test\w+)\(`},
		{"../cluster/*_test.go", `(?m)^func (Test\w+)\(`},
		{"../dockertest/*_test.go", `(?m)^func (Test\w+)\(`},
		{"../../Makefile", `(?m)^(test-[a-z]+):`},
	} {
		files, err := filepath.Glob(of.files)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(of.pattern).FindAllStringSubmatch(string(text), -1) {
				exist[m[1]] = true
			}
		}
	}
	for line, by := range notRun {
		names := regexp.MustCompile(`\bTest[A-Z]\w+|\btest-[a-z]+`).FindAllString(by, -1)
		if len(names) == 0 {
			t.Errorf("%s: %q names no test that runs it", line, by)
		}
		for _, name := range names {
			if !exist[name] {
				t.Errorf("%s: there is no %s", line, name)
			}
		}
	}
}

// exampleFiles puts what there is, in the directory of a block, in place of what pages name.
var exampleFiles = strings.NewReplacer("$2y$10$…", "$2y$10$qTc0eXbZyQz0qY0dFJ0bXuNNh2K2b1b6r0G6sC5l5cVvW1Y7mQb9S", "ca.pem", "tls.crt", "/run/secrets/kafka", "tls.key")

// TestTheProgramTakesTheSettingsThatPagesShow: the blocks in YAML are what its files may hold.
func TestTheProgramTakesTheSettingsThatPagesShow(t *testing.T) {
	blocks, err := pages.Blocks("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, bin, checked := t.TempDir(), processtest.Program(t), map[pages.Reader]int{}
	selfSigned(t, dir)
	for _, b := range blocks {
		file := filepath.Join(dir, "file.yml")
		args := map[pages.Reader][]string{
			pages.Spillway: {"config", "check", file},
			pages.Tokens:   {"token", "check", "--tokens.file=" + file},
			pages.Web:      {"token", "check", "--web.config.file=" + file},
		}[b.Reader]
		if args == nil {
			continue // cmd/internal/pages, make test-helm
		}
		checked[b.Reader]++
		text := exampleFiles.Replace(b.Text)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := exec.Command(bin, args...)
		c.Dir, c.Env = dir, processtest.Environ()
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s\n%s", b, err, out, b.Text)
		}
	}
	if checked[pages.Spillway] < 5 || checked[pages.Tokens] < 1 || checked[pages.Web] < 2 {
		t.Errorf("blocks that were checked: %v", checked)
	}
}
