package chain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// world is a partition's placements with their disks, the links between them, and the lease row. It checks after every event:
//   - every acknowledged frame is durable on every member that the row lists, and in the log of every head of a higher epoch;
//   - a serial names one frame with one predecessor, wherever it lies;
//   - a placement that calls itself sure has applied everything that was acknowledged;
//   - of N placements, any N - min + 1 that were sure once (and lost no disk since) have together everything that was acknowledged.
type world struct {
	now      Time // the truth
	nodes    []*node
	min      int
	demanded bool // by a person
	set      Settings

	row      row
	unmapped string    // the map has this node's placement no more
	slow     []string  // nodes that say that their disks are slow
	away     bool      // the coordination store
	mute     bool      // it carries out requests, and its answers are late
	lapsed   bool      // it is away for so long that the heads' leases have lapsed: requests are refused at once (storage/lead/rules)
	asks     []listAsk // not yet carried out
	answered []listAnswer

	links []flight
	sent  int                // messages, ever
	awake int                // chains of each process
	cut   map[[2]string]bool // one way
	held  map[[2]string]bool // delayed

	frames  map[point.Serial]frame // that were ever made
	acked   []point.Serial
	ackedIn point.Epoch // the highest that acknowledged
	trace   []string
	drawn   string // last
	broken  string // the first rule that did not hold
}

type row struct {
	epoch  point.Epoch
	holder string
	list   []Member
}

type listAsk struct {
	by    *node
	boot  int
	epoch point.Epoch
	SetList
}

type listAnswer struct {
	to   *node
	boot int
	ListSet
}

type flight struct {
	from, to Member
	msg      Message
}

type frame struct {
	serial, prev point.Serial
	body         string
}

type node struct {
	passes *[]Passed // not nil: answers to PassOn that wait for the test
	w      *world
	name   string
	rate   float64
	m      *Machine // nil: it is down
	boot   int

	member Member
	// On the disk.
	log    []frame
	synced int // frames of log that are fsynced
	raised point.Epoch
	aside  []frame
	// Under way.
	busy   bool // its server sends something all the time
	lazy   bool // its fsyncs wait for an event of their own
	raise  point.Epoch
	cutTo  *Cut
	taken  *Lead
	waits  string      // the last reason that its writers got for rows that wait
	led    point.Epoch // highest that it led with this directory
	failed bool
	// A process that was started has no part in the chain until a head invites it, or it leads.
	uninvited bool
}

func newWorld(least int, names ...string) *world {
	w := &world{min: least, cut: map[[2]string]bool{}, held: map[[2]string]bool{}, frames: map[point.Serial]frame{}}
	for i, name := range names {
		n := &node{w: w, name: name, rate: 1}
		n.member = Member{Placement: point.PlacementID(i + 1), Server: topology.ServerID(name), Store: lease.StoreID(name)}
		w.nodes = append(w.nodes, n)
		w.row.list = append(w.row.list, n.member)
	}
	for _, n := range w.nodes {
		n.start()
	}
	return w
}

func (w *world) node(name string) *node {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	panic("no placement " + name)
}

// placements are those that the map has: all but the one that was removed.
func (w *world) placements() Placements {
	p := Placements{Fixed: w.lapsed, MinInSync: w.min, Demanded: w.demanded, Mapped: []point.PlacementID{}}
	for _, n := range w.nodes {
		if n.name != w.unmapped {
			p.All, p.Mapped = append(p.All, n.member), append(p.Mapped, n.member.Placement)
			if slices.Contains(w.slow, n.name) {
				p.Slow = append(p.Slow, n.member)
			}
		}
	}
	return p
}

func (w *world) say(form string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%6v  ", w.now)+fmt.Sprintf(form, args...))
}

func (w *world) breaks(form string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(form, args...)
		w.say("BROKEN: %s", w.broken)
	}
}

func (n *node) clock() Time { return Time(float64(n.w.now)*n.rate) + 7*sureFor }

func (n *node) start() {
	n.boot++
	n.raise, n.cutTo, n.taken, n.failed, n.uninvited = 0, nil, nil, false, n.boot > 1
	var ends []point.EpochEnd
	for _, f := range n.log {
		ends = grown(ends, f.serial)
	}
	n.synced = len(n.log)
	n.m = New(n.clock(), n.member, n.raised, ends, n.w.set)
	n.step(n.w.placements())
}

