package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Expires returns when the certificate ends, or an authority that all certificates may depend on, whichever is first; the zero Time without TLS. Errors: Invalid.
func (t *TLS) Expires() (first time.Time, err error) {
	if t.Insecure {
		return time.Time{}, nil
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return time.Time{}, fault.Wrap(err, fault.Invalid, "peer TLS: certificate %s and key %s", t.CertFile, t.KeyFile)
	}
	first = pair.Leaf.NotAfter
	rest, err := os.ReadFile(t.CAFile)
	if err != nil {
		return time.Time{}, fault.Wrap(err, fault.Invalid, "peer TLS: CA")
	}
	// While an authority is replaced the file holds the old one and the new one: the last to end counts.
	var authority time.Time
	for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		ca, err := x509.ParseCertificate(block.Bytes)
		if err == nil && ca.NotAfter.After(authority) {
			authority = ca.NotAfter
		}
	}
	if !authority.IsZero() && authority.Before(first) {
		first = authority
	}
	return first, nil
}

// RegisterExpiry registers when the certificate for peers expires. The files are read at each scrape: the next handshake goes by them. Files that cannot be read change
// nothing, as they do not for handshakes.
func RegisterExpiry(r prometheus.Registerer, t TLS) {
	var last atomic.Int64
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_rpc_certificate_expiry_timestamp_seconds",
		Help: "When the certificate for peers expires, or its authority, if that is sooner; 0 without TLS."}, func() float64 {
		if at, err := t.Expires(); err == nil && !at.IsZero() {
			last.Store(at.Unix())
		}
		return float64(last.Load())
	}))
}
