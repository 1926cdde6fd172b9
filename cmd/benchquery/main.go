package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
	"github.com/spillwaydb/spillway/cmd/internal/rival"
)

// options are the command line.
type options struct {
	servers  []string
	hosts    int
	hours    int
	interval time.Duration
	conns    int
	repeat   int
	settle   time.Duration
	seed     uint64
	spillway string
	only     string
	data     string
	end      int64
	fill     bool
	clients  int
}

func parse() (options, error) {
	var o options
	var servers string
	flag.StringVar(&servers, "servers", "spillway,prometheus,victoriametrics", "which servers to run: these, spillway-cluster, or name=url of one that runs and holds the rows; name=url#pid+pid measures the CPU time of these processes")
	flag.IntVar(&o.hosts, "hosts", 200, "hosts, of 101 series each")
	flag.IntVar(&o.hours, "hours", 12, "hours of rows")
	flag.DurationVar(&o.interval, "interval", 10*time.Second, "time between rows")
	flag.IntVar(&o.conns, "conns", 2, "connections to load over")
	flag.IntVar(&o.repeat, "repeat", 15, "how often each query is asked")
	flag.DurationVar(&o.settle, "settle", 10*time.Second, "wait between load and queries")
	flag.Uint64Var(&o.seed, "seed", 1, "of the rows")
	flag.StringVar(&o.spillway, "spillway", "bin/spillway", "the spillway binary")
	flag.StringVar(&o.only, "only", "", "queries whose names begin so; empty: all")
	flag.StringVar(&o.data, "data", "", "where the servers' data stays for a later run with the same end; empty: it goes")
	flag.Int64Var(&o.end, "end", 0, "the time of the last rows, in seconds since 1970; 0: now")
	flag.BoolVar(&o.fill, "fill", false, "load the rows into servers that run already too")
	flag.IntVar(&o.clients, "clients", 0, "instead: ask each query by one client, then by so many at a time, -repeat times each")
	flag.Parse()
	o.servers = strings.Split(servers, ",")
	if o.hosts < 1 || o.hours < 1 || o.conns < 1 || o.repeat < 1 || o.clients < 0 || o.interval < time.Millisecond {
		return o, errors.New("hosts, hours, interval, conns and repeat must be positive, clients must not be negative")
	}
	return o, nil
}

func main() {
	o, err := parse()
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchquery: "+err.Error())
		os.Exit(1)
	}
}

func run(o options) error {
	end := time.Now().Truncate(time.Minute)
	if o.end != 0 {
		end = time.Unix(o.end, 0)
	}
	var columns []*column
	defer func() {
		for _, c := range columns {
			c.server.Stop()
		}
	}()
	for _, name := range o.servers {
		c, err := prepare(o, name, end)
		if errors.Is(err, rival.ErrNotInstalled) {
			fmt.Printf("%s is not installed\n", name)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		columns = append(columns, c)
	}
	time.Sleep(o.settle)
	if o.clients > 0 {
		for _, c := range columns {
			if err := inCrowd(o, c, end); err != nil {
				return fmt.Errorf("%s: %w", c.server.Name, err)
			}
		}
		return nil
	}
	for _, q := range queries(o) {
		if err := inTurns(columns, q, o.repeat, end); err != nil {
			return fmt.Errorf("%s: %w", q.Name, err)
		}
	}
	show(o, columns)
	return nil
}

// column is a server and its results.
type column struct {
	server  *rival.Server
	asker   asker
	answers []answer // by query
}

// answer is the cost of one query.
type answer struct {
	p50    time.Duration
	cpu    time.Duration // of the server, the median
	series int
}

// prepare returns a server that holds the rows up to end.
func prepare(o options, name string, end time.Time) (*column, error) {
	s, loaded, err := start(o, name, end)
	if err != nil {
		return nil, err
	}
	c := &column{server: s, asker: asker{url: s.URL}}
	if loaded {
		return c, nil
	}
	begin, before := time.Now(), s.CPUTime()
	if err := load(o, s.URL, end); err != nil {
		s.Stop()
		return nil, fmt.Errorf("load: %w", err)
	}
	fmt.Printf("%s: loaded in %.0f s, %.0f s of CPU\n", s.Name, time.Since(begin).Seconds(), (s.CPUTime() - before).Seconds())
	return c, remember(o, name, end)
}

// start starts a server; loaded reports that an earlier run left these rows in its directory, or that it runs already.
func start(o options, name string, end time.Time) (s *rival.Server, loaded bool, err error) {
	if o.data == "" || strings.Contains(name, "=") {
		s, err = rival.Start(name, o.spillway)
		return s, strings.Contains(name, "=") && !o.fill, err
	}
	dir := filepath.Join(o.data, name)
	text, err := os.ReadFile(dir + ".rows")
	if loaded = err == nil && string(text) == rows(o, end); !loaded {
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
			return nil, false, err
		}
	}
	s, err = rival.StartIn(name, o.spillway, dir)
	return s, loaded, err
}

