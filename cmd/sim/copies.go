package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
	replicas "github.com/spillwaydb/spillway/storage/replica"
)

// drawCopies chooses the tables with copies: of half of the runs none, of the others one or all, of two or three replicas. The other tables
// of such a run have one. It draws from a source of its own: a run without copies is as it was before there were any.
func (w *world) drawCopies() {
	w.copied = map[string]int{}
	rng := rand.New(rand.NewPCG(w.opt.Seed, 0xc0b1e5))
	if w.opt.scripted || w.opt.Faults.has(restore) || w.opt.Servers < 2 {
		return
	}
	how := rng.IntN(6)
	for i, table := range w.tables {
		replicas := []int{0, 0, 0, 3, 3, 2}[how]
		switch n := w.opt.Copies; {
		case n > 0:
			replicas = n
		case how != 4 && i > 0:
			replicas = 0
		}
		if replicas > 1 {
			w.copied[table] = min(replicas, w.opt.Servers)
		}
	}
	if w.copies() { // the others have one replica, and a chain while a partition is moved
		for _, table := range w.tables {
			w.copied[table] = max(1, w.copied[table])
		}
	}
	w.flushFrom, w.segmentsMax = []int{0, 1, 3, 1 << 30}[rng.IntN(4)], 1+rng.IntN(4)
	w.segments = replicas.Settings{AnswerIn: 3 * time.Second, SlotIdle: 5 * time.Second, RetryMax: 5 * time.Second, SlotsMax: 1 + 3*rng.IntN(2)}
	tiny := rng.IntN(3) == 0
	w.chain = chain.Settings{PingEvery: 300 * time.Millisecond, RelistAfter: 5 * time.Second, ReachAfter: time.Second, RelistMax: 20 * time.Second, QuietPingEvery: 5 * time.Second}
	w.chain.QuietAfter = []time.Duration{2 * time.Second, 8 * time.Second, time.Minute}[rng.IntN(3)]
	if tiny {
		w.chain.WindowBytes, w.chain.BacklogBytesMax, w.chain.JoinLagBytes = 2*frameBytes, 6*frameBytes, frameBytes
	}
}

func (w *world) copies() bool { return len(w.copied) > 0 }

func (w *world) isCopied(id lease.Partition) bool { return w.copied[id.Table] > 0 }

// replicasOf is the setting of a table. Where there are copies, every table of several replicas has them.
func (w *world) replicasOf(table string) int {
	if w.copies() {
		return max(1, w.copied[table])
	}
	return w.replicas
}

// chains has a server's chains go on with time.
func (s *server) chains() {
	if !s.w.copies() {
		return
	}
	s.every(s.w.chain.PingEvery/2, "chains", s.tickLinks)
	s.every(time.Second, "look at chains", s.lookAtChains)
	s.every(copyEvery, "look at segments", s.lookAtSegments)
}

// looksAtChains has the chains looked at in a moment.
func (s *server) looksAtChains() {
	if !s.looked {
		s.looked = true
		s.after(time.Millisecond, "look at chains", func() {
			s.looked = false
			s.lookAtChains()
		})
	}
}

// copiesChecker sees the frames of all copies.
type copiesChecker struct {
	made  map[lease.Partition]map[point.Serial]*frame
	acked map[lease.Partition][]*frame    // all that were acked, in order
	heads map[lease.Partition]headOf      // of the highest epoch
	by    map[lease.Partition]point.Epoch // the highest that acked
	files map[lease.Partition]map[point.SegmentID]*segmentFile
	burnt map[lease.Partition]bool // all listed disks were lost: nothing is promised of its rows
}

type headOf struct {
	epoch point.Epoch
	x     *link
}

func newCopiesChecker() copiesChecker {
	return copiesChecker{map[lease.Partition]map[point.Serial]*frame{}, map[lease.Partition][]*frame{}, map[lease.Partition]headOf{}, map[lease.Partition]point.Epoch{}, map[lease.Partition]map[point.SegmentID]*segmentFile{}, map[lease.Partition]bool{}}
}

func (c *copiesChecker) forget(id lease.Partition) {
	delete(c.made, id)
	delete(c.acked, id)
	delete(c.heads, id)
	delete(c.files, id)
	delete(c.by, id)
}

// isLost reports whether a row that a store had, or all listed ones, cannot be there any more.
func (c *checker) isLost(id lease.Partition, store lease.StoreID) bool {
	if c.w.isCopied(id) {
		return c.copies.burnt[id]
	}
	return c.dead[store]
}

