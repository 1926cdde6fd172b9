package replica

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// world is a partition on some servers, with the network between them. Frames are numbers of one log that all have a part of; the
// chain brought them there.
type world struct {
	now     Time
	nodes   []*node
	leader  *node
	wire    []delivery
	made    map[point.SegmentID]Segment // every segment that was ever made
	size    uint64
	broken  string
	trace   []string
	corrupt int // so many adoptions find other bytes
	loses   func() bool
	doubles func() bool
	free    uint64
	folding *fold // the leader's; nil: none
}

// fold is a compaction under way: of the leader's segments from one on and below another.
type fold struct{ from, upto int }

type node struct {
	name     string
	member   Member
	epoch    point.Epoch // promised
	leads    bool
	chain    []Segment
	ahead    []Segment        // of its leader, which wait for those above them
	log      []point.EpochEnd // of frames that it has, in segments or in the log
	nextSeq  uint64
	sender   *Sender // of a leader, or of a follower that repairs its leader
	receiver *Receiver
	files    map[point.SegmentID]uint64
	down     bool
	early    bool              // its program is of before segments waited for those above them
	broken   []point.SegmentID // with damaged files
	moving   map[uint64]Transit
	asks     Time // when a leader with damaged files asks again
}

// delivery is a message on its way: a SenderInput or a ReceiverInput of the node.
type delivery struct {
	to    *node
	what  any
	epoch point.Epoch // of the leader that it belongs to
}

var key = Key{Table: "t", Partition: 1}

func newWorld(names ...string) *world {
	w := &world{made: map[point.SegmentID]Segment{}, size: 100, free: 1 << 30, loses: never, doubles: never}
	for i, name := range names {
		n := &node{name: name, member: Member{Placement: point.PlacementID(i + 1), Server: topology.ServerID(name)}}
		n.restart()
		w.nodes = append(w.nodes, n)
	}
	w.take(w.nodes[0])
	return w
}

func never() bool { return false }

func (n *node) restart() {
	n.ahead = nil
	n.receiver, n.files, n.moving, n.down = NewReceiver(Settings{SlotsMax: 1}), map[point.SegmentID]uint64{}, map[uint64]Transit{}, false
	if n.leads {
		n.sender = NewSender(Settings{})
	}
}

// breaks damages the file of a segment.
func (n *node) breaks(i int) {
	if id := n.chain[i].ID; !slices.Contains(n.broken, id) {
		n.broken = append(n.broken, id)
	}
}

func (n *node) ends() []point.EpochEnd {
	if len(n.chain) == 0 {
		return nil
	}
	return n.chain[len(n.chain)-1].Ends
}

func (n *node) ids() []point.SegmentID { return idsOf(n.chain) }

func idsOf(chain []Segment) (ids []point.SegmentID) {
	for _, g := range chain {
		ids = append(ids, g.ID)
	}
	return ids
}

func (w *world) node(m Member) *node {
	for _, n := range w.nodes {
		if n.member == m {
			return n
		}
	}
	return nil
}

func (w *world) named(name string) *node {
	return w.nodes[slices.IndexFunc(w.nodes, func(n *node) bool { return n.name == name })]
}

// take makes a node the leader of the next epoch. It has all frames that are in segments anywhere.
func (w *world) take(n *node) {
	epoch := point.Epoch(1)
	if old := w.leader; old != nil {
		epoch = old.epoch + 1
		old.leads, old.sender = false, nil
	}
	n.moving, n.ahead = map[uint64]Transit{}, nil
	n.epoch, n.leads, n.sender, n.nextSeq = epoch, true, NewSender(Settings{}), 1
	w.leader, w.folding = n, nil
	w.chainChanged()
	w.write(1)
}

// write appends frames of the leader's epoch to its log, and to those of nodes that follow it.
func (w *world) write(frames uint64) {
	l := w.leader
	if i := len(l.log) - 1; i >= 0 && l.log[i].Epoch == l.epoch {
		l.log[i].Seq += frames
	} else {
		l.log = append(l.log, point.EpochEnd{Epoch: l.epoch, Seq: frames})
	}
}

