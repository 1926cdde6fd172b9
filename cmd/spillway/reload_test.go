package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
)

// configured is a file of settings that a storage server of a test has read.
func configured(t *testing.T, yaml string) (*storage, *processLog, func(yaml string)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	write := func(yaml string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(yaml)
	cmd := &storageCmd{Flags: settings.NewFlags(settings.Storage, build())}
	cmd.ConfigFile = file
	set, err := cmd.config()
	if err != nil {
		t.Fatal(err)
	}
	cfg := config{Config: set}
	admin, err := net.Listen("tcp", cfg.Admin.Listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	said, registry := new(processLog), prometheus.NewRegistry()
	return &storage{cfg: &cfg, log: newLog(said, "", cfg.Level, registry), registerer: registry, admin: admin}, said, write
}

// TestAStorageServerReloadsAllOrNothing by POST /-/reload, which pages of other origins cannot send.
func TestAStorageServerReloadsAllOrNothing(t *testing.T) {
	const on = "admin: {listen: '127.0.0.1:0'}\n"
	p, said, write := configured(t, on+"limits: {tables: {m: {weight: 2}}}\n")
	h := p.pages()
	ask := func(want int, method string, header ...string) string {
		t.Helper()
		rq := httptest.NewRequest(method, "http://"+p.admin.Addr().String()+"/-/reload", nil)
		for i := 0; i < len(header); i += 2 {
			rq.Header.Set(header[i], header[i+1])
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, rq)
		if rec.Code != want {
			t.Errorf("%s %v: %d %s, want %d", method, header, rec.Code, rec.Body, want)
		}
		return rec.Body.String()
	}
	ask(405, "GET")
	ask(403, "POST", "Origin", "https://evil.example")
	ask(403, "POST", "Sec-Fetch-Site", "cross-site")

	write(on + "limits: {tables: {m: {weight: 5}}}\nlog_level: loud\n")
	if text := ask(500, "POST"); !strings.Contains(text, "stays in force") || !strings.Contains(text, "log_level") {
		t.Errorf("a mistake: %s", text)
	}
	if w := p.weight("m"); w != 2 {
		t.Errorf("a file with a mistake changed the weight to %d", w)
	}
	write(on + "limits: {tables: {m: {weight: 5}}}\nlog_level: error\nlog_format: json\nstorage: {minors_max: 7}\n")
	ask(200, "POST")
	if w := p.weight("m"); w != 5 {
		t.Errorf("the weight is %d after the reload", w)
	}
	for _, key := range []string{"log_format", "storage.minors_max"} {
		if !strings.Contains(said.String(), "needs a restart\" key="+key) {
			t.Errorf("that %s needs a restart was not said:\n%s", key, said)
		}
	}
	if strings.Count(said.String(), "needs a restart") != 2 {
		t.Errorf("more needs a restart than has changed:\n%s", said)
	}
	before := len(said.String())
	ask(200, "POST")
	if more := said.String()[before:]; more != "" {
		t.Errorf("log_level is error, and this was logged: %s", more)
	}
}

// TestAStorageServerIsReloadedByItsHostAlone: it knows no tokens.
func TestAStorageServerIsReloadedByItsHostAlone(t *testing.T) {
	p, said, _ := configured(t, "admin: {listen: '0.0.0.0:0'}\n")
	rec := httptest.NewRecorder()
	p.pages().ServeHTTP(rec, httptest.NewRequest("POST", "http://10.0.0.1:8429/-/reload", nil))
	if rec.Code != 403 || !strings.Contains(rec.Body.String(), "SIGHUP") || strings.Contains(said.String(), "read anew") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// TestAHangupDoesNotEndAStorageServerThatStarts: it waits for the coordination store, as long as that takes.
func TestAHangupDoesNotEndAStorageServerThatStarts(t *testing.T) {
	p := newProcess(t)
	away, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(p.bin, "storage", "--id=s1", "--data-dir="+filepath.Join(p.dir, "data"), "--peer.listen=127.0.0.1:0", "--admin.listen="+p.addr, "--coord=etcd://"+away, "--dev.insecure-peers", "--memory=512MiB")
	p.cmd.Env, p.cmd.Stderr = append(p.env, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1"), &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.done = make(chan struct{})
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.kill)
	alive := func() bool {
		status, _, err := p.get("/-/healthy")
		return err == nil && status == http.StatusOK
	}
	p.eventually("it waits for the coordination store", func() bool { return alive() && strings.Contains(p.log.String(), "waiting for it") })
	for i := range 50 {
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil || !alive() {
			t.Fatalf("after %d hangups: %v\n%s", i+1, err, &p.log)
		}
	}
}

// TestClusterStorageServerReloads a file at SIGHUP and at POST /-/reload, and serves on.
func TestClusterStorageServerReloads(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	write := func(yaml string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("log_level: info\n")
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 1, Gateways: 1, StorageArgs: []string{"--config.file=" + file, "--log.format=json"}})
	c.acks("m", "m v=1")
	s := c.Storage[0]
	count := func(event string) float64 {
		return metricWhere(t, c.Admin[0], "spillway_log_messages_total", "event", event)
	}
	hangUp := func() {
		t.Helper()
		if err := syscall.Kill(s.PID(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	const anew, failed = "settings are read anew", "settings could not be read anew; those in force stay"
	hangUp()
	c.within(patience, "the file is read at SIGHUP", func() bool { return count(anew) == 1 })
	write("log_level: error\nstorage: {minors_max: -1}\n")
	hangUp()
	c.within(patience, "a mistake is reported", func() bool { return count(failed) == 1 })
	write("log_level: error\nstorage: {minors_max: 7}\n")
	for range 2 {
		resp, err := http.Post("http://"+c.Admin[0]+"/-/reload", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
	}
	said := s.Said()
	if n := count(anew); n != 3 || strings.Count(said, anew) != 2 || !strings.Contains(said, `"key":"storage.minors_max"`) {
		t.Errorf("read %v times; log_level is error since the second:\n%s", n, said)
	}
	for line := range strings.Lines(said) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line of a log in JSON is %q", line)
		}
	}
	if !strings.Contains(said, `"msg":"ready"`) {
		t.Errorf("it did not say that it is ready:\n%s", said)
	}
	c.acks("m", "m v=2")
}
