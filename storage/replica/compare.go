package replica

import (
	"cmp"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Comparer compares what the placements of one partition hold with what its leader holds, while no frame comes. It belongs to the leader's epoch.
//
//	at rest for CompareAfter ──Begin──▶ asked: all members, from the same frame on ──Answered by all, or AnswerWithin──▶ equal: again after CompareEvery
//	                                                                                                            └▶ one differs: again at once; then Difference,
//	                                                                                                               and repaired if another agrees with the leader
//
// A difference counts when two comparisons in a row find it: a segment that was on its way at the first is there at the second.
type Comparer struct {
	set CompareSettings

	next    Time // when to begin
	asked   bool
	since   Time
	own     Digest
	members []Member
	digests map[Member]Digest
	doubted []Difference // by the last comparison, if it was equal to the one before: found
	found   []Difference
	repair  Time // when a repair may be requested again
}

// CompareSettings are numbers a user sets.
type CompareSettings struct {
	// CompareEvery is how often a partition at rest is compared. Default 10 min.
	CompareEvery time.Duration
	// CompareAgain is how soon one that differs is compared again. Default 10 s.
	CompareAgain time.Duration
	// AnswerWithin bounds the wait for answers. Default 5 s.
	AnswerWithin time.Duration
}

// SetDefaults fills in what is 0.
func (s *CompareSettings) SetDefaults() {
	s.CompareEvery = cmp.Or(s.CompareEvery, 10*time.Minute)
	s.CompareAgain = cmp.Or(s.CompareAgain, 10*time.Second)
	s.AnswerWithin = cmp.Or(s.AnswerWithin, 5*time.Second)
}

// Digest is what a placement holds, in short: all its segments, and its log from behind After to End.
type Digest struct {
	After, End    point.Serial
	Segments, Log uint64
	Frames        uint64 // in Log
}

// Difference is a placement that holds something else than its leader.
type Difference struct {
	Member        Member
	Segments, Log bool // what differs
}

// String says what differs.
func (d Difference) String() string {
	switch {
	case d.Segments && d.Log:
		return "its segments and its log"
	case d.Segments:
		return "its segments"
	}
	return "its log"
}

// Comparison is the result of a comparison that has ended.
type Comparison struct {
	// New are differences that were not there before, Over those that are not there any more.
	New, Over []Difference
	// Repair: make the leader's segments again and offer them, since another placement agrees with the leader.
	Repair bool
}

// NewComparer makes the comparer of an epoch; first is when to begin.
func NewComparer(first Time, s CompareSettings) *Comparer {
	s.SetDefaults()
	return &Comparer{set: s, next: first}
}

// Due reports whether a comparison should begin.
func (c *Comparer) Due(now Time) bool { return !c.asked && now >= c.next }

// Begin begins a comparison with the digest of the leader: every member is to be asked for its own.
func (c *Comparer) Begin(now Time, own Digest, members []Member) {
	c.asked, c.since, c.own, c.members, c.digests = true, now, own, slices.Clone(members), map[Member]Digest{}
}

// Answered handles a member's answer. One for another comparison is late.
func (c *Comparer) Answered(from Member, d Digest) {
	if c.asked && d.After == c.own.After && d.End == c.own.End && slices.Contains(c.members, from) {
		c.digests[from] = d
	}
}

// Drop ends a comparison without a result, because frames came or the placements have changed.
func (c *Comparer) Drop(now Time) {
	if c.asked {
		c.asked, c.next = false, now+c.set.CompareAgain
	}
}

// End returns the result once all have answered, or their time is over. Those that did not answer say nothing.
func (c *Comparer) End(now Time) (out Comparison, ended bool) {
	if !c.asked || len(c.digests) < len(c.members) && now-c.since < c.set.AnswerWithin {
		return out, false
	}
	c.asked = false
	var differ []Difference
	agree := 0
	for _, m := range c.members {
		d, ok := c.digests[m]
		switch x := (Difference{m, d.Segments != c.own.Segments, d.Log != c.own.Log || d.Frames != c.own.Frames}); {
		case !ok:
			if i := slices.IndexFunc(c.found, func(f Difference) bool { return f.Member == m }); i >= 0 {
				differ = append(differ, c.found[i]) // it is found again, or not, when it answers
			}
		case x.Segments || x.Log:
			differ = append(differ, x)
		default:
			agree++
		}
	}
	found := slices.DeleteFunc(slices.Clone(differ), func(d Difference) bool { return !slices.Contains(c.doubted, d) && !slices.Contains(c.found, d) })
	out.New = without(found, c.found)
	out.Over = without(c.found, found)
	out.Repair = len(found) > 0 && agree > 0 && now >= c.repair
	if out.Repair {
		c.repair = now + c.set.CompareEvery
	}
	c.doubted, c.found, c.next = differ, found, now+c.set.CompareEvery
	if len(differ) > 0 {
		c.next = now + c.set.CompareAgain
	}
	return out, true
}

// Found are the differences found by the last comparison.
func (c *Comparer) Found() []Difference { return c.found }

func without(a, b []Difference) (out []Difference) {
	for _, d := range a {
		if !slices.Contains(b, d) {
			out = append(out, d)
		}
	}
	return out
}
