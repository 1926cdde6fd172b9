package smear

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/point"
)

const second = point.Nanos(time.Second)

func TestTheWindowFollowsFromTheLoad(t *testing.T) {
	f := func(r Rule, l Load, window time.Duration, why Reason) {
		t.Helper()
		if got, because := r.WithDefaults().Wanted(l); got != point.Nanos(window) || because != why {
			t.Errorf("%+v: a window of %v (%s), want %v (%s)", l, time.Duration(got), because, window, why)
		}
	}
	auto := Rule{Mode: Auto}
	of := func(width point.Nanos, columns, servers int) Load {
		return Load{Width: width * second, Columns: columns, Servers: servers}
	}
	f(Rule{}, of(10, 1, 5), 0, IsOff)
	f(auto, of(60, 1, 5), 0, Wide)
	f(auto, of(10, 1, 1), 0, OneServer)
	f(auto, of(10, 1, 5), 50*time.Second, Spread)
	f(auto, of(10, 1, 12), 120*time.Second, Spread)
	f(auto, of(10, 1, 20), 120*time.Second, Capped)
	f(auto, of(10, 2, 20), 100*time.Second, Spread)
	f(auto, of(10, 3, 20), 66666666666, Spread)
	f(auto, of(10, 20, 20), 0, ColumnsDo)
	f(auto, of(50, 1, 20), 100*time.Second, Capped)
	f(auto, Load{Width: 10 * second, Columns: 1, Servers: 3, Bytes: 1e9, Rate: 20e6}, 60*time.Second, Slow) // 50 s, in turns of 30 s
	f(auto, Load{Width: 10 * second, Columns: 1, Servers: 3, Bytes: 1e9, Rate: 100e6}, 30*time.Second, Spread)
	f(auto, Load{Width: 10 * second, Columns: 1, Servers: 3, Bytes: 1e30, Rate: 1}, 120*time.Second, Capped)
	f(Rule{Mode: Fixed, Window: 20 * second}, of(10, 1, 5), 20*time.Second, AsSet)
	f(Rule{Mode: Fixed, Window: 10 * second}, of(10, 1, 5), 0, TooShort)
	f(Rule{Mode: Auto, WindowMax: 10 * second}, of(10, 1, 5), 0, TooShort)
}

func TestColumnsThatReachAllServers(t *testing.T) {
	f := func(width point.Nanos, servers, want int) {
		t.Helper()
		if got := (Rule{Mode: Auto}).WithDefaults().ColumnsFor(Load{Width: width * second, Servers: servers}); got != want {
			t.Errorf("%d servers, partitions of %d s: %d columns, want %d", servers, width, got, want)
		}
	}
	f(10, 1, 1)
	f(10, 12, 1)
	f(10, 13, 2)
	f(10, 100, 10)
	f(10, 97, 9)
	f(300, 5, 5)
}

func TestWhichRowsWait(t *testing.T) {
	rule := Rule{Mode: Auto}.WithDefaults()
	now := 1000 * second
	f := func(why string, rule Rule, row Row, wait bool) {
		t.Helper()
		if due, got := rule.Due(row, InForce{delays: Delays{60 * second, LanesMax}}, now); got != wait || !wait && due != now {
			t.Errorf("%s: due in %v, waits %t", why, time.Duration(due-now), got)
		}
	}
	row := Row{Ring: 0xf << 52, Time: now, Width: 10 * second}
	f("a row of now", rule, row, true)
	with := func(change func(*Row)) Row { r := row; change(&r); return r }
	f("the table is off and the insert opts in", Rule{}.WithDefaults(), with(func(r *Row) { r.Wish = point.SmearOn }), false)
	f("the insert opts in", rule, with(func(r *Row) { r.Wish = point.SmearOn }), true)
	f("the insert opts out", rule, with(func(r *Row) { r.Wish = point.SmearOff }), false)
	f("backfill", rule, with(func(r *Row) { r.Time = now - rule.Near - 1 }), false)
	f("late, but near", rule, with(func(r *Row) { r.Time = now - rule.Near }), true)
	f("far in the future", rule, with(func(r *Row) { r.Time = now + rule.Near + 1 }), false)
	f("a wide partition", rule, with(func(r *Row) { r.Width = rule.Threshold }), false)
	f("the group without a delay", rule, with(func(r *Row) { r.Ring = 0 }), false)
}

