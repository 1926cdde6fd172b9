package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/storage/chain"
	replicas "github.com/spillwaydb/spillway/storage/replica"
	"github.com/spillwaydb/spillway/storage/staging"
	"github.com/spillwaydb/spillway/storage/unload"
)

// world is servers, gateways, a coordination store and the network between them, in real time that only the world can
// read. One goroutine; everything random comes from rng.
type world struct {
	opt    Options
	rng    *rand.Rand
	now    time.Duration // real
	queue  heap
	seq    uint64
	events int // deliveries and faults
	timers int // all that happened
	hash   uint64
	trace  trace
	broken string // the first violation, or a failure to converge

	tables []string
	widths int // hours of a table that are written to

	// Rows of partitions that unload, unload.go.
	unloads   bool
	unsettled bool // ending.go
	ends      bool // slices of earlier leaders are ended, and deletions wait for that
	unload    unload.Settings
	sliceRows int

	// Staging, staging.go.
	stages, smears bool
	staging        staging.Settings
	// partitionsMax is how many a table has before some are dropped.
	partitionsMax int
	store         *store
	servers       []*server // the process of each; dead ones too
	clients       []*gateway
	nodes         []*proc // servers, gateways, then the store
	net           network
	check         *checker
	history       *history
	healed        bool
	healedAt      time.Duration
	wroteLast     bool
	without       topology.ServerID                 // stays dead although all else is well
	calm          bool                              // no new work by clients
	turns         map[lease.Partition]int           // how many copies left servers after all was well
	fenced        map[lease.Partition]time.Duration // empty partitions that a master changes: the latest end of that
	master        master.Settings
	dataFrom      int64 // dataNow in the beginning
	pace          int64 // of dataNow, against the clock
	replicas      int
	copied        map[string]int // replicas of the tables with rows on all of them
	chain         chain.Settings
	segments      replicas.Settings
	flushFrom     int // frames of a log from which its leader flushes
	segmentsMax   int // of a partition, before they are compacted
	zones         bool
	demands       *rand.Rand     // of settings of placements in sync; nil: none is set
	demanded      map[string]int // of new tables
	boots         int

	limits    limits
	decisions int        // of the nemesis
	done      []decision // those that were carried out
	n         counts
	marks     marks
}

// limits are the bounds of queues. A seed in four has some of them at their least, each by itself.
type limits struct {
	changes   int // proposals that wait at a server
	undecided int // files that no transaction decided about
	acquires  int // requests of a lease machine for partitions
	history   int // changes that the store remembers
}

var defaultLimits = limits{changes: 64, undecided: 4, acquires: 32, history: 512}

// tiny gives limits of which those in a set of bits are at their least; none: all are.
func (l limits) tiny(set uint8) limits {
	for i, x := range []struct {
		limit *int
		least int
	}{{&l.changes, 1}, {&l.undecided, 1}, {&l.acquires, 1}, {&l.history, 8}} {
		if set == 0 || set&(1<<i) != 0 {
			*x.limit = x.least
		}
	}
	return l
}

// counts are the events of a run, for its last line: a run in which nothing happened proves nothing.
type counts struct {
	crashes, wipes, pauses, cuts, outages, compactions, slows, rogues, people                  int
	takes, stops, txns, changes, stale, invalid, resolved, unresolved                          int
	rows, acked, refused, fenced, unconfirmed, reads, sweeps, finals, emptied, removed, splits int
	lost, stuck, moved, steps, byOlder, forgone                                                int
	selects, warned, olds, young, skewed, failed, named                                        int
	drops, remade, rots, found, torn, fsyncs, fulls                                            int
	kept, surplus, handed, demands, made, staged, reliefs                                      int
	asked                                                                                      fanOut
}

// fanOut is how many servers selects asked for staged rows, and how long they waited for all of them to answer before they asked partitions.
type fanOut struct {
	selects, servers, most int
	waited                 time.Duration
}

