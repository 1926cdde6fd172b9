package process

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/cmd/spillway/credentials"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

func filesOf(dir, host string) rpc.TLS {
	return rpc.TLS{CAFile: filepath.Join(dir, "ca.crt"), CertFile: filepath.Join(dir, host+".crt"), KeyFile: filepath.Join(dir, host+".key")}
}

// TestCertsLetPeersSpeak: two processes need nothing but the command's certificates; those of another authority are
// refused.
func TestCertsLetPeersSpeak(t *testing.T) {
	dir, other := filepath.Join(t.TempDir(), "certs"), t.TempDir()
	ours := credentials.Certs{OutDir: dir, Storage: []string{"s1=127.0.0.1+storage-1"}, Gateways: []string{"gw"}, Admins: []string{"ops"}, Days: 730}
	made, err := ours.Make()
	if err != nil || len(made) != 8 {
		t.Fatal(made, err)
	}
	if _, err := (&credentials.Certs{OutDir: other, Gateways: []string{"gw"}, Days: 730}).Make(); err != nil {
		t.Fatal(err)
	}
	p := open(t)
	srv, err := rpc.NewServer(rpc.Deps{Storage: p.server, Log: p.log}, rpc.Settings{TLS: filesOf(dir, "s1")})
	if err != nil {
		t.Fatal(err)
	}
	addr := serve(t, srv)
	ask := func(addr string, tls rpc.TLS) error {
		to, err := rpc.Dial(addr, rpc.DialSettings{TLS: tls})
		if err != nil {
			return err
		}
		defer to.Close()
		_, err = to.Stats(t.Context(), "default", 1)
		return err
	}
	_, port, _ := net.SplitHostPort(addr)
	if err := ask(addr, filesOf(dir, "gw")); err != nil {
		t.Errorf("with certificates of the same authority: %v", err)
	}
	if err := ask(addr, filesOf(dir, "ops")); err != nil {
		t.Errorf("an admin asks how much there is: %v", err)
	}
	for host, want := range map[string]fault.Kind{"gw": fault.Internal, "ops": fault.Denied, "s1": fault.Denied} {
		to, err := rpc.Dial(addr, rpc.DialSettings{TLS: filesOf(dir, host), Server: "s1"})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = to.LabelNames(t.Context(), &peer.Select{Table: "default"}, 1)
		if (err == nil) != (want == fault.Internal) || err != nil && !fault.Is(err, want) {
			t.Errorf("%s reads: %v", host, err)
		}
		if err := to.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := ask("localhost:"+port, filesOf(dir, "gw")); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "not localhost") {
		t.Errorf("a server whose certificate is for another address: %v", err)
	}
	if err := ask(addr, filesOf(other, "gw")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("with certificates of another authority: %v", err)
	}
	if err := ask(addr, rpc.TLS{Insecure: true}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("in the clear: %v", err)
	}
}
