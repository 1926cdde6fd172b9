package partition

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// copiesOf are placements of one partition, one of which leads: frames and segments are carried over when a step says so.
type copiesOf struct {
	t      *testing.T
	rng    *rand.Rand
	disks  []*vfs.MemFS
	folds  []*folds
	at     []*bench
	epoch  point.Epoch
	lead   int
	epochs []point.Epoch // per placement, the epoch that it follows or leads
	acked  map[string]float64
	unsure map[string]bool // series of which a deletion failed
	steps  []string
}

const copiesCount = 3

// TestCopiesAgreeWhateverHappens runs inserts, deletions, flushes, compactions, changes of the leader, surplus, restarts and power cuts at
// random; at the end all placements are brought together and hold the same bytes and every row that all had. COPIES_RUNS says how many
// runs (default 15), TEST_SEED where to begin.
func TestCopiesAgreeWhateverHappens(t *testing.T) {
	runs, seed := 15, rand.Uint64()
	if testing.Short() {
		runs = 4
	}
	if n, err := strconv.Atoi(os.Getenv("COPIES_RUNS")); err == nil {
		runs = n
	}
	if n, err := strconv.ParseUint(os.Getenv("TEST_SEED"), 10, 64); err == nil {
		seed = n
	}
	for i := range uint64(runs) {
		runCopies(t, seed+i)
		if t.Failed() {
			t.Fatalf("TEST_SEED=%d COPIES_RUNS=1 go test -run %s ./storage/partition", seed+i, t.Name())
		}
	}
}

func runCopies(t *testing.T, seed uint64) {
	c := &copiesOf{t: t, rng: rand.New(rand.NewPCG(seed, 1)), acked: map[string]float64{}, unsure: map[string]bool{}, epochs: make([]point.Epoch, copiesCount)}
	for range copiesCount {
		fs := vfs.NewCrashableMem()
		c.disks, c.folds = append(c.disks, fs), append(c.folds, newFolds(fs))
		b := openBenchWith(t, c.folds[len(c.at)], 0, hushed)
		b.must(b.FollowLeader(0))
		c.at = append(c.at, b)
	}
	defer func() {
		for _, b := range c.at {
			b.close()
		}
		if t.Failed() {
			t.Log(c.steps)
		}
	}()
	c.elect(0)
	for range 60 {
		c.step()
		if t.Failed() {
			return
		}
	}
	c.heal()
}

func (c *copiesOf) say(format string, args ...any) {
	c.steps = append(c.steps, fmt.Sprintf(format, args...))
}

func (c *copiesOf) step() {
	l := c.at[c.lead]
	switch n := c.rng.IntN(100); {
	case n < 45:
		c.put()
	case n < 52:
		c.delete()
	case n < 62:
		c.say("flush")
		l.must(l.Flush(c.t.Context(), ByAge))
	case n < 64:
		c.compact(ByRequest, 0)
	case n < 66:
		if n := len(l.Segments()); n > 1 {
			c.compact(ByCount, c.rng.IntN(n))
		}
	case n < 76:
		i := c.rng.IntN(copiesCount)
		c.say("catch up %d", i)
		c.catchUp(i)
	case n < 84:
		i := c.rng.IntN(copiesCount)
		c.say("fetch %d", i)
		c.catchUp(i)
		c.fetchSome(i, c.rng.IntN(4))
	case n < 90:
		c.restart(c.rng.IntN(copiesCount), c.rng.IntN(2) == 0)
	case n < 94:
		c.at[c.rng.IntN(copiesCount)].Cool(time.Now().Add(time.Hour), 0)
	default:
		c.surplus()
		c.elect(c.rng.IntN(copiesCount))
	}
}

func (c *copiesOf) delete() {
	l := c.at[c.lead]
	name, lo, hi := fmt.Sprint("s", c.rng.IntN(12)), 0, 1000
	if c.rng.IntN(2) == 0 { // of some segments, maybe
		lo = c.rng.IntN(1000)
		hi = lo + c.rng.IntN(200)
	}
	c.say("delete %s %d-%d", name, lo, hi)
	if err := l.Delete(c.t.Context(), 0, only(name), point.Nanos(lo), point.Nanos(hi)); err != nil {
		c.unsure[name] = true
		return
	}
	for k := range c.acked {
		if had, at, _ := strings.Cut(k, " "); had == name {
			if at, _ := strconv.Atoi(at); at >= lo && at <= hi {
				delete(c.acked, k)
			}
		}
	}
}

