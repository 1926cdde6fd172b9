package partition

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestScripts plays histories of deletions and of rows that come late, in testdata/scripts, on two placements, H and M. After each command the rows of both are drawn. A row that was
// deleted, and that the leader reads, prints BROKEN, and so does one that the leader reads with another value than that which was received last.
//
//	servers [inexact]   H leads, M follows; inexact: all rows were received so long ago that a compaction keeps the highest rank of many, not that of each
//	write a 1 10        a row of series a at time 1; acked once the other has its frame
//	received            what comes late from now on was received at this moment, long before what is written later
//	late a 1 10         such a row comes, from a server that kept it
//	delete a            all rows of a; acked once the other has its frame
//	delete-others 64    so many deletions, of series that have no rows
//	flush | compact     the leader makes segments
//	fetch               the other gets the leader's frames and segments
//	restart             the leader
//	lead                the leader is gone, and the other leads
//	return              the former leader comes back: what the leader does not have is cut off, and it follows
//	cut                 the leader is cut off: what it logs from now on is not acked
//	rule alone          a deletion is acked by the leader alone: the rule as it was designed first, whose deletions live in the leader's catalogue
//	rule unranked       a row that comes late ranks as if it was received now
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var w *deletions
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var args []string
			for _, a := range d.CmdArgs {
				args = append(args, a.Key)
			}
			if d.Cmd == "servers" {
				w = newDeletions(t, slices.Contains(args, "inexact"))
			} else {
				w.command(d, args)
			}
			return w.draw()
		})
		w.leader.close()
		w.other.close()
	})
}

// deletions are two placements and the rows that were deleted.
type deletions struct {
	t             *testing.T
	fs            map[*bench]vfs.FS
	name          map[*bench]string
	leader, other *bench
	settings      Settings
	epoch         point.Epoch
	received      point.Stamp
	common        point.Serial // where the logs of both ended when the leader began
	followed      bool         // the other follows
	alone         bool
	cut           bool // from the other, until that leads
	unranked      bool
	gone          []string // "a 1:10"
	newest        map[string]received
	said          string
}

// received is the value of a row that was received last.
type received struct {
	at    point.Stamp
	value string
}

func newDeletions(t *testing.T, inexact bool) *deletions {
	hfs, mfs := vfs.NewMem(), vfs.NewMem()
	set := exact
	if inexact {
		set = Settings{}
	}
	h, c := leadingWith(t, hfs, 1, set)
	w := &deletions{t: t, leader: h, other: followingWith(t, mfs, 1, set), settings: set, epoch: 1, followed: true, newest: map[string]received{}}
	w.fs, w.name = map[*bench]vfs.FS{h: hfs, w.other: mfs}, map[*bench]string{h: "H", w.other: "M"}
	c.await = w.ack
	return w
}

// ack carries the leader's frames over.
func (w *deletions) ack(point.Serial) error {
	switch {
	case w.cut:
		return fault.Errorf(fault.Unavailable, "cut off")
	case w.alone || !w.followed:
		return nil
	}
	return w.other.catchUp(w.leader, w.epoch)
}

