package lease

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// actor follows a lease rule: Machine, or the one that C106 was before.
type actor interface {
	Step(now Time, in Input, out []Effect) []Effect
	MayAct(p Partition, now Time) (point.Epoch, bool)
	Wake() Time
}

// world is servers, a store and the network between, in real time that only the world has. Every accept is checked: at
// one moment only one process may act, and the accepted epochs at the bricks never fall.
type world struct {
	least    int  // members that a taker leaves in a list; 0: all
	meddles  bool // a storm deletes heartbeat rows again and again
	balances bool // people are a master, too, that has leases handed over
	rng      *rand.Rand
	now      time.Duration // real
	events   eventHeap
	seq      uint64

	store   coord.Store
	backup  []coord.Row
	txn     uint64                             // of the table's map
	placed  map[Partition][]topology.Placement // where not on all servers
	parents map[Partition][]point.PartitionID  // whose rows go to them
	lag     map[topology.ServerID]bool         // servers that get no newer maps
	away    time.Duration                      // until when the store answers no requests
	procs   []*process
	bricks  map[StoreID]map[Partition]point.Epoch
	parts   []Partition
	listed  map[Partition]Lease // the rows as last written, also after they were deleted
	lead    map[Partition]point.Epoch
	acted   map[Partition]point.Epoch
	taken   map[Partition]time.Duration // when the row last got a new holder
	takes   int
	accepts int
	refused int // by bricks: the second line
	vacated int
	broken  string // a rule that the world leaves out, to see whether it notices
	delay   func() time.Duration
	lossPct int
	failure string
	coarse  bool // check now and then, where there is much to check
	boots   int
	make    func(Self, *rand.Rand) actor
	changed func(p Partition, was, is Lease) // nil, or looks at each row that had one before
	trace   []string
}

type process struct {
	ahead   time.Duration // of the wall clock
	fsync   time.Duration // as it is published, each second
	loaded  bool          // it is
	w       *world
	self    Self
	actor   actor
	rate    float64
	origin  time.Duration // real time at which its clock showed 0
	dead    bool
	paused  time.Duration // until when
	pending []func()
	watch   time.Duration // when the last watched change arrives
	acting  int
	wakeAt  time.Duration
	want    map[Partition][]Member
	slow    time.Duration // requests are that much longer on their way
	batches []int         // partitions in each transaction that acquires several
}

type event struct {
	at  time.Duration
	seq uint64
	f   func()
}
type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

func newWorld(seed uint64, servers, partitions int) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 7)), store: mem.New(), bricks: map[StoreID]map[Partition]point.Epoch{},
		placed: map[Partition][]topology.Placement{}, parents: map[Partition][]point.PartitionID{}, lag: map[topology.ServerID]bool{},
		listed: map[Partition]Lease{}, lead: map[Partition]point.Epoch{}, acted: map[Partition]point.Epoch{}, taken: map[Partition]time.Duration{},
	}
	w.delay = func() time.Duration { return time.Duration(1+w.rng.IntN(20)) * time.Millisecond }
	w.make = func(self Self, rng *rand.Rand) actor {
		m, err := New(self, Settings{}, rng)
		if err != nil {
			panic(err)
		}
		return m
	}
	for i := range partitions {
		w.parts = append(w.parts, Partition{"cpu", point.PartitionID(i + 1)})
	}
	w.txn = 1
	w.commit(nil, []coord.Write{w.tableRow()})
	for i := range servers {
		w.procs = append(w.procs, &process{w: w, self: Self{Server: topology.ServerID(fmt.Sprintf("s%d", i+1))}, rate: 1, dead: true})
	}
	return w
}

func (w *world) tableRow() coord.Write {
	return coord.Write{Key: tableKey("cpu"), Value: fmt.Appendf(nil, `{"seq":%d}`, w.txn)}
}

// change is a METADATA transaction with its guards in the lease rows.
func (w *world) change(guards ...Guard) {
	if err := w.try(guards...); err != nil {
		panic(err)
	}
}

// try is change where a guard may refuse.
func (w *world) try(guards ...Guard) error {
	writes := []coord.Write{}
	for _, g := range guards {
		if w.broken == unguarded {
			break
		}
		_, guard, err := g.Write(w.txn+1, w.rowsOf(g), 0)
		if err != nil {
			return err
		}
		writes = append(writes, guard...)
	}
	w.txn++
	w.commit(nil, append(writes, w.tableRow()))
	return nil
}