func TestAWindowIsReadAsItIsWritten(t *testing.T) {
	f := func(text string, want Rule, wrong bool) {
		t.Helper()
		mode, window, err := ParseWindow(text)
		if got := (Rule{Mode: mode, Window: window}); got != want || (err != nil) != wrong || err == nil && got.String() != text {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	f("off", Rule{}, false)
	f("auto", Rule{Mode: Auto}, false)
	f("30s", Rule{Mode: Fixed, Window: 30 * second}, false)
	f("0s", Rule{}, true)
	f("-1s", Rule{}, true)
	f("", Rule{}, true)
	f("soon", Rule{}, true)
	if got := (Rule{Mode: Auto, Threshold: 30 * second}).String(); got != "auto, below 30s" {
		t.Errorf("%s", got)
	}
	if got := (Rule{Mode: Auto, Kafka: KafkaWait}).String(); got != "auto, kafka wait" {
		t.Errorf("%s", got)
	}
}

func TestMistakesInARule(t *testing.T) {
	f := func(r Rule, want string) {
		t.Helper()
		err := r.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
	}
	f(Rule{}, "")
	f(Rule{Mode: Auto}.WithDefaults(), "")
	f(Rule{Mode: Fixed, Window: second}, "")
	f(Rule{Mode: Fixed}, "needs a window")
	f(Rule{Mode: 3}, "mode 3")
	f(Rule{Threshold: -1}, "threshold -1ns is negative")
	f(Rule{Mode: Fixed, Window: WindowLimit + 1}, "longer than 10m0s")
	f(Rule{Mode: Auto, WindowMax: WindowLimit + 1}, "longer than 10m0s")
	f(Rule{Kafka: KafkaWait + 1}, "Kafka(2)")
}

func TestAPlaceOfKafkaRowsIsReadAsItIsWritten(t *testing.T) {
	f := func(text string, want Kafka, wrong bool) {
		t.Helper()
		got, err := ParseKafka(text)
		if got != want || (err != nil) != wrong || err == nil && got.String() != text {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	f("stage", KafkaStage, false)
	f("wait", KafkaWait, false)
	f("", 0, true)
	f("Kafka(2)", 0, true)
}

// The delays of any range of the ring, at least as long as four groups, are spread over the window.
func TestDelaysOfAColumnSpreadOverTheWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := rapid.IntRange(4, Groups).Draw(t, "groups")
		lo := rapid.IntRange(0, Groups-groups).Draw(t, "lo")
		window := point.Nanos(rapid.Int64Range(int64(second), int64(WindowLimit)).Draw(t, "window"))
		d := Delays{window, LanesMax}
		quarters := [4]int{}
		for g := lo; g < lo+groups; g++ {
			delay := d.Of(uint64(g) << (64 - groupBits))
			if delay < 0 || delay >= window {
				t.Fatalf("a delay of %v in a window of %v", delay, window)
			}
			quarters[min(int(4*(delay+window/Groups/2)/window), 3)]++
		}
		for _, n := range quarters {
			if n < groups/4-2 || n > groups/4+3 {
				t.Fatalf("groups %d to %d have delays in the quarters of the window: %v", lo, lo+groups, quarters)
			}
		}
	})
}

// As many series have each of the delays, in any number of lanes.
func TestEachLaneHasItsShare(t *testing.T) {
	for lanes := 1; lanes <= LanesMax; lanes++ {
		d, count := Delays{point.Nanos(lanes) * second, lanes}, map[point.Nanos]int{}
		for g := range uint64(Groups) {
			count[d.Of(g<<(64-groupBits))]++
		}
		for lane := range lanes {
			if n := count[point.Nanos(lane)*second]; n < Groups/lanes || n > Groups/lanes+1 {
				t.Errorf("of %d lanes number %d has %d groups of %d", lanes, lane, n, Groups)
			}
		}
	}
}

func TestALaneForEachPartitionThatIsFilled(t *testing.T) {
	f := func(window, width point.Nanos, lanes int) {
		t.Helper()
		if got := DelaysOf(window*second, width*second); got.Lanes != lanes {
			t.Errorf("a window of %d s over partitions of %d s: %d lanes, want %d", window, width, got.Lanes, lanes)
		}
	}
	f(0, 10, 0)
	f(30, 10, 3)
	f(60, 10, 6)
	f(25, 10, LanesMax)
	f(15, 20, LanesMax)
	f(160, 10, 16)
	f(170, 10, LanesMax)
}

// A series' rows leave in the order in which they came, however the window and the partitions' width change.
func TestRowsOfASeriesKeepTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Change
		rule := Rule{Mode: Auto}.WithDefaults()
		ring := rapid.Uint64().Draw(t, "ring")
		now, last := 1000*second, point.Nanos(0)
		for range rapid.IntRange(1, 50).Draw(t, "rows") {
			now += point.Nanos(rapid.Int64Range(0, int64(20*second)).Draw(t, "pause"))
			width := point.Nanos(rapid.Int64Range(1, 20).Draw(t, "width")) * second
			wanted := DelaysOf(point.Nanos(rapid.Int64Range(0, 12).Draw(t, "partitions"))*width, width)
			if rapid.Bool().Draw(t, "odd") {
				wanted = DelaysOf(point.Nanos(rapid.Int64Range(0, int64(2*time.Minute)).Draw(t, "window")), width)
			}
			in := c.Step(now, wanted)
			due, _ := rule.Due(Row{Ring: ring, Time: now, Width: second}, in, now)
			if due < last || due < now || due > now+max(in.delays.Window, in.before.Window) {
				t.Fatalf("received at %v with %+v, due %v after one due %v", now, in, due, last)
			}
			last = due
		}
	})
}