// burn notes the partitions of which all listed disks were lost.
func (c *checker) burn() {
	for id, l := range c.listed { // each by itself: the order does not matter
		if c.w.isCopied(id) && len(l.InSync) > 0 && !slices.ContainsFunc(l.InSync, func(m lease.Member) bool { return !c.dead[m.Store] }) {
			if !c.copies.burnt[id] {
				c.w.n.lost += len(c.rows[id])
			}
			c.copies.burnt[id] = true
		}
	}
}

// listWritten checks that a list never shrinks below what readers count on. The leader of a partition that unloads may be alone in it where nothing was acked: it
// holds no row itself, as each listed placement would.
func (c *checker) listWritten(id lease.Partition, was, row lease.Lease) {
	least := c.shortest(id)
	if !c.w.isCopied(id) || row.Empty || was.Empty || len(row.InSync) >= min(least, len(was.InSync)) || len(c.rows[id]) == 0 && c.unloads(id) {
		return
	}
	c.w.fail("I1: the list of %s shrinks from %d to %d, and readers count on %d", id, len(was.InSync), len(row.InSync), least)
}

// unloads reports whether the committed map has a partition, which accepts no writes there.
func (c *checker) unloads(id lease.Partition) bool {
	t := c.at(id.Table)
	if t.m == nil {
		return false
	}
	p, ok := t.m.ByID(id.ID)
	return ok && !p.Accepts()
}

// makes checks that a serial names one frame.
func (c *checker) makes(x *link, f *frame) {
	made := c.copies.made[x.id]
	if made == nil {
		made = map[point.Serial]*frame{}
		c.copies.made[x.id] = made
	}
	if old := made[f.serial]; old != nil {
		c.w.fail("I6: %s gives serial %v of %s to value %x, and it was %x's", x.s.id, f.serial, x.id, f.row.value, old.row.value)
	}
	made[f.serial] = f
	if high := c.highest[placementOn{x.s.disk.id, x.r.placement}]; f.serial.Epoch < high {
		c.w.fail("I3: the brick of %s accepted a frame of %s at epoch %d after it saw %d", x.s.id, x.id, f.serial.Epoch, high)
	}
}

// takesFrame checks a frame that a member logs: it follows the last one, and its sender was not overtaken there.
func (c *checker) takesFrame(x *link, epoch point.Epoch, f *frame) {
	if end := x.r.log.end(); f.prev != end {
		c.w.fail("I6: %s logs frame %v of %s, which follows %v, behind %v", x.s.id, f.serial, x.id, f.prev, end)
	}
	if high := c.highest[placementOn{x.s.disk.id, x.r.placement}]; epoch < high {
		c.w.fail("I3: the brick of %s accepted a frame of %s from the head of epoch %d after it saw %d", x.s.id, x.id, epoch, high)
	} else if epoch > high {
		c.w.fail("I3: %s takes a frame of %s from the head of epoch %d, which its brick has not raised durably", x.s.id, x.id, epoch)
	}
}

// kept checks the frames that a head acks: every listed member has them durably, and so has every head of a higher epoch.
func (c *checker) kept(x *link, was, upto point.Serial) {
	id := x.id
	if c.dropped[id] {
		return
	}
	acked := c.copies.acked[id]
	before := len(acked)
	for _, f := range x.r.log.all[was.Seq:] {
		switch n := f.serial.Seq; {
		case upto.Less(f.serial):
		case n <= uint64(len(acked)):
			if acked[n-1] != f && !c.copies.burnt[id] {
				c.w.fail("I6: %s acks frame %v of %s as value %x, and frame %v was acked as value %x", x.s.id, f.serial, id, f.row.value, acked[n-1].serial, acked[n-1].row.value)
				return
			}
		default:
			acked = append(acked, f)
		}
	}
	c.copies.acked[id] = acked
	if len(acked) == before || c.copies.burnt[id] {
		return
	}
	newest := acked[len(acked)-1]
	c.copies.by[id] = max(c.copies.by[id], x.epoch)
	c.onAll(x, newest.serial)
	if h := c.copies.heads[id]; h.x != nil && h.epoch > x.epoch && !c.dead[h.x.self.Store] && h.x.s.disk.copies[id] == h.x.r && !h.x.r.log.has(newest) {
		c.w.fail("I1: %s acks frame %v of %s in epoch %d, and %s led in epoch %d without it", x.s.id, newest.serial, id, x.epoch, h.x.s.id, h.epoch)
	}
	c.sureHas(id)
}

