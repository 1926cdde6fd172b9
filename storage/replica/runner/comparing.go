package runner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/replica"
)

// Leaders compare what their followers hold with what they hold themselves, one partition at a time, at most one in comparePause, while no frame comes.
//
//	leader    at rest ── Digest ── CompareAsk ─▶ ◀─ CompareAnswer ── machine: equal, or found: named, counted, and repaired by a new segment
//	follower               same end of its log: Digest

// comparePause is the time between two comparisons that a server begins, and between two that it answers: each reads the log behind the segments once.
// In nanoseconds, as replica.Time is: one second.
const comparePause = replica.Time(1e9)

// lookAtComparing ends comparisons and begins the next one.
// A frame that came since drops a comparison under way: the digests are of one end of the log, and a member that is a
// frame further would seem to differ.
func (c *Copier) lookAtComparing() {
	now, found := c.deps.Clock(), 0
	for _, s := range c.senders {
		if last := s.copy.At.Last(); last != s.last {
			s.last, s.rests = last, now
			s.comparer.Drop(now)
		}
		if out, ended := s.comparer.End(now); ended {
			c.compared(s, out)
		}
		found += len(s.comparer.Found())
	}
	c.metrics.differences.Set(float64(found))
	c.recordDifferences(found)
	if c.comparing.busy || now-c.comparing.at < min(comparePause, c.settings.Compare.CompareEvery) {
		return
	}
	if s := c.nextToCompare(now); s != nil {
		c.comparing.busy, c.comparing.at, c.comparing.of = true, now, s.copy.Partition
		c.work.Go(func() { c.digest(s) })
	}
}

// nextToCompare returns the partition that is due and comes next, round and round; nil: none. One with a placement that lacks segments, or with segments of an early version, which are not copied,
// differs for another reason.
// The order is by table and id, from behind the one that was compared last: the map of senders has none, and its random
// order could pass a partition over for long.
func (c *Copier) nextToCompare(now replica.Time) (next *sending) {
	order := func(s *sending) (behind int, p lease.Partition) {
		p = s.copy.Partition
		if comparePartitions(p, c.comparing.of) <= 0 {
			behind = 1
		}
		return behind, p
	}
	for _, s := range c.senders {
		if s.state == nil || !s.comparer.Due(now) || now-s.rests < c.settings.CompareAfter || len(c.comparable(s)) == 0 || s.machine.Owing() > 0 || s.copy.At.State() != s.state || s.copy.At.Damaged() != nil || len(segmentsOf(s.state)) < len(s.state.Segments) {
			continue
		}
		if next != nil {
			a, p := order(s)
			b, q := order(next)
			if a > b || a == b && comparePartitions(p, q) > 0 {
				continue
			}
		}
		next = s
	}
	return next
}

func comparePartitions(a, b lease.Partition) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.ID, b.ID))
}

// comparable are the members with a server that can compare.
func (c *Copier) comparable(s *sending) []lease.Member {
	return slices.DeleteFunc(slices.Clone(s.members), func(m lease.Member) bool {
		l, ok := c.links[string(m.Server)]
		return !ok || !l.Peer().Capabilities.Has(peer.CanCompare)
	})
}

// digest reads the leader's log, then asks the members for the same.
// The log is read beside the loop. Behind it the loop checks that nothing came or was flushed meanwhile: else the
// digest is of no end that a member could have.
func (c *Copier) digest(s *sending) {
	own, err := c.digestOf(s.copy.At, s.copy.At.Flushed(), s.copy.At.Last())
	c.post(func() {
		c.comparing.busy = false
		switch {
		case err != nil:
			c.deps.Log.Warn("a partition is not compared with its copies; it is tried again", "partition", s.copy.Partition.String(), "error", err)
		case c.senders[s.copy.Partition] == s && s.copy.At.Last() == own.End && s.copy.At.Flushed() == own.After:
			members := c.comparable(s)
			s.comparer.Begin(c.deps.Clock(), own, members)
			for _, m := range members {
				c.send(m, s.route(m), &peer.CompareAsk{After: own.After, End: own.End})
			}
		}
	})
}