// rowsOf are the rows that a guard reads.
func (w *world) rowsOf(g Guard) map[string]coord.Row {
	rows := map[string]coord.Row{}
	for _, key := range g.Keys() {
		if row, ok, _ := w.store.Get(context.Background(), key); ok {
			rows[key] = row
		}
	}
	return rows
}

func (w *world) tracef(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%9.3f  ", w.now.Seconds())+fmt.Sprintf(format, args...))
	if len(w.trace) > 400 {
		w.trace = slices.Delete(w.trace, 0, 200)
	}
}

func (w *world) after(d time.Duration, f func()) {
	w.seq++
	heap.Push(&w.events, event{w.now + d, w.seq, f})
}

func (w *world) run(until time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= until && w.failure == "" {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.f()
		w.check()
	}
	w.now = until
}

// check finds two that may act at one moment. Between events MayAct only ever ends, so that looking after each is enough.
func (w *world) check() {
	if w.coarse && w.seq%256 != 0 {
		return
	}
	for _, p := range w.parts {
		acting := 0
		for _, pr := range w.procs {
			if _, ok := pr.actor0(p); ok {
				acting++
			}
		}
		if acting > 1 && w.failure == "" {
			w.failure = fmt.Sprintf("%s: %s may act at once", p, w.acting(p))
		}
	}
}

// acting names the processes that may act for a partition.
func (w *world) acting(p Partition) string {
	var who []string
	for _, pr := range w.procs {
		if epoch, ok := pr.actor0(p); ok {
			who = append(who, fmt.Sprintf("%s/%s at epoch %d", pr.self.Server, pr.self.Boot, epoch))
		}
	}
	return strings.Join(who, " and ")
}

func (p *process) actor0(part Partition) (point.Epoch, bool) {
	if p.dead {
		return 0, false
	}
	return p.actor.MayAct(part, p.clock())
}

// start begins a new process of a server; fresh: on an emptied directory.
func (w *world) start(i int, fresh bool) {
	old := w.procs[i]
	old.dead = true
	w.boots++
	self := old.self
	self.Boot = Boot(fmt.Sprintf("b%d", w.boots))
	if fresh || self.Store == "" {
		self.Store = StoreID(fmt.Sprintf("dir%d", w.boots))
		w.bricks[self.Store] = map[Partition]point.Epoch{}
	}
	p := &process{w: w, self: self, rate: old.rate, origin: w.now - time.Duration(w.rng.IntN(1e9)), wakeAt: -1, want: map[Partition][]Member{}}
	p.actor = w.make(self, rand.New(rand.NewPCG(w.rng.Uint64(), 1)))
	w.procs[i] = p
	w.tracef("%s starts as %s on %s", self.Server, self.Boot, self.Store)
	p.step(Tick{Wall: time.Unix(1_800_000_000, 0)})
	p.relist()
	w.assign(i, w.parts)
}

// assign gives a server a placement of each.
func (w *world) assign(i int, parts []Partition) {
	p, self := w.procs[i], w.procs[i].self
	var placements []topology.Placement
	for j, q := range w.procs {
		placements = append(placements, topology.Placement{ID: point.PlacementID(j + 1), Server: q.self.Server})
	}
	if w.lag[self.Server] {
		return
	}
	row, _, _ := w.store.Get(context.Background(), tableKey("cpu"))
	for _, part := range parts {
		own, at := placements[i], placements
		if only, ok := w.placed[part]; ok {
			j := slices.IndexFunc(only, func(pl topology.Placement) bool { return pl.Server == self.Server })
			if j < 0 {
				p.step(Unassigned{part})
				continue
			}
			own, at = only[j], only
		}
		p.step(Assigned{Partition: part, Placement: own.ID, Placements: at, Parents: w.parents[part], TableRow: row.Revision, Seq: w.txn, BrickEpoch: w.bricks[self.Store][part], MinInSync: w.least})
	}
	p.step(MapIs{Table: "cpu", Seq: w.txn, TableRow: row.Revision})
}

func (w *world) kill(i int) {
	w.procs[i].dead = true
	w.tracef("%s is killed", w.procs[i].self.Server)
}

