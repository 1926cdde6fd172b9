package process

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/cmd/spillway/connect"
	"github.com/spillwaydb/spillway/cmd/spillway/credentials"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

// authority makes certificates for storage servers s1 and s2 on this host in a directory.
func authority(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "certs")
	if _, err := (&credentials.Certs{OutDir: dir, Storage: []string{"s1=127.0.0.1", "s2=127.0.0.1"}, Days: 1}).Make(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// serve serves until the test ends, and returns the address.
func serve(t *testing.T, srv *rpc.Server) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(srv.Shutdown(context.Background()), <-served); err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// TestServersWithoutAcceptedCertificatesDoNotRegister: a server with certificates of another authority was live by its heartbeats. New partitions were placed on it,
// and lacked a copy.
func TestServersWithoutAcceptedCertificatesDoNotRegister(t *testing.T) {
	dir, other := authority(t), authority(t)
	server := func(id string, tls rpc.TLS) registry.Server {
		t.Helper()
		srv, err := rpc.NewServer(rpc.Deps{Storage: open(t).server}, rpc.Settings{TLS: tls})
		if err != nil {
			t.Fatal(err)
		}
		return registry.Server{ID: topology.ServerID(id), Addr: serve(t, srv)}
	}
	s1, stranger := server("s1", filesOf(dir, "s1")), server("s3", filesOf(other, "s1"))
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := registry.Server{ID: "s4", Addr: gone.Addr().String()}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	f := func(what, id string, tls rpc.TLS, want string, all ...registry.Server) {
		t.Helper()
		err, warning := accepted(t.Context(), tls, topology.ServerID(id), all)
		if want == "" && err != nil || want != "" && (!fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
		if got, refused := warning != nil, strings.Contains(what, "refuses"); err == nil && got != refused {
			t.Errorf("%s: warning %v", what, warning)
		}
	}
	s2 := filesOf(dir, "s2")
	f("the first one", "s2", s2, "")
	f("one accepts", "s2", s2, "", away, s1)
	f("another one is a stranger", "s2", s2, "", stranger, s1)
	f("no other runs", "s2", s2, "", away)
	f("of another authority", "s2", filesOf(other, "s2"), "2 of 3", s1, s1, away)
	mixed := s2
	mixed.CertFile, mixed.KeyFile = filesOf(other, "s2").CertFile, filesOf(other, "s2").KeyFile
	f("its authority is right, its certificate is not", "s2", mixed, "server s1", s1)
	f("without TLS", "s2", rpc.TLS{Insecure: true}, "", s1)

	// After a power cut all start at once, and a server answers only once it is registered. Where one with wrong certificates was the first, no other could register any more.
	self := registry.Server{ID: "s2", Addr: away.Addr}
	f("the stranger that refuses it started first", "s2", s2, "", self, away, stranger)
	f("the one other that refuses it may be wrong, and it has rows", "s2", s2, "", self, stranger)
	f("most of those registered are of another authority", "s2", filesOf(other, "s2"), "2 of 2", self, s1, s1)

	// The certificate of the other server is wrong, and not this one's.
	elsewhere := s2
	elsewhere.ServerName = "elsewhere"
	f("the other shows a certificate for another host", "s2", elsewhere, "", s1)
}

// TestWrongCertificatesEndAStartForGood: the exit code was 1, after the store was opened and the cluster was joined, and the message stood below twenty others.
func TestWrongCertificatesEndAStartForGood(t *testing.T) {
	dir := authority(t)
	files := filesOf(dir, "s1")
	f := func(id, want string) {
		t.Helper()
		set := settings.Config{}
		set.Coord = connect.Coord{URL: "etcd://127.0.0.1:1"}
		set.Peer = connect.Peer{CA: files.CAFile, Cert: files.CertFile, Key: files.KeyFile}
		err := checkWays(&set, rpc.Identity{Role: rpc.RoleStorage, Name: id})
		if want == "" && err != nil || want != "" && (!errors.As(err, new(terminal.UsageError)) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", id, err, want)
		}
	}
	f("s1", "")
	f("s2", "is for storage/s1, not for storage/s2")
}
