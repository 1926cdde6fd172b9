package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
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
}

func parse() (options, error) {
	var o options
	var servers string
	flag.StringVar(&servers, "servers", "spillway,prometheus,victoriametrics", "which servers to run, in turn")
	flag.IntVar(&o.hosts, "hosts", 200, "hosts, of 101 series each")
	flag.IntVar(&o.hours, "hours", 12, "hours of rows")
	flag.DurationVar(&o.interval, "interval", 10*time.Second, "time between rows")
	flag.IntVar(&o.conns, "conns", 2, "connections to load over")
	flag.IntVar(&o.repeat, "repeat", 15, "how often each query is asked")
	flag.DurationVar(&o.settle, "settle", 10*time.Second, "wait between load and queries")
	flag.Uint64Var(&o.seed, "seed", 1, "of the rows")
	flag.StringVar(&o.spillway, "spillway", "bin/spillway", "the spillway binary")
	flag.StringVar(&o.only, "only", "", "queries whose names begin so; empty: all")
	flag.Parse()
	o.servers = strings.Split(servers, ",")
	if o.hosts < 1 || o.hours < 1 || o.conns < 1 || o.repeat < 1 || o.interval < time.Millisecond {
		return o, errors.New("hosts, hours, interval, conns and repeat must be positive")
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
	var columns []column
	for _, name := range o.servers {
		c, err := measure(o, name, end)
		if errors.Is(err, rival.ErrNotInstalled) {
			fmt.Printf("%s is not installed\n", name)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		columns = append(columns, c)
	}
	show(o, columns)
	return nil
}

// column is what one server did.
type column struct {
	name    string
	answers []answer // by query
}

// answer is what one query took.
type answer struct {
	p50    time.Duration
	series int
}

func measure(o options, name string, end time.Time) (column, error) {
	s, err := rival.Start(name, o.spillway)
	if err != nil {
		return column{}, err
	}
	defer s.Stop()
	c := column{name: s.Name}
	begin := time.Now()
	if err := load(o, s.URL, end); err != nil {
		return c, fmt.Errorf("load: %w", err)
	}
	fmt.Printf("%s: loaded in %.0f s\n", s.Name, time.Since(begin).Seconds())
	time.Sleep(o.settle)
	a := asker{url: s.URL, end: end}
	defer a.client.CloseIdleConnections()
	for _, q := range queries(o) {
		one, err := a.median(q, o.repeat)
		if err != nil {
			return c, fmt.Errorf("%s: %w", q.Name, err)
		}
		c.answers = append(c.answers, one)
	}
	return c, nil
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

// show prints a line for each query: p50 of each server, and the first server's as a part of each other's.
func show(o options, columns []column) {
	if len(columns) == 0 {
		return
	}
	fmt.Printf("\n%d series × %d h every %v, p50 of %d\n\n%-24s", o.hosts*101, o.hours, o.interval, o.repeat, "query")
	for _, c := range columns {
		fmt.Printf("%18s", c.name)
	}
	for _, c := range columns[1:] {
		fmt.Printf("  / %-15s", c.name)
	}
	fmt.Println()
	for i, q := range queries(o) {
		fmt.Printf("%-24s", q.Name)
		mark := ""
		for _, c := range columns {
			fmt.Printf("%15.2f ms", ms(c.answers[i].p50))
			if c.answers[i].series != columns[0].answers[i].series {
				mark += fmt.Sprintf("  %s gives %d series instead of %d", c.name, c.answers[i].series, columns[0].answers[i].series)
			}
		}
		for _, c := range columns[1:] {
			fmt.Printf("  %-17.2f", ms(columns[0].answers[i].p50)/ms(c.answers[i].p50))
		}
		fmt.Println(mark)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