// kill ends the process; of the unsynced frames the first few survive.
func (n *node) kill(survive int) {
	n.m = nil
	n.log = n.log[:min(len(n.log), n.synced+survive)]
	n.synced = len(n.log)
}

// empty gives it another directory.
func (n *node) empty() {
	n.log, n.synced, n.raised, n.aside, n.led = nil, 0, 0, nil, 0
	n.member.Store += "'"
	for _, o := range n.w.nodes {
		if o.m != nil && o != n {
			o.step(n.w.placements())
		}
	}
}

func (n *node) step(in Input) {
	if n.m == nil {
		return
	}
	boot := n.boot
	for _, e := range n.m.Step(n.clock(), in, nil) {
		if n.m == nil || n.boot != boot {
			return
		}
		n.perform(in, e)
	}
}

func (n *node) perform(in Input, e Effect) {
	w := n.w
	switch e := e.(type) {
	case Send:
		w.sent++
		w.links = append(w.links, flight{n.member, e.To, e.Message})
	case PassOn:
		n.passOn(e)
	case LogIt:
		f := in.(Received).Message.(Pass)
		n.append(w.frames[f.Serial])
		if !n.lazy {
			n.fsync()
		}
	case Raise:
		n.raise = max(n.raise, e.Epoch)
		if !n.lazy {
			n.settle()
		}
	case Cut:
		n.cutTo = &e
		if !n.lazy {
			n.settle()
		}
	case SetList:
		w.say("%s asks for the list %s", n.name, names(e.Members))
		w.asks = append(w.asks, listAsk{n, n.boot, n.m.epoch, e})
	case Acked:
		n.acked(e)
	case Stall:
		if why := e.Why.Error(); n.waits != why {
			n.waits = why
			w.say("%s: writers need not wait: %s", n.name, why)
		}
	case Over:
		w.say("%s: epoch %d is over: %s", n.name, e.Epoch, e.Why)
	case Behind:
		w.say("%s: the log does not reach back to %v, where %s ends", n.name, e.End, e.Member.Server)
	case Note:
		w.say("%s: %s is %v", n.name, e.Member.Server, e.What)
	}
}

func (n *node) append(f frame) {
	if len(n.log) > 0 && n.log[len(n.log)-1].serial != f.prev || len(n.log) == 0 && f.prev != (point.Serial{}) {
		n.w.breaks("%s logs %v behind another frame than %v", n.name, f.serial, f.prev)
	}
	n.log = append(n.log, f)
}

func (n *node) passOn(e PassOn) {
	upto, bytes := e.After, 0
	for _, f := range n.log {
		if e.After.Less(f.serial) && (bytes == 0 || bytes < e.BytesMax) {
			n.w.links = append(n.w.links, flight{n.member, e.To, Pass{n.m.epoch, f.serial, f.prev, 100}})
			upto, bytes = f.serial, bytes+100
		}
	}
	answer := Passed{To: e.To, After: e.After, Upto: upto, Bytes: bytes}
	if n.passes != nil {
		*n.passes = append(*n.passes, answer)
		return
	}
	n.step(answer)
}

func (n *node) fsync() {
	if n.m == nil || n.synced == len(n.log) {
		return
	}
	n.synced = len(n.log)
	n.step(Synced{n.log[n.synced-1].serial})
}

// settle carries out the requests to the disk and the lease row.
func (n *node) settle() {
	if e := n.raise; e > 0 {
		n.raised, n.raise = max(n.raised, e), 0
		n.step(Raised{e})
	}
	if c := n.cutTo; c != nil {
		n.cutTo = nil
		for i, f := range n.log {
			if c.After.Less(f.serial) {
				n.aside = append(n.aside, n.log[i:]...)
				n.w.say("%s sets aside %s and cuts", n.name, draw(n.log[i:]))
				n.log = n.log[:i]
				n.synced = min(n.synced, i)
				break
			}
		}
		n.step(WasCut{c.After})
	}
	if l := n.taken; l != nil {
		n.taken = nil
		n.raised, n.uninvited = max(n.raised, l.Epoch), false
		n.step(*l)
		if _, leads := n.m.Epoch(); leads {
			n.led = l.Epoch
			for _, s := range n.w.acked {
				if l.Epoch < n.w.ackedIn {
					break // it was overtaken before it began: a later head's frames need not be here
				}
				n.has(s, "leads without", len(n.log))
			}
		}
	}
}

