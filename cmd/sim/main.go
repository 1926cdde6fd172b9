package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/pprof"
	"strings"
	"time"
)

func main() {
	seed := flag.Uint64("seed", 0, "of everything random; 0: one is drawn")
	events := flag.Int("events", 1_000_000, "that happen before all faults stop")
	kinds := flag.String("faults", "all", "all, none, or some of "+strings.Join(faultNames[:], ","))
	servers := flag.Int("servers", 5, "storage servers")
	gateways := flag.Int("gateways", 2, "gateways")
	tables := flag.Int("tables", 2, fmt.Sprintf("tables, 1 to %d", len(tableNames)))
	runs := flag.Int("runs", 1, "seeds to play, from the given one on")
	verbose := flag.Bool("v", false, "print all that happens")
	profile := flag.String("cpuprofile", "", "file for a CPU profile")
	flag.Parse()

	f, err := parseFaults(*kinds)
	if err != nil || flag.NArg() > 0 || *servers < 1 || *gateways < 1 || *tables < 1 || *tables > len(tableNames) || *events < 1 {
		fmt.Fprintln(os.Stderr, "sim:", err, flag.Args())
		os.Exit(2)
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano()) & 0xffffffff
	}
	if *profile != "" {
		out, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(out)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "sim:", err)
			os.Exit(2)
		}
		defer pprof.StopCPUProfile()
	}
	var say func(string)
	if *verbose {
		say = func(line string) { fmt.Println(line) }
	}
	for i := range *runs {
		began := time.Now()
		r := Run(Options{Seed: *seed + uint64(i), Events: *events, Faults: f, Servers: *servers, Gateways: *gateways, Tables: *tables}, say)
		took := time.Since(began)
		if r.Broken != "" {
			fmt.Println(strings.Join(r.Tail, "\n"))
			fmt.Printf("\n%s\n%s\nagain: %s\n", r.Broken, r, r.Again())
			pprof.StopCPUProfile()
			os.Exit(1)
		}
		fmt.Printf("%s; %.1f s, %.0f events/s\n", r, took.Seconds(), float64(r.Events)/took.Seconds())
	}
}
