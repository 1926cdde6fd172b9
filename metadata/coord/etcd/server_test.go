package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

// TestMain makes this binary an etcd server where a test started it as one, so that there is a process to kill.
func TestMain(m *testing.M) {
	if dir := os.Getenv("SPILLWAY_TEST_ETCD_DIR"); dir != "" {
		e, err := embed.StartEtcd(config(dir, os.Getenv("SPILLWAY_TEST_ETCD_URL"), false))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		<-e.Server.ReadyNotify()
		fmt.Println("ready")
		select {}
	}
	os.Exit(m.Run())
}

func config(dir, client string, tls bool) *embed.Config {
	c := embed.NewConfig()
	c.Dir = dir
	c.LogLevel, c.LogOutputs = "error", []string{"stderr"}
	u, err := url.Parse(client)
	if err != nil {
		panic(err)
	}
	peer, _ := url.Parse("http://127.0.0.1:0")
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*u}, []url.URL{*u}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ClientAutoTLS = tls
	c.SelfSignedCertValidity = 1
	c.BcryptCost = 4
	return c
}

// embedded starts an etcd in this process and gives its address.
func embedded(t *testing.T, tls bool) (e *embed.Etcd, endpoint string) {
	t.Helper()
	scheme := "http"
	if tls {
		scheme = "https"
	}
	c := config(filepath.Join(t.TempDir(), "etcd"), scheme+"://127.0.0.1:0", tls)
	c.UnsafeNoFsync = true
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		t.Fatal(err)
	case <-time.After(60 * time.Second):
		t.Fatal("etcd did not become ready")
	}
	return e, scheme + "://" + e.Clients[0].Addr().String()
}

func open(t *testing.T, s Settings) *Store {
	t.Helper()
	s.RequestTimeout = 10 * time.Second // this machine may be busy with other things
	st, err := Open(t.Context(), Deps{}, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// raw is a client of etcd itself, for requests that a coordination store does not have.
func raw(t *testing.T, c clientv3.Config) *clientv3.Client {
	t.Helper()
	c.DialTimeout = 30 * time.Second
	client, err := clientv3.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// process is an etcd that can be killed.
type process struct {
	dir, url string
	cmd      *exec.Cmd
}

func newProcess(t *testing.T) *process {
	t.Helper()
	// A port below those of outgoing connections, none of which uses it while no etcd runs.
	l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 16000+rand.IntN(16000)))
	for tries := 0; err != nil && tries < 100; tries++ {
		l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", 16000+rand.IntN(16000)))
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &process{dir: filepath.Join(t.TempDir(), "etcd"), url: "http://" + l.Addr().String()}
	l.Close()
	t.Cleanup(p.kill)
	p.start(t)
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), "SPILLWAY_TEST_ETCD_DIR="+p.dir, "SPILLWAY_TEST_ETCD_URL="+p.url)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan error, 1)
	go func() {
		_, err := out.Read(make([]byte, 8))
		ready <- err
	}()
	select {
	case err := <-ready:
		if err != nil {
			t.Fatalf("the etcd process ended: %v", err)
		}
	case <-ctx.Done():
		t.Fatal("the etcd process did not become ready")
	}
}

func (p *process) kill() {
	if p.cmd != nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
		p.cmd = nil
	}
}
