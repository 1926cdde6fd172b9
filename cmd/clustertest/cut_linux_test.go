package clustertest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// wires is a separate network: places, each with one address, joined by a router that can be made to drop packets
// between two places silently.
//
//	etcd 10.n.1.2 ──┐            ┌── rest 10.n.3.2: gateways, other storage servers
//	                ├── router ──┤
//	s1   10.n.2.2 ──┘            └── test 10.n.4.2: this process
type wires struct {
	t      *testing.T
	router string
	space  map[string]string // network namespace by place; "": this process' own
	addr   map[string]string
}

// here is the place of the test's own process.
const here = "test"

// newWires makes a network of places, or skips the test with the reason.
func newWires(t *testing.T, places ...string) *wires {
	t.Helper()
	w, why := tryWires(t, places...)
	if why != "" {
		t.Skip(why)
	}
	return w
}

// tryWires makes a network of places, here among them, or returns why there can be none.
func tryWires(t *testing.T, places ...string) (_ *wires, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil, "a network is cut by network namespaces, which need root: run this test as root"
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, "a network is cut with the program ip, and there is none: install iproute2"
	}
	name := func(s string) string { return fmt.Sprintf("cut%d%s", os.Getpid(), s) }
	w := &wires{t: t, router: name("r"), space: map[string]string{}, addr: map[string]string{}}
	if out, err := exec.Command("ip", "netns", "add", w.router).CombinedOutput(); err != nil {
		return nil, fmt.Sprintf("a network is cut by network namespaces, and here are none: %v %s", err, out)
	}
	t.Cleanup(func() { w.ip("netns", "del", w.router) }) // its wires are removed too
	w.in(w.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	n := 100 + os.Getpid()%100 // another test on this machine has another network, most likely
	for i, place := range append(places, here) {
		near, far := fmt.Sprintf("r%d", i), fmt.Sprintf("w%d_%d", i, os.Getpid())
		w.addr[place] = fmt.Sprintf("10.%d.%d.2", n, i+1)
		gateway := fmt.Sprintf("10.%d.%d.1", n, i+1)
		w.ip("link", "add", far, "type", "veth", "peer", "name", near, "netns", w.router)
		w.ip("-n", w.router, "addr", "add", gateway+"/24", "dev", near)
		w.ip("-n", w.router, "link", "set", near, "up")
		if place == here {
			w.ip("addr", "add", w.addr[place]+"/24", "dev", far)
			w.ip("link", "set", far, "up")
			w.ip("route", "add", fmt.Sprintf("10.%d.0.0/16", n), "via", gateway)
			continue
		}
		space := name(place)
		w.space[place] = space
		w.ip("netns", "add", space)
		t.Cleanup(func() { w.ip("netns", "del", space) })
		w.ip("link", "set", far, "netns", space)
		w.ip("-n", space, "addr", "add", w.addr[place]+"/24", "dev", far)
		w.ip("-n", space, "link", "set", far, "up")
		w.ip("-n", space, "link", "set", "lo", "up")
		w.ip("-n", space, "route", "add", "default", "via", gateway)
	}
	return w, ""
}

func (w *wires) ip(args ...string) { w.t.Helper(); w.run("ip", args...) }

func (w *wires) in(space string, line ...string) {
	w.t.Helper()
	w.run("ip", append([]string{"netns", "exec", space}, line...)...)
}

func (w *wires) run(name string, args ...string) {
	w.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		w.t.Errorf("%s %s: %v %s", name, strings.Join(args, " "), err, out)
	}
}

// cut drops everything between two places, in both directions, until heal.
func (w *wires) cut(a, b string) { w.t.Helper(); w.rules("add", a, b) }

func (w *wires) heal(a, b string) { w.t.Helper(); w.rules("del", a, b) }

func (w *wires) rules(verb, a, b string) {
	w.t.Helper()
	w.oneWay(verb, a, b)
	w.oneWay(verb, b, a)
}

// oneWay adds or deletes (verb) the rule that drops the packets from one place to another.
func (w *wires) oneWay(verb, from, to string) {
	w.t.Helper()
	w.ip("-n", w.router, "rule", verb, "from", w.addr[from], "to", w.addr[to], "blackhole")
}

// place returns where a process of the cluster runs.
func (w *wires) place(name string) (string, []string) {
	where := "rest"
	switch {
	case name == "s1":
		where = "s1"
	case strings.HasPrefix(name, "m"):
		where = "etcd"
	}
	return w.addr[where], []string{"ip", "netns", "exec", w.space[where]}
}

