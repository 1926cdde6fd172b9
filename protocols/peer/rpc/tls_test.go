package rpc

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// testAuthority signs certificates, as `spillway certs` does.
type testAuthority struct {
	cert *x509.Certificate
	der  []byte
	key  *ecdsa.PrivateKey
}

func newTestAuthority(t testing.TB) *testAuthority {
	t.Helper()
	a := &testAuthority{}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	c := testCert("authority")
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	if a.der, err = x509.CreateCertificate(rand.Reader, c, c, a.key.Public(), a.key); err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(a.der); err != nil {
		t.Fatal(err)
	}
	return a
}

func testCert(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<60))
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
}

// files writes a certificate for a host: of a gateway, or of a storage server that is called so.
func (a *testAuthority) files(t testing.TB, host string) TLS {
	t.Helper()
	id := Identity{RoleStorage, host}
	if host == "gw" {
		id.Role = RoleGateway
	}
	return a.filesOf(t, host, id.URI())
}

// filesOf writes a certificate for a host with these URIs.
func (a *testAuthority) filesOf(t testing.TB, host string, is ...*url.URL) TLS {
	t.Helper()
	dir := t.TempDir()
	f := TLS{CAFile: filepath.Join(dir, "ca.crt"), CertFile: filepath.Join(dir, "node.crt"), KeyFile: filepath.Join(dir, "node.key")}
	a.write(t, f, host, is...)
	return f
}

