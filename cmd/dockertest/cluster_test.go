//go:build docker

package dockertest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

const clusterFile = "docker/cluster.yaml"

var commandOfFile = regexp.MustCompile(`(?m)^# +(docker compose .*? up --build)\b`)

// TestTheClusterGoesOnWithoutAStorageServer starts cluster.yaml as its first lines say, and kills the server that leads.
func TestTheClusterGoesOnWithoutAStorageServer(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", clusterFile))
	check(t, err)
	line := commandOfFile.FindSubmatch(text)
	if line == nil {
		t.Fatalf("%s does not say how it is started", clusterFile)
	}
	p := newProject(t, clusterFile)
	if !slices.Contains(p.runs, "etcd") {
		t.Skip("there is no etcd, the reason stands above")
	}
	up := p.foreground(string(line[1]))
	eventually(t, func() error {
		if err := up.runs(); err != nil {
			t.Fatal(err)
		}
		if p.compose("ps", "--quiet", "g2") == "" {
			return fmt.Errorf("g2 is not started yet")
		}
		return nil
	})
	p.healthy("s1", "s2", "s3", "g1", "g2")

	g1, g2 := api{url: "http://127.0.0.1:8428"}, api{url: "http://127.0.0.1:8438"}
	check(t, g1.write(row))
	check(t, g2.has(query, "42"))
	leader := p.inSync(3)
	if slices.Contains(p.runs, "prometheus") {
		prometheus := api{url: "http://127.0.0.1:9090"}
		eventually(t, func() error { return prometheus.watched(7) })
		eventually(t, func() error { return g2.has(`count(up == 1)`, "7") })
	}

	p.compose("kill", leader)                                              // it is not started again: that is for processes that end by themselves
	eventually(t, func() error { return g1.write("cpu,host=b usage=43") }) // senders repeat a 503
	eventually(t, func() error { return g2.write("cpu,host=c usage=44") })
	for _, g := range []api{g1, g2} {
		eventually(t, func() error { return g.has("sum("+query+")", "129") })
	}

	p.compose("start", leader)
	p.healthy(leader)
	p.inSync(3)
	eventually(t, func() error { return g2.has("sum("+query+")", "129") })
	p.killed("g1")
	eventually(t, func() error { return g1.has("sum("+query+")", "129") })
	up.end(p)
	p.stopped("after stop")
}

// partition is a line of `spillway partition list -o json`.
type partition struct {
	Partition uint64
	Leader    string
	InSync    []string `json:"in_sync"`
}

// partitions lists those of the table default by the program in a gateway's container.
func (p *project) partitions() (all []partition, err error) {
	out, err := try(p.dir, "docker", "compose", "--file="+p.file, "exec", "-T", "g1", "/spillway", "partition", "list", "default", "--output=json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return all, nil
}

// inSync waits until every partition with a leader has so many copies in sync, and returns a leader.
func (p *project) inSync(copies int) (leader string) {
	p.t.Helper()
	eventually(p.t, func() error {
		all, err := p.partitions()
		if err != nil {
			return err
		}
		for _, x := range all {
			if x.Leader == "" {
				continue
			}
			if leader = x.Leader; len(x.InSync) != copies {
				return fmt.Errorf("copies in sync of partition p%d: %v, want %d", x.Partition, x.InSync, copies)
			}
		}
		if leader == "" {
			return fmt.Errorf("no partition of %+v has a leader", all)
		}
		return nil
	})
	return leader
}
