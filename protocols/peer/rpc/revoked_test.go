package rpc

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// revoke writes a list of certificates, by the files they lie in.
func (a *testAuthority) revoke(t *testing.T, file string, number int64, certFiles ...string) {
	t.Helper()
	if err := os.WriteFile(file, a.list(t, number, certFiles...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// list makes such a list, in PEM.
func (a *testAuthority) list(t *testing.T, number int64, certFiles ...string) []byte {
	t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(number), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
	for _, name := range certFiles {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{
			SerialNumber: serialIn(t, name), RevocationTime: time.Now(),
		})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

func serialIn(t *testing.T, certFile string) *big.Int {
	t.Helper()
	text, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert.SerialNumber
}

// TestARevokedCertificateOpensNothing: an open connection is closed, a new one refused; others stay.
func TestARevokedCertificateOpensNothing(t *testing.T) {
	a := newTestAuthority(t)
	crl := filepath.Join(t.TempDir(), "ca.crl")
	a.revoke(t, crl, 1)
	server := a.files(t, "127.0.0.1")
	server.CRLFile = crl
	addr, _ := serve(t, newMemory(), Settings{TLS: server})
	stolen := a.filesOf(t, "x", Identity{RoleGateway, "stolen"}.URI())
	thief := dial(t, addr, DialSettings{TLS: stolen})
	honest := dial(t, addr, DialSettings{TLS: a.filesOf(t, "x", Identity{RoleGateway, "honest"}.URI())})
	for _, p := range []*Peer{thief, honest} {
		if _, _, err := p.LabelNames(t.Context(), &peer.Select{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	st, err := thief.OpenStream(t.Context(), "t") // it would live for hours
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	a.revoke(t, crl, 2, stolen.CertFile)
	for { // until the server has checked
		if _, _, err = thief.LabelNames(t.Context(), &peer.Select{}, 0); err != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, _, err := honest.LabelNames(t.Context(), &peer.Select{}, 0); err != nil {
		t.Errorf("the other gateway: %v", err)
	}
	pair, err := tls.LoadX509KeyPair(stolen.CertFile, stolen.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	again, err := tls.Dial("tcp", addr, &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err == nil { // the server checks the certificate after the client is done
		_, err = again.Read(make([]byte, 1))
		again.Close()
	}
	if err == nil {
		t.Error("a revoked certificate opens a new connection")
	}
}

// TestServersOfRevokedCertificatesAreNotCalled: a gateway with the list turns away from the server.
func TestServersOfRevokedCertificatesAreNotCalled(t *testing.T) {
	a := newTestAuthority(t)
	crl := filepath.Join(t.TempDir(), "ca.crl")
	server := a.files(t, "127.0.0.1")
	addr, _ := serve(t, newMemory(), Settings{TLS: server})
	a.revoke(t, crl, 1, server.CertFile)
	own := a.filesOf(t, "x", Identity{RoleGateway, "g1"}.URI())
	own.CRLFile = crl
	p := dial(t, addr, DialSettings{TLS: own})
	if _, _, err := p.LabelNames(t.Context(), &peer.Select{}, 0); err == nil {
		t.Error("a server whose certificate is revoked is called")
	}
}

// TestTheListsOfAllAuthoritiesCount: while an authority is replaced the files hold the old one and the new one, and the lists of both. Only the first list counted, so
// that a certificate that the second revokes opened connections.
func TestTheListsOfAllAuthoritiesCount(t *testing.T) {
	old, next := newTestAuthority(t), newTestAuthority(t)
	own := next.files(t, "127.0.0.1")
	stolen := next.files(t, "gw")
	for _, f := range []TLS{own, stolen} {
		cas := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: old.der}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: next.der})...)
		if err := os.WriteFile(f.CAFile, cas, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own.CRLFile = filepath.Join(t.TempDir(), "ca.crl")
	write := func(lists []byte) {
		t.Helper()
		if err := os.WriteFile(own.CRLFile, lists, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lists := append(old.list(t, 1), next.list(t, 1, stolen.CertFile)...)
	write(lists)
	addr, _ := serve(t, newMemory(), Settings{TLS: own})
	if _, _, err := dial(t, addr, DialSettings{TLS: stolen}).LabelNames(t.Context(), &peer.Select{}, 0); err == nil {
		t.Error("a certificate opens a connection that the second list revokes")
	}
	for what, text := range map[string][]byte{
		"half of a list":       lists[:len(lists)-10],
		"a list of a stranger": append(lists[:len(lists):len(lists)], newTestAuthority(t).list(t, 1)...),
	} {
		write(text)
		if _, err := NewServer(Deps{Storage: newMemory()}, Settings{TLS: own}); !fault.Is(err, fault.Invalid) {
			t.Errorf("a file that ends with %s: %v", what, err)
		}
	}
}

// TestListsOfStrangersAreRefused: only an authority can revoke, and a list that cannot be read does not count as empty.
func TestListsOfStrangersAreRefused(t *testing.T) {
	a, stranger := newTestAuthority(t), newTestAuthority(t)
	f := func(write func(file string)) {
		t.Helper()
		own := a.files(t, "127.0.0.1")
		own.CRLFile = filepath.Join(t.TempDir(), "ca.crl")
		write(own.CRLFile)
		if _, err := NewServer(Deps{Storage: newMemory()}, Settings{TLS: own}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v", err)
		}
	}
	f(func(file string) { stranger.revoke(t, file, 1) })
	f(func(string) {})
	f(func(file string) {
		if err := os.WriteFile(file, []byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
}

// TestACertificateBesideTheListStopsNoStart: a file that had the certificate of the authority, too, was accepted, and then stopped each start.
func TestACertificateBesideTheListStopsNoStart(t *testing.T) {
	a := newTestAuthority(t)
	own, stolen := a.files(t, "127.0.0.1"), a.files(t, "gw")
	own.CRLFile = filepath.Join(t.TempDir(), "ca.crl")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.der})
	list := a.list(t, 1, stolen.CertFile)
	authority, err := os.ReadFile(own.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		text []byte
		ok   bool
	}{
		"before the list":                  {slices.Concat(ca, list), true},
		"behind the list":                  {slices.Concat(list, ca), true},
		"without any list":                 {ca, false},
		"behind half a list":               {slices.Concat(list, list[:len(list)-30], ca), false},
		"and a list cut in its first line": {slices.Concat(ca, list, list[:len("-----BEGIN X509 C")]), false},
	} {
		if err := os.WriteFile(own.CRLFile, c.text, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readRevoked(own.CRLFile, authority)
		if c.ok && (err != nil || !got.has(serialIn(t, stolen.CertFile))) || !c.ok && !fault.Is(err, fault.Invalid) {
			t.Errorf("a certificate %s: %v, %v", what, got, err)
		}
	}
}
