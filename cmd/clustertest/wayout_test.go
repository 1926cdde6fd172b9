package clustertest

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterGoesOnWithoutALostDisk: the only server that holds the rows of a partition is lost with its disk. Writes get
// 503 until a person orders to go on with another; then rows are acked again, and queries over the partition warn, also
// when the server comes back with an empty disk.
func TestClusterGoesOnWithoutALostDisk(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, Certs: true, Env: unstaged})
	c.table("burnt", 24*time.Hour, 1)
	c.acks("burnt", "m v=1")
	p := c.partitions("burnt")[0]
	var first topology.ServerID
	c.within(processtest.Patience, "the partition is led", func() bool { first, _ = c.leader(p); return first != "" })
	burnt := c.server(first)
	burnt.Kill()
	c.must(os.RemoveAll(dataDir(t, burnt)))
	to := topology.ServerID("s1")
	if first == to {
		to = "s2"
	}
	c.within(processtest.Patience, "writes are refused", func() bool {
		status, _, err := processtest.PutLine(c.doors[0], "burnt", "m v=2")
		return err == nil && status == http.StatusServiceUnavailable
	})
	out, err := c.try("partition", "force-join", "burnt", "p1", string(to), "--reason=fire")
	if err == nil || !strings.Contains(out, "is lost to readers") || !strings.Contains(out, "--yes") {
		t.Fatalf("without a yes: %v %s", err, out)
	}
	t.Log(out)
	t.Log(c.command("partition", "force-join", "burnt", "p1", string(to), "--reason=fire", "--yes"))
	took := c.acks("burnt", "m v=3")
	warned := func() bool {
		status, body := processtest.AskAt(c.doors[0], "burnt", "m_v", time.Now())
		return status == http.StatusOK && strings.Contains(body, `"3"`) && strings.Contains(body, "rows may be missing for good in partition 1 of table burnt")
	}
	c.within(processtest.Patience, "the answer has the new row, and warns", warned)
	t.Logf("a row is acked %v after the command; queries warn", took.Round(time.Millisecond))
	if list := c.command("partition", "list", "burnt"); !strings.Contains(list, "may be incomplete") {
		t.Errorf("the list does not say so: %s", list)
	}
	if audit := c.command("audit", "--match=force-join"); !strings.Contains(audit, "fire") || !strings.Contains(audit, "done") {
		t.Errorf("the audit does not say so: %s", audit)
	}
	burnt.Line = append(burnt.Line, "--replace-store")
	c.start(burnt) // with another disk
	c.acks("burnt", "m v=3")
	c.within(processtest.Patience, "the answer has the new row, and warns", warned)
	if now, _ := c.waitLeader(p); now != to {
		t.Errorf("%s leads it, not %s", now, to)
	}
}

// TestClusterEndsADropWhoseCommandDied: the command is killed once the table is marked as being dropped. The master ends
// the drop, and the name is used again.
func TestClusterEndsADropWhoseCommandDied(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1})
	c.table("doomed", time.Hour, 2)
	c.acks("doomed", "m v=1")
	// The command waits until servers have released the leases; a paused one does not, so there is time to kill the
	// command.
	p := c.partitions("doomed")[0]
	var first topology.ServerID
	c.within(processtest.Patience, "the partition is led", func() bool { first, _ = c.leader(p); return first != "" })
	c.must(c.server(first).Pause())
	cmd := c.exec("table", "drop", "doomed", "--confirm=doomed", "--reason=test")
	c.must(cmd.Start())
	c.within(processtest.Patience, "the drop has begun", func() bool {
		_, gone := c.view.Tables.Dropped("doomed")
		return gone || c.view.Tables.Dropping("doomed")
	})
	c.must(cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	began := time.Now()
	c.within(processtest.Patience, "the table is dropped", func() bool { _, gone := c.view.Tables.Dropped("doomed"); return gone })
	t.Logf("the drop was ended by the master %v after its command died", time.Since(began).Round(time.Millisecond))
	c.acks("doomed", fmt.Sprintf("m v=2 %d", time.Now().UnixMilli())) // with a time: it may be sent more than once
	c.within(processtest.Patience, "only the new row is there", func() bool {
		status, body := processtest.AskAt(c.doors[0], "doomed", "count_over_time(m_v[1h])", time.Now())
		return status == http.StatusOK && strings.Contains(body, `"1"]`)
	})
}

