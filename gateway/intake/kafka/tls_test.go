package kafka

import (
	"crypto/tls"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestBrokersAreReadByTLSAndOnlyWithACertificateThatIsTrusted: connections to brokers are ours, and their encryption, too. The certificate has to be for the host of the broker's address,
// or for server_name.
func TestBrokersAreReadByTLSAndOnlyWithACertificateThatIsTrusted(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(nil) // has a certificate for 127.0.0.1 and example.com
	t.Cleanup(web.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		tls  TLS
		read bool
	}{
		{"the host of its address", TLS{Enabled: true, CAFile: ca}, true},
		{"server_name", TLS{Enabled: true, CAFile: ca, ServerName: "example.com"}, true},
		{"another server_name", TLS{Enabled: true, CAFile: ca, ServerName: "elsewhere.test"}, false},
		{"an authority that is not trusted", TLS{Enabled: true}, false},
		{"no check", TLS{Enabled: true, InsecureSkipVerify: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMemory()
			w := newWorldBy(t, []kgo.Opt{kgo.DialTLSConfig(&tls.Config{InsecureSkipVerify: true})}, kfake.TLS(&tls.Config{Certificates: web.TLS.Certificates}))
			w.produce("metrics", 0, line("m", 1))
			r := w.start(m, func(s *Settings) { s.Clusters[0].TLS = c.tls })
			if c.read {
				eventually(t, "the record is read", func() (bool, any) { n := m.table("default").count(); return n == 1, n })
				return
			}
			eventually(t, "the broker is refused", func() (bool, any) {
				s := r.Status().Clusters[0]
				return strings.Contains(s.LastError, "certificate"), s
			})
			if n := m.table("default").count(); n != 0 {
				t.Errorf("%d rows of a broker that is not trusted", n)
			}
		})
	}
}
