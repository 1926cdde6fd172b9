package process

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
)

// freeAddr returns an address without a listener.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// asked asks without keeping the connection.
func asked(t *testing.T, url string) (code int, text, state string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header.Get(client.StartingHeader)
}

// TestAProcessThatRecoversIsNotTakenForOneThatHangs: probes had no answer until the log was read, and what watches over containers ended it.
func TestAProcessThatRecoversIsNotTakenForOneThatHangs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	url := "http://" + l.Addr().String()
	s := answerStarting("the log is read", l, nil)
	health := func(ok bool) error {
		return (&client.Health{URL: url, Within: time.Minute, Starts: ok}).Run()
	}
	if code, text, _ := asked(t, url+"/-/healthy"); code != http.StatusOK {
		t.Errorf("alive: %d %s", code, text)
	}
	for _, path := range []string{"/-/ready", "/api/v1/query?query=1", "/"} {
		code, text, state := asked(t, url+path)
		if code != http.StatusServiceUnavailable || state != "starting" || !strings.Contains(text, "the log is read") {
			t.Errorf("%s: %d %q %s", path, code, state, text)
		}
	}
	// A sender drops rows after a 400, which bodies above a megabyte got.
	if resp, err := http.Post(url+"/api/v1/write", "application/x-protobuf", bytes.NewReader(make([]byte, 2<<20))); err != nil {
		t.Errorf("a large body: %v", err)
	} else if _ = resp.Body.Close(); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a large body: %s", resp.Status)
	}
	if err := health(false); err != error(terminal.Degraded) {
		t.Errorf("spillway health: %v", err)
	}
	if err := health(true); err != nil {
		t.Errorf("spillway health --starting-ok: %v", err)
	}
	s.at("the cluster is joined")
	if _, text, _ := asked(t, url+"/-/ready"); !strings.Contains(text, "the cluster is joined") {
		t.Errorf("later: %s", text)
	}

	// One that connected and asks nothing does not hold the start up, and the next server gets the listener.
	idle, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	s.end()
	s.end()
	waits := make(chan string, 1)
	go func() { // this one connects before the listener accepts
		resp, err := http.Get(url)
		if err != nil {
			waits <- err.Error()
			return
		}
		defer resp.Body.Close()
		waits <- resp.Status
	}()
	next := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })}
	go func() { _ = next.Serve(l) }()
	defer next.Close()
	if got := <-waits; got != "200 OK" {
		t.Errorf("who connected in between got %s", got)
	}
	if code, text, state := asked(t, url+"/-/ready"); code != http.StatusOK || text != "served" || state != "" {
		t.Errorf("after the start: %d %q %s", code, state, text)
	}
}

// TestAStorageServerSaysThatItWaitsForTheCoordinationStore: its probes had no answer.
func TestAStorageServerSaysThatItWaitsForTheCoordinationStore(t *testing.T) {
	cfg := config{Config: settings.Default()}
	cfg.DataDir, cfg.Server.ID, cfg.Server.Host = t.TempDir(), "s1", "h1"
	cfg.Peer.Listen, cfg.Admin.Listen, cfg.Peer.Insecure = "127.0.0.1:0", freeAddr(t), true
	cfg.Coord.URL = "etcd://127.0.0.1:1"
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	registerer := prometheus.NewRegistry()
	p := &storage{cfg: &cfg, log: slog.New(slog.DiscardHandler), registerer: registerer, id: "s1"}
	ended := make(chan error, 1)
	go func() { ended <- p.open(ctx, false, true) }()
	url := "http://" + cfg.Admin.Listen
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		code, text, state := 0, "", ""
		if c, err := net.Dial("tcp", cfg.Admin.Listen); err == nil { // it listens
			_ = c.Close()
			code, text, state = asked(t, url+"/-/ready")
		}
		if code == http.StatusServiceUnavailable && state == "starting" && strings.Contains(text, "coordination store") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d %q %s", code, state, text)
		}
	}
	stop()
	if err := <-ended; err == nil {
		t.Error("it opened without a coordination store")
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
}
