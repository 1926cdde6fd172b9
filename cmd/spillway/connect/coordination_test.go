package connect

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestCoordinationURL(t *testing.T) {
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(c Coord, prefix string, endpoints ...string) {
		t.Helper()
		s, tls, err := c.etcd()
		if err != nil || s.Prefix != prefix || !reflect.DeepEqual(s.Endpoints, endpoints) || (tls != nil) != (endpoints[0][:5] == "https") {
			t.Errorf("%s: %+v %v", c.URL, s, err)
		}
		if c.PasswordFile != "" && s.Password != "secret" {
			t.Errorf("password %q", s.Password)
		}
	}
	f(Coord{URL: "etcd://a:1,b:2"}, "", "http://a:1", "http://b:2")
	f(Coord{URL: "etcd://a"}, "", "http://a:2379")
	f(Coord{URL: "etcd://[::1]:5/prod/metrics/", Username: "u", PasswordFile: password}, "prod/metrics", "http://[::1]:5")
	f(Coord{URL: "etcds://a:1"}, "", "https://a:1")
	refuse := func(c Coord) {
		t.Helper()
		if _, _, err := c.etcd(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	refuse(Coord{})
	refuse(Coord{URL: "zk://a:1"})
	refuse(Coord{URL: "a:2379"})
	refuse(Coord{URL: "etcd://"})
	refuse(Coord{URL: "etcd://a:1", CA: "ca.pem"})
	refuse(Coord{URL: "etcds://a:1", Cert: "cert.pem"})
	refuse(Coord{URL: "etcds://a:1", CA: password})
	refuse(Coord{URL: "etcd://a:1", PasswordFile: "/nowhere"})
}
