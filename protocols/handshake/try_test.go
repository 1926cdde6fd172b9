package handshake

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestAServerWithoutATurnRefusesNoCertificate: a server that has too many handshakes, as all have when a cluster starts, answers with an alert. It was reported as a refusal of
// the certificate, and kept servers out of the cluster.
func TestAServerWithoutATurnRefusesNoCertificate(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	busy := tls.NewListener(ln, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return nil, fault.Errorf(fault.Throttled, "too many handshakes")
	}})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for c, err := busy.Accept(); err == nil; c, err = busy.Accept() {
			_ = c.(*tls.Conn).Handshake()
			_ = c.Close()
		}
	}()
	defer func() { _ = busy.Close(); <-done }()
	if err := Try(t.Context(), ln.Addr().String(), &tls.Config{MinVersion: tls.VersionTLS13}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v, want Unavailable", err)
	}
}
