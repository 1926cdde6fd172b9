package process

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/api"
)

// configured is a file of settings that a storage server of a test has read.
func configured(t *testing.T, yaml string) (*storage, *processtest.Log, func(yaml string)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	write := func(yaml string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(yaml)
	cmd := &Storage{Flags: settings.NewFlags(settings.Storage, api.Build{})}
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
	said, registry := new(processtest.Log), prometheus.NewRegistry()
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

// TestAReloadIsSeenInTheSettingsThatAreShown: after a reload the log had the new level, and status/config and status/flags the one of the start. Another path
// of a file for access changed nothing, and no word was said of it: the tokens of the old file still came in.
func TestAReloadIsSeenInTheSettingsThatAreShown(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "spillway.yaml")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	yaml := func(level, access string) string {
		return fmt.Sprintf("data_dir: '%s'\nadmin: {listen: ''}\nhttp: {listen: '127.0.0.1:0', web_config_file: '%s/%s'}\nlog_level: %s\n", dir, dir, access, level)
	}
	write("old.yml", "{}\n")
	write("new.yml", "{}\n")
	write("spillway.yaml", yaml("info", "old.yml"))
	cmd := &Standalone{Flags: settings.NewFlags(settings.Standalone, api.Build{})}
	cmd.ConfigFile = file
	set, err := cmd.config()
	if err != nil {
		t.Fatal(err)
	}
	p := openWith(t, dir, config{Config: set})
	said := new(processtest.Log)
	p.log = newLog(said, "", p.cfg.Level, prometheus.NewRegistry())

	write("spillway.yaml", yaml("warn", "new.yml"))
	if err := p.reloader().reload(); err != nil {
		t.Fatal(err)
	}
	if text := p.settings(); !strings.Contains(text, "log_level: warn\n") {
		t.Errorf("log_level is warn since the reload, and this is shown:\n%s", text)
	}
	if level := p.flagValues()["log.level"]; level != "warn" {
		t.Errorf("log.level is warn since the reload, and %q is shown", level)
	}
	if text := said.String(); strings.Count(text, "needs a restart") != 1 || !strings.Contains(text, "needs a restart\" key=http.web_config_file") {
		t.Errorf("http.web_config_file alone has changed that needs a restart, and this was said:\n%s", text)
	}
	if text := p.settings(); !strings.Contains(text, "old.yml") || strings.Contains(text, "new.yml") {
		t.Errorf("the file of the start is in force, and this is shown:\n%s", text)
	}
}

// TestAReloadThatFailedIsSeenInTheMetrics: only the log said that the settings could not be read again, and that the next start would be refused.
func TestAReloadThatFailedIsSeenInTheMetrics(t *testing.T) {
	const on = "admin: {listen: '127.0.0.1:0'}\n"
	p, _, write := configured(t, on)
	p.reloads.begin(p.registerer)
	gauges := func() (well, at float64) {
		t.Helper()
		all, err := p.registerer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]float64{}
		for _, m := range all {
			found[m.GetName()] = m.GetMetric()[0].GetGauge().GetValue()
		}
		at, ok := found["spillway_config_last_reload_success_timestamp_seconds"]
		if !ok {
			t.Fatal("no time of a reload is shown")
		}
		return found["spillway_config_last_reload_successful"], at
	}
	started := float64(time.Now().UnixMilli()) / 1000
	well, at := gauges()
	if well != 1 || at > started || at < started-600 {
		t.Errorf("after the start: %v, at %v", well, at)
	}
	write(on + "log_level: loud\n")
	if err := p.reloader().reload(); err == nil {
		t.Error("a file with a mistake is taken")
	}
	if now, then := gauges(); now != 0 || then != at {
		t.Errorf("after a mistake: %v, at %v", now, then)
	}
	write(on)
	if err := p.reloader().reload(); err != nil {
		t.Error(err)
	}
	if now, then := gauges(); now != 1 || then < at {
		t.Errorf("after it was mended: %v, at %v", now, then)
	}
}

// TestTheLastOfTwoReloadsIsInForce: one that had read the file before it was changed could come into force behind one that had read it afterwards.
func TestTheLastOfTwoReloadsIsInForce(t *testing.T) {
	p, _, write := configured(t, "admin: {listen: '127.0.0.1:0'}\nlimits: {tables: {m: {weight: 2}}}\n")
	second := make(chan error, 1)
	read, reads := p.cfg.Again, 0
	p.cfg.Again = func() (settings.Config, error) {
		c, err := read()
		if reads++; reads == 1 {
			write("admin: {listen: '127.0.0.1:0'}\nlimits: {tables: {m: {weight: 5}}}\n")
			go func() { second <- p.reloader().reload() }()
			select {
			case err := <-second: // it did not wait
				second <- err
			case <-time.After(200 * time.Millisecond):
			}
		}
		return c, err
	}
	if err := errors.Join(p.reloader().reload(), <-second); err != nil {
		t.Fatal(err)
	}
	if w := p.weight("m"); w != 5 {
		t.Errorf("the weight is %d after the reload of the file that has 5", w)
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

// TestAHangupDoesNotEndAStorageServerThatStarts: it waits for the coordination store, however long.
func TestAHangupDoesNotEndAStorageServerThatStarts(t *testing.T) {
	p := processtest.New(t)
	away, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	p.Cmd = exec.Command(p.Bin, "storage", "--id=s1", "--data-dir="+filepath.Join(p.Dir, "data"), "--peer.listen=127.0.0.1:0", "--admin.listen="+p.Addr, "--coord=etcd://"+away, "--dev.insecure-peers", "--memory=512MiB")
	p.Cmd.Env, p.Cmd.Stderr = append(p.Env, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1"), &p.Log
	if err := p.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.Done = make(chan struct{})
	go func() {
		p.Err = p.Cmd.Wait()
		close(p.Done)
	}()
	t.Cleanup(p.Kill)
	alive := func() bool {
		status, _, err := p.Get("/-/healthy")
		return err == nil && status == http.StatusOK
	}
	p.Eventually("it waits for the coordination store", func() bool { return alive() && strings.Contains(p.Log.String(), "waiting for it") })
	for i := range 50 {
		if err := p.Cmd.Process.Signal(syscall.SIGHUP); err != nil || !alive() {
			t.Fatalf("after %d hangups: %v\n%s", i+1, err, &p.Log)
		}
	}
}

// TestTheDoctorSaysThatTheNextStartWillFail: after a reload with a mistake in the file all was said to be well, until a restart, perhaps months later, was refused.
func TestTheDoctorSaysThatTheNextStartWillFail(t *testing.T) {
	mistake := errors.New("line 1: the key \"limts\" is not known here")
	p := open(t)
	p.cfg.File, p.cfg.Again = "spillway.yaml", func() (settings.Config, error) { return p.cfg.Config, mistake }
	if err := p.reloader().reload(); err == nil {
		t.Fatal("a file with a mistake was read")
	}
	if found := p.findings(t); len(found) != 1 || !strings.Contains(found[0].What, "could not be read again") || !strings.Contains(found[0].Do, "config check") {
		t.Errorf("findings: %+v", found)
	}
	mistake = nil
	if err := p.reloader().reload(); err != nil {
		t.Fatal(err)
	}
	if found := p.findings(t); len(found) > 0 {
		t.Errorf("findings after the file was mended: %+v", found)
	}
}