// digestOf is the digest of a placement that ends with a frame.
func (c *Copier) digestOf(at *partition.Partition, after, end point.Serial) (replica.Digest, error) {
	d, err := at.Digest(after, func(after, upto point.Serial, f func(point.Serial, []byte) error) error {
		return c.deps.Chains.ReadFrames(c.ctx, at, after, upto, f)
	})
	return replica.Digest{After: after, End: end, Segments: d.Segments, Log: d.Log, Frames: uint64(d.Frames)}, err
}

// askedToCompare answers a leader, if the log here ends as its own and no other answer is under way.
// It is silent otherwise: the leader ends the comparison after its time (AnswerWithin) with the answers that there are.
func (c *Copier) askedToCompare(p lease.Partition, from lease.Member, to point.PlacementID, epoch point.Epoch, m *peer.CompareAsk) {
	copy, ok := c.deps.Chains.Copy(p, to)
	if !ok || !copy.Joined || copy.Epoch != epoch || c.comparing.telling || copy.At.Last() != m.End || copy.At.Damaged() != nil {
		return
	}
	c.comparing.telling = true
	c.work.Go(func() {
		d, err := c.digestOf(copy.At, m.After, m.End)
		c.post(func() {
			c.comparing.telling = false
			if err != nil {
				c.deps.Log.Warn("a copy is not compared with its leader", "partition", p.String(), "error", err)
			} else if copy.At.Last() == m.End {
				c.reply(from, keyOf(p, to), epoch, &peer.CompareAnswer{After: m.After, End: m.End, Segments: d.Segments, Log: d.Log, Frames: d.Frames})
			}
		})
	})
}

// onCompare handles a follower's digest.
func (c *Copier) onCompare(p lease.Partition, from lease.Member, to point.PlacementID, epoch point.Epoch, m *peer.CompareAnswer) {
	if s := c.senders[p]; s != nil && s.copy.Epoch == epoch && s.copy.Self.Placement == to {
		s.comparer.Answered(from, replica.Digest{After: m.After, End: m.End, Segments: m.Segments, Log: m.Log, Frames: m.Frames})
	}
}

// compared reports the result of a comparison, and has the partition repaired: the frames of the log become a segment, all segments become one, and every member is asked again what it has.
// The member that differs then gets the new major as any placement that lacks it, and drops the segments below. The
// leader's rows win, so a repair needs a second copy that agrees with the leader: of two that differ nothing says which
// one is right.
func (c *Copier) compared(s *sending, out replica.Comparison) {
	c.metrics.compared.Inc()
	p := s.copy.Partition.String()
	for _, d := range out.New {
		c.metrics.differed.Inc()
		c.deps.Log.Error("a copy of a partition holds something else than its leader", "partition", p, "server", string(d.Member.Server), "placement", d.Member.Placement.String(), "differs", d.String())
	}
	for _, d := range out.Over {
		c.deps.Log.Info("a copy of a partition holds what its leader holds again", "partition", p, "server", string(d.Member.Server))
	}
	if !out.Repair {
		return
	}
	c.metrics.repairs.Inc()
	c.deps.Log.Warn("a copy of a partition gets its leader's rows anew, since another copy agrees with the leader", "partition", p)
	// No members, until the next look names them again: each then begins as one whose segments are not known.
	s.members = nil
	c.step(s, replica.Members{})
	at := s.copy.At
	c.make(s, func() error {
		if err := at.Flush(c.ctx, partition.ByRequest); err != nil {
			return err
		}
		return at.Compact(c.ctx, partition.ByRequest)
	})
}

// recordDifferences publishes the differences found.
func (c *Copier) recordDifferences(found int) {
	if found == 0 {
		c.differs.Store(nil)
		return
	}
	all := map[lease.Partition]string{}
	for p, s := range c.senders {
		var texts []string
		for _, d := range s.comparer.Found() {
			texts = append(texts, fmt.Sprintf("server %s differs in %s", d.Member.Server, d))
		}
		if len(texts) > 0 {
			all[p] = strings.Join(texts, ", ")
		}
	}
	c.differs.Store(&all)
}