// follow makes a node's log catch up with the leader's, and promise its epoch.
func (w *world) follow(n *node) {
	if n != w.leader && !n.down {
		if n.epoch != w.leader.epoch {
			n.ahead = nil
		}
		n.epoch, n.log = w.leader.epoch, slices.Clone(w.leader.log)
	}
}

func (w *world) chainChanged() {
	l := w.leader
	var others []Member
	for _, n := range w.nodes {
		if n != l {
			others = append(others, n.member)
		}
	}
	w.perform(l, l.sender.Step(w.now, Chain{l.chain}, nil))
	w.perform(l, l.sender.Step(w.now, Members{others}, nil))
}

// flush makes a segment of the frames that all nodes have.
func (w *world) flush() {
	l := w.leader
	for _, n := range w.nodes {
		if !n.down && !covers(n.log, l.log) {
			return // the chain's minimum is lower
		}
	}
	if covers(l.ends(), l.log) {
		return
	}
	g := Segment{Major: len(l.chain) == 0}
	if !g.Major {
		g.Base = l.chain[len(l.chain)-1].ID
	}
	w.add(g)
}

// compact folds the leader's chain into a major.
func (w *world) compact() {
	if w.beginFold(0) {
		w.endFold()
	}
}

// beginFold begins to fold the leader's segments from one on.
func (w *world) beginFold(from int) bool {
	l := w.leader
	if w.folding != nil || len(l.chain) < from+2 || len(l.broken) > 0 {
		return false
	}
	w.folding = &fold{from, len(l.chain)}
	return true
}

// endFold replaces them by one segment, and those made meanwhile by one on top of it.
func (w *world) endFold() {
	l, f := w.leader, w.folding
	if f == nil || len(l.broken) > 0 {
		return
	}
	late := l.chain[f.upto:]
	g := Segment{Major: f.from == 0, Base: l.chain[f.upto-1].ID, Ends: l.chain[f.upto-1].Ends}
	if !g.Major {
		g.Base = l.chain[f.from-1].ID
	}
	made := []Segment{w.make(g)}
	if n := len(late); n > 0 {
		made = append(made, w.make(Segment{Base: made[0].ID, Ends: late[n-1].Ends}))
	}
	l.chain, w.folding = append(slices.Clone(l.chain[:f.from]), made...), nil
	w.chainChanged()
}

func (w *world) add(g Segment) {
	l := w.leader
	g.Ends = slices.Clone(l.log)
	l.chain = append(slices.Clone(l.chain), w.make(g))
	w.chainChanged()
}

// make gives a segment its id.
func (w *world) make(g Segment) Segment {
	l := w.leader
	g.ID = point.SegmentID{Epoch: l.epoch, Seq: l.nextSeq}
	l.nextSeq++
	g.Size, g.Checksum = w.size, uint64(len(w.made)+1)
	w.made[g.ID] = g
	return g
}

