package credentials

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
)

// TestRevokedCertificatesStayRevoked: the list grows, and is signed by the authority.
func TestRevokedCertificatesStayRevoked(t *testing.T) {
	dir := t.TempDir()
	if _, err := (&Certs{OutDir: dir, Storage: []string{"s1"}, Gateways: []string{"g1", "g2"}, Days: 30}).Make(); err != nil {
		t.Fatal(err)
	}
	read := func() *x509.RevocationList {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, "ca.crl"))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	for i, name := range []string{"g1", "g2"} {
		if err := (&Certs{OutDir: dir, Revoke: []string{name}, Days: 30}).Run(); err != nil {
			t.Fatal(err)
		}
		if list := read(); len(list.RevokedCertificateEntries) != i+1 || list.Number.Int64() != int64(i+1) {
			t.Fatalf("after %s: %d certificates, number %v", name, len(list.RevokedCertificateEntries), list.Number)
		}
	}
	if err := (&Certs{OutDir: dir, Revoke: []string{"g3"}}).Run(); err == nil {
		t.Error("a certificate that was never made is revoked")
	}
}

// TestEtcdHasAnAuthorityOfItsOwn: a process of Spillway is no user of etcd, and a user of etcd no process of Spillway.
func TestEtcdHasAnAuthorityOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	made, err := (&Certs{OutDir: dir, Storage: []string{"root"}, Etcd: []string{"m1=127.0.0.1"}, Users: []string{"spillway"}, Days: 30}).Make()
	if err != nil || len(made) != 2*6 {
		t.Fatal(made, err)
	}
	read := func(name string) *x509.Certificate {
		t.Helper()
		der, err := readPEM(filepath.Join(dir, name+".crt"), "CERTIFICATE")
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	ours, etcds := read("ca"), read("etcd-ca")
	for _, name := range []string{"etcd-m1", "etcd-user-root", "etcd-user-spillway"} {
		c := read(name)
		if c.CheckSignatureFrom(etcds) != nil || c.CheckSignatureFrom(ours) == nil || len(c.URIs) != 0 {
			t.Errorf("%s: %v %v", name, c.Issuer, c.URIs)
		}
	}
	if c := read("root"); c.CheckSignatureFrom(ours) != nil || c.CheckSignatureFrom(etcds) == nil {
		t.Errorf("the server called root: %v", c.Issuer)
	}
}
