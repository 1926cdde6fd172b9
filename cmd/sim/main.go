package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/cputime"
)

// gcPercent is the growth of the heap between two collections: a run is small, and leaves much behind. At Go's 100 it needs 30 % more time.
const gcPercent = 400

func main() {
	var o Options
	flags := optionFlags(&o, flag.NewFlagSet("sim", flag.ExitOnError))
	runs := flags.Int("runs", 1, "seeds to play, from the given one on")
	shrinks := flags.Int("shrink", 300, "runs to look for a smaller one that fails too")
	showMarks := flags.Bool("marks", false, "print how often each branch was met")
	verbose := flags.Bool("v", false, "print all that happens")
	profile := flags.String("cpuprofile", "", "file for a CPU profile")
	memory := flags.String("memprofile", "", "file for a heap profile of the world at the end of the run")
	_ = flags.Parse(os.Args[1:]) // it exits
	if err := o.check(); err != nil || flags.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "sim:", err, flags.Args())
		os.Exit(2)
	}
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano()) & 0xffffffff
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
	if *memory != "" {
		o.atEnd = func() { heapProfile(*memory) }
	}
	var say func(string)
	if *verbose {
		say = func(line string) { fmt.Println(line) }
	}
	debug.SetGCPercent(gcPercent)
	var met marks
	for range *runs {
		began, used := time.Now(), cputime.Used()
		r := Run(o, say)
		o.Seed++
		took := time.Since(began)
		if r.Broken != "" {
			least, runs := shrink(r, *shrinks)
			fmt.Println(strings.Join(least.Tail, "\n"))
			fmt.Printf("\n%s\n%s\nagain: %s\n", r.Broken, r, r.Again())
			fmt.Printf("\n%d runs later, what lies above is of:\n%s\n%s\nagain: %s\n", runs, least.Schedule(), least.Broken, least.Again())
			pprof.StopCPUProfile()
			os.Exit(1)
		}
		used = cputime.Used() - used
		met.add(&r.marks)
		fmt.Printf("%s; %.1f s, %.1f s of a core, %.0f deliveries and faults a second of it\n", r, took.Seconds(), used.Seconds(), float64(r.Events)/used.Seconds())
	}
	if *showMarks {
		fmt.Print(&met)
	}
	if missing := met.missing(); len(missing) > 0 && o.Faults == allFaults {
		fmt.Printf("never met: %s\n", strings.Join(missing, "; "))
	}
}

// heapProfile writes a profile of the memory that is reachable.
func heapProfile(path string) {
	runtime.GC()
	out, err := os.Create(path)
	if err == nil {
		err = errors.Join(pprof.WriteHeapProfile(out), out.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
	}
}