// TestClusterCutApartLosesNothingAcked drops all packets between one storage server and etcd, then between it and all
// others but etcd, then between all others and etcd, while rows are written. After each healing all acked rows must be
// there, each once.
func TestClusterCutApartLosesNothingAcked(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	w := newWires(t, "etcd", "s1", "rest")
	if t.Failed() {
		t.FailNow()
	}
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: restless, Place: w.place, Port: 28700})
	if host, _, _ := net.SplitHostPort(c.Peers[0]); host != w.addr["s1"] {
		t.Fatalf("s1 is at %s", c.Peers[0])
	}
	c.table("moving", time.Minute, 3)
	from := time.Now().Truncate(time.Hour).Add(-48 * time.Hour)
	moving := c.cover("moving", from, time.Minute, 60)
	senders := []*sender{c.sender(0, seed), c.sender(1, seed), c.sender(2, seed)}
	c.warm()
	for hour := 6; len(c.led(c.partitions("default"), "s1")) == 0 && hour < 48; hour++ { // s1 has to lead something that has rows
		c.acks("default", fmt.Sprintf("warm,i=0 v=1 %d", time.Now().Add(-time.Duration(hour)*time.Hour).UnixMilli()))
		c.within(processtest.Patience, "all are led", func() bool { return c.waiting() == 0 && len(c.unled(c.partitions("default"))) == 0 })
	}
	still := watchStandstill(t)
	warm := func() string { return fmt.Sprintf("warm,i=0 v=1 %d", time.Now().UnixMilli()) }
	const cutFor = 6 * time.Second // longer than a lease lasts and another waits
	for round, cut := range [][2]string{{"s1", "etcd"}, {"s1", "rest"}, {"rest", "etcd"}} {
		ps := c.partitions("default") // they have rows, each on its leader alone
		c.within(processtest.Patience, "all are led", func() bool { return len(c.unled(append(ps, moving...))) == 0 })
		before := c.leases(ps)
		if len(c.led(ps, "s1")) == 0 {
			t.Error("s1 leads nothing that has rows: the cuts prove little")
		}
		empty := map[topology.ServerID][]lease.Partition{}
		for _, s := range []topology.ServerID{"s1", "s2", "s3"} {
			empty[s] = c.emptyOf(c.led(moving, s))
		}
		began, stood := time.Now(), still.sum()
		w.cut(cut[0], cut[1])
		stop := c.load(senders)
		var written map[string]int64
		switch cut {
		case [2]string{"s1", "etcd"}:
			t.Logf("s1 is cut off from etcd: others lead what has no rows: %s", spreadOf(c.moves(empty["s1"], "s1", began)))
			written = c.putInto("moving", empty["s1"], round)
		case [2]string{"rest", "etcd"}:
			t.Logf("all but s1 are cut off from etcd: s1 leads what has no rows: %s", spreadOf(c.moves(empty["s3"], "s3", began)))
		}
		time.Sleep(time.Until(began.Add(cutFor)))
		c.unmoved(before, nil, fmt.Sprintf("while %v was cut", cut))
		if cut == [2]string{"s1", "rest"} {
			// One that leads more than its share releases one in ten seconds. Where this machine stood still heartbeats are late.
			moved := without(empty["s1"], c.led(empty["s1"], "s1"))
			if stood = still.sum() - stood; len(moved) > 1 && stood < time.Second {
				t.Errorf("%v are not led by s1 any more, though its heartbeat never failed", moved)
			}
			t.Logf("%d of %d partitions without rows are not led by s1 any more; this machine stood still for %v", len(moved), len(empty["s1"]),
				stood.Round(time.Millisecond))
		}
		w.heal(cut[0], cut[1])
		t.Logf("%v was cut for %v; acks of all after %v", cut, time.Since(began).Round(time.Millisecond), c.acks("default", warm()).Round(time.Millisecond))
		time.Sleep(time.Second)
		stop()
		for _, s := range senders {
			c.answers("default", s.metric)
			for _, s.p = range c.doors {
				if s.check(); t.Failed() {
					t.Fatalf("after %v was cut", cut)
				}
			}
		}
		if written == nil {
			written = c.putInto("moving", empty[[]topology.ServerID{"", "s2", "s3"}[round]], round)
		}
		c.holdsOnce("moving", written)
		c.alive(c.All()...)
		c.report(senders)
	}
}
