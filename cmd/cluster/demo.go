package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/metadata/master"
)

// Tables of the demo. All get the same rows.
const (
	turnsTable  = "turns"  // partitions of ten seconds, not smeared
	spreadTable = "spread" // the same, smeared
	sizedTable  = "sized"  // wide partitions, cut by the forecast of their growth
)

const (
	demoTopic = "spillway-demo"
	// demoWidth is the width of partitions, and the time between two lines.
	demoWidth = 10 * time.Second
	// sizedBytes is the size near which partitions should close, for each row a second: they cover 10 s at 20 bytes a row, as in
	// memory, and one to two minutes at 1.5 to 3, as on disk. One and a half times as much, from which partitions are split, is more than a partition
	// of ten seconds has in memory.
	sizedBytes = 160
)

// demo is a load on a cluster, and lines that say how its servers carry it.
type demo struct {
	rate  int    // rows a second of each table
	kafka string // brokers, with commas between them; "": one within this process

	load load
}

// target is the size near which partitions should close.
func (d *demo) target() int64 { return int64(d.rate) * sizedBytes }

// open starts a Kafka where none is named, and has the processes of the plan read it, cut small partitions, and print into files. The
// function that it returns ends all that it started, after the processes.
func (d *demo) open(ctx context.Context, p *processes.Plan) (end func(), err error) {
	if d.rate < 1 {
		return nil, fmt.Errorf("-demo-rate is %d: it should be 1 or more", d.rate)
	}
	var ends []func()
	end = func() {
		for _, f := range ends {
			f()
		}
	}
	own := d.kafka == ""
	if own {
		k, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			return nil, fmt.Errorf("a Kafka within this process: %w", err)
		}
		ends = append(ends, k.Close)
		d.kafka = strings.Join(k.ListenAddrs(), ",")
	}
	if err := d.load.open(ctx, d.rate, strings.Split(d.kafka, ","), own); err != nil {
		end()
		return nil, err
	}
	ends = append([]func(){d.load.close}, ends...)
	p.GatewayArgs = append(p.GatewayArgs, "--kafka.brokers="+d.kafka, "--kafka.topics="+demoTopic, "--kafka.group=spillway-demo", "--kafka.format=line")
	p.Env = append([]string{fmt.Sprintf("SPILLWAY_TABLES_SPLIT_BYTES=%d", d.target())}, p.Env...)
	p.Out = func(name string) io.Writer {
		f, err := os.Create(filepath.Join(p.Dir, name+".log"))
		if err != nil {
			return io.Discard
		}
		ends = append(ends, func() { _ = f.Close() })
		return f
	}
	return end, nil
}

// run makes the tables, and writes and reports until ctx is done.
func (d *demo) run(ctx context.Context, p processes.Plan, c *processes.Cluster, say func(format string, args ...any)) error {
	if err := d.tables(ctx, p, c); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	say("%s", d.describe(p, c))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { d.load.run(ctx, c.HTTP); return nil })
	g.Go(func() error { d.report(ctx, c, say); return nil })
	err := g.Wait()
	say("\n%s\n", d.load.summary())
	return err
}

// tables makes the tables, by the commands that a person would type; those of an earlier run stay as they are.
func (d *demo) tables(ctx context.Context, p processes.Plan, c *processes.Cluster) error {
	for _, t := range [][]string{
		{turnsTable, "--partition-width=10s"},
		{spreadTable, "--partition-width=10s", "--smear=auto"},
		{sizedTable, "--partition-width=5m"},
	} {
		if _, err := command(ctx, p, c, "table", "show", t[0]); err == nil {
			continue
		}
		if out, err := command(ctx, p, c, append([]string{"table", "create", "--retention=2h", "--replicas=1"}, t...)...); err != nil {
			return fmt.Errorf("table %s: %w: %s", t[0], err, out)
		}
	}
	return nil
}

// command runs one of the program's commands for people.
func command(ctx context.Context, p processes.Plan, c *processes.Cluster, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, p.Bin, args...)
	cmd.Env = append(os.Environ(), variables(p, c)...)
	out, err := cmd.CombinedOutput()
	return string(out), errors.Join(err, ctx.Err())
}

func (d *demo) describe(p processes.Plan, c *processes.Cluster) string {
	var b strings.Builder
	fmt.Fprintf(&b, "The demo writes %d rows a second into each of three tables: a third each by line protocol, remote write and Kafka (%s).\n", d.load.perSecond(), d.kafka)
	fmt.Fprintf(&b, "  %-7s partitions of 10 s: all rows are accepted by one server, after ten seconds by the next\n", turnsTable)
	fmt.Fprintf(&b, "  %-7s the same, smeared: rows wait up to half a minute, so that all servers accept a share at once\n", spreadTable)
	fmt.Fprintf(&b, "  %-7s within two minutes partitions are cut ahead of their time, by the minute that was seen, to close near %s;\n", sizedTable, master.Bytes(d.target()))
	fmt.Fprintf(&b, "          until then they are five minutes wide, and split when they are too large\n\n")
	fmt.Fprintf(&b, "Look at http://%s/: choose a table under “Tables” for its partitions, those of the next minutes too, and for the rows that wait;\n", c.HTTP[0])
	fmt.Fprintf(&b, "plot count by (via) (cpu_usage_user) under “Query”. Or in another terminal:\n")
	fmt.Fprintf(&b, "  . %s\n", filepath.Join(p.Dir, "env"))
	fmt.Fprintf(&b, "  spillway table set %s --smear=auto; spillway table set %s --smear=off    # the tables change their parts; --smear=20s: a window\n", turnsTable, spreadTable)
	fmt.Fprintf(&b, "  spillway presplit show %s --target=%d --png=sized.png    # once the growth is stored: after two minutes or three\n  spillway partition list %s; spillway table show %s; spillway doctor\n\n", sizedTable, d.target(), spreadTable, spreadTable)
	b.WriteString("Every ten seconds: rows a second that each server accepted, and the busiest server ÷ the mean of all, of two tables; and how many\n")
	fmt.Fprintf(&b, "partitions of %s, %s and %s exist ahead of their time.\n\n", turnsTable, spreadTable, sizedTable)
	return b.String()
}
