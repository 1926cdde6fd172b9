package rival

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// Cluster is the name of a server that is a cluster of spillway's on this machine. Its peers speak in the clear, as its one process does with its clients.
const Cluster = "spillway-cluster"

// Sizes of a Cluster, and how long it may need to start and to end.
const (
	clusterEtcd, clusterStorage, clusterGateways = 1, 3, 2

	clusterMemory = "1GiB" // of each process: they share a machine
	clusterStart  = 2 * time.Minute
	clusterStop   = time.Minute
)

// startCluster starts a cluster with its data in dir, of the program spillway and of etcd beside it. Clients ask its first gateway. The processes get the
// product's variables of this one, as a single process does.
func startCluster(name, spillway, dir string, keep bool) (*Server, error) {
	spillway, err := filepath.Abs(spillway)
	if err != nil {
		return nil, err
	}
	for _, bin := range []string{spillway, filepath.Join(filepath.Dir(spillway), "etcd")} {
		if _, err := exec.LookPath(bin); err != nil {
			return nil, ErrNotInstalled
		}
	}
	quiet := []string{"--log.level=warn"}
	c, err := processes.Layout(processes.Plan{
		Bin: spillway, Dir: dir, Etcd: clusterEtcd, Storage: clusterStorage, Gateways: clusterGateways, Memory: clusterMemory,
		StorageArgs: quiet, GatewayArgs: quiet, Env: settings(),
	})
	if err != nil {
		return nil, err
	}
	t := &Server{Name: name, URL: "http://" + c.HTTP[0], Admin: "http://" + c.GatewayAdmin[0], dir: dir, keep: keep, cluster: c}
	ctx, cancel := context.WithTimeout(context.Background(), clusterStart)
	defer cancel()
	if err := c.Start(ctx); err != nil {
		t.Stop()
		return nil, err
	}
	for _, p := range c.All() {
		t.pids = append(t.pids, p.PID())
	}
	return t, nil
}

// settings are the product's variables of this process.
func settings() (out []string) {
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "SPILLWAY_") {
			out = append(out, v)
		}
	}
	return out
}

func (t *Server) stopCluster() {
	ctx, cancel := context.WithTimeout(context.Background(), clusterStop)
	defer cancel()
	if t.cluster.Stop(ctx) != nil {
		t.cluster.Kill()
	}
}
