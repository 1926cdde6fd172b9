package rpc

import (
	"crypto/x509"
	"encoding/pem"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// expires returns when the certificate ends, or an authority that all certificates may depend on, whichever is first. Errors: Invalid.
func (t *TLS) expires() (time.Time, error) {
	pair, authorities, err := t.read()
	if err != nil {
		return time.Time{}, err
	}
	// While an authority is replaced the file holds the old one and the new one: the last to end counts.
	var last time.Time
	for block, rest := pem.Decode(authorities); block != nil; block, rest = pem.Decode(rest) {
		ca, err := x509.ParseCertificate(block.Bytes)
		if err == nil && ca.NotAfter.After(last) {
			last = ca.NotAfter
		}
	}
	if own := pair.Leaf.NotAfter; last.IsZero() || own.Before(last) {
		return own, nil
	}
	return last, nil
}

// RegisterExpiry registers when the certificate for peers expires. The files are read at each scrape: the next handshake goes by them. Files that cannot be read change
// nothing, as they do not for handshakes.
func RegisterExpiry(r prometheus.Registerer, t TLS) {
	var shown atomic.Int64
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_rpc_certificate_expiry_timestamp_seconds",
		Help: "When the certificate for peers expires, or its authority, if that is sooner; 0 without TLS."}, func() float64 {
		if t.Insecure {
			return 0
		}
		if at, err := t.expires(); err == nil {
			shown.Store(at.Unix())
		}
		return float64(shown.Load())
	}))
}