// keptAlone is kept, of a partition without a chain.
func (c *checker) keptAlone(x *link, upto point.Serial) {
	if n := uint64(len(c.copies.acked[x.id])); n < upto.Seq && x.r.log.find(upto) != nil {
		c.kept(x, point.Serial{Seq: n}, upto)
	}
}

// onAll checks that every listed member has an acknowledged frame durably.
func (c *checker) onAll(x *link, upto point.Serial) {
	id, f := x.id, x.r.log.find(upto)
	if f == nil || c.dropped[id] || c.copies.burnt[id] {
		return
	}
	if m := c.at(id.Table).m; m != nil {
		if _, ok := m.ByID(id.ID); !ok {
			return // its rows are in others by now, and the listed members removed it
		}
	}
	for _, m := range c.listed[id].InSync {
		s := c.w.servers[c.w.indexOf(m.Server)]
		if s.disk.id != m.Store || c.dead[m.Store] {
			continue // its disk is lost: the promise holds for the others
		}
		r := s.disk.copies[id]
		if r == nil || r.log == nil || r.placement != m.Placement || !r.log.has(f) || s.disk.durable(r).Less(upto) {
			c.w.fail("I1: %s acks frame %v of %s, and %s, which is listed, does not have it durably", x.s.id, upto, id, m.Server)
		}
	}
}

// madeSegment checks a segment that a leader made: its name is new, and all of its frames were acked.
func (c *checker) madeSegment(x *link, g *segmentFile) {
	files, acked := c.copies.files[x.id], c.copies.acked[x.id]
	if files == nil {
		files = map[point.SegmentID]*segmentFile{}
		c.copies.files[x.id] = files
	}
	if files[g.ID] != nil {
		c.w.fail("I4: %s makes segment %v of %s a second time", x.s.id, g.ID, x.id)
	}
	files[g.ID] = g
	if c.dropped[x.id] || c.copies.burnt[x.id] {
		return
	}
	for _, f := range g.frames {
		if n := f.serial.Seq; n > uint64(len(acked)) || acked[n-1] != f {
			c.w.fail("I6: %s makes segment %v of %s with frame %v, which was not acked", x.s.id, g.ID, x.id, f.serial)
			return
		}
	}
}

// adopts checks the bytes of a segment that a placement makes its own.
func (c *checker) adopts(x *link, g *segmentFile) {
	if made := c.copies.files[x.id][g.ID]; made != g && !c.dropped[x.id] {
		c.w.fail("I4: %s has other bytes as segment %v of %s than its leader made", x.s.id, g.ID, x.id)
	}
}

// leadsChain checks that a head begins with all acked frames.
func (c *checker) leadsChain(x *link, epoch point.Epoch) {
	if h := c.copies.heads[x.id]; epoch > h.epoch {
		c.copies.heads[x.id] = headOf{epoch, x}
	}
	if acked := c.copies.acked[x.id]; len(acked) > 0 && epoch > c.copies.by[x.id] && !c.copies.burnt[x.id] && !c.dropped[x.id] && !x.r.log.has(acked[len(acked)-1]) {
		c.w.fail("I1: %s leads %s in epoch %d without frame %v, which was acked", x.s.id, x.id, epoch, acked[len(acked)-1].serial)
	}
}

// sureHas checks that no placement calls itself sure that lacks an acked row.
func (c *checker) sureHas(id lease.Partition) {
	acked := c.copies.acked[id]
	if len(acked) == 0 || c.copies.burnt[id] || c.dropped[id] {
		return
	}
	for _, s := range c.w.servers {
		x := s.links[id]
		if !s.dead && x != nil && x.alive() && x.m.Sure(s.uptime()) && !x.r.log.has(acked[len(acked)-1]) {
			c.w.fail("I1: %s is sure that it has all of %s, and lacks frame %v, which was acked", s.id, id, acked[len(acked)-1].serial)
		}
	}
}

func (c *checker) sureHaveAll() {
	for i, s := range c.w.servers {
		for _, id := range s.linked {
			if !slices.ContainsFunc(c.w.servers[:i], func(o *server) bool { return o.links[id] != nil }) { // else it was looked at with that one
				c.sureHas(id)
			}
		}
	}
}

