package replica

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestADifferenceIsFoundByTwoComparisons plays rounds: what each member answers ("=": as the leader, "s", "l": other segments, another log, "-": nothing), and what comes of it.
func TestADifferenceIsFoundByTwoComparisons(t *testing.T) {
	b, d := Member{Placement: 2, Server: "b"}, Member{Placement: 3, Server: "d"}
	own := Digest{After: point.Serial{Epoch: 1, Seq: 5}, End: point.Serial{Epoch: 2, Seq: 9}, Segments: 1, Log: 2, Frames: 4}
	for name, rounds := range map[string]string{
		"equal":                                   "== → | == →",
		"on its way":                              "s= → | == → | s= →",
		"found, repaired, over":                   "s= → | s= → b: its segments, repair | == → over b: its segments",
		"repaired once in ten minutes":            "l= → | l= → b: its log, repair | l= → | l= →",
		"the other does not answer":               "l- → | l- → b: its log | l= → repair",
		"nobody agrees with the leader":           "ss → | ss → b: its segments, d: its segments | ss →",
		"it does not answer any more":             "=s → | =s → d: its segments, repair | =- → | == → over d: its segments",
		"another difference is a new one":         "s= → | l= → | l= → b: its log, repair",
		"one that is gone has to be found again":  "s= → | s= → b: its segments, repair | == → over b: its segments | s= →",
		"an answer to another comparison is late": "x= → | x= →",
	} {
		c := NewComparer(0, CompareSettings{})
		now := Time(0)
		for i, round := range strings.Split(rounds, "|") {
			answers, want, _ := strings.Cut(strings.TrimSpace(round), " →")
			for now += 10 * time.Second; !c.Due(now); now += 10 * time.Second {
				if now > time.Duration(i+1)*11*time.Minute {
					t.Fatalf("%s: round %d does not begin", name, i+1)
				}
			}
			c.Begin(now, own, []Member{b, d})
			for j, m := range []Member{b, d} {
				x := own
				switch answers[j] {
				case 's':
					x.Segments++
				case 'l':
					x.Log++
				case 'x':
					x.End.Seq++
					x.Log++
				case '-':
					continue
				}
				c.Answered(m, x)
			}
			got, ended := c.End(now)
			if all := !strings.ContainsAny(answers, "-x"); ended != all {
				t.Errorf("%s: round %d ended: %t", name, i+1, ended)
			} else if !all {
				got, ended = c.End(now + 5*time.Second)
				if !ended {
					t.Errorf("%s: round %d has no end", name, i+1)
				}
			}
			var said []string
			for _, x := range got.New {
				said = append(said, fmt.Sprintf("%s: %v", x.Member.Server, x))
			}
			for _, x := range got.Over {
				said = append(said, fmt.Sprintf("over %s: %v", x.Member.Server, x))
			}
			if got.Repair {
				said = append(said, "repair")
			}
			if s := strings.Join(said, ", "); s != strings.TrimSpace(want) {
				t.Errorf("%s: round %d: %q, want %q", name, i+1, s, strings.TrimSpace(want))
			}
		}
	}
}
