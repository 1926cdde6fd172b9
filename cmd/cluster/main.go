package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

func main() {
	var p processes.Plan
	flag.StringVar(&p.Bin, "bin", "bin/spillway", "the built program")
	flag.StringVar(&p.EtcdBin, "etcd-bin", "", "the built cmd/etcd (default: etcd beside the program)")
	flag.StringVar(&p.Dir, "dir", ".cache/cluster", "where data, certificates and logs are; it may be of an earlier run")
	flag.IntVar(&p.Storage, "storage", 3, "how many storage servers")
	flag.IntVar(&p.Gateways, "gateways", 2, "how many gateways")
	flag.IntVar(&p.Etcd, "etcd", 1, "how many etcd members")
	flag.IntVar(&p.Port, "port", 28600, "the first port; the others follow it")
	flag.StringVar(&p.Memory, "memory", "1GiB", "what each storage server and gateway may use")
	insecure := flag.Bool("insecure", false, "peers speak in the clear, without certificates")
	var d demo
	demonstrate := flag.Bool("demo", false, "write a load, and report how the servers carry it; what processes print goes to files in -dir")
	flag.IntVar(&d.rate, "demo-rate", 1500, "rows a second of each of the demo's three tables, of all protocols together")
	flag.StringVar(&d.kafka, "demo-kafka", "", "brokers of a Kafka for the demo, host:port,host:port; it makes the topic "+demoTopic+" there (default: one within this process)")
	flag.Func("env", "a setting of all storage servers and gateways, as a variable: SPILLWAY_TABLES_SPLIT_BYTES=1MiB; may be given again", func(v string) error {
		if !strings.HasPrefix(v, "SPILLWAY_") || !strings.Contains(v, "=") {
			return fmt.Errorf("%q is not SPILLWAY_NAME=value", v)
		}
		p.Env = append(p.Env, v)
		return nil
	})
	flag.Parse()
	p.Certs = !*insecure
	shown := &d
	if !*demonstrate {
		shown = nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, p, shown, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cluster: "+err.Error())
		os.Exit(1)
	}
}

// startTimeout bounds how long the processes may need to serve, stopTimeout to end.
const (
	startTimeout = 90 * time.Second
	stopTimeout  = 30 * time.Second
)

// run starts a cluster, with a load if d is not nil, and returns when ctx is done and all have ended.
func run(ctx context.Context, p processes.Plan, d *demo, out io.Writer) (err error) {
	if p.Storage < 1 || p.Gateways < 1 || p.Etcd < 1 {
		return fmt.Errorf("%d storage servers, %d gateways and %d etcd members: there must be one of each at least", p.Storage, p.Gateways, p.Etcd)
	}
	if p.Dir, err = filepath.Abs(p.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return err
	}
	var mu sync.Mutex
	p.Out = func(name string) io.Writer { return &lines{prefix: fmt.Sprintf("%-8s", name), to: os.Stderr, mu: &mu} }
	if d != nil {
		end, err := d.open(ctx, &p)
		if err != nil {
			return err
		}
		defer end()
	}
	c, err := processes.Layout(p)
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	began := time.Now()
	if err := c.Start(starting); err != nil {
		c.Kill()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if err := os.WriteFile(filepath.Join(p.Dir, "env"), []byte(environment(p, c)), 0o600); err != nil {
		return errors.Join(err, c.Stop(context.Background()))
	}
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format, args...)
	}
	say("%s", describe(p, c, time.Since(began)))
	err = serve(ctx, p, c, d, say)
	fmt.Fprintln(os.Stderr, "stopping all")
	stopping, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if stopped := c.Stop(stopping); err == nil {
		err = stopped
	}
	return err
}

// serve keeps the processes alive, and writes the load if d is not nil, until ctx is done.
func serve(ctx context.Context, p processes.Plan, c *processes.Cluster, d *demo, say func(format string, args ...any)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return supervise(ctx, c, restartAfter, func(format string, args ...any) { say("\n"+format+"\n\n", args...) })
	})
	if d != nil {
		g.Go(func() error { return d.run(ctx, p, c, say) })
	}
	return g.Wait()
}

const (
	// restartAfter is the pause before a process that ended is started again.
	restartAfter = 5 * time.Second
	// A process that ends endsMax times, each within endsSoon of its start, is not started again.
	endsMax, endsSoon = 3, 10 * time.Second
)