// needsDead reports whether a partition waits for the server that stays dead: fewer than the minimum in sync are left.
func (w *world) needsDead(t *truth, p *topology.Partition) bool {
	id := t.part(p.ID)
	if w.without == "" || !w.isCopied(id) {
		return false
	}
	l, least := w.check.listed[id], t.m.Config.MinInSync()
	live := slices.DeleteFunc(slices.Clone(l.InSync), func(m lease.Member) bool { return m.Server == w.without || w.check.dead[m.Store] })
	if l.Empty || len(l.InSync) == 0 {
		return len(slices.DeleteFunc(placements(p), func(s topology.ServerID) bool { return s == w.without })) < least
	}
	if t.m.Config.InSyncMin > 0 { // a shorter list accepts no rows
		return len(live) < least
	}
	return len(live) < min(least, len(l.InSync))
}

// copiesNotWhole reports a partition with rows that is not in sync on all of its placements; "" if there is none.
func (w *world) copiesNotWhole() string {
	w.wakeChains()
	if why := w.surplusWaits(); why != "" && w.without == "" {
		return why
	}
	for _, table := range w.tables {
		t := w.check.at(table)
		if w.copied[table] == 0 || t.m == nil || w.without != "" {
			continue
		}
		for p := range t.m.All() {
			id := t.part(p.ID)
			l := w.check.listed[id]
			leader := w.leader(id)
			if leader == nil || l.Empty || len(l.InSync) == 0 || leader.disk.copies[id] == nil {
				continue // nothing was written, or a person must look, and that is checked elsewhere
			}
			if why := w.copyNotWhole(t, p, leader); why != "" {
				return why
			}
		}
	}
	return ""
}

// wakeChains has quiet placements become sure, as reads do.
func (w *world) wakeChains() {
	for _, s := range w.servers {
		for _, id := range slices.Clone(s.linked) {
			if x := s.links[id]; x != nil && x.alive() && x.m.Quiet() {
				x.step(chain.Wanted{})
			}
		}
	}
}

func (w *world) copyNotWhole(t *truth, p *topology.Partition, leader *server) string {
	id := t.part(p.ID)
	l, head := w.check.listed[id], leader.disk.copies[id]
	all := append(slices.Clone(p.Placements), p.Joining...)
	for _, pl := range all {
		if !slices.ContainsFunc(l.InSync, func(m lease.Member) bool { return m.Placement == pl.ID }) {
			return fmt.Sprintf("%s on %s is not in sync again; the list: %v", id, pl.Server, l.InSync)
		}
	}
	for _, m := range l.InSync {
		s := w.servers[w.indexOf(m.Server)]
		r := s.disk.copies[id]
		switch {
		case s.disk.id != m.Store || r == nil:
			return fmt.Sprintf("%s lists %s, which has lost its disk", id, m.Server)
		case head.log != nil && (r.log == nil || !slices.Equal(r.log.all, head.log.all) || !slices.EqualFunc(r.log.records, head.log.records, func(a, b record) bool { return a.frame == b.frame })):
			return fmt.Sprintf("%s has another log of %s than its head %s", m.Server, id, leader.id)
		case head.log != nil && !slices.Equal(r.log.segments, head.log.segments):
			return fmt.Sprintf("%s has other segments of %s than its head %s: %v, %v", m.Server, id, leader.id, idsOf(r.log.segments), idsOf(head.log.segments))
		}
		if x := s.links[id]; head.log != nil && leader.kept(id) && (x == nil || !x.m.Sure(s.uptime())) {
			return fmt.Sprintf("%s on %s is not sure", id, m.Server)
		}
	}
	return ""
}

// writesLast has clients write one more row into each partition with copies, once all is well. It reports whether it did: then all is
// looked at again.
func (w *world) writesLast() bool {
	if w.wroteLast || !w.copies() || w.opt.scripted {
		return false
	}
	w.wroteLast = true
	g := w.clients[0]
	for _, table := range w.tables {
		t := w.check.at(table)
		if w.copied[table] == 0 || t.m == nil {
			continue
		}
		for p := range t.m.All() {
			id := t.part(p.ID)
			if k, ok := w.history.within(table, p); ok && p.Accepts() && w.leader(id) != nil {
				in := w.history.begin(k)
				g.open++
				w.n.rows++
				g.unacked[in.value] = in
				g.write(g.views.at(table), in)
			}
		}
	}
	return true
}

// within gives a key of a partition.
func (h *history) within(table string, p *topology.Partition) (keyID, bool) {
	for _, id := range h.of[table] {
		if k := h.keys[id]; k.t >= p.TimeLo && k.t < p.TimeHi && k.ring >= p.PointLo && k.ring <= p.PointHi-1 {
			return id, true
		}
	}
	return 0, false
}
