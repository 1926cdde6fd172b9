package connect

import (
	"crypto/tls"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestRefusedCertificatesAreNamed: the client of etcd repeats a handshake that failed until its time is over, and the error was: context deadline exceeded.
func TestRefusedCertificatesAreNamed(t *testing.T) {
	member := func(auth tls.ClientAuthType) *httptest.Server {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.EnableHTTP2 = true
		s.TLS = &tls.Config{ClientAuth: auth, MinVersion: tls.VersionTLS12}
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	open, asks := member(tls.NoClientCert), member(tls.RequireAnyClientCert)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: open.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(what string, c Coord, want string) {
		t.Helper()
		err := c.Refusal(t.Context())
		for end := time.Now().Add(processtest.Patience); want != "" && err == nil && time.Now().Before(end); { // a handshake that lasted too long says nothing
			err = c.Refusal(t.Context())
		}
		if want == "" && err != nil || want != "" && (!fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	at := func(s *httptest.Server) string { return "etcds://" + s.Listener.Addr().String() }
	f("both accept", Coord{URL: at(open), CA: ca}, "")
	f("another authority", Coord{URL: at(open)}, "of no authority that this process accepts")
	f("without a certificate", Coord{URL: at(asks), CA: ca}, "does not accept the certificate of this process")
	f("no TLS", Coord{URL: "etcd://127.0.0.1:1"}, "")
	f("no answer", Coord{URL: "etcds://127.0.0.1:1", CA: ca}, "")
}