func (a *testAuthority) write(t testing.TB, f TLS, host string, is ...*url.URL) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := testCert(host)
	c.URIs = is
	c.KeyUsage, c.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if ip := net.ParseIP(host); ip != nil {
		c.IPAddresses = []net.IP{ip}
	} else {
		c.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		f.CAFile:   {Type: "CERTIFICATE", Bytes: a.der},
		f.CertFile: {Type: "CERTIFICATE", Bytes: der},
		f.KeyFile:  {Type: "EC PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheEndOfACertificateIsSeen: certificates of a cluster are made on one day and end on one, and no metric warned of it.
func TestTheEndOfACertificateIsSeen(t *testing.T) {
	a, sooner, later := newTestAuthority(t), newTestAuthority(t), newTestAuthority(t)
	f := a.files(t, "gw")
	r := prometheus.NewRegistry()
	RegisterExpiry(r, f)
	shown := func() time.Time {
		t.Helper()
		all, err := r.Gather()
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		return time.Unix(int64(all[0].Metric[0].Gauge.GetValue()), 0)
	}
	ca := func(of ...*testAuthority) {
		t.Helper()
		var text []byte
		for _, x := range of {
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: x.der})...)
		}
		if err := os.WriteFile(f.CAFile, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	own := pair.Leaf.NotAfter
	a.endsAt(t, own.Add(time.Hour))
	sooner.endsAt(t, own.Add(-time.Minute))
	later.endsAt(t, own.Add(time.Minute))
	ca(a)
	if got := shown(); !got.Equal(own) {
		t.Errorf("the certificate ends at %v, and %v is shown", own, got)
	}
	if ca(sooner); !shown().Equal(sooner.cert.NotAfter) {
		t.Errorf("its authority ends at %v, and %v is shown", sooner.cert.NotAfter, shown())
	}
	if ca(sooner, later); !shown().Equal(own) {
		t.Errorf("another authority goes on, and %v is shown", shown())
	}
	if err := os.WriteFile(f.KeyFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := shown(); !got.Equal(own) {
		t.Errorf("a file that cannot be read: %v is shown", got)
	}
	r = prometheus.NewRegistry()
	if RegisterExpiry(r, TLS{Insecure: true}); shown().Unix() != 0 {
		t.Errorf("without TLS: %v", shown())
	}
}

// endsAt makes the authority's certificate anew.
func (a *testAuthority) endsAt(t *testing.T, end time.Time) {
	t.Helper()
	c := testCert("authority")
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.NotAfter = true, true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign, end
	var err error
	if a.der, err = x509.CreateCertificate(rand.Reader, c, c, a.key.Public(), a.key); err == nil {
		a.cert, err = x509.ParseCertificate(a.der)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestPeersKnowEachOther: only certificates of the one authority, and servers only by their own address or name.
func TestPeersKnowEachOther(t *testing.T) {
	a, other := newTestAuthority(t), newTestAuthority(t)
	addr, _ := serve(t, newMemory(), Settings{TLS: a.files(t, "127.0.0.1")})
	named, _ := serve(t, newMemory(), Settings{TLS: a.files(t, "storage-1")})
	f := func(what, addr string, tls TLS, want string) {
		t.Helper()
		p := dial(t, addr, DialSettings{TLS: tls})
		st, err := p.OpenStream(t.Context(), "t")
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
				return
			}
			_ = st.Close()
			return
		}
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want Unavailable and %q", what, err, want)
		}
	}
	gw := a.files(t, "gw")
	f("the same authority", addr, gw, "")
	f("another authority", addr, other.files(t, "gw"), "unknown authority")
	trusting := other.files(t, "gw") // believes the server, and is not believed
	pem, err := os.ReadFile(gw.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(trusting.CAFile, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	f("a caller of another authority", addr, trusting, "peer")
	f("in the clear", addr, plain, "peer")
	f("a server for another address", named, gw, "127.0.0.1")
	gw.ServerName = "storage-1"
	f("a server by its name", named, gw, "")
	f("a server of another name", addr, gw, "storage-1")
}

// TestCertificatesAreReadAgain: a new authority on both sides comes into force without a restart, and files that are
// broken leave the old ones in force.
func TestCertificatesAreReadAgain(t *testing.T) {
	first, second := newTestAuthority(t), newTestAuthority(t)
	server, gw := first.files(t, "127.0.0.1"), first.files(t, "gw")
	var log bytes.Buffer
	srv, err := NewServer(Deps{Storage: newMemory(), Log: slog.New(slog.NewTextHandler(&log, nil))}, Settings{TLS: server})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	works := func(tls TLS) error {
		p := dial(t, l.Addr().String(), DialSettings{TLS: tls})
		_, _, err := p.LabelNames(t.Context(), &peer.Select{}, 0)
		return err
	}
	if err := works(gw); err != nil {
		t.Fatal(err)
	}
	touch := func(f TLS, at time.Time) {
		for _, name := range []string{f.CAFile, f.CertFile, f.KeyFile} {
			if err := os.Chtimes(name, at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(server.KeyFile, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	touch(server, time.Now().Add(time.Second))
	if err := works(gw); err != nil {
		t.Errorf("with a broken key file: %v", err)
	}
	second.write(t, server, "127.0.0.1", Identity{RoleStorage, "s1"}.URI())
	touch(server, time.Now().Add(2*time.Second))
	wantKind(t, "a caller of the authority before", works(gw), fault.Unavailable)
	second.write(t, gw, "gw", Identity{RoleGateway, "g1"}.URI())
	if err := works(gw); err != nil {
		t.Errorf("a caller of the new authority: %v", err)
	}
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"cannot be read", "re-read"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("nothing of %q was logged: %s", want, &log)
		}
	}
}

// TestFilesThatCannotBeReadAreNamedOnce: with a list of revoked certificates the files are looked at four times a second for each peer, and at each handshake. A file that
// was missing for a night made a hundred megabytes of log on each server.
func TestFilesThatCannotBeReadAreNamedOnce(t *testing.T) {
	a := newTestAuthority(t)
	f := a.files(t, "gw")
	f.CRLFile = filepath.Join(t.TempDir(), "ca.crl")
	a.revoke(t, f.CRLFile, 1)
	var log bytes.Buffer
	creds, err := newCredentials(f, "", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	named := func(what string, want int) {
		t.Helper()
		for range 3 {
			closeRevoked(creds)
		}
		if n := strings.Count(log.String(), "cannot be read"); n != want {
			t.Errorf("%s: %d warnings in all, want %d", what, n, want)
		}
	}
	remove := func(name string) (back func()) {
		t.Helper()
		if err := os.Rename(name, name+".away"); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.Rename(name+".away", name); err != nil {
				t.Fatal(err)
			}
		}
	}
	back := remove(f.KeyFile)
	named("without the key", 1)
	certificate := remove(f.CertFile)
	named("without the certificate, too", 2)
	certificate()
	back()
	named("with both", 2)
	remove(f.KeyFile)
	named("without the key again", 3)
}
