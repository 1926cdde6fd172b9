package main

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
)

// Options define a run: the same options give the same run, event for event.
type Options struct {
	Seed     uint64
	Events   int // deliveries and faults
	Faults   faults
	Servers  int
	Gateways int
	Tables   int
	// Partitions are those that a run begins with, of all tables. 0: none, and some dozens as clients make them.
	Partitions int
	// Copies is the number of replicas that all tables keep their rows on; 1: no table has copies. 0: the seed chooses.
	Copies int
	// Crowded has all partitions go on accepting rows, with loads that the master evens out by leads and by copies.
	Crowded bool
	// Only are the decisions of the nemesis that are carried out. nil: all.
	Only []int
	// Shade draws everything else again: messages, delays, clients, but not the decisions.
	Shade uint64
	// broken is a rule that the glue leaves out, to see whether the checkers notice. Empty: none.
	broken rule
	// atEnd is called at the end of a run, while all of it is in memory.
	atEnd func()
	// scripted stops all activity of its own: no clients, no master, until a script starts them.
	scripted bool
}

const defaultServers, defaultGateways, defaultTables = 5, 2, 2

// defaultWidths and defaultPartitionsMax are of a table.
const defaultWidths, defaultPartitionsMax = 12, 32

// optionFlags has a set of flags set o.
func optionFlags(o *Options, fs *flag.FlagSet) *flag.FlagSet {
	o.Faults = allFaults
	fs.Func("seed", "of everything random; 0: one is drawn", func(s string) (err error) {
		o.Seed, err = strconv.ParseUint(s, 0, 64)
		return err
	})
	fs.IntVar(&o.Events, "events", 1_000_000, "deliveries and faults before all is well again")
	fs.Func("faults", "all, none, or some of "+strings.Join(faultNames[:], ","), func(s string) (err error) {
		o.Faults, err = parseFaults(s)
		return err
	})
	fs.IntVar(&o.Servers, "servers", defaultServers, "storage servers")
	fs.IntVar(&o.Gateways, "gateways", defaultGateways, "gateways")
	fs.IntVar(&o.Tables, "tables", defaultTables, fmt.Sprintf("tables, 1 to %d", len(tableNames)))
	fs.IntVar(&o.Partitions, "partitions", 0, "partitions to begin with, of all tables; 0: none, and some dozens as clients make them")
	fs.IntVar(&o.Copies, "copies", 0, "replicas that all tables keep their rows on; 1: their leaders alone; 0: the seed chooses")
	fs.BoolVar(&o.Crowded, "crowded", false, "all partitions go on taking rows, and loads are evened out by leads and by copies")
	fs.Func("only", "decisions of the nemesis to carry out, by number, or none; else all", func(s string) (err error) {
		o.Only, err = parseOnly(s)
		return err
	})
	fs.Uint64Var(&o.Shade, "shade", 0, "draws all but the decisions of the nemesis anew")
	return fs
}

func (o *Options) check() error {
	if o.Servers < 1 || o.Gateways < 1 || o.Events < 1 || o.Partitions < 0 || o.Copies < 0 || o.Tables < 1 || o.Tables > len(tableNames) {
		return fmt.Errorf("servers, gateways, events and tables are 1 at least, tables %d at most", len(tableNames))
	}
	return nil
}

// again is the line to paste that plays the same run.
func (o *Options) again() string {
	line := fmt.Sprintf("make sim SEED=%#x EVENTS=%d FAULTS=%s", o.Seed, o.Events, o.Faults)
	var args []string
	add := func(name string, value, preset int) {
		if value != preset {
			args = append(args, fmt.Sprintf("-%s %d", name, value))
		}
	}
	add("servers", o.Servers, defaultServers)
	add("gateways", o.Gateways, defaultGateways)
	add("tables", o.Tables, defaultTables)
	add("partitions", o.Partitions, 0)
	add("copies", o.Copies, 0)
	add("shade", int(o.Shade), 0)
	if o.Crowded {
		args = append(args, "-crowded")
	}
	if o.Only != nil {
		args = append(args, "-only "+only(o.Only))
	}
	if len(args) > 0 {
		line += fmt.Sprintf(" ARGS=%q", strings.Join(args, " "))
	}
	return line
}

// only lists decisions as the flag reads them.
func only(ns []int) string {
	if len(ns) == 0 {
		return "none"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ns), " ", ","), "[]")
}

// parseOnly reads the output of only.
func parseOnly(s string) (ns []int, err error) {
	if s == "none" {
		return []int{}, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("decisions are numbers: %q", part)
		}
		ns = append(ns, n)
	}
	return ns, nil
}
