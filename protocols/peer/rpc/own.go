package rpc

import (
	"context"
	"crypto/x509"
	"errors"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/handshake"
)

// Check reads the files as a server and a client do at their start, and verifies the own certificate at now as others will. Errors are Invalid: the
// settings, a file, the role, or a certificate of another authority; and Unavailable: it is revoked, or not valid yet or any more, which ends with a new file or
// when the clock is set.
func (t TLS) Check(now time.Time) error {
	if err := t.validate(); err != nil || t.Insecure {
		return err
	}
	config, list, err := (&certificates{settings: t}).load()
	if err != nil {
		return err
	}
	own := config.Certificates[0]
	if list.has(own.Leaf.SerialNumber) { // others close its connections without a reason
		return fault.Errorf(fault.Unavailable, "peer TLS: certificate %s is revoked in %s: renew it with `spillway certs`", t.CertFile, t.CRLFile)
	}
	between := x509.NewCertPool()
	for _, der := range own.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err = own.Leaf.Verify(x509.VerifyOptions{Roots: config.RootCAs, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if bad := (x509.CertificateInvalidError{}); errors.As(err, &bad) && bad.Reason == x509.Expired {
		return fault.Wrap(err, fault.Unavailable, "peer TLS: no process accepts certificate %s, valid from %s to %s, of the authority in %s: renew it with `spillway certs`, or set the clock",
			t.CertFile, own.Leaf.NotBefore.Format(time.RFC3339), own.Leaf.NotAfter.Format(time.RFC3339), t.CAFile)
	}
	return fault.Wrap(err, fault.Invalid, "peer TLS: certificate %s is not of the authority in %s", t.CertFile, t.CAFile)
}

// Try reports whether this process and the storage server at addr, host:port, accept each other's certificates. It reads the files and waits for the
// server. Without TLS the answer is nil. Errors are Invalid (files), Denied: one of the two refuses the other, and Unavailable: there was no answer.
func (t TLS) Try(ctx context.Context, addr string) error {
	if t.Insecure {
		return nil
	}
	config, _, err := (&certificates{settings: t}).load()
	if err != nil {
		return err
	}
	config.ServerName = t.ServerName // "": the host of the address
	return handshake.Try(ctx, addr, config)
}
