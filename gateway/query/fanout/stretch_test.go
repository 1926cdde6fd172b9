package fanout

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestStretches lists every case of partitions that a step's window may touch. Partitions are written as id@server[from,to) in minutes, with /ring for half a
// ring, and times of staged rows as ~[from,to]; stretches as first+steps and the partitions of each server, or rows.
func TestStretches(t *testing.T) {
	f := func(what string, window, offset time.Duration, steps int, partitions, want string) {
		t.Helper()
		p := &columns.Plan{
			Grid:   columns.Grid{Start: 0, End: int64(steps-1) * 60_000, Step: 60_000},
			Source: columns.Source{Window: window, Offset: offset, Function: columns.FunctionOf("rate")},
		}
		partitions, staged := drawnTimes(t, partitions)
		ps, on := drawn(t, partitions)
		var got []string
		for _, s := range stretches(p, ps, staged, 0, func(p *topology.Partition) []topology.ServerID { return on[p.ID] }) {
			line := fmt.Sprintf("%d+%d", s.first, s.steps)
			if s.units == nil {
				line += " rows"
			}
			for _, u := range s.units {
				line += " "
				for i, id := range u.servers {
					line += strings.Repeat("|", min(i, 1)) + string(id)
				}
				line += ":"
				for i, p := range u.partitions {
					line += strings.Repeat(",", min(i, 1)) + fmt.Sprint(p.ID)
				}
			}
			got = append(got, line)
		}
		if g := strings.Join(got, "; "); g != want {
			t.Errorf("%s: %q, want %q", what, g, want)
		}
	}
	const m = time.Minute
	f("one partition", m, 0, 10, "1@a[-60,60)", "0+10 a:1")
	f("one server across an edge", 5*m, 0, 10, "1@a[-60,4) 2@a[4,60)", "0+10 a:1,2")
	f("an edge between two servers is read", 2*m, 0, 20, "1@a[-60,10) 2@b[10,60)", "0+10 a:1; 10+2 rows; 12+8 b:2")
	f("a window ends at the edge, and the next begins there", m, 0, 20, "1@a[-60,10) 2@b[10,60)", "0+10 a:1; 10+1 rows; 11+9 b:2")
	f("windows with pauses between them cross no edge that lies in a pause", 30*time.Second, 0, 4, "1@a[-60,1.2) 2@b[1.2,60)", "0+2 a:1; 2+2 b:2")
	f("an offset moves the windows", 2*m, 5*m, 20, "1@a[-60,10) 2@b[10,60)", "0+15 a:1; 15+2 rows; 17+3 b:2")
	f("steps before and after all partitions need nothing", m, 0, 20, "1@a[5,10)", "5+6 a:1")
	f("a window as long as a partition: it is not worth it", 10*m, 0, 40, "1@a[-60,10) 2@b[10,20) 3@a[20,30) 4@b[30,40)", "")
	f("halves of a ring on two servers", m, 0, 10, "1@a[-60,60)/0 2@b[-60,60)/1", "0+10 a:1 b:2")
	f("halves of a ring on one", m, 0, 10, "1@a[-60,60)/0 2@a[-60,60)/1", "0+10 a:1,2")
	f("a half that moves to another server", 2*m, 0, 20, "1@a[-60,10)/0 2@b[-60,60)/1 3@b[10,60)/0", "0+10 a:1 b:2; 10+2 rows; 12+8 b:3,2")
	f("a ring that is cut from some time on", 2*m, 0, 20, "1@a[-60,10) 2@a[10,60)/0 3@b[10,60)/1", "0+10 a:1; 10+2 rows; 12+8 a:2 b:3")
	f("a ring that is cut on one server", 2*m, 0, 20, "1@a[-60,10) 2@a[10,60)/0 3@a[10,60)/1", "0+20 a:1,2,3")
	f("halves that change places between windows", 30*time.Second, 0, 4, "1@a[-60,1.2)/0 2@b[-60,1.2)/1 3@b[1.2,60)/0 4@a[1.2,60)/1", "0+4 a:1,4 b:2,3")
	f("a partition over another: rows may have doubles", m, 0, 20, "1@a[-60,60) 2@a[15,60)", "")
	f("one that is unloading", m, 0, 20, "1@a[-60,15) 2@a[15,60)u", "0+15 a:1; 15+5 rows")
	f("one without a leader", m, 0, 20, "1@a[-60,15) 2@[15,60)", "0+15 a:1; 15+5 rows")
	f("no partition", m, 0, 20, "", "")
	f("copies: any server that has all", 2*m, 0, 20, "1@a|b|c[-60,10) 2@c|a[10,60)", "0+20 a|c:1,2")
	f("copies in the order in which the first partition is asked", 2*m, 0, 20, "1@c|b|a[-60,10) 2@a|b|c[10,60)", "0+20 c|b|a:1,2")
	f("copies without a server that has both", 2*m, 0, 20, "1@a|b[-60,10) 2@c|d[10,60)", "0+10 a|b:1; 10+2 rows; 12+8 c|d:2")
	f("copies of three partitions, no server has all: two each", 2*m, 0, 20, "1@a|b[-60,5) 2@b|c[5,10) 3@c|a[10,60)", "0+5 a|b:1; 5+2 b:1,2; 7+3 b|c:2; 10+2 c:2,3; 12+8 c|a:3")
	f("copies beside a partition with a leader alone", 2*m, 0, 20, "1@a|b[-60,10) 2@b[10,60)", "0+10 a|b:1; 10+10 b:1,2")
	f("copies of halves of a ring, on one server", m, 0, 10, "1@a|b[-60,60)/0 2@b|c[-60,60)/1", "0+10 b:1,2")
	f("copies of halves of a ring, on no common server", m, 0, 10, "1@a|b[-60,60)/0 2@c|d[-60,60)/1", "0+10 a|b:1 c|d:2")
	f("a partition that would go from one unit to another", 2*m, 0, 20, "1@a|b[-60,60)/0 2@c|d[-60,10)/1 3@a|c[10,60)/1", "0+10 a|b:1 c|d:2; 10+2 a|b:1 c:2,3; 12+8 a:1,3")
	f("a whole ring after halves needs a server with all three", 2*m, 0, 20, "1@a|b[-60,10)/0 2@b|c[-60,10)/1 3@a|c[10,60)", "0+10 b:1,2; 10+2 rows; 12+8 a|c:3")
	f("a whole ring after halves, one server has all", 2*m, 0, 20, "1@a|b[-60,10)/0 2@b|c[-60,10)/1 3@a|b[10,60)", "0+12 b:1,2,3; 12+8 a|b:3")
	f("a lookback of five minutes in partitions of ten, in turns on two servers", 5*m, 0, 40, "1@a[-60,10) 2@b[10,20) 3@a[20,30) 4@b[30,40)",
		"0+10 a:1; 10+5 rows; 15+5 b:2; 20+5 rows; 25+5 a:3; 30+5 rows; 35+5 b:4")

	f("staged rows of now: the last windows are read", 2*m, 0, 20, "1@a[-60,60) ~[16.5,18]", "0+17 a:1; 17+3 rows")
	f("a staged row of an hour ago", 2*m, 0, 20, "1@a[-60,60) ~[3,3]", "0+3 a:1; 3+2 rows; 5+15 a:1")
	f("a staged row at a step, and one at the beginning of a window, which is not in it", m, 0, 10, "1@a[-60,60) ~[3,3] ~[6,6]", "0+3 a:1; 3+1 rows; 4+2 a:1; 6+1 rows; 7+3 a:1")
	f("a staged row right before a step", m, 0, 10, "1@a[-60,60) ~[2.9999999999,2.9999999999]", "0+3 a:1; 3+1 rows; 4+6 a:1")
	f("staged rows in a pause between windows", 30*time.Second, 0, 4, "1@a[-60,60) ~[1.2,1.4]", "0+4 a:1")
	f("staged rows and an offset", 2*m, 5*m, 20, "1@a[-60,60) ~[10,60]", "0+15 a:1; 15+5 rows")
	f("staged rows at the edge between two servers", 2*m, 0, 20, "1@a[-60,10) 2@b[10,60) ~[10.5,11]", "0+10 a:1; 10+3 rows; 13+7 b:2")
	f("staged rows of a time that this map has no partition for", m, 0, 20, "1@a[-60,12) ~[18,30]", "0+13 a:1; 18+2 rows")
	f("staged rows later than the query, and earlier", m, 0, 10, "1@a[-60,60) ~[40,50] ~[-30,-20]", "0+10 a:1")
	f("staged rows everywhere: it is not worth it", m, 0, 10, "1@a[-60,60) ~[-30,50]", "")
	f("staged rows on two servers, their times overlap", m, 0, 20, "1@a|b[-60,60) ~[15,17] ~[16,18]", "0+15 a|b:1; 15+4 rows; 19+1 a|b:1")
}

