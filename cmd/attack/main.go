package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	bin     string
	memory  string
	seconds time.Duration
	only    *regexp.Regexp
	seed    uint64
	latency bool
	goodput float64
	cpus    string
	admin   string
	list    bool
	verbose bool
}

func parse() (options, error) {
	var o options
	var only string
	flag.StringVar(&o.bin, "bin", "bin/spillway", "the built program")
	flag.StringVar(&o.memory, "memory", "512MiB", "budget of the process, as in --memory")
	flag.DurationVar(&o.seconds, "for", 5*time.Second, "how long each attack lasts")
	flag.StringVar(&only, "only", ".", "regular expression of the attacks to run, as group/name")
	flag.Uint64Var(&o.seed, "seed", 1, "of what attacks choose at random")
	flag.BoolVar(&o.latency, "latency", false, "judge the bystander's latency too, by what it is without an attack and by what a process takes that only answers")
	flag.Float64Var(&o.goodput, "goodput", 0, "judge what an overloaded process takes in, as a part of its capacity; needs a quiet machine")
	flag.StringVar(&o.cpus, "server-cpus", "", "processors of the process, as for taskset; give this program others, and both have their own")
	flag.StringVar(&o.admin, "admin", "", "address of the process's admin pages, to look into it meanwhile; none unless given")
	flag.BoolVar(&o.list, "list", false, "print the attacks and end")
	flag.BoolVar(&o.verbose, "v", false, "print what the process logs")
	flag.Parse()
	re, err := regexp.Compile(only)
	o.only = re
	return o, err
}

func main() {
	if ran, err := helper(os.Args); ran {
		if err != nil {
			fmt.Fprintln(os.Stderr, "attack "+os.Args[1]+": "+err.Error())
			os.Exit(2)
		}
		return
	}
	o, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack: "+err.Error())
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hurt, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack: "+err.Error())
		os.Exit(2)
	}
	switch {
	case o.list:
		return
	case hurt > 0:
		fmt.Printf("\n%d of the attacks hurt. Again: bin/attack -memory %s -for %s -seed %d -only …\n", hurt, o.memory, o.seconds, o.seed)
		os.Exit(1)
	default:
		fmt.Println("\nnothing was hurt")
	}
}

// attack is one way to hurt the server.
type attack struct {
	name string // group/name
	does string // the sender's aim
	run  func(ctx context.Context, a *attacker)
	// check reads the rows that were acked to the attacker, after the attack and again after a restart. nil: there are none
	// to read.
	check   func(ctx context.Context, a *attacker) error
	asked   bool                     // runs only where -only names its group
	env     func(o options) []string // of the process; of a group the first one's
	cluster bool                     // against a cluster, without a bystander
	peers   peerPort                 // against a storage server's port for peers, where not noPeers; the same for all of a group
	tls     bool                     // of a group's process: its ports speak TLS; of a group the first one's
}

func (k attack) group() string { group, _, _ := strings.Cut(k.name, "/"); return group }

// attacks lists all attacks, those of a group beside each other.
func attacks() []attack {
	return slices.Concat(bodyAttacks(), labelAttacks(), tableFloods(), partitionFloods(), seriesFloods(), queryAttacks(), wireAttacks(), oddAttacks(), slowAttacks(), handshakeAttacks(), peerAttacks(), overloadAttacks(), churnAttacks())
}

// run runs the chosen attacks and returns how many hurt.
func run(ctx context.Context, o options) (hurt int, err error) {
	var chosen []attack
	for _, k := range attacks() {
		if o.only.MatchString(k.name) && (!k.asked || o.list || strings.Contains(o.only.String(), k.group())) {
			chosen = append(chosen, k)
		}
	}
	if len(chosen) == 0 {
		return 0, fmt.Errorf("no attack matches %s", o.only)
	}
	if o.list {
		for _, k := range chosen {
			fmt.Printf("%-32s %s\n", k.name, k.does)
		}
		return 0, nil
	}
	fmt.Printf("memory %s, %s an attack, seed %d\n\n%s\n", o.memory, o.seconds, o.seed, header)
	for len(chosen) > 0 {
		n := 1
		for n < len(chosen) && chosen[n].group() == chosen[0].group() {
			n++
		}
		bad, err := runGroup(ctx, o, chosen[:n])
		hurt += bad
		if err != nil {
			return hurt, fmt.Errorf("group %s: %w", chosen[0].group(), err)
		}
		chosen = chosen[n:]
	}
	return hurt, nil
}

