package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// The cluster of an overload: its processes share the machine, or the processors of -server-cpus.
const (
	clusterStorage  = 3
	clusterGateways = 2
)

// clusterOverload offers two gateways and three storage servers three times the load that they accept. It judges each process's memory and health, and
// that no row is staged: a leader that is slow is not away.
func clusterOverload(ctx context.Context, o options, k attack) (hurt int, err error) {
	t, err := startCluster(ctx, o)
	if err != nil {
		return 0, err
	}
	defer t.end()
	a := newAttacker(t, k, o)
	watching, stop := context.WithCancel(ctx)
	watch := make([]watched, len(t.pages))
	var wg sync.WaitGroup
	for i, url := range t.pages {
		wg.Go(func() { every(watching, healthEvery, func() { watch[i].ask(watching, t.client, url) }) })
	}
	for _, p := range t.all {
		(&target{p: p}).resetPeak()
	}
	a.attack(ctx)
	stop()
	wg.Wait()
	var staged float64
	for i, p := range t.all {
		if p.Line[0] != o.bin { // etcd has no budget of ours
			continue
		}
		one := &target{p: p, memory: t.memory}
		if !one.alive() {
			said := p.Said()
			a.blame(fmt.Sprintf("%s ended: …%s", p.Name, said[max(0, len(said)-600):]))
			continue
		}
		w := &watch[i]
		peak := float64(one.peak())
		a.note += fmt.Sprintf("\n    %s: peak %.0f MB (%.0f %%), health %s at most, %d answers",
			p.Name, peak/1e6, 100*peak/float64(t.memory), ms(w.most), w.n)
		if peak > peakOver*float64(t.memory) {
			a.blame(fmt.Sprintf("%s: peak memory is %.0f MB", p.Name, peak/1e6))
		}
		if w.wrong != "" || w.most > o.healthMost() {
			a.blame(fmt.Sprintf("%s: health took %s at most: %s", p.Name, ms(w.most), w.wrong))
		}
		if !slices.Contains(t.staging, t.pages[i]) {
			continue
		}
		n, err := (&target{addr: strings.TrimPrefix(t.pages[i], "http://"), client: t.client}).metric(ctx, "spillway_staging_rows_total")
		if err != nil {
			a.blame(err.Error())
		}
		staged += n
	}
	if staged > 0 {
		a.blame(fmt.Sprintf("%.0f rows were staged, counted at each holder", staged))
	}
	fmt.Printf("%-34s %-38s %s\n", k.name, a.answers(), a.note)
	for _, w := range a.wrong {
		fmt.Println("    HURT: " + w)
	}
	return min(len(a.wrong), 1), nil
}

// startCluster starts the cluster of an overload. The target's own process is the first gateway.
func startCluster(ctx context.Context, o options) (*target, error) {
	t, c, err := startProcesses(ctx, o, processes.Plan{Storage: clusterStorage, Gateways: clusterGateways})
	if err != nil {
		return nil, err
	}
	t.p, t.addr, t.addrs = c.Gateways[0], c.HTTP[0], c.HTTP
	for _, addr := range slices.Concat(c.HTTP, c.Admin) {
		t.pages = append(t.pages, "http://"+addr)
	}
	t.staging = t.pages[len(c.HTTP):]
	return t, nil
}

// startProcesses starts a cluster beside one etcd. The target's own process and address are the caller's to choose.
func startProcesses(ctx context.Context, o options, plan processes.Plan) (*target, *processes.Cluster, error) {
	memory, err := bytesOf(o.memory)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "spillway-attack-")
	if err != nil {
		return nil, nil, err
	}
	plan.Bin, plan.Dir, plan.Etcd, plan.Memory = o.bin, dir, 1, o.memory
	plan.Env = []string{"SPILLWAY_STORAGE_FLUSH_IDLE=1s", "SPILLWAY_STORAGE_FREE_BYTES_MIN=1"}
	c, err := processes.Layout(plan)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	t := &target{dir: dir, memory: memory, client: &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	t.all = slices.Concat(c.Gateways, c.Storage, c.Etcd)
	for _, p := range t.all {
		if o.cpus != "" {
			p.In = []string{"env", "-u", "GOMAXPROCS", "taskset", "-c", o.cpus}
		}
		if o.verbose {
			p.Out = os.Stderr
		}
	}
	starting, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	if err := c.Start(starting); err != nil {
		c.Kill()
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return t, c, nil
}

// watched is what a process answers about its health.
type watched struct {
	n     int
	most  time.Duration
	wrong string // the first answer that was none
}

func (w *watched) ask(ctx context.Context, client *http.Client, url string) {
	one := &target{addr: strings.TrimPrefix(url, "http://"), client: client}
	began := time.Now()
	status, answer, err := one.ask(ctx, http.MethodGet, "/-/healthy", nil, nil)
	if ctx.Err() != nil {
		return
	}
	if w.n++; w.wrong == "" && (err != nil || status != http.StatusOK) {
		w.wrong = fmt.Sprintf("%d %.100s %v", status, answer, err)
	}
	w.most = max(w.most, time.Since(began))
}