// drawnTimes reads the times of staged rows from a text.
func drawnTimes(t *testing.T, text string) (rest string, staged []times) {
	t.Helper()
	var words []string
	for _, word := range strings.Fields(text) {
		if !strings.HasPrefix(word, "~") {
			words = append(words, word)
			continue
		}
		var lo, hi float64
		if _, err := fmt.Sscanf(strings.NewReplacer("~[", "", ",", " ", "]", "").Replace(word), "%g %g", &lo, &hi); err != nil {
			t.Fatal(word, err)
		}
		staged = append(staged, times{point.Nanos(lo * 60e9), point.Nanos(hi * 60e9)})
	}
	return strings.Join(words, " "), staged
}

// drawn reads partitions.
func drawn(t *testing.T, text string) (ps []*topology.Partition, on map[point.PartitionID][]topology.ServerID) {
	t.Helper()
	on = map[point.PartitionID][]topology.ServerID{}
	for _, word := range strings.Fields(text) {
		word, unloads := strings.CutSuffix(word, "u")
		word, ring, half := strings.Cut(word, "/")
		id, rest, _ := strings.Cut(word, "@")
		server, rest, _ := strings.Cut(rest, "[")
		p := &topology.Partition{}
		for _, id := range strings.Split(server, "|") {
			if id != "" {
				p.Placements = append(p.Placements, topology.Placement{Server: topology.ServerID(id)})
			}
		}
		var lo, hi float64
		if _, err := fmt.Sscanf(id+" "+strings.NewReplacer(",", " ", ")", "").Replace(rest), "%d %g %g", &p.ID, &lo, &hi); err != nil {
			t.Fatal(word, err)
		}
		p.TimeLo, p.TimeHi = point.Nanos(lo*60e9), point.Nanos(hi*60e9)
		if half && ring == "0" {
			p.PointHi = 1 << 63
		} else if half {
			p.PointLo = 1 << 63
		}
		if unloads {
			p.State = topology.Unload
		}
		ps = append(ps, p)
		for _, pl := range p.Placements {
			on[p.ID] = append(on[p.ID], pl.Server)
		}
	}
	return ps, on
}

