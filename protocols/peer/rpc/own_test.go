package rpc

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestOwnCertificatesAreVerifiedAtTheStart: a server with a certificate that no other accepts opened its store, registered, and got partitions.
func TestOwnCertificatesAreVerifiedAtTheStart(t *testing.T) {
	a, other := newTestAuthority(t), newTestAuthority(t)
	f := func(what string, tls TLS, now time.Time, kind fault.Kind, want string) {
		t.Helper()
		err := tls.Check(now)
		if want == "" && err != nil || want != "" && (!fault.Is(err, kind) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %v and %q", what, err, kind, want)
		}
	}
	ours, theirs := a.files(t, "s1"), other.files(t, "s1")
	now := time.Now()
	f("ours", ours, now, 0, "")
	f("without TLS", TLS{Insecure: true}, now, 0, "")
	f("before it begins", ours, now.AddDate(0, 0, -1), fault.Unavailable, "set the clock")
	f("after it ended", ours, now.AddDate(0, 0, 1), fault.Unavailable, "renew it")
	f("of another authority", TLS{CAFile: ours.CAFile, CertFile: theirs.CertFile, KeyFile: theirs.KeyFile}, now, fault.Invalid, "is not of the authority in")
	f("the key of another", TLS{CAFile: ours.CAFile, CertFile: ours.CertFile, KeyFile: theirs.KeyFile}, now, fault.Invalid, "does not match")
	f("no files", TLS{}, now, fault.Invalid, "spillway certs")
	revoked := ours
	revoked.CRLFile = filepath.Join(t.TempDir(), "ca.crl")
	a.revoke(t, revoked.CRLFile, 1, ours.CertFile)
	f("revoked", revoked, now, fault.Unavailable, "is revoked")
	a.revoke(t, revoked.CRLFile, 2, a.files(t, "s3").CertFile)
	f("another is revoked", revoked, now, 0, "")
	of := ours
	of.Own = Identity{RoleStorage, "s2"}
	f("of another server", of, now, fault.Invalid, "not for storage/s2")
}

func TestTryReportsRefusals(t *testing.T) {
	a, other := newTestAuthority(t), newTestAuthority(t)
	addr, _ := serve(t, newMemory(), Settings{TLS: a.files(t, "127.0.0.1")})
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}
	f := func(what, addr string, tls TLS, kind fault.Kind, want string) {
		t.Helper()
		err := tls.Try(t.Context(), addr)
		if want == "" && err != nil || want != "" && (!fault.Is(err, kind) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %v and %q", what, err, kind, want)
		}
	}
	ours, theirs := a.files(t, "gw"), other.files(t, "gw")
	f("both accept", addr, ours, 0, "")
	f("we refuse", addr, theirs, fault.Denied, "of no authority that this process accepts")
	f("they refuse", addr, TLS{CAFile: ours.CAFile, CertFile: theirs.CertFile, KeyFile: theirs.KeyFile}, fault.Denied, "does not accept the certificate of this process")
	f("nobody listens", silent.Addr().String(), ours, fault.Unavailable, "connection refused")
	f("in the clear", addr, TLS{Insecure: true}, 0, "")
}