func TestDelaysShrinkSlowly(t *testing.T) {
	var c Change
	slowest := uint64(1<<64 - 1)
	f := func(at, wanted, want point.Nanos) {
		t.Helper()
		if got := c.Step(at*second, Delays{wanted * second * 16, 16}).Of(slowest); got != want*15*second {
			t.Errorf("at %d, wanted %d: %v", at, wanted, time.Duration(got))
		}
	}
	f(0, 8, 8)
	f(30, 4, 8)
	f(60, 4, 7)
	f(50, 4, 7) // the clock was set back
	f(90, 6, 6) // a change meanwhile waits
	f(120, 6, 5)
	f(150, 6, 6)
	f(180, 1, 6)
	f(1000, 1, 1)
	f(1000, 0, 1)
	f(1030, 0, 0)
	f(5000, 8, 8)
	f(5000, 0, 8)
	f(2000, 0, 8) // the clock was ahead, and set right: nothing shrank until it was there again
	f(2030, 0, 7)
}

// TestNoServerTakesMuchMoreThanTheMean is the promise of smearing: in any ten seconds the busiest server accepts at most 1.25 times the mean.
func TestNoServerTakesMuchMoreThanTheMean(t *testing.T) {
	f := func(servers, columns, replicas int, width point.Nanos, rate func(point.Nanos) float64, most float64) {
		t.Helper()
		load := Load{Width: width * second, Columns: columns, Servers: servers}
		rule := Rule{Mode: Auto}.WithDefaults()
		window, why := rule.Wanted(load)
		s := Scenario{Load: load, Window: window, Duration: (3*window + 600*second) / second * second, Place: inTurn(servers, columns, replicas), Rate: rate}
		// The load differs before the first rows of the longest delay arrive.
		with := Simulate(s).Busiest(time.Duration(window), 10*time.Second)
		s.Window = 0
		without := Simulate(s).Busiest(0, 10*time.Second)
		name := fmt.Sprintf("%d servers, %d columns, %d replicas, partitions of %d s, window %v (%s)", servers, columns, replicas, width, time.Duration(window), why)
		t.Logf("%s: the busiest server takes %.2f of the mean, without smearing %.2f", name, with, without)
		if with > most {
			t.Errorf("%s: the busiest server takes %.2f of the mean, want %.2f", name, with, most)
		}
		if columns == 1 && without < 1.6 {
			t.Errorf("%s: without smearing it takes %.2f: the simulation shows nothing", name, without)
		}
	}
	wave := func(at point.Nanos) float64 { return 1 + 0.5*float64(at%(100*second))/float64(100*second) }
	f(3, 1, 1, 10, nil, 1.25)
	f(5, 1, 1, 10, nil, 1.25)
	f(5, 1, 3, 10, nil, 1.25)
	f(5, 1, 1, 10, wave, 1.27) // it falls by a third at once: with 16 delays instead of one for each partition 1.25, for four times as many frames
	f(20, 1, 1, 5, nil, 1.25)
	f(20, 2, 1, 10, nil, 1.25)
	f(20, 2, 3, 10, wave, 1.25)
	f(97, 9, 1, 10, nil, 1.8) // 97 has no divisor: some servers have a partition more than others at a moment
	f(100, 9, 1, 10, nil, 1.25)
	f(100, 30, 1, 10, nil, 1.25)
	f(100, 10, 3, 10, nil, 1.25)
}

// inTurn places partitions behind one another on the servers in turn, each on as many as it has replicas, and the columns of a moment apart.
func inTurn(servers, columns, replicas int) func(slot, column int) []int {
	return func(slot, column int) []int {
		out := make([]int, min(max(replicas, 1), servers))
		for i := range out {
			out[i] = (slot + column*servers/max(columns, 1) + i) % servers
		}
		return out
	}
}