// TestOpenSpansAreThoseOfTheStep compares with a look at all spans, for random ones and rising steps.
func TestOpenSpansAreThoseOfTheStep(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 2000 {
		all := make([]span, rng.IntN(12))
		for i := range all {
			first := rng.IntN(20)
			all[i] = span{partition: &topology.Partition{ID: point.PartitionID(i)}, first: first, end: first + rng.IntN(8)}
		}
		open := &openSpans{all: all}
		for step := rng.IntN(3); step < 30; step += 1 + rng.IntN(4) {
			var got, want []point.PartitionID
			for _, s := range open.at(step) {
				got = append(got, s.partition.ID)
			}
			for _, s := range all {
				if s.first <= step && step < s.end {
					want = append(want, s.partition.ID)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("step %d of %+v touches %v, not %v", step, all, got, want)
			}
		}
	}
}

// TestTooManyPartitionsAreNotDivided: that would last longer than reading.
func TestTooManyPartitionsAreNotDivided(t *testing.T) {
	var text []string
	for i := range stretchesMax {
		text = append(text, fmt.Sprintf("%d@%c[%d,%d)", i+1, 'a'+i%2, 10*i, 10*i+10))
	}
	p := &columns.Plan{Grid: columns.Grid{End: 10 * stretchesMax * 60_000, Step: 60_000}, Source: columns.Source{Window: time.Minute, Function: columns.FunctionOf("rate")}}
	ps, on := drawn(t, strings.Join(text, " "))
	if got := stretches(p, ps, nil, 0, func(p *topology.Partition) []topology.ServerID { return on[p.ID] }); got != nil {
		t.Errorf("%d stretches", len(got))
	}
}

// TestManyShortStretchesAreRead: an hour of partitions of ten minutes is read, twelve hours of partitions of an hour are evaluated.
func TestManyShortStretchesAreRead(t *testing.T) {
	f := func(what string, minutes, partitions, steps int, want bool) {
		t.Helper()
		var text []string
		for i := range partitions {
			text = append(text, fmt.Sprintf("%d@%c[%d,%d)", i+1, 'a'+i%2, minutes*i, minutes*(i+1)))
		}
		p := &columns.Plan{Grid: columns.Grid{End: int64(steps-1) * 60_000, Step: 60_000}, Source: columns.Source{Window: time.Minute, Function: columns.FunctionOf("rate")}}
		ps, on := drawn(t, strings.Join(text, " "))
		got := stretches(p, ps, nil, 20*time.Minute, func(p *topology.Partition) []topology.ServerID { return on[p.ID] })
		if (got != nil) != want {
			t.Errorf("%s: %d stretches", what, len(got))
		}
	}
	f("an hour of ten minutes each", 10, 7, 61, false)
	f("half an hour of ten minutes each", 10, 4, 31, true)
	f("six hours of half an hour each", 30, 12, 361, false)
	f("twelve hours of an hour each", 60, 12, 721, true)
	f("thirty days", 1440, 30, 30*1440, true)
}