// remember notes that a server's directory is loaded.
func remember(o options, name string, end time.Time) error {
	if o.data == "" || strings.Contains(name, "=") {
		return nil
	}
	return os.WriteFile(filepath.Join(o.data, name)+".rows", []byte(rows(o, end)), 0o600)
}

// rows names the rows that a run loads.
func rows(o options, end time.Time) string {
	return fmt.Sprintf("hosts %d, hours %d, interval %v, seed %d, end %d\n", o.hosts, o.hours, o.interval, o.seed, end.Unix())
}

func queries(o options) []fleet.Query {
	var out []fleet.Query
	for _, q := range fleet.Queries(o.hours) {
		if strings.HasPrefix(q.Name, o.only) {
			out = append(out, q)
		}
	}
	return out
}

// inTurns asks all servers a query once without measuring, then repeat times, one server after the other each time: a
// disturbance of the machine affects them alike.
func inTurns(columns []*column, q fleet.Query, repeat int, end time.Time) error {
	took, cpus := make([][]time.Duration, len(columns)), make([][]time.Duration, len(columns))
	answers := make([]answer, len(columns))
	for round := range repeat + 1 {
		for i, c := range columns {
			cpu, begin := c.server.CPUTime(), time.Now()
			body, err := c.asker.ask(q, end)
			if err != nil {
				return fmt.Errorf("%s: %w", c.server.Name, err)
			}
			if round == 0 {
				answers[i].series = bytes.Count(body, []byte(`"metric":`))
				continue
			}
			took[i] = append(took[i], time.Since(begin))
			cpus[i] = append(cpus[i], c.server.CPUTime()-cpu)
		}
	}
	for i, c := range columns {
		answers[i].p50, answers[i].cpu = median(took[i]), median(cpus[i])
		c.answers = append(c.answers, answers[i])
	}
	return nil
}

func median(of []time.Duration) time.Duration {
	slices.Sort(of)
	return of[len(of)/2]
}

// show prints a line for each query: p50 and CPU time of each server, and the first server's p50 and CPU time as parts of each other's.
func show(o options, columns []*column) {
	if len(columns) == 0 {
		return
	}
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("\n%d series × %d h every %v, p50 and median CPU time of %d, ms; load %s\n%-22s", o.hosts*101, o.hours, o.interval, o.repeat, load, "query")
	for _, c := range columns {
		fmt.Printf("%17s%9s", c.server.Name, "CPU")
	}
	for _, c := range columns[1:] {
		fmt.Printf("   / %-16s%9s", c.server.Name, "CPU")
	}
	fmt.Println()
	for i, q := range queries(o) {
		fmt.Printf("%-22s", q.Name)
		first, mark := columns[0].answers[i], ""
		for _, c := range columns {
			a := c.answers[i]
			fmt.Printf("%17.2f%9.2f", ms(a.p50), ms(a.cpu))
			if a.series != first.series {
				mark += fmt.Sprintf("  %s gives %d series instead of %d", c.server.Name, a.series, first.series)
			}
		}
		for _, c := range columns[1:] {
			fmt.Printf("   %-18.2f%9.2f", ms(first.p50)/ms(c.answers[i].p50), ms(first.cpu)/ms(c.answers[i].cpu))
		}
		fmt.Println(mark)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
