package clustertest

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/credentials"
)

// TestClusterObeysAdministratorsAlone: a stolen certificate of a gateway or a storage server drains nothing, etcd accepts
// its own users only, and a revoked certificate opens nothing, while everything else goes on.
func TestClusterObeysAdministratorsAlone(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 3, Storage: 1, Gateways: 2, Certs: true})
	dir := filepath.Dir(c.peer.CA)
	run := func(cert string, args ...string) (string, error) {
		args = append(args, "--servers="+strings.Join(c.Peers, ","), "--timeout=2m", "--peer.tls.ca="+c.peer.CA,
			"--peer.tls.cert="+filepath.Join(dir, cert+".crt"), "--peer.tls.key="+filepath.Join(dir, cert+".key"))
		for end := time.Now().Add(processtest.Patience); ; {
			out, err := exec.CommandContext(t.Context(), c.Storage[0].Line[0], args...).CombinedOutput()
			if err == nil || !late(string(out)) || time.Now().After(end) {
				return string(out), err
			}
		}
	}
	drain := []string{"server", "drain", "s1", "--reason=test"}
	for _, cert := range []string{"g1", "s1"} {
		if out, err := run(cert, drain...); err == nil || !strings.Contains(out, `only "admin"`) {
			t.Errorf("%s drains a server: %v %s", cert, err, out)
		}
	}
	if out, err := run("ops", drain...); err != nil {
		t.Errorf("an administrator: %v %s", err, out)
	}
	if out, err := run("ops", "server", "undrain", "s1"); err != nil {
		t.Errorf("an administrator: %v %s", err, out)
	}
	direct := exec.CommandContext(t.Context(), c.Storage[0].Line[0], "server", "undrain", "s1", "--coord="+c.Coord, "--timeout=5s", "--dev.insecure-peers",
		"--coord.ca="+filepath.Join(dir, "etcd-ca.crt"), "--coord.cert="+filepath.Join(dir, "g1.crt"), "--coord.key="+filepath.Join(dir, "g1.key"))
	if out, err := direct.CombinedOutput(); err == nil {
		t.Errorf("etcd takes a gateway's certificate: %s", out)
	}

	// The server restarts with a list of revoked certificates; one of the gateways is added later.
	_, err := (&credentials.Certs{OutDir: dir, Gateways: []string{"lost"}, Days: 1}).Make()
	c.must(err)
	c.must((&credentials.Certs{OutDir: dir, Revoke: []string{"lost"}}).Run())
	c.must(c.Storage[0].Stop(t.Context()))
	c.Storage[0].Line = append(c.Storage[0].Line, "--peer.tls.crl="+filepath.Join(dir, "ca.crl"))
	c.must(c.Storage[0].Start(t.Context()))
	write := func(door int) bool {
		status, _, err := c.doors[door].Do(http.MethodPost, "/write?db=default", nil, []byte("revoked value=1\n"))
		return err == nil && status == http.StatusNoContent
	}
	c.within(processtest.Patience, "both gateways write", func() bool { return write(0) && write(1) })
	c.must((&credentials.Certs{OutDir: dir, Revoke: []string{"g2"}}).Run())
	c.within(processtest.Patience, "the revoked gateway writes no more", func() bool { return !write(1) })
	c.within(processtest.Patience, "the other one writes", func() bool { return write(0) })
}