// TestClusterGoesByTheNewestMapAgain: the coordination store is restored from a backup with only the first of three
// partitions. Nothing is deleted or written by the old map; `table repair` explains its effect, and then every acked row
// is read and rows are acked.
func TestClusterGoesByTheNewestMapAgain(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, Certs: true})
	c.table("old", time.Hour, 1)
	at := func(hour int) string {
		return fmt.Sprintf("m,h=%d v=%d %d", hour, hour, time.Now().Add(-time.Duration(hour)*time.Hour).UnixMilli())
	}
	c.acks("old", at(1))
	c.atLeaders("old") // before that it is in no map
	key := mapstore.Key("old")
	backup, ok, err := c.view.Coord.Get(t.Context(), key)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	c.acks("old", at(2))
	c.acks("old", at(3))
	whole := func() bool {
		status, body := processtest.AskAt(c.doors[0], "old", "sum(last_over_time(m_v[5h]))", time.Now())
		return status == http.StatusOK && strings.Contains(body, `"6"]`)
	}
	c.within(processtest.Patience, "all rows are read", whole)
	c.atLeaders("old") // staged rows would be read without a partition
	everyone := append(slices.Clone(c.Gateways), c.Storage...)
	for _, p := range everyone {
		p.Kill()
	}
	for _, g := range c.Gateways { // a gateway elsewhere, which has no map on its disk
		c.must(os.RemoveAll(dataDir(t, g)))
	}
	c.commit(coord.Write{Key: key, Value: backup.Value})
	c.start(c.Storage...)
	c.start(c.Gateways...)
	if whole() {
		t.Fatal("the old map has all partitions")
	}
	status, text, err := processtest.PutLine(c.doors[0], "old", at(4))
	t.Logf("before the repair a row is answered %d %s %v", status, text, err)
	if status == http.StatusNoContent {
		t.Error("a row was acked by a map that is not the newest")
	}
	out, err := c.try("table", "repair", "old", "--reason=restored")
	if err == nil || !strings.Contains(out, "--yes") || !strings.Contains(out, "as old as the backup") {
		t.Fatalf("without a yes: %v %s", err, out)
	}
	t.Log(out)
	t.Log(c.command("table", "repair", "old", "--reason=restored", "--yes"))
	began := time.Now()
	c.within(processtest.Patience, "all rows are read again", whole)
	t.Logf("all rows are read %v after the repair", time.Since(began).Round(time.Millisecond))
	c.acks("old", at(4))
	t.Log(c.command("table", "repair", "old", "--reason=again", "--yes"))
}

func dataDir(t *testing.T, p *processes.Process) string {
	t.Helper()
	for _, arg := range p.Line {
		if dir, ok := strings.CutPrefix(arg, "--data-dir="); ok {
			return dir
		}
	}
	t.Fatalf("where is the disk? %q", p.Line)
	return ""
}

// exec makes a command for people, with the flags of the cluster.
func (c *crowd) exec(args ...string) *exec.Cmd {
	args = append(args, "--servers="+strings.Join(c.Peers, ","))
	if c.peer.Insecure {
		args = append(args, "--dev.insecure-peers")
	} else {
		dir := filepath.Dir(c.peer.CA)
		args = append(args, "--peer.tls.ca="+c.peer.CA, "--peer.tls.cert="+filepath.Join(dir, "ops.crt"), "--peer.tls.key="+filepath.Join(dir, "ops.key"))
	}
	return exec.CommandContext(c.t.Context(), c.Storage[0].Line[0], args...)
}

// try runs a command for people, which may fail, and returns its output.
func (c *crowd) try(args ...string) (string, error) {
	out, err := c.exec(args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}
