package clustertest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterWritesGoOnBesideADiskThatHangs: fsyncs of the server that leads a quiet table do not return for a minute each, and give no error. Rows are acked elsewhere within seconds, another
// server leads, the copy leaves the list, alert, log and doctor name the disk, and once it is well the copy is back. Nothing acked is lost.
func TestClusterWritesGoOnBesideADiskThatHangs(t *testing.T) {
	needsCluster(t)
	if os.Getenv("CHAOS_FAULTS") == "" {
		t.Skip("no fsync can be made to hang: the program is not that of .ci/faults; `make hang` runs this with it")
	}
	t.Parallel()
	dir := t.TempDir()
	fault := func(name string) string { return filepath.Join(dir, name) }
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, EnvOf: func(name string) []string { return []string{"FAULT_SYNC=" + fault(name)} }})
	alerts := c.watched()
	c.table("copied", 24*time.Hour, 3)
	w := &copiesWriter{c: c, from: time.Now().Add(-time.Hour).Truncate(time.Minute)}
	w.write(20)
	p := c.partitions("copied")[0]
	c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
	alerts.quiet("SpillwayDiskHangs")
	was, epoch := c.waitLeader(p)
	began := time.Now()
	c.must(os.WriteFile(fault("hang"), []byte("1m"), 0o600))
	c.must(os.Rename(fault("hang"), fault(string(was)))) // while it is there without a duration fsyncs fail
	w.write(1)
	t.Logf("the first row is acked %v after the disk of %s hangs, %v staged", time.Since(began).Round(time.Millisecond), was, c.stagedRows())
	c.within(processtest.Patience, "another server leads", func() bool {
		w.write(1)
		s, e := c.leader(p)
		return e > epoch && s != was
	})
	t.Logf("another server leads after %v, %v rows were staged", time.Since(began).Round(time.Millisecond), c.stagedRows())
	c.within(processtest.Patience, "its copy is not waited for", func() bool {
		w.write(1)
		list := c.inSync(p)
		return len(list) == 2 && !slices.Contains(list, was)
	})
	t.Logf("its copy left the list after %v", time.Since(began).Round(time.Millisecond))
	w.check()
	alerts.fires("SpillwayDiskHangs", nil, `instance="`+string(was)+`"`)
	c.within(processtest.Patience, "the log says it", func() bool { return strings.Contains(c.server(was).Said(), "the disk hangs") })
	c.within(processtest.Patience, "the doctor names it", func() bool {
		out, _ := c.cli("doctor")
		return strings.Contains(out, "disk hangs") && strings.Contains(out, string(was))
	})
	for _, s := range c.Storage {
		if s.Name != string(was) && strings.Contains(s.Said(), "the disk hangs") {
			t.Errorf("%s says that its disk hangs", s.Name)
		}
	}

	c.must(os.Remove(fault(string(was))))
	well := time.Now()
	c.within(processtest.Patience, "the copy is back", func() bool { w.write(1); return slices.Contains(c.inSync(p), topology.ServerID(was)) })
	t.Logf("it is back %v after the disk is well", time.Since(well).Round(time.Second))
	alerts.quiet("SpillwayDiskHangs")
	c.within(processtest.Patience, "nothing is staged", func() bool { return c.waiting() == 0 })
	w.check()
}