func (w *deletions) command(d *datadriven.TestData, args []string) {
	must := w.leader.must
	acked := func(err error) { // what is not acked may be logged
		if !w.cut || !fault.Is(err, fault.Unavailable) {
			must(err)
		}
	}
	number := func(i int) int {
		n, err := strconv.Atoi(args[i])
		must(err)
		return n
	}
	switch d.Cmd {
	case "write":
		acked(w.leader.put(args[0], point.Nanos(number(1)), float64(number(2))))
		w.keep(args, w.leader.highest())
	case "received":
		w.received = w.leader.highest() + 1
		w.leader.RankAbove(w.received + 2*deletedMargin)
	case "late":
		stamp := w.received
		if w.unranked {
			stamp = w.leader.highest() + 1
		}
		must(w.leader.forward(stamp, args[0], point.Nanos(number(1)), float64(number(2))))
		w.keep(args, w.received)
	case "delete":
		for _, series := range strings.Split(w.rows(w.leader), "; ") {
			if name, rest, _ := strings.Cut(series, " "); name == args[0] && !w.cut {
				for _, at := range strings.Fields(rest) {
					w.gone = append(w.gone, name+" "+at)
					row, _, _ := strings.Cut(at, ":")
					delete(w.newest, name+" "+row)
				}
			}
		}
		acked(w.leader.DeleteLate(w.t.Context(), w.epoch, only(args[0]), 0, 999))
	case "delete-others":
		for i := range number(0) {
			must(w.leader.DeleteLate(w.t.Context(), w.epoch, only(fmt.Sprint("other", i)), 0, 999))
		}
	case "flush":
		must(w.leader.Flush(w.t.Context(), ByAge))
	case "compact":
		must(w.leader.Flush(w.t.Context(), ByAge))
		must(w.leader.Compact(w.t.Context(), ByRequest))
	case "fetch":
		must(w.other.catchUp(w.leader, w.epoch))
		must(w.other.fetch(w.leader, w.epoch))
	case "restart":
		w.restart()
	case "lead":
		w.lead()
	case "return":
		must(w.other.FollowLeader(w.epoch))
		s, err := w.other.Cut(w.common)
		must(err)
		w.said = fmt.Sprintf("%s sets %d frames aside\n", w.name[w.other], s.Frames)
		must(w.other.catchUp(w.leader, w.epoch))
		w.followed = true
	case "cut":
		w.cut = true
	case "rule":
		w.alone, w.unranked = args[0] == "alone", args[0] == "unranked"
	default:
		d.Fatalf(w.t, "no command %q", d.Cmd)
	}
}

// keep records a row that was received at a moment: of one with its series and time the value that was received last is right. Rows that are not acked do not count, nor those that were deleted.
func (w *deletions) keep(row []string, at point.Stamp) {
	key := row[0] + " " + row[1]
	if w.cut || slices.Contains(w.gone, key+":"+row[2]) || w.newest[key].at > at {
		return
	}
	w.newest[key] = received{at, row[2]}
}

func (w *deletions) restart() {
	b := w.leader
	b.close()
	n := openBenchWith(w.t, w.fs[b], 0, w.settings)
	n.stamp = b.stamp
	n.must(n.Tidy(true))
	w.epoch++
	n.must(n.LeadChain(w.epoch, &byHand{await: w.ack}))
	w.fs[n], w.name[n], w.leader = w.fs[b], w.name[b], n
	if w.followed {
		n.must(w.other.FollowLeader(w.epoch))
	}
}

func (w *deletions) lead() {
	w.leader, w.other = w.other, w.leader
	w.epoch, w.followed, w.cut, w.common = w.epoch+1, false, false, w.leader.Last()
	w.leader.stamp = w.other.stamp + 4*deletedMargin
	w.leader.must(w.leader.LeadChain(w.epoch, &byHand{await: w.ack}))
}

func (w *deletions) rows(b *bench) string {
	v, err := b.View()
	b.must(err)
	defer v.Close()
	return text(w.t, v)
}

func (w *deletions) draw() string {
	var out strings.Builder
	all := []*bench{w.leader, w.other}
	slices.SortFunc(all, func(a, b *bench) int { return strings.Compare(w.name[a], w.name[b]) })
	for _, b := range all {
		is := "leads  "
		switch {
		case b == w.other && w.followed:
			is = "follows"
		case b == w.other:
			is = "away   "
		}
		fmt.Fprintf(&out, "%s %s  %s\n", w.name[b], is, w.rows(b))
	}
	for _, series := range strings.Split(w.rows(w.leader), "; ") {
		name, rest, _ := strings.Cut(series, " ")
		for _, at := range strings.Fields(rest) {
			if slices.Contains(w.gone, name+" "+at) {
				fmt.Fprintf(&out, "BROKEN: %s %s was deleted, and %s reads it\n", name, at, w.name[w.leader])
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(w.newest)) {
		if got, want := w.value(key), w.newest[key].value; got != want {
			fmt.Fprintf(&out, "BROKEN: %s was received last as %s, and %s reads %q\n", key, want, w.name[w.leader], got)
		}
	}
	out.WriteString(w.said)
	w.said = ""
	return out.String()
}

// value returns the value that the leader reads of a row "a 1"; "": there is none.
func (w *deletions) value(key string) string {
	for _, series := range strings.Split(w.rows(w.leader), "; ") {
		name, rest, _ := strings.Cut(series, " ")
		for _, row := range strings.Fields(rest) {
			if at, v, _ := strings.Cut(row, ":"); name+" "+at == key {
				return v
			}
		}
	}
	return ""
}
