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
	"github.com/spillwaydb/spillway/metadata/lease"
)

// ontoSmallDisk moves the directory of a stopped storage server onto a separate small disk.
func (c *crowd) ontoSmallDisk(p *processes.Process, bytes int) *processtest.SmallDisk {
	c.t.Helper()
	dir := ""
	for _, arg := range p.Line {
		if at, ok := strings.CutPrefix(arg, "--data-dir="); ok {
			dir = at
		}
	}
	kept := filepath.Join(c.t.TempDir(), "kept")
	c.must(os.Rename(dir, kept))
	c.must(os.Mkdir(dir, 0o700))
	disk := processtest.NewSmallDisk(c.t, dir, bytes)
	if out, err := exec.Command("cp", "-a", kept+"/.", disk.Dir).CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	p.In = disk.In
	return disk
}

// TestClusterServerWithAFullDiskIsRead starts a storage server without a free byte: it leads its partitions with rows,
// all are read, writes there are refused with the reason, its partitions without rows are moved to a server
// that accepts writes, and all is normal again when there is room.
func TestClusterServerWithAFullDiskIsRead(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: unstaged})
	all, rows, written := c.single(60)
	mine, empty := rows["s1"], without(c.led(all, "s1"), rows["s1"])
	s1 := c.server("s1")
	again := func(what string, do func()) {
		t.Helper()
		s1.Kill()
		before := c.leases(mine)
		do()
		began := time.Now()
		c.start(s1)
		c.within(processtest.Patience, what+": it leads in a new epoch what it has rows of", func() bool {
			now := c.leases(mine)
			return !slices.ContainsFunc(mine, func(p lease.Partition) bool { return now[p].epoch <= before[p].epoch || now[p].server != "s1" })
		})
		t.Logf("%s: led %v after the start", what, time.Since(began).Round(time.Millisecond))
		c.holdsOnce("single", written)
	}
	var disk *processtest.SmallDisk
	again("on a small disk", func() { disk = c.ontoSmallDisk(s1, 64<<20) })
	before := ""
	again("on a full disk", func() {
		disk.FillUp(t)
		before = processtest.TreeOf(t, disk.Dir)
	})
	m, _ := c.view.Tables.Get("single")
	row := func(p lease.Partition) (int, string) {
		at, _ := m.ByID(p.ID)
		status, text, err := processtest.PutLine(c.doors[0], "single", fmt.Sprintf("m,i=late v=1 %d", int64(at.TimeLo)/int64(time.Millisecond)+77))
		if err != nil {
			return 0, err.Error()
		}
		return status, string(text)
	}
	c.within(processtest.Patience, "a row of what it leads is refused with the reason", func() bool { // first perhaps because it is not found
		status, text := row(mine[0])
		if status != http.StatusServiceUnavailable {
			t.Fatalf("a row of what it leads was answered %d %s", status, text)
		}
		return strings.Contains(text, "read-only") && strings.Contains(text, "make room")
	})
	c.within(processtest.Patience, "doctor says so", func() bool {
		out, code := c.cli("doctor")
		return code != 0 && strings.Contains(out, "read-only server") && strings.Contains(out, "make room")
	})
	asked := time.Now()
	row(mine[0])
	t.Logf("a row of what it leads, by a heartbeat that says that its disk is full, was answered after %v", time.Since(asked).Round(time.Millisecond))
	c.within(processtest.Patience, "what has no rows is moved away", func() bool { return len(c.led(empty, "s1")) == 0 && len(c.unled(empty)) == 0 })
	c.within(processtest.Patience, "and takes rows elsewhere", func() bool { status, _ := row(empty[0]); return status == http.StatusNoContent })
	c.holdsOnce("single", written)
	if after := processtest.TreeOf(t, disk.Dir); after != before {
		t.Errorf("files were\n%s\nand are\n%s", before, after)
	}

	disk.Clear(t)
	c.within(processtest.Patience, "it takes rows again", func() bool { status, _ := row(mine[0]); return status == http.StatusNoContent })
	c.holdsOnce("single", written)
	c.within(processtest.Patience, "doctor has nothing to say of it", func() bool { out, _ := c.cli("doctor"); return !strings.Contains(out, "read-only server") })
	again("with room", func() {})
}