// supervise starts processes again, each after a pause, when they end, until ctrl-C. It returns an error when one keeps ending.
func supervise(ctx context.Context, c *processes.Cluster, after time.Duration, say func(format string, args ...any)) error {
	ended := make(chan *processes.Process, len(c.All()))
	watch := func(p *processes.Process) {
		done := p.Done()
		go func() {
			<-done
			ended <- p
		}()
	}
	began, soon := map[*processes.Process]time.Time{}, map[*processes.Process]int{}
	for _, p := range c.All() {
		watch(p)
	}
	for {
		var p *processes.Process
		select {
		case <-ctx.Done():
			return nil
		case p = <-ended:
		}
		if soon[p]++; time.Since(began[p]) > endsSoon {
			soon[p] = 1
		}
		if soon[p] == endsMax {
			return fmt.Errorf("%s ended %d times in a row; its last words stand above", p.Name, endsMax)
		}
		say("%s ended: %v; it starts again in %v", p.Name, p.Ended(), after)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(after):
		}
		began[p] = time.Now()
		starting, cancel := context.WithTimeout(ctx, startTimeout)
		err := p.Start(starting)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			say("%s serves again after %.1f s, as process %d", p.Name, time.Since(began[p]).Seconds(), p.PID())
		}
		watch(p)
	}
}

func describe(p processes.Plan, c *processes.Cluster, took time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nA cluster of %d storage servers, %d gateways and %d etcd members serves after %.1f s. Ctrl-C stops it; data stay in %s\n\n",
		p.Storage, p.Gateways, p.Etcd, took.Seconds(), p.Dir)
	for _, addr := range c.HTTP {
		fmt.Fprintf(&b, "  gateway     http://%s/             status page; Prometheus' API for Grafana\n", addr)
		fmt.Fprintf(&b, "              http://%s/api/v1/write remote write; line protocol: /write?db=default\n", addr)
	}
	for i, addr := range c.Admin {
		fmt.Fprintf(&b, "  storage s%d  http://%s/metrics, /-/ready; kill -9 %d is worth a try\n", i+1, addr, c.Storage[i].PID())
	}
	fmt.Fprintf(&b, "  etcd        --coord=%s %s, for further processes\n\n", c.Coord, strings.Join(p.CoordSecurity(), " "))
	fmt.Fprintf(&b, "  curl 'http://%s/write?db=default' -d 'cpu,host=a usage=0.5'\n", c.HTTP[0])
	fmt.Fprintf(&b, "  curl 'http://%s/api/v1/query?query=cpu_usage'\n\n", c.HTTP[len(c.HTTP)-1])
	more := fmt.Sprint("s", p.Storage+1)
	fmt.Fprintf(&b, "  commands, in another terminal: . %s; then spillway doctor, table list, partition list default, server list, query cpu_usage, backup --to DIR\n", filepath.Join(p.Dir, "env"))
	fmt.Fprintf(&b, "  one more storage server: %s storage --id=%s --host=h%d --data-dir=%s --peer.listen=127.0.0.1:%d --coord=%s %s\n\n",
		p.Bin, more, p.Storage+1, filepath.Join(p.Dir, more), p.Port+100, c.Coord, strings.Join(append(p.Security(more), p.CoordSecurity()...), " "))
	return b.String()
}

// environment is a file for shells: with it, commands find the cluster and the program.
func environment(p processes.Plan, c *processes.Cluster) string {
	var b strings.Builder
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	for _, v := range variables(p, c) {
		name, value, _ := strings.Cut(v, "=")
		fmt.Fprintf(&b, "export %s=%s\n", name, quoted(value))
	}
	if dir, err := filepath.Abs(filepath.Dir(p.Bin)); err == nil {
		fmt.Fprintf(&b, "PATH=%s:$PATH\n", quoted(dir))
	}
	return b.String()
}

// variables are those with which commands find the cluster, NAME=value.
func variables(p processes.Plan, c *processes.Cluster) []string {
	out := []string{"SPILLWAY_SERVERS=" + strings.Join(c.Peers, ","), "SPILLWAY_URL=http://" + c.HTTP[0], "SPILLWAY_ADMIN_URL=http://" + c.GatewayAdmin[0]}
	names := map[string]string{"--peer.tls.ca": "SPILLWAY_PEER_CA", "--peer.tls.cert": "SPILLWAY_PEER_CERT", "--peer.tls.key": "SPILLWAY_PEER_KEY", "--dev.insecure-peers": "SPILLWAY_PEER_INSECURE"}
	for _, arg := range p.Security(processes.AdminName) {
		flag, value, given := strings.Cut(arg, "=")
		if !given {
			value = "true"
		} else if file, err := filepath.Abs(value); err == nil {
			value = file
		}
		out = append(out, names[flag]+"="+value)
	}
	return out
}

// lines puts a name in front of every line. It is written to by one goroutine.
type lines struct {
	prefix string
	to     io.Writer
	mu     *sync.Mutex // shared by all writers of the terminal
	rest   []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.mu.Lock()
		fmt.Fprintf(l.to, "%s %s\n", l.prefix, line)
		l.mu.Unlock()
		l.rest = append([]byte(nil), rest...)
	}
}