// calm is how long the bystander is measured alone before a group: long where its latency is judged by that.
func (o options) calm() time.Duration {
	if o.latency {
		return 5 * time.Second
	}
	return time.Second
}

// runGroup runs attacks against one process, which is restarted at the end and checked again, or against the storage server of a cluster.
func runGroup(ctx context.Context, o options, group []attack) (hurt int, err error) {
	if group[0].cluster {
		return clusterOverload(ctx, o, group[0])
	}
	t, err := startFor(ctx, o, group[0])
	if err != nil {
		return 0, err
	}
	defer t.end()
	b, err := startBystander(ctx, t)
	if err != nil {
		return 0, err
	}
	defer b.end()
	quiet, err := b.during(func() { sleep(ctx, o.calm()) })
	if err != nil {
		return 0, err
	}
	var done []*attacker
	for _, k := range group {
		if ctx.Err() != nil {
			return hurt, ctx.Err()
		}
		a := newAttacker(t, k, o)
		t.resetPeak()
		spell, err := b.during(func() { t.guarded(func() { a.attack(ctx) }) })
		if err != nil {
			return hurt, err
		}
		r := a.judge(ctx, o, quiet, spell)
		fmt.Println(r)
		if len(r.wrong) > 0 {
			hurt++
		}
		done = append(done, a)
		if !t.alive() {
			if err := t.restart(ctx); err != nil {
				return hurt, err
			}
		}
	}
	if group[0].peers != noPeers {
		return hurt + readBack(ctx, group[0].group(), b), nil
	}
	began := time.Now()
	wrong := t.settle(ctx)
	settled := time.Since(began)
	more, took := t.afterRestart(ctx, b, done)
	wrong = append(wrong, more...)
	verdict := "whole"
	if len(wrong) > 0 {
		hurt++
		verdict = "HURT"
	}
	fmt.Printf("%-34s %8d bystander rows acked; all in segments after %.1f s; restarted in %.1f s; read back: %s\n",
		group[0].group()+", restarted", b.acked(), settled.Seconds(), took.Seconds(), verdict)
	for _, w := range wrong {
		fmt.Println("    " + w)
	}
	return hurt, nil
}

// startFor starts what the attacks of a group go against, which the first one says.
func startFor(ctx context.Context, o options, first attack) (*target, error) {
	if first.peers != noPeers {
		return startPeers(ctx, o, first.peers)
	}
	return startTarget(ctx, o, first)
}

// readBack reads the bystander's rows after the attacks of a group against a cluster. It returns 1 if one is missing.
func readBack(ctx context.Context, group string, b *bystander) (hurt int) {
	verdict := "whole"
	if err := b.whole(ctx); err != nil {
		hurt, verdict = 1, "HURT: "+err.Error()
	}
	fmt.Printf("%-34s %8d bystander rows acked; read back: %s\n", group+", at the end", b.acked(), verdict)
	return hurt
}

// settleMax bounds how long heads may need to become segments after the last write.
const settleMax = time.Minute

// settle waits until all rows are in segments, so that a restart reads flushed rows only: a row that can be acked and not
// be flushed would be read from the log for ever, until the log is full.
func (t *target) settle(ctx context.Context) (wrong []string) {
	deadline := time.Now().Add(settleMax)
	for {
		rows, err := t.metric(ctx, "spillway_server_head_rows")
		if err == nil && rows == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return []string{fmt.Sprintf("%s after the last attack %.0f rows are not yet in segments (%v)", settleMax, rows, err)}
		}
		sleep(ctx, 200*time.Millisecond)
	}
}

// afterRestart ends the process as an operator would, starts it again and checks every ledger.
func (t *target) afterRestart(ctx context.Context, b *bystander, done []*attacker) (wrong []string, took time.Duration) {
	if err := t.stop(ctx); err != nil {
		wrong = append(wrong, "SIGTERM: "+err.Error())
	}
	began := time.Now()
	if err := t.start(ctx); err != nil {
		return append(wrong, "start: "+err.Error()), time.Since(began)
	}
	took = time.Since(began)
	if err := b.whole(ctx); err != nil {
		wrong = append(wrong, "bystander: "+err.Error())
	}
	for _, a := range done {
		if a.k.check == nil {
			continue
		}
		if err := a.k.check(ctx, a); err != nil {
			wrong = append(wrong, a.k.name+": "+err.Error())
		}
	}
	return wrong, took
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
