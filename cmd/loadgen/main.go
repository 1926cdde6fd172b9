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
	protocol string
	hosts    int
	scrapes  int
	warm     int
	interval time.Duration
	jitter   time.Duration
	churn    float64
	late     float64
	batch    int
	conns    int
	rate     int
	repeat   int
	settle   time.Duration
	seed     uint64
	spillway string
	profile  string
	soak     time.Duration
}

func parse() (options, error) {
	var o options
	var servers string
	flag.StringVar(&servers, "servers", "spillway", "which servers to run, in turn: spillway, victoriametrics, prometheus, or name=url of one that runs already")
	flag.StringVar(&o.protocol, "protocol", "rw1", "rw1, rw2 or influx")
	flag.IntVar(&o.hosts, "hosts", 1000, "hosts, of 101 series each")
	flag.IntVar(&o.scrapes, "scrapes", 60, "scrapes of every host that are measured")
	flag.IntVar(&o.warm, "warm", 1, "scrapes before the measurement starts: series are new then")
	flag.DurationVar(&o.interval, "interval", 10*time.Second, "time between scrapes, in the data")
	flag.DurationVar(&o.jitter, "jitter", 0, "random part of each host's timestamps")
	flag.Float64Var(&o.churn, "churn", 0, "share of hosts replaced over the whole run")
	flag.Float64Var(&o.late, "late", 0, "share of a host's scrapes that come one scrape late")
	flag.IntVar(&o.batch, "batch", 2000, "samples a request")
	flag.IntVar(&o.conns, "conns", 4, "connections")
	flag.IntVar(&o.rate, "rate", 0, "samples a second over all connections; 0: flat out")
	flag.IntVar(&o.repeat, "repeat", 1, "how often each server is measured, in turns")
	flag.DurationVar(&o.settle, "settle", 0, "wait after the load before bytes on disk are read")
	flag.Uint64Var(&o.seed, "seed", 1, "of the rows")
	flag.StringVar(&o.spillway, "spillway", "bin/spillway", "the spillway binary")
	flag.StringVar(&o.profile, "profile", "", "file for a CPU profile of spillway under load")
	flag.DurationVar(&o.soak, "for", 0, "instead: load the first server for so long, encoding beside it, and print a line every half minute")
	flag.Parse()
	o.servers = strings.Split(servers, ",")
	if fleet.NewEncoder(o.protocol) == nil {
		return o, fmt.Errorf("protocol %q is none of rw1, rw2, influx", o.protocol)
	}
	if o.hosts < 1 || o.scrapes < 1 || o.conns < 1 || o.batch < 1 || o.repeat < 1 {
		return o, errors.New("hosts, scrapes, conns, batch and repeat must be positive")
	}
	return o, nil
}

func main() {
	o, err := parse()
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadgen: "+err.Error())
		os.Exit(1)
	}
}

func run(o options) error {
	if o.soak > 0 {
		return soak(o)
	}
	bodies, series := makeBodies(o)
	bytes := 0
	for _, b := range bodies {
		bytes += len(b.bytes)
	}
	fmt.Printf("%s: %d series, %d scrapes (+%d warm), %d requests, %.1f MB encoded, %d connections\n\n",
		o.protocol, series, o.scrapes, o.warm, len(bodies), float64(bytes)/1e6, o.conns)
	fmt.Println(header)
	byServer := map[string][]result{}
	for range o.repeat {
		for _, name := range o.servers {
			if name == "victoriametrics" && o.protocol == "rw2" {
				fmt.Printf("%-16s answers 204 to remote write 2.0 and keeps nothing\n", name)
				continue
			}
			r, err := measure(o, name, bodies)
			if errors.Is(err, rival.ErrNotInstalled) {
				fmt.Printf("%-16s not installed\n", name)
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			fmt.Println(r)
			byServer[name] = append(byServer[name], r)
		}
	}
	compare(o.servers, byServer)
	return nil
}