func (f *fanOut) add(servers int, waited time.Duration) {
	f.selects, f.servers, f.most, f.waited = f.selects+1, f.servers+servers, max(f.most, servers), f.waited+waited
}

func (f fanOut) String() string {
	n := max(f.selects, 1)
	return fmt.Sprintf("%d selects asked for staged rows, %.1f servers each (%d at most), and waited %.1f ms for them", f.selects, float64(f.servers)/float64(n), f.most, float64(f.waited.Microseconds())/1000/float64(n))
}

// tableNames are drawn from for a run's tables.
var tableNames = []string{"cpu", "net", "disk"}

func newWorld(o Options) *world {
	w := &world{opt: o, rng: rand.New(rand.NewPCG(o.Seed, 0x5b111_0a4+o.Shade))}
	w.hash = 14695981039346656037
	w.check = newChecker(w)
	w.fenced = map[lease.Partition]time.Duration{}
	w.tables = tableNames[:o.Tables]
	w.widths, w.partitionsMax = defaultWidths, defaultPartitionsMax
	if o.Partitions > 0 {
		w.widths = max(o.Partitions/o.Tables, 1)
		w.partitionsMax = w.widths + defaultPartitionsMax
	}
	w.limits = defaultLimits
	if w.rng.IntN(4) == 0 {
		w.limits = w.limits.tiny(uint8(o.Seed * 0x9e3779b97f4a7c15 >> 60)) // not drawn: all else of a run stays as it is
	}
	w.master, w.pace = masterSettings(w.rng), []int64{0, 60, 900}[w.rng.IntN(3)]
	w.dataFrom = w.rng.Int64N(int64(w.widths+4) * width)
	if o.Crowded {
		w.dataFrom, w.pace, w.master.SplitBytes, w.master.BalanceRows = 0, 0, -1, 100
	}
	w.replicas, w.zones = 1+w.rng.IntN(2), w.rng.IntN(2) == 0
	w.drawCopies()
	w.drawDemands()
	w.drawUnloads()
	w.drawStaging()
	w.history = newHistory(w)
	w.store = newStore(w)
	w.net.calm(w.store.node() + 1)
	for i := range o.Servers {
		w.servers = append(w.servers, &server{proc: &proc{w: w, node: i, rate: w.rate(), dead: true}, id: serverID(i)})
		w.nodes = append(w.nodes, w.servers[i].proc)
	}
	for i := range o.Gateways {
		g := &gateway{proc: &proc{w: w, node: o.Servers + i, rate: w.rate(), name: fmt.Sprintf("g%d", i+1)}, unacked: map[uint64]row{}}
		if o.Faults.has(clocks) {
			g.ahead = time.Duration(w.rng.Int64N(int64(2*aheadMax))) - aheadMax
		}
		w.clients = append(w.clients, g)
		w.nodes = append(w.nodes, g.proc)
	}
	w.drawVersions()
	w.nodes = append(w.nodes, &proc{w: w, node: o.Servers + o.Gateways, rate: 1, name: "store"})
	return w
}

// aheadMax is how far a gateway's wall clock may be from the servers': they refuse rows that are further ahead.
const aheadMax = 900 * time.Millisecond

func serverID(i int) topology.ServerID { return topology.ServerID(fmt.Sprintf("s%d", i+1)) }

// rate draws how fast a clock goes.
func (w *world) rate() float64 {
	if !w.opt.Faults.has(clocks) {
		return 1
	}
	return []float64{0.9, 1, 1.1, 0.9 + 0.2*w.rng.Float64()}[w.rng.IntN(4)]
}

// after has f happen d from now.
func (w *world) after(d time.Duration, what string, f func()) *timer {
	w.seq++
	t := &timer{what: what, f: f}
	w.queue.push(moment{w.now + max(d, 0), w.seq, t})
	return t
}

// deliver is after, for a message that arrives.
func (w *world) deliver(d time.Duration, what string, f func()) { w.after(d, what, f).message = true }