// compact folds the segments from one on, with more steps each time that a result is begun.
func (c *copiesOf) compact(why Reason, from int) {
	l, epoch, fs := c.at[c.lead], c.epoch, c.folds[c.lead]
	n := len(l.Segments())
	if n == 0 {
		return
	}
	c.say("fold from %d of %d on, by %s", from, n, why)
	for range c.rng.IntN(4) {
		fs.steps = append(fs.steps, func() { c.meanwhile(l, epoch) })
	}
	err := l.compact(c.t.Context(), why, l.Segments()[from].ID)
	fs.steps = nil
	if c.epoch == epoch || !fault.Is(err, fault.Canceled) && !fault.Is(err, fault.Stale) {
		l.must(err)
	}
	c.say("folded: %d segments, error %v", len(l.Segments()), err)
}

func (c *copiesOf) meanwhile(l *bench, epoch point.Epoch) {
	if !l.flushMu.TryLock() { // the last fold: nothing is flushed
		return
	}
	l.flushMu.Unlock()
	c.say("meanwhile")
	for range c.rng.IntN(8) {
		i := c.rng.IntN(copiesCount)
		switch n := c.rng.IntN(100); {
		case n < 35:
			c.put()
		case n < 45:
			c.delete()
		case n < 65 && c.at[c.lead].HeadRows() > 0:
			c.say("flush")
			c.at[c.lead].must(c.at[c.lead].Flush(c.t.Context(), ByAge))
		case n < 75:
			c.say("catch up %d", i)
			c.catchUp(i)
		case n < 92:
			c.say("fetch %d", i)
			c.catchUp(i)
			c.fetchSome(i, c.rng.IntN(4))
		case n < 96:
			if i != c.lead && c.at[i] != l {
				c.restart(i, c.rng.IntN(2) == 0)
			}
		case n < 98:
			c.surplus()
			c.elect(i)
		}
	}
	c.say("goes on")
}

// put inserts a row; all placements have it before it counts.
func (c *copiesOf) put() {
	name, at, v := fmt.Sprint("s", c.rng.IntN(12)), point.Nanos(c.rng.IntN(1000)), float64(c.rng.IntN(1000))
	l := c.at[c.lead]
	l.stamp = max(l.stamp, point.Stamp(c.epoch)<<40)
	l.must(l.put(name, at, v))
	if c.rng.IntN(3) > 0 {
		c.all()
	}
	c.acked[fmt.Sprint(name, " ", at)] = v // the leader stays one of those that have it
	c.say("put %s %d=%v", name, at, v)
}

// all brings the frames to all placements.
func (c *copiesOf) all() {
	for i := range c.at {
		c.catchUp(i)
	}
}

// surplus makes the leader accept rows that reach one other placement at most, and then lose the lead.
func (c *copiesOf) surplus() {
	c.all()
	l := c.at[c.lead]
	for range c.rng.IntN(3) {
		l.stamp += 1024
		l.must(l.put(fmt.Sprint("u", c.rng.IntN(5)), point.Nanos(c.rng.IntN(1000)), -1))
	}
	if c.rng.IntN(2) == 0 {
		c.catchUp(c.rng.IntN(copiesCount))
	}
}

// elect makes a placement lead that has all acknowledged frames.
func (c *copiesOf) elect(i int) {
	c.epoch++
	c.lead = i
	c.say("lead %d in %d", i, c.epoch)
	c.epochs[i] = c.epoch
	b := c.at[i]
	b.must(b.LeadChain(c.epoch, &byHand{await: func(point.Serial) error { c.all(); return nil }}))
}

// follow makes a placement follow the leader, and cuts its surplus.
func (c *copiesOf) follow(i int) {
	b := c.at[i]
	if c.epochs[i] != c.epoch {
		b.must(b.FollowLeader(c.epoch))
		c.epochs[i] = c.epoch
		if at := common(b.Ends(), c.at[c.lead].Ends()); at.Less(b.Last()) {
			c.say("cut %d behind %v", i, at)
			_, err := b.Cut(at)
			b.must(err)
		}
	}
}

