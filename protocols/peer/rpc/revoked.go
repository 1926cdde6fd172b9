package rpc

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// revoked are serial numbers of certificates that the authority has revoked.
type revoked map[string]struct{}

func (r revoked) has(serial *big.Int) bool {
	_, ok := r[serial.String()]
	return ok
}

// A list in PEM is a block of this type, and each block begins so.
const (
	listType    = "X509 CRL"
	blockBegins = "-----BEGIN"
)

// readRevoked reads lists of revoked certificates, each of which must be signed by one of the authorities: while an authority is replaced there are two. An expired list
// counts as well: an authority that is slow to sign a new one must not readmit a revoked certificate. Blocks of other kinds, as
// the certificate of the authority, are passed over. Errors are Invalid.
func readRevoked(file string, authorities []byte) (revoked, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "peer TLS: revoked certificates")
	}
	out := revoked{}
	lists, blocks := 0, 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if blocks++; block.Type != listType {
			continue
		}
		lists++
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "peer TLS: revoked certificates in %s", file)
		}
		if !signedByAny(list, authorities) {
			return nil, fault.Errorf(fault.Invalid, "peer TLS: a list of revoked certificates in %s is not signed by the authority", file)
		}
		for _, e := range list.RevokedCertificateEntries {
			out[e.SerialNumber.String()] = struct{}{}
		}
	}
	switch {
	case bytes.Count(text, []byte(blockBegins)) != blocks: // Decode passes over all that is no whole block
		return nil, fault.Errorf(fault.Invalid, "peer TLS: %s holds a part of a list of revoked certificates, or of another block of PEM; copy it again", file)
	case lists == 0:
		return nil, fault.Errorf(fault.Invalid, "peer TLS: %s holds no list of revoked certificates in PEM", file)
	}
	return out, nil
}

func signedByAny(list *x509.RevocationList, authorities []byte) bool {
	for {
		var block *pem.Block
		if block, authorities = pem.Decode(authorities); block == nil {
			return false
		}
		if ca, err := x509.ParseCertificate(block.Bytes); err == nil && list.CheckSignatureFrom(ca) == nil {
			return true
		}
	}
}

// openConn is a connection that is closed when the other side's certificate is revoked.
type openConn struct {
	net.Conn
	of     *certificates
	serial *big.Int
}

// Close implements net.Conn.
func (o *openConn) Close() error {
	o.of.mu.Lock()
	delete(o.of.mu.open, o)
	o.of.mu.Unlock()
	return o.Conn.Close()
}

// admit refuses a connection with a revoked certificate on the other side, and registers the others. Errors are Denied.
func (c *certificates) admit(conn net.Conn, info credentials.AuthInfo) (net.Conn, credentials.AuthInfo, error) {
	t, ok := info.(credentials.TLSInfo)
	if c.settings.CRLFile == "" || !ok || len(t.State.PeerCertificates) == 0 {
		return conn, info, nil
	}
	cert := t.State.PeerCertificates[0]
	o := &openConn{conn, c, cert.SerialNumber}
	c.mu.Lock()
	refused := c.mu.revoked.has(cert.SerialNumber)
	if !refused {
		c.mu.open[o] = struct{}{}
	}
	c.mu.Unlock()
	if refused {
		_ = conn.Close()
		return nil, nil, fault.Errorf(fault.Denied, "the certificate of %q at %s is revoked", cert.Subject.CommonName, conn.RemoteAddr())
	}
	return o, info, nil
}

// closeRevoked checks the files again and closes the connections of certificates that were revoked since.
func closeRevoked(creds credentials.TransportCredentials) {
	c, ok := creds.(*certificates)
	if !ok || c.settings.CRLFile == "" {
		return
	}
	var gone []*openConn
	c.mu.Lock()
	c.refreshLocked()
	for o := range c.mu.open {
		if c.mu.revoked.has(o.serial) {
			gone = append(gone, o)
		}
	}
	c.mu.Unlock()
	for _, o := range gone {
		c.log.Warn("connection closed, its certificate is revoked", "peer", o.RemoteAddr().String())
		_ = o.Close()
	}
}

// revokedEvery is how often a server checks for revoked certificates.
const revokedEvery = time.Second

// watchRevoked closes connections of revoked certificates until the server stops.
func (s *Server) watchRevoked() {
	t := time.NewTicker(revokedEvery)
	defer t.Stop()
	for {
		select {
		case <-s.stopping:
			return
		case <-t.C:
			closeRevoked(s.creds)
		}
	}
}
