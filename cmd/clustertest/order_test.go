package clustertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterIsAdministeredThroughAGateway: tables and partitions are shown and changed by --url, with the token of an administrator; a gateway that knows
// no administrators changes nothing in a cluster whose peers show certificates.
func TestClusterIsAdministeredThroughAGateway(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, Certs: true})
	said := func(tokenFile string, args ...string) (string, error) {
		args = append(args, "--url=http://"+c.GatewayAdmin[0], "--timeout=2m")
		if tokenFile != "" {
			args = append(args, "--token-file="+tokenFile)
		}
		out, err := exec.CommandContext(t.Context(), c.Storage[0].Line[0], args...).CombinedOutput()
		return string(out), err
	}
	if out, err := said("", "table", "create", "team"); err == nil || !strings.Contains(out, "http.tokens_file") {
		t.Errorf("a gateway without tokens: %v %s", err, out)
	}
	if out, err := said("", "table", "list"); err != nil || !strings.Contains(out, "REPLICAS") {
		t.Errorf("a gateway without tokens shows no tables: %v %s", err, out)
	}

	dir, known := t.TempDir(), "tokens:\n"
	file := func(name string) string { return filepath.Join(dir, name) }
	for name, may := range map[string]string{"ann": "admin", "bob": "read"} {
		token := access.NewToken()
		text, err := access.Entry(token, access.Token{Name: name, Scopes: []access.Scope{{Tables: []string{"*"}, May: []string{may}}}})
		c.must(err)
		c.must(os.WriteFile(file(name), []byte(token), 0o600))
		known += text
	}
	c.must(os.WriteFile(file("tokens.yml"), []byte(known), 0o600))
	c.must(c.Gateways[0].Stop(t.Context()))
	c.Gateways[0].Line = append(c.Gateways[0].Line, "--tokens.file="+file("tokens.yml"))
	c.must(c.Gateways[0].Start(t.Context()))

	for _, tokenFile := range []string{"", file("bob")} {
		for _, args := range [][]string{{"table", "create", "team"}, {"table", "list"}, {"audit"}} {
			if out, err := said(tokenFile, args...); err == nil {
				t.Errorf("with %q, spillway %s: %s", tokenFile, strings.Join(args, " "), out)
			}
		}
	}
	does := func(want string, args ...string) {
		t.Helper()
		c.within(processtest.Patience, "spillway "+strings.Join(args, " "), func() bool {
			out, err := said(file("ann"), args...)
			if err != nil && (strings.Contains(out, "etcd: list ") || strings.Contains(out, "etcd: read ")) {
				t.Logf("spillway %s: %s", strings.Join(args, " "), out) // a busy etcd was not read in time: nothing was done
				return false
			}
			if err != nil || !strings.Contains(out, want) {
				t.Fatalf("spillway %s: %v, want %q: %s", strings.Join(args, " "), err, want, out)
			}
			return true
		})
	}
	does("table team is made", "table", "create", "team", "--replicas=2", "--partition-width=1h")
	does("team", "table", "list")
	does("retention for ever → 30d", "table", "set", "team", "--retention=30d", "--dry-run")
	c.within(processtest.Patience, "the table is seen", func() bool { _, ok := c.view.Tables.Get("team"); return ok })
	ps := c.cover("team", time.Now().Add(-2*time.Hour), time.Hour, 1)
	p := ps[0]
	name := fmt.Sprint("p", p.ID)
	does("last led by", "partition", "show", "team", name)
	does("is offline", "partition", "offline", "team", name, "--reason=look")
	does("offline by", "partition", "show", "team", name)
	does("is online", "partition", "online", "team", name)
	does("would ", "partition", "split", "team", name, "--at=time-middle", "--dry-run")
	does("would ", "partition", "split", "team", name, "--at=time-middle", "--dry-run", "--output=json")
	for order, want := range map[string][]string{
		"no server":    {"partition", "prohibit", "team", name, "nobody", "--reason=x"},
		"no p99":       {"partition", "show", "team", "p99"},
		"--servers":    {"partition", "move", "team", name, "--to=s1", "--reason=x", "--wait=1s"},
		"--from":       {"partition", "move", "team", name, "--to=s1", "--reason=x"},
		"no table":     {"partition", "merge", "nope", "p1", "p2"},
		"not offline":  {"partition", "online", "team", name},
		"--confirm=te": {"table", "drop", "team"},
		"put back":     {"partition", "restore", "team", name, "--holds=s1", "--reason=x"},
	} {
		if out, err := said(file("ann"), want...); err == nil || !strings.Contains(out, order) {
			t.Errorf("spillway %s: %v, want %q: %s", strings.Join(want, " "), err, order, out)
		}
	}
	does("ann (", "audit", "--match=offline")
	does("partition width", "table", "advise", "team", "--rows-per-second=1000")
	does("set table team", "table", "advise", "team", "--rows-per-second=1000000", "--apply", "--dry-run")
	does("is dropped", "table", "drop", "team", "--confirm=team")
}

// TestClusterAGatewayLosesRowsWhenItIsAsked: the only disk with a partition's rows is gone, and its lease row was deleted. By --url the row is put back
// and the partition goes on without its rows, each only after what would be lost was accepted.
func TestClusterAGatewayLosesRowsWhenItIsAsked(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1}) // two of three metadata servers are left
	c.table("m", 24*time.Hour, 1)
	c.acks("m", "m v=1")
	p := c.partitions("m")[0]
	gone, _ := c.waitLeader(p)
	c.server(gone).Kill()
	c.commit(coord.Write{Key: lease.RowKey(p), Delete: true})
	other := topology.ServerID("s1")
	if gone == other {
		other = "s2"
	}
	said := func(args ...string) (string, error) {
		args = append(args, "--url=http://"+c.GatewayAdmin[0], "--timeout=2m", "--reason=fire")
		out, err := exec.CommandContext(t.Context(), c.Storage[0].Line[0], args...).CombinedOutput()
		return string(out), err
	}
	name := fmt.Sprint("p", p.ID)
	restore := []string{"partition", "restore", "m", name, "--holds=" + string(gone)}
	out, err := said(restore...)
	token := regexp.MustCompile(`--confirm=[0-9a-f]{8}`).FindString(out)
	if err == nil || token == "" {
		t.Fatalf("what would be lost was not said: %v %s", err, out)
	}
	if out, err := said(append(restore, token)...); err != nil || !strings.Contains(out, "may be led again") {
		t.Fatalf("%v %s", err, out)
	}
	join := []string{"partition", "force-join", "m", name, string(other)}
	if out, err := said(join...); err == nil || !strings.Contains(out, "is lost to readers") || !strings.Contains(out, "--yes") {
		t.Fatalf("what would be lost was not said: %v %s", err, out)
	}
	if out, err := said(append(join, "--yes")...); err != nil || !strings.Contains(out, "possibly incomplete") {
		t.Fatalf("%v %s", err, out)
	}
	c.acks("m", "m v=2")
}