func (w *world) pause(i int, d time.Duration) {
	p := w.procs[i]
	p.paused = max(p.paused, w.now+d)
	w.tracef("%s is paused for %v", p.self.Server, d)
	w.after(p.paused-w.now, func() {
		if w.now < p.paused {
			return
		}
		todo := p.pending
		p.pending = nil
		for _, f := range todo {
			p.do(f)
		}
	})
}

// do runs f in the process, later if it is paused, never if it is dead.
func (p *process) do(f func()) {
	switch {
	case p.dead:
	case p.w.now < p.paused:
		p.pending = append(p.pending, f)
	default:
		f()
	}
}

// wall is the time of day as the process sees it.
func (p *process) wall() time.Time { return time.Unix(1_800_000_000, int64(p.w.now+p.ahead)) }

// publish has the process say each second how long its fsyncs last.
func (p *process) publish(fsync time.Duration) {
	p.fsync = fsync
	if p.loaded {
		return
	}
	p.loaded = true
	var each func()
	each = func() {
		if p.dead {
			return
		}
		p.do(func() { p.step(Loaded{Fsync: p.fsync}) })
		p.w.after(time.Second, each)
	}
	each()
}

func (p *process) clock() Time { return Time(float64(p.w.now-p.origin) * p.rate) }

func (p *process) step(in Input) {
	for _, e := range p.actor.Step(p.clock(), in, nil) {
		p.perform(e)
	}
	at := p.origin + time.Duration(float64(p.actor.Wake())/p.rate) + time.Microsecond
	if p.wakeAt < p.w.now || at < p.wakeAt {
		p.wakeAt = at
		p.w.after(max(0, at-p.w.now), func() {
			p.wakeAt = -1
			p.do(func() { p.step(Tick{Wall: p.wall()}) })
		})
	}
	p.w.check()
}

func (p *process) perform(e Effect) {
	w := p.w
	switch e := e.(type) {
	case Commit:
		if n := len(slices.DeleteFunc(slices.Clone(e.Writes), func(wr coord.Write) bool { return !strings.HasPrefix(wr.Key, rowPrefix) })); n > 1 {
			p.batches = append(p.batches, n)
		}
		p.request(e.ID, func() Answer {
			rev, ok := w.commit(e.Conditions, e.Writes)
			if !ok {
				return Answer{ID: e.ID, Outcome: Conflict}
			}
			return Answer{ID: e.ID, Outcome: Done, Revision: rev}
		})
	case List:
		p.request(e.ID, func() Answer {
			rows, rev, _ := w.store.List(context.Background(), e.Prefix)
			return Answer{ID: e.ID, Outcome: Done, Rows: rows, Revision: rev}
		})
	case Leads:
		brick := w.bricks[p.self.Store]
		brick[e.Partition] = max(brick[e.Partition], e.Epoch)
		w.tracef("%s leads %s at epoch %d", p.self.Server, e.Partition, e.Epoch)
	case Stops:
		w.tracef("%s stops %s: %s", p.self.Server, e.Partition, e.Why)
		w.after(w.delay(), func() { p.do(func() { p.step(Stopped{Partition: e.Partition}) }) })
	case SetBack:
		w.tracef("%s says that the store was set back", p.self.Server)
	case InSyncSet:
		delete(p.want, e.Partition)
		if len(w.placed) > 0 {
			w.tracef("%s: in-sync list of %s set: %v", p.self.Server, e.Partition, e.OK)
		}
	}
}

// request sends f to the store: it may be late or lost, and so may its answer. After a second of the process's
// own clock it is answered with Unknown.
func (p *process) request(id uint64, f func() Answer) {
	w := p.w
	answered := false
	answer := func(a Answer) {
		if !answered {
			answered = true
			p.step(a)
		}
	}
	w.after(time.Duration(float64(time.Second)/p.rate), func() { p.do(func() { answer(Answer{ID: id}) }) })
	if w.rng.IntN(100) < w.lossPct {
		return
	}
	w.after(w.delay()+p.slow, func() {
		if w.now < w.away {
			return
		}
		a := f()
		if w.rng.IntN(100) >= w.lossPct {
			w.after(w.delay(), func() { p.do(func() { answer(a) }) })
		}
	})
}

