package kafkatest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificates are files in PEM, made for one test.
type Certificates struct {
	CA      string // signed the broker's certificate, and the client's
	OtherCA string // signed neither
	Cert    string // the client's
	Key     string

	server string // certificate and key
}

func newCertificates(t testing.TB) Certificates {
	t.Helper()
	dir := t.TempDir()
	file := func(name string, blocks ...*pem.Block) string {
		var text []byte
		for _, b := range blocks {
			text = append(text, pem.EncodeToMemory(b)...)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca, other := newSigner(t, "ca of the test"), newSigner(t, "another ca")
	serverCert, serverKey := ca.sign(t, "broker")
	clientCert, clientKey := ca.sign(t, "client")
	return Certificates{
		CA: file("ca.pem", certBlock(ca.der)), OtherCA: file("other.pem", certBlock(other.der)),
		Cert: file("client.pem", clientCert), Key: file("client.key", clientKey),
		server: file("server.pem", serverKey, serverCert),
	}
}

func certBlock(der []byte) *pem.Block { return &pem.Block{Type: "CERTIFICATE", Bytes: der} }

// signer is a certificate that signs others.
type signer struct {
	cert *x509.Certificate
	der  []byte
	key  *ecdsa.PrivateKey
}

func newSigner(t testing.TB, name string) *signer {
	t.Helper()
	s := &signer{cert: template(name), key: newKey(t)}
	s.cert.IsCA, s.cert.BasicConstraintsValid, s.cert.KeyUsage = true, true, x509.KeyUsageCertSign
	var err error
	if s.der, err = x509.CreateCertificate(rand.Reader, s.cert, s.cert, &s.key.PublicKey, s.key); err != nil {
		t.Fatal(err)
	}
	return s
}

// sign makes a certificate for 127.0.0.1, good for servers and clients, and its key.
func (s *signer) sign(t testing.TB, name string) (cert, key *pem.Block) {
	t.Helper()
	k, c := newKey(t), template(name)
	c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	c.KeyUsage = x509.KeyUsageDigitalSignature
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, c, s.cert, &k.PublicKey, s.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return certBlock(der), &pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
