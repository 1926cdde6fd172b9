package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// Floods of TLS handshakes against a key of RSA, with which each costs the server 1.4 ms of a processor, and its sender nothing.
func handshakeAttacks() []attack {
	return []attack{
		{name: "handshakes/hello", does: "ClientHellos, as many as go, whose senders wait for the answer and leave", tls: true, run: flood(httpPort, true)},
		{name: "handshakes/leave", does: "ClientHellos whose senders leave at once", tls: true, run: flood(httpPort, false)},
		{name: "handshakes/admin", does: "ClientHellos at the port of administrators", tls: true, run: flood(adminPort, true)},
	}
}

// secured has the process speak TLS at both ports, with a key of RSA. Its admin port listens at all addresses: on a loopback it speaks plain HTTP.
func (t *target) secured() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "attacked"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	admin, err := processes.FreeAddr()
	if err != nil {
		return err
	}
	web := filepath.Join(t.dir, "web.yml")
	for name, text := range map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		"web.yml": []byte("tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n"),
	} {
		if err := os.WriteFile(filepath.Join(t.dir, name), text, 0o600); err != nil {
			return err
		}
	}
	_, port, err := net.SplitHostPort(admin)
	t.secure, t.admin = true, admin
	t.p.Ready, t.p.TLS = t.url()+"/-/ready", anyCertificate()
	t.p.Line = append(slices.DeleteFunc(t.p.Line, func(arg string) bool { return strings.HasPrefix(arg, "--admin.listen=") }),
		"--web.config.file="+web, "--admin.listen=0.0.0.0:"+port)
	return err
}

func anyCertificate() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// floodAtOnce is how many connections a flood holds: more than the 256 of the admin port, beyond which it closes those of the address that has the most.
const floodAtOnce = 300

func httpPort(a *attacker) string  { return a.addr }
func adminPort(a *attacker) string { return a.admin }

// flood sends ClientHellos from several addresses of this machine, and beside them has a client of another address connect, again and again, and ask for the
// health of the process: each time a handshake of its own, none of which may be refused.
func flood(port func(*attacker) string, waits bool) func(context.Context, *attacker) {
	return func(ctx context.Context, a *attacker) {
		hello := clientHello()
		var sent, refused atomic.Int64
		var others sync.WaitGroup
		flooding, stop := context.WithCancel(ctx)
		others.Go(func() { a.connectAgainAndAgain(flooding, port(a)) })
		before := a.cpu()
		began := time.Now()
		a.workers(ctx, floodAtOnce, func(ctx context.Context, w, _ int) bool {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+w%8))}, Timeout: 5 * time.Second}
			c, err := d.DialContext(ctx, "tcp", port(a))
			if err != nil {
				if ctx.Err() == nil {
					refused.Add(1)
				}
				sleep(ctx, 10*time.Millisecond)
				return true
			}
			_ = c.(*net.TCPConn).SetLinger(0) // ports of this machine are free again at once
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err = c.Write(hello); err == nil {
				sent.Add(1)
			}
			if waits {
				_, _ = io.ReadFull(c, make([]byte, 1))
			}
			return true
		})
		stop()
		others.Wait()
		took := time.Since(began)
		if sent.Load() == 0 {
			a.blame("no ClientHello was sent")
		}
		a.mu.Lock()
		a.note = fmt.Sprintf("%.0f ClientHellos a second, %d dials refused, %.2f processors, %s", float64(sent.Load())/took.Seconds(), refused.Load(), (a.cpu()-before).Seconds()/took.Seconds(), a.note)
		a.mu.Unlock()
	}
}

// connectAgainAndAgain asks for the health of the process over a new connection each time, until ctx ends.
func (a *attacker) connectAgainAndAgain(ctx context.Context, addr string) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 99)}}
	client := &http.Client{Timeout: requestMax, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: anyCertificate(), DialContext: d.DialContext}}
	n, slowest := 0, time.Duration(0)
	for ctx.Err() == nil {
		began := time.Now()
		r, err := client.Get("https://" + addr + "/-/healthy")
		if err == nil {
			if _ = r.Body.Close(); r.StatusCode != http.StatusOK {
				err = errors.New(r.Status)
			}
		}
		if err != nil {
			a.blame(fmt.Sprintf("a client at another address: %v", err))
			sleep(ctx, 100*time.Millisecond)
			continue
		}
		n, slowest = n+1, max(slowest, time.Since(began))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note = fmt.Sprintf("%d connections of another client, the slowest %s", n, strings.TrimSpace(ms(slowest)))
}

// clientHello is the first message of a handshake.
func clientHello() []byte {
	r := &recorded{}
	_ = tls.Client(r, anyCertificate()).Handshake() // it fails: there is no other side
	return r.first
}

// recorded is a connection that keeps the first message, and gives no answer.
type recorded struct {
	net.Conn
	first []byte
}

func (r *recorded) Write(b []byte) (int, error) {
	r.first = append(r.first, b...)
	return len(b), nil
}

func (r *recorded) Read([]byte) (int, error) { return 0, errors.New("no other side") }
func (r *recorded) Close() error             { return nil }