// relist is the watcher's: all rows, and from then on every change in order.
func (p *process) relist() {
	w := p.w
	rows, rev, _ := w.store.List(context.Background(), Prefix)
	d := w.delay()
	p.watch = w.now + d
	w.after(d, func() { p.do(func() { p.step(Listed{rows, rev}) }) })
}

func (w *world) commit(conditions []coord.Condition, writes []coord.Write) (coord.Revision, bool) {
	rev, ok, err := w.store.Commit(context.Background(), conditions, writes)
	if err != nil {
		panic(err)
	}
	if !ok {
		return 0, false
	}
	var changes []coord.Event
	for _, wr := range writes {
		changes = append(changes, coord.Event{Row: coord.Row{Key: wr.Key, Value: wr.Value, Revision: rev}, Deleted: wr.Delete})
		w.committed(wr)
	}
	for _, p := range w.procs {
		if p.dead {
			continue
		}
		p.watch = max(p.watch, w.now+w.delay(), w.away)
		w.after(p.watch-w.now, func() { p.do(func() { p.step(Watched{changes}) }) })
	}
	return rev, true
}

// committed checks every new holder: it must be listed by the row that was there, with the store that was listed.
func (w *world) committed(wr coord.Write) {
	if !strings.HasPrefix(wr.Key, rowPrefix) || wr.Delete {
		return
	}
	part, _ := parsePath(wr.Key[len(rowPrefix):])
	row, err := DecodeLease(wr.Value)
	if err != nil {
		panic(err)
	}
	was, ever := w.listed[part]
	w.listed[part] = row
	if ever && w.changed != nil {
		w.changed(part, was, row)
	}
	if row.Empty && w.acted[part] > 0 {
		w.fail("the row of %s says that it is empty, and rows were accepted at epoch %d", part, w.acted[part])
	}
	if row.State != Held || was.State == Held && was.Boot == row.Boot && was.Epoch == row.Epoch {
		return
	}
	w.takes++
	w.taken[part] = w.now
	w.tracef("%s/%s takes %s at epoch %d", row.Holder, row.Boot, part, row.Epoch)
	if ever && was.Epoch > 0 && !was.Empty {
		if m, ok := was.member(row.Holder); !ok || m.Store != row.Store {
			w.fail("%s took %s with %s, which is not listed: %v", row.Holder, part, row.Store, was.InSync)
		}
	}
	if row.Epoch <= was.Epoch {
		w.fail("%s took %s at epoch %d after %d", row.Holder, part, row.Epoch, was.Epoch)
	}
}

func (w *world) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
	}
}

// act is a write at level all: asked, then done after a while by every brick that is in sync, each of which refuses
// epochs below its highest (I3).
func (w *world) act(i int, part Partition, pause time.Duration) {
	p := w.procs[i]
	epoch, ok := p.actor0(part)
	if !ok || w.now < p.paused {
		return
	}
	chain := slices.Clone(w.listed[part].InSync)
	if m, ok := p.actor.(*Machine); ok {
		if m.entries[part].row.Empty && w.broken != actsOnEmpty {
			w.hold(i, part) // rows are accepted once the mark is gone
			return
		}
		chain = slices.Clone(m.entries[part].row.InSync)
	}
	chain = append(chain, p.want[part]...)
	p.acting++
	w.after(pause, func() {
		p.do(func() {
			p.acting--
			for _, m := range chain {
				if w.storeOf(m.Server) != m.Store || w.bricks[m.Store][part] > epoch {
					w.refused++
					return
				}
			}
			for _, m := range chain {
				w.bricks[m.Store][part] = epoch
			}
			w.accepts++
			if epoch < w.acted[part] {
				w.fail("%s accepted at epoch %d after epoch %d was accepted: %s", part, epoch, w.acted[part], p.self.Server)
			}
			w.acted[part] = epoch
		})
	})
}

// hold removes the mark that the partition is empty, as a leader does before the first row.
func (w *world) hold(i int, part Partition) {
	if p := w.procs[i]; p.want[part] == nil {
		p.want[part] = []Member{{point.PlacementID(i + 1), p.self.Server, p.self.Store}}
		p.step(SetInSync{Partition: part, Members: p.want[part]})
	}
}

// Rules that the world may leave out.
const (
	actsOnEmpty = "rows are taken while the mark is there"
	blind       = "an empty partition is moved without a look at its row"
	unguarded   = "maps change without a word in the lease rows"
)