func (n *node) has(s point.Serial, what string, upto int) {
	if !slices.ContainsFunc(n.log[:upto], func(f frame) bool { return f.serial == s }) {
		n.w.breaks("%s %s acknowledged frame %s %v", n.name, what, n.w.frames[s].body, s)
	}
}

// take acquires the lease row, if this placement is listed with its store. The holder is dropped from the list if it is silent.
func (n *node) take(dropHolder bool) bool {
	w := n.w
	if w.away || n.m == nil || !slices.Contains(w.row.list, n.member) {
		w.say("%s may not take the lease", n.name)
		return false
	}
	lead := Lead{Epoch: max(w.row.epoch, n.raised, n.m.epoch) + 1, List: slices.Clone(w.row.list)}
	if i := slices.IndexFunc(lead.List, func(x Member) bool { return string(x.Server) == w.row.holder }); dropHolder && i >= 0 &&
		lead.List[i] != n.member && len(lead.List) > w.min {
		lead.Dropped = lead.List[i : i+1 : i+1]
		lead.List = slices.Delete(slices.Clone(lead.List), i, i+1)
	}
	w.row = row{lead.Epoch, n.name, lead.List}
	w.say("%s takes the lease at epoch %d: %s", n.name, lead.Epoch, names(lead.List))
	n.taken = &lead
	if !n.lazy {
		n.settle()
	}
	return true
}

func (n *node) write(body string) bool {
	epoch, leads := n.m.Epoch()
	if !leads || n.failed {
		return false
	}
	if err := n.m.Accepts(); err != nil {
		n.w.say("%s refuses %s: %v", n.name, body, err)
		return false
	}
	var prev point.Serial
	if len(n.log) > 0 {
		prev = n.log[len(n.log)-1].serial
	}
	f := frame{point.Serial{Epoch: epoch, Seq: prev.Seq + 1}, prev, body}
	if old, ok := n.w.frames[f.serial]; ok {
		n.w.breaks("serial %v is given to %s and to %s", f.serial, old.body, body)
	}
	n.w.frames[f.serial] = f
	n.append(f)
	n.step(Appended{f.serial, f.prev, 100})
	if !n.lazy {
		n.fsync()
	}
	return true
}

// fail makes the fsync of the frames fail that the head passed on.
func (n *node) fail() {
	if n.synced < len(n.log) {
		n.log = n.log[:n.synced]
		var end point.Serial
		if n.synced > 0 {
			end = n.log[n.synced-1].serial
		}
		n.step(Failed{end})
	}
}

func (n *node) acked(e Acked) {
	for _, f := range n.log {
		if e.Upto.Less(f.serial) || slices.Contains(n.w.acked, f.serial) {
			continue
		}
		n.w.acked, n.w.ackedIn = append(n.w.acked, f.serial), max(n.w.ackedIn, e.Epoch)
		n.w.say("%s acknowledges %s", n.name, f.body)
		for _, x := range n.w.row.list {
			if o := n.w.node(string(x.Server)); o.member == x {
				o.has(f.serial, "is listed and has not fsynced", o.synced)
			}
		}
		for _, o := range n.w.nodes {
			if o.led > e.Epoch {
				o.has(f.serial, "led a higher epoch without", len(o.log))
			}
		}
	}
}

// Time and network.

// deliver delivers the i-th message on its way, if its link is whole.
func (w *world) deliver(i int, keep bool) {
	f := w.links[i]
	if !keep {
		w.links = slices.Delete(w.links, i, i+1)
	}
	to := w.node(string(f.to.Server))
	if _, invites := f.msg.(Begin); invites && to.member == f.to {
		to.uninvited = false
	}
	if to.m != nil && !to.uninvited && to.member == f.to && !w.cut[[2]string{string(f.from.Server), to.name}] {
		to.step(Received{f.from, f.msg})
	}
	w.check()
}

