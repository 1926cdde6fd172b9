package smear

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestScripts plays histories of one table's window in testdata/scripts. Series a has no delay, b a middle one, c a long one. Rows that wait are drawn by
// the time at which they leave; a row that leaves before an earlier one of its series prints BROKEN.
//
//	table width=10s     partitions of ten seconds; nothing waits
//	window 30s          the window that suits the load, from now on
//	write b c           a row of each, numbered
//	run 5s              time goes by, in ticks
//	rule at-once        a new window is in force at once: the rule of before
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var s *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "table" {
				s = &script{rule: Rule{Mode: Auto}.WithDefaults(), now: 1000 * second, last: map[string]point.Nanos{}}
				s.width = s.duration(d, d.CmdArgs[0].Vals[0])
				return "ok"
			}
			return s.play(d) + s.draw()
		})
	})
}

type script struct {
	rule   Rule
	change Change
	width  point.Nanos
	wanted point.Nanos
	atOnce bool
	now    point.Nanos
	rows   []waits
	n      int
	last   map[string]point.Nanos // when the newest row of a series leaves
}

type waits struct {
	series string
	n      int
	due    point.Nanos
}

// rings are points with the first, a middle and a late lane.
var rings = map[string]uint64{"a": 0, "b": 1 << 52, "c": 3 << 52}

func (s *script) duration(d *datadriven.TestData, text string) point.Nanos {
	v, err := time.ParseDuration(text)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", d.Pos, err))
	}
	return point.Nanos(v)
}

func (s *script) play(d *datadriven.TestData) string {
	switch d.Cmd {
	case "window":
		s.wanted = s.duration(d, d.CmdArgs[0].Key)
	case "rule":
		s.atOnce = d.CmdArgs[0].Key == "at-once"
	case "run":
		for until := s.now + s.duration(d, d.CmdArgs[0].Key); s.now < until; s.now += Tick {
			s.delays()
		}
		s.rows = slices.DeleteFunc(s.rows, func(w waits) bool { return w.due <= s.now })
	case "write":
		var out strings.Builder
		for _, a := range d.CmdArgs {
			out.WriteString(s.write(a.Key))
		}
		return out.String()
	}
	return ""
}

func (s *script) delays() InForce {
	wanted := DelaysOf(s.wanted, s.width)
	if s.atOnce {
		return InForce{delays: wanted}
	}
	return s.change.Step(s.now, wanted)
}

func (s *script) write(series string) (broken string) {
	s.n++
	due, wait := s.rule.Due(Row{Ring: rings[series], Time: s.now, Width: s.width}, s.delays(), s.now)
	if due < s.last[series] {
		broken = fmt.Sprintf("BROKEN: row %d of %s leaves %v before an earlier one\n", s.n, series, time.Duration(s.last[series]-due))
	}
	s.last[series] = max(s.last[series], due)
	if wait {
		s.rows = append(s.rows, waits{series, s.n, due})
	}
	return broken
}

func (s *script) draw() string {
	var out strings.Builder
	rows := slices.Clone(s.rows)
	slices.SortStableFunc(rows, func(a, b waits) int { return int(a.due - b.due) })
	for _, w := range rows {
		fmt.Fprintf(&out, "row %d of %s leaves in %v\n", w.n, w.series, time.Duration(w.due-s.now))
	}
	if len(rows) == 0 {
		return "nothing waits\n"
	}
	return out.String()
}