// vacate moves an empty partition as the master does: behind a fence, from some of its servers or from all. Its view is
// a while old when it commits.
func (w *world) vacate(part Partition) {
	row, ok, _ := w.store.Get(context.Background(), RowKey(part))
	if !ok {
		return
	}
	l, err := DecodeLease(row.Value)
	if err != nil {
		panic(err)
	}
	if !l.Empty {
		return
	}
	var fences, allow []coord.Write
	conditions := []coord.Condition{{Key: row.Key, Revision: row.Revision}}
	for _, p := range w.procs {
		if w.rng.IntN(3) > 0 {
			fences = append(fences, Prohibit(part, p.self.Server, Note{Who: "master"}))
			allow = append(allow, Allow(part, p.self.Server))
		}
	}
	if w.broken == blind {
		conditions = nil
	}
	w.after(time.Duration(w.rng.IntN(500))*time.Millisecond, func() {
		if _, ok := w.commit(conditions, append(fences, coord.Write{Key: row.Key, Value: l.Vacated().Encode()})); !ok {
			return
		}
		w.vacated++
		w.tracef("the master takes %s from %s", part, l.Holder)
		w.after(time.Duration(w.rng.IntN(5000))*time.Millisecond, func() { w.commit(nil, allow) })
	})
}

func (w *world) storeOf(s topology.ServerID) StoreID {
	for _, p := range w.procs {
		if p.self.Server == s {
			return p.self.Store
		}
	}
	return ""
}

// resync makes a leader list all members, or only itself and some.
func (w *world) resync(i int, part Partition) {
	p := w.procs[i]
	if _, ok := p.actor0(part); !ok || w.now < p.paused || p.acting > 0 || p.want[part] != nil {
		return
	}
	var members []Member
	for j, q := range w.procs {
		if j == i || w.rng.IntN(3) > 0 && q.self.Store != "" {
			members = append(members, Member{point.PlacementID(j + 1), q.self.Server, q.self.Store})
		}
	}
	// A member that is added has received everything first, at the leader's epoch.
	epoch, _ := p.actor0(part)
	for _, m := range members {
		if w.bricks[m.Store][part] > epoch {
			return
		}
		w.bricks[m.Store][part] = epoch
	}
	p.want[part] = members
	p.step(SetInSync{Partition: part, Members: members})
}

// restore puts a store in the place of the other that has the rows of the backup at their revisions.
func (w *world) restore() error {
	_, last, err := w.store.List(context.Background(), "")
	if err != nil {
		return err
	}
	w.store = mem.New()
	rev := coord.Revision(0)
	put := func(writes ...coord.Write) {
		if err == nil {
			rev, _, err = w.store.Commit(context.Background(), nil, writes)
		}
	}
	filler := coord.Write{Key: "filler"}
	at := map[coord.Revision][]coord.Write{}
	clear(w.listed)
	for _, row := range w.backup {
		if part, ok := ParseRowKey(row.Key); ok {
			if w.listed[part], err = DecodeLease(row.Value); err != nil {
				return err
			}
		}
		at[row.Revision] = append(at[row.Revision], coord.Write{Key: row.Key, Value: row.Value})
	}
	for rev < last+1000 && err == nil {
		put(append(at[rev+1], filler)...)
	}
	for _, p := range w.procs {
		if !p.dead {
			p.relist()
		}
	}
	return err
}

func (w *world) delete(key string) {
	w.tracef("somebody deletes %s", key)
	w.commit(nil, []coord.Write{{Key: key, Delete: true}})
}

func (w *world) leaders() map[Partition]int {
	out := map[Partition]int{}
	for _, part := range w.parts {
		for i, p := range w.procs {
			if _, ok := p.actor0(part); ok {
				out[part] = i
			}
		}
	}
	return out
}

func (w *world) leaders0(part Partition) (int, bool) {
	for i, p := range w.procs {
		if _, ok := p.actor0(part); ok {
			return i, true
		}
	}
	return 0, false
}

// member returns a server's entry in the in-sync list.
func (l *Lease) member(s topology.ServerID) (Member, bool) {
	for _, m := range l.InSync {
		if m.Server == s {
			return m, true
		}
	}
	return Member{}, false
}