// common returns the last frame that both logs have.
func common(a, b []point.EpochEnd) (last point.Serial) {
	for _, e := range a {
		for _, o := range b {
			if e.Epoch == o.Epoch {
				last = point.Serial{Epoch: e.Epoch, Seq: min(e.Seq, o.Seq)}
				if e.Seq != o.Seq {
					return last
				}
			}
		}
		if !slices.ContainsFunc(b, func(o point.EpochEnd) bool { return o.Epoch == e.Epoch }) {
			return last
		}
	}
	return last
}

func (c *copiesOf) catchUp(i int) {
	if i == c.lead {
		return
	}
	c.follow(i)
	b, l := c.at[i], c.at[c.lead]
	if err := b.catchUp(l, c.epoch); err != nil {
		if fault.Is(err, fault.Stale) { // the log does not reach back: segments first
			c.fetch(i)
			err = b.catchUp(l, c.epoch)
		}
		b.must(err)
	}
}

// fetch copies segments: those that go on top of the chain or of a segment in it, or else the leader's major and the minors on it. None while the leader's lack frames of those here.
func (c *copiesOf) fetch(i int) { c.fetchSome(i, 1000) }

func (c *copiesOf) fetchSome(i, most int) {
	if i == c.lead {
		return
	}
	c.follow(i)
	b, l := c.at[i], c.at[c.lead]
	if !covers(endsOf(infosOf(l.Offered())), endsOf(b.Segments())) {
		return
	}
	for _, info := range infosOf(l.Offered()) {
		if most == 0 {
			return
		}
		var have []point.SegmentID
		for _, g := range b.Segments() {
			have = append(have, g.ID)
		}
		if have = append(have, b.Ahead()...); !slices.Contains(have, info.ID) && (info.Major || slices.Contains(have, info.Base)) {
			b.must(b.Adopt(c.epoch, info, copySegment(c.t, l, b, info.ID)))
			most--
		}
	}
}

func infosOf(st *State) (all []segment.Info) {
	for i := range st.Segments {
		all = append(all, st.Segments[i].Info)
	}
	return all
}

// restart opens a placement again, as it was or after a power cut.
func (c *copiesOf) restart(i int, cut bool) {
	c.say("restart %d, power cut %v", i, cut)
	b := c.at[i]
	disk := c.disks[i]
	if cut {
		disk = disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100 * c.rng.IntN(2), RNG: c.rng})
	}
	b.close()
	c.disks[i], c.folds[i] = disk, newFolds(disk)
	b = openBenchWith(c.t, c.folds[i], 0, hushed)
	b.must(b.FollowLeader(0))
	b.must(b.Tidy(true))
	b.must(b.Damaged())
	c.at[i], c.epochs[i] = b, 0
	if i == c.lead {
		c.elect(i)
	}
}

// heal brings all together under a major of the leader.
func (c *copiesOf) heal() {
	c.say("heal")
	l := c.at[c.lead]
	l.must(l.put("last", 1, 1))
	c.all()
	for l.HeadRows() > 0 {
		l.must(l.Flush(c.t.Context(), ByAge))
	}
	for i := range c.at {
		if i != c.lead { // without a new major
			c.catchUp(i)
			c.fetch(i)
			same(c.t, l, c.at[i])
		}
	}
	l.must(l.Compact(c.t.Context(), ByRequest))
	for i := range c.at {
		if i != c.lead {
			c.catchUp(i)
			c.fetch(i)
			same(c.t, l, c.at[i])
		}
	}
	v, err := l.View()
	l.must(err)
	defer v.Close()
	have := " " + text(c.t, v) + " "
	for k, want := range c.acked {
		var name string
		var at int
		_, _ = fmt.Sscan(k, &name, &at)
		if !rowIn(have, name, at, want) {
			c.t.Errorf("row %s=%v is gone: %s", k, want, have)
		}
	}
	for series := range strings.SplitSeq(have, ";") { // none that was deleted is back
		row := strings.Fields(series)
		if len(row) == 0 || row[0][0] != 's' || c.unsure[row[0]] {
			continue
		}
		for _, r := range row[1:] {
			at, _, _ := strings.Cut(r, ":")
			if _, ok := c.acked[row[0]+" "+at]; !ok {
				c.t.Errorf("row %s %s was deleted, or never written", row[0], r)
			}
		}
	}
}

// rowIn looks for a row in the output of text.
func rowIn(text, name string, at int, v float64) bool {
	for series := range strings.SplitSeq(text, ";") {
		if row := strings.Fields(series); row[0] == name && slices.Contains(row[1:], fmt.Sprintf("%d:%v", at, v)) {
			return true
		}
	}
	return false
}