func (w *world) listStep() {
	if w.away {
		return
	}
	for _, a := range w.asks {
		ok := !w.lapsed && w.row.epoch == a.epoch && w.row.holder == a.by.name && !slices.ContainsFunc(a.Members, func(x Member) bool { // metadata/lease
			return w.unmapped != "" && x.Placement == w.node(w.unmapped).member.Placement && !slices.Contains(w.row.list, x)
		})
		if ok {
			w.row.list = a.Members
		}
		w.answered = append(w.answered, listAnswer{a.by, a.boot, ListSet{a.Ask, ok, w.row.epoch, w.row.list}})
	}
	w.asks = nil
}

func (w *world) answerStep() {
	answered := w.answered
	w.answered = nil
	for _, a := range answered {
		if a.to.boot == a.boot {
			a.to.step(a.ListSet)
		}
	}
}

// run lets time go by with everything delivered in order.
func (w *world) run(d Time) {
	for until := w.now + d; w.now < until; {
		w.now = min(w.now+50*sureFor/1000, until)
		for _, n := range w.nodes {
			for _, x := range w.nodes {
				if n.m != nil && x.busy {
					n.m.Alive(x.member, n.clock())
				}
			}
			n.step(Tick{Awake: w.awake})
		}
		w.quiet()
	}
}

// quiet delivers all messages on their way that are not held.
func (w *world) quiet() {
	for rounds := 0; rounds < 10000; rounds++ {
		i := slices.IndexFunc(w.links, func(f flight) bool { return !w.held[[2]string{string(f.from.Server), string(f.to.Server)}] })
		if i < 0 {
			break
		}
		w.deliver(i, false)
	}
	w.listStep()
	if !w.mute {
		w.answerStep()
	}
	w.check()
}

func (w *world) check() {
	for _, n := range w.nodes {
		if n.m != nil && n.m.Sure(n.clock()) {
			for _, s := range w.acked {
				n.has(s, "is sure without", len(n.log))
			}
		}
	}
	for _, s := range w.acked {
		lack := 0
		for _, n := range w.nodes {
			if n.m != nil && n.m.Once() && !slices.ContainsFunc(n.log, func(f frame) bool { return f.serial == s }) {
				lack++
			}
		}
		if most := len(w.nodes) - w.min; lack > most {
			w.breaks("%d placements that were sure once lack the acknowledged frame %s %v, at most %d may", lack, w.frames[s].body, s, most)
		}
	}
}

// Drawing.

func names(ms []Member) string {
	var out []string
	for _, x := range ms {
		out = append(out, string(x.Store))
	}
	return strings.Join(out, " ")
}

func draw(log []frame) string {
	var out []string
	for _, f := range log {
		out = append(out, fmt.Sprintf("%s(%v)", f.body, f.serial))
	}
	return strings.Join(out, " ")
}

func (w *world) draw() string {
	var b strings.Builder
	var acked []string
	for _, s := range w.acked {
		acked = append(acked, w.frames[s].body)
	}
	fmt.Fprintf(&b, "row: epoch %d, %s, list %s; acked: %s\n", w.row.epoch, w.row.holder, names(w.row.list), strings.Join(acked, " "))
	for _, n := range w.nodes {
		if n.m == nil {
			fmt.Fprintf(&b, "  %s  down          %s\n", n.name, draw(n.log))
			continue
		}
		is := "idle"
		if n.m.role == following {
			is = "follows " + string(n.m.order[0].Server)
			if !slices.Contains(n.m.order, n.member) {
				is = "joins " + string(n.m.order[0].Server)
			}
		}
		if n.m.role == leading {
			is = "leads " + names(n.m.order)
		}
		sure := "unsure"
		if n.m.Sure(n.clock()) {
			sure = "sure"
		} else if n.m.Quiet() {
			sure = "quiet"
		}
		fmt.Fprintf(&b, "  %s  %-12s %d, %-6s  %s", n.name, is, n.m.epoch, sure, draw(n.log[:n.synced]))
		if n.synced < len(n.log) {
			fmt.Fprintf(&b, " | %s", draw(n.log[n.synced:]))
		}
		if len(n.aside) > 0 {
			fmt.Fprintf(&b, "   aside: %s", draw(n.aside))
		}
		b.WriteString("\n")
	}
	return b.String()
}