func (w *world) say(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

// post puts a message on the wire.
func (w *world) post(to *node, what any) {
	d := delivery{to, what, w.leader.epoch}
	if w.loses() {
		return
	}
	w.wire = append(w.wire, d)
	if w.doubles() {
		w.wire = append(w.wire, d)
	}
}

func (w *world) perform(n *node, es []SenderEffect) {
	for _, e := range es {
		switch e := e.(type) {
		case Offer:
			to := w.node(e.To)
			w.say("%s offers %v to %s", n.name, e.Segment.ID, to.name)
			w.post(to, Offered{From: n.member, To: key, Epoch: n.epoch, Slot: e.Slot, Segment: e.Segment})
		case Transit:
			n.moving[e.Slot] = e
		case Stop:
			delete(n.moving, e.Slot)
		case Flush:
			w.say("%s shall flush for %s", n.name, w.node(e.For).name)
			w.flush()
		case Compact:
			w.say("%s shall compact for %s", n.name, w.node(e.For).name)
			w.compact()
		case Level:
			w.say("%s has all up to %v", w.node(e.Member).name, e.ID)
		case Suspect:
			w.say("%v is suspected", e.ID)
		case Overtaken:
			w.say("%s is overtaken", n.name)
		}
	}
}

// move sends the data of transfers: half of a file, then the rest with the commit.
func (w *world) move() {
	for _, n := range w.nodes {
		if n.sender == nil {
			continue
		}
		for _, slot := range sortedSlots(n.moving) {
			t := n.moving[slot]
			delete(n.moving, slot)
			to := w.node(t.To)
			if slices.Contains(n.broken, t.ID) { // it arrives damaged
				w.perform(n, n.sender.Step(w.now, Sent{To: t.To, Slot: slot}, nil))
				continue
			}
			for _, upto := range []uint64{w.size / 2, w.size} {
				if upto > t.Offset {
					w.post(to, Came{From: n.member, To: key, Slot: slot, Upto: upto})
				}
			}
			w.post(to, Committed{From: n.member, To: key, Slot: slot})
			w.perform(n, n.sender.Step(w.now, Sent{To: t.To, Slot: slot, OK: slices.ContainsFunc(n.chain, func(g Segment) bool { return g.ID == t.ID })}, nil))
		}
	}
}

func sortedSlots(m map[uint64]Transit) (slots []uint64) {
	for s := range m {
		slots = append(slots, s)
	}
	slices.Sort(slots)
	return slots
}

// deliver delivers one message.
func (w *world) deliver(i int) {
	d := w.wire[i]
	w.wire = slices.Delete(w.wire, i, i+1)
	if d.to.down {
		return
	}
	switch in := d.what.(type) {
	case Offered:
		n := d.to
		in.Has, in.Free = Holding{Epoch: n.epoch, Chain: slices.Concat(n.ids(), idsOf(n.ahead)), Ends: n.ends(), Leads: n.leads, Broken: n.broken}, w.free
		w.reply(n, n.receiver.Step(w.now, in, nil))
	case ReceiverInput:
		w.reply(d.to, d.to.receiver.Step(w.now, in, nil))
	case SenderInput:
		if in, ok := in.(Declined); ok && in.Slot == 0 && !d.to.leads && d.epoch == d.to.epoch {
			w.mend(d.to, in.From)
		}
		if d.to.sender != nil && d.epoch == d.to.epoch {
			w.perform(d.to, d.to.sender.Step(w.now, in, nil))
		}
	}
}

// mend has a follower offer its whole segments to a leader with damaged files.
func (w *world) mend(n *node, leader Member) {
	if n.sender != nil {
		return
	}
	n.sender = NewSender(Settings{})
	whole := slices.DeleteFunc(slices.Clone(n.chain), func(g Segment) bool { return slices.Contains(n.broken, g.ID) })
	w.perform(n, n.sender.Step(w.now, Chain{whole}, nil))
	w.perform(n, n.sender.Step(w.now, Members{[]Member{leader}}, nil))
}

func (w *world) reply(n *node, es []ReceiverEffect) {
	for _, e := range es {
		switch e := e.(type) {
		case Accept:
			if have := n.files[e.Segment.ID]; have < e.Offset {
				w.broken = fmt.Sprintf("%s goes on at %d of %v and has %d", n.name, e.Offset, e.Segment.ID, have)
			}
			n.files[e.Segment.ID] = max(n.files[e.Segment.ID], w.size)
			w.post(w.node(e.To), Accepted{From: n.member, Slot: e.Slot, Offset: e.Offset})
		case Decline:
			w.say("%s declines: %v", n.name, e.Reason)
			w.post(w.node(e.To), Declined{From: n.member, Slot: e.Slot, Reason: e.Reason, Ends: e.Ends})
		case Ack:
			w.post(w.node(e.To), Acked{From: n.member, Slot: e.Slot, ID: e.ID})
		case Discard:
			delete(n.files, e.ID)
		case Adopt:
			w.reply(n, n.receiver.Step(w.now, Adopted{To: e.At, ID: e.Segment.ID, Refused: w.adopt(n, e), Ends: n.ends()}, nil))
		}
	}
}

// adopt handles a finished file like storage/partition.
func (w *world) adopt(n *node, e Adopt) Reason {
	g := w.made[e.Segment.ID]
	delete(n.files, g.ID)
	lowest := g
	var before []Segment
	if i := slices.Index(idsOf(n.ahead), g.Base); i >= 0 && !g.Major {
		before = n.ahead[:i+1]
		lowest = before[0]
	}
	switch {
	case w.corrupt > 0:
		w.corrupt--
		w.say("%s finds %v damaged", n.name, g.ID)
		return Invalid
	case e.Epoch != n.epoch:
		return StaleEpoch
	case slices.Contains(n.broken, g.ID):
		n.broken = slices.DeleteFunc(n.broken, func(id point.SegmentID) bool { return id == g.ID })
		w.say("%s mends %v", n.name, g.ID)
		return 0
	case n.leads:
		return StaleEpoch
	case !lowest.Major && !slices.Contains(n.ids(), lowest.Base), !covers(e.Segment.Ends, n.ends()):
		return OutOfOrder
	case !covers(g.Ends, n.ends()) && n.early:
		return OutOfOrder
	case !covers(g.Ends, n.ends()):
		n.ahead = append(slices.Clip(before), g)
		w.say("%s keeps %v for what lies above it", n.name, g.ID)
		return 0
	}
	had := n.ends()
	n.chain = slices.Clone(n.chain[:slices.Index(n.ids(), lowest.Base)+1])
	if lowest.Major {
		n.chain = nil
	}
	n.chain, n.ahead = append(append(n.chain, before...), g), nil
	n.broken = slices.DeleteFunc(n.broken, func(id point.SegmentID) bool { return !slices.Contains(n.ids(), id) })
	if !covers(n.log, g.Ends) {
		n.log = slices.Clone(g.Ends)
	}
	if !covers(n.ends(), had) {
		w.broken = fmt.Sprintf("%s had frames up to %v in segments, and has %v", n.name, had, n.ends())
	}
	w.say("%s takes %v", n.name, g.ID)
	return 0
}

// check checks the invariants that hold after every event.
func (w *world) check() {
	for _, n := range w.nodes {
		for i, g := range n.chain {
			switch {
			case w.made[g.ID].Checksum != g.Checksum:
				w.broken = fmt.Sprintf("%s has other bytes as %v", n.name, g.ID)
			case g.Major != (i == 0):
				w.broken = fmt.Sprintf("%s: the chain %v is no major with minors", n.name, n.ids())
			case i > 0 && g.Base != n.chain[i-1].ID:
				w.broken = fmt.Sprintf("%s: %v lies on %v", n.name, g.ID, n.chain[i-1].ID)
			}
		}
		if !covers(n.log, n.ends()) {
			w.broken = fmt.Sprintf("%s has segments up to %v and a log up to %v", n.name, n.ends(), n.log)
		}
	}
}

// run lets time go by and everything be delivered in order.
func (w *world) run(d time.Duration) {
	for end := w.now + d; ; w.now += 100 * time.Millisecond {
		for len(w.wire) > 0 || w.anyMoves() {
			w.move()
			if len(w.wire) > 0 {
				w.deliver(0)
			}
		}
		w.tick()
		w.check()
		if w.now >= end {
			return
		}
	}
}

func (w *world) anyMoves() bool {
	return slices.ContainsFunc(w.nodes, func(n *node) bool { return n.sender != nil && len(n.moving) > 0 })
}

func (w *world) tick() {
	for _, n := range w.nodes {
		w.reply(n, n.receiver.Step(w.now, Tick{}, nil))
		switch {
		case len(n.broken) == 0 || n.down:
		case !n.leads:
			w.post(w.leader, Declined{From: n.member, Reason: OutOfOrder})
		case w.now >= n.asks:
			n.asks = w.now + 10*time.Second
			for _, o := range w.nodes {
				if o != n {
					w.post(o, Declined{From: n.member, Reason: Invalid})
				}
			}
		}
		if n.sender != nil && !n.leads && (len(w.leader.broken) == 0 || n.epoch != w.leader.epoch) {
			n.sender, n.moving = nil, map[uint64]Transit{}
		}
		if n.sender != nil && !n.down {
			w.perform(n, n.sender.Step(w.now, Tick{}, nil))
		}
	}
}

// draw shows the chain of each node: major*, then minors.
func (w *world) draw() string {
	var b strings.Builder
	for _, n := range w.nodes {
		role := ""
		if n.leads {
			role = fmt.Sprintf(" leads %d", n.epoch)
		}
		fmt.Fprintf(&b, "%s%s:", n.name, role)
		for _, g := range n.chain {
			fmt.Fprintf(&b, " %v", g.ID)
			if g.Major {
				b.WriteByte('*')
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}