// step makes the next thing happen, if it is not after until. It reports whether there was one.
func (w *world) step(until time.Duration) bool {
	for len(w.queue) > 0 && w.broken == "" {
		if w.queue[0].at > until {
			return false
		}
		m := w.queue.pop()
		t := m.t
		if t.f == nil {
			continue
		}
		w.now = m.at
		w.timers++
		if t.message {
			w.events++
		}
		w.mix(uint64(m.at), t.what)
		if t.p != nil {
			t.p.do(t.f)
		} else {
			t.f()
		}
		return true
	}
	return false
}

// mix adds an event to the hash of the run.
func (w *world) mix(at uint64, what string) {
	const prime = 1099511628211
	h := (w.hash ^ at) * prime
	for i := range len(what) {
		h = (h ^ uint64(what[i])) * prime
	}
	w.hash = h
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

// spread gives d, more or less by a half.
func (w *world) spread(d time.Duration) time.Duration { return spread(w.rng, d) }

func spread(rng *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(rng.Int64N(int64(d)))
}

// fail notes a violation; the first one counts, and ends the run.
func (w *world) fail(form string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(form, args...)
		w.say("VIOLATION %s", w.broken)
	}
}

// proc is a running process: of a server, of a gateway, or the coordination store.
type proc struct {
	w       *world
	node    int
	name    string
	rate    float64       // of its clock
	origin  time.Duration // real time at which its clock showed 0
	dead    bool
	starts  int           // how often a gateway was started again: answers to earlier requests do not reach it
	older   bool          // it runs the version before, version.go
	paused  time.Duration // until when
	lags    bool          // it gets no events of the tables' rows
	pending []func()
}

// clock is the time of the process's own clock.
func (p *proc) clock() lease.Time { return lease.Time(float64(p.w.now-p.origin) * p.rate) }

// do runs f in the process: later if it is paused, never if it is dead.
func (p *proc) do(f func()) {
	switch {
	case p.dead:
	case p.w.now < p.paused:
		p.pending = append(p.pending, f)
	default:
		f()
	}
}

// after runs f in the process when d has passed on its own clock.
func (p *proc) after(d time.Duration, what string, f func()) *timer {
	t := p.w.after(time.Duration(float64(d)/p.rate), what, f)
	t.p = p
	return t
}

// every has f happen again and again.
func (p *proc) every(d time.Duration, what string, f func()) {
	p.after(p.w.spread(d), what, func() {
		f()
		p.every(d, what, f)
	})
}

func (p *proc) pause(d time.Duration) {
	p.paused = max(p.paused, p.w.now+d)
	p.w.after(p.paused-p.w.now, "goes on", p.resume)
}

func (p *proc) resume() {
	if p.w.now < p.paused {
		return
	}
	todo := p.pending
	p.pending = nil
	for _, f := range todo {
		p.do(f)
	}
}

// trace holds the last things that happened, unformatted: most are never read.
type trace struct {
	lines [traceMax]line
	n     int
	all   func(string) // every line, as it happens; nil: no listener
}

type line struct {
	at   time.Duration
	form string
	args []any
}

const traceMax = 256

func (l line) String() string {
	return fmt.Sprintf("%12.6f  ", l.at.Seconds()) + fmt.Sprintf(l.form, l.args...)
}

// say notes an event. args must be values that are not changed later.
func (w *world) say(form string, args ...any) {
	l := line{w.now, form, args}
	w.trace.lines[w.trace.n%traceMax] = l
	w.trace.n++
	w.mix(uint64(w.trace.n), form)
	if w.trace.all != nil {
		w.trace.all(l.String())
	}
}

// tail gives the last n lines.
func (t *trace) tail(n int) []string {
	var out []string
	for i := max(0, t.n-min(n, traceMax)); i < t.n; i++ {
		out = append(out, t.lines[i%traceMax].String())
	}
	return out
}
