package clustertest

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// twin returns a process on a copy of a storage server's directory, as it is now, with the same names at other ports.
func (c *crowd) twin(of *processes.Process, name string) *processes.Process {
	c.t.Helper()
	from, to := dataDir(c.t, of), filepath.Join(c.t.TempDir(), name)
	for try := 0; ; try++ { // files come and go under a process
		out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
		if err == nil {
			break
		}
		if c.must(exec.Command("rm", "-rf", to).Run()); try == 20 {
			c.fatal(fmt.Sprintf("copy %s: %v %s", from, err, out))
		}
	}
	p := &processes.Process{Name: name, Env: of.Env}
	for _, arg := range of.Line {
		if key, _, _ := strings.Cut(arg, "="); key == "--peer.listen" || key == "--admin.listen" {
			addr, err := processes.FreeAddr()
			c.must(err)
			if arg = key + "=" + addr; key == "--admin.listen" {
				p.Ready = "http://" + addr + "/-/ready"
			}
		} else if key == "--data-dir" {
			arg = key + "=" + to
		}
		p.Line = append(p.Line, arg)
	}
	c.t.Cleanup(p.Kill)
	return p
}

// stop ends a process in order.
func (c *crowd) stop(p *processes.Process) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), processtest.Patience)
	defer cancel()
	c.must(p.Stop(ctx))
}

// refuses starts a process, which is to end by itself with words for a person.
func (c *crowd) refuses(p *processes.Process, words ...string) {
	c.t.Helper()
	c.must(p.Launch())
	c.ends(p, words...)
}

func (c *crowd) ends(p *processes.Process, words ...string) {
	c.t.Helper()
	select {
	case <-p.Done():
	case <-time.After(processtest.Patience):
		c.fatal(p.Name + " goes on: " + p.Said())
	}
	for _, w := range words {
		if !strings.Contains(p.Said(), w) {
			c.fatal(fmt.Sprintf("%s does not say %q: %s", p.Name, w, p.Said()))
		}
	}
}

// TestClusterKeepsItsRowsWhereADirectoryWasCopied: a server runs on a directory of which there are copies, with its name and its store's. None of them answers in
// its place without the rows that were acked since, while it runs, after it ended, and after a copy ran.
func TestClusterKeepsItsRowsWhereADirectoryWasCopied(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, Env: unstaged})
	c.table("alone", 24*time.Hour, 1)
	n, at := 0, time.Now().Truncate(time.Second)
	acks := func() {
		t.Helper()
		n++
		c.acks("alone", fmt.Sprintf("m,i=%d v=%d %d", n, n, at.UnixMilli()))
	}
	whole := func(when string) {
		t.Helper()
		want, last := fmt.Sprintf(`"%d"]`, n), ""
		for end := time.Now().Add(processtest.Patience); ; {
			status, text := processtest.AskAt(c.doors[0], "alone", "count(m_v)", at)
			if last = text; status == http.StatusOK {
				if strings.Contains(text, want) {
					return
				}
				c.fatal(fmt.Sprintf("%s, of %d acked rows: %s", when, n, text)) // an answer with fewer is never given
			}
			if time.Now().After(end) {
				c.fatal(when + ": " + last)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	acks()
	var id topology.ServerID
	c.within(processtest.Patience, "the partition is led", func() bool { id, _ = c.leader(c.partitions("alone")[0]); return id != "" })
	first := c.server(id)

	// A copy that was made while it runs, beside it, and once it has ended.
	early := c.twin(first, "early")
	acks()
	c.refuses(early, "runs already", string(id))
	acks()
	whole("beside a copy that was refused")
	c.stop(first)
	c.refuses(early, "older copy of the store", "--replace-store")

	// A copy of the directory as the server left it goes on in its place, with every row; then the directory is the older one.
	late := c.twin(first, "late")
	c.start(late)
	whole("by a copy of all rows")
	acks()
	c.refuses(first, "older copy of the store", "--replace-store")
	whole("beside the directory that was copied")

	// A person starts an empty directory under the name of a server that runs: it ends and says why. Its rows are in its directory, and come back with it.
	c.must(late.Pause())
	empty := c.twin(late, "empty")
	c.must(exec.Command("rm", "-rf", dataDir(t, empty)).Run())
	empty.Line = append(slices.Clone(empty.Line), "--replace-store")
	c.start(empty)
	c.must(late.Resume())
	c.ends(late, "another process was started as server")
	c.stop(empty)
	late.Line = append(slices.Clone(late.Line), "--replace-store")
	c.start(late)
	whole("by the directory that has them")
	acks()
	whole("at the end")
}
