package kafka

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// TestTracker runs the scripts in testdata/tracker: polls and their ends in any order, and the offsets that may be
// committed after.
//
//	poll p=0 last=9,19,29     three spans, named a, b, c, …
//	finish b                  all records of b are settled
//	commits                   offsets that may be committed; they are then confirmed unless "refused" is said
func TestTracker(t *testing.T) {
	datadriven.Walk(t, "testdata/tracker", func(t *testing.T, path string) {
		tr, spans := newTracker(), map[string]ticket{}
		part := func(td *datadriven.TestData) partition {
			var id int
			td.ScanArgs(t, "p", &id)
			return partition{0, "m", int32(id)}
		}
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			var out strings.Builder
			switch td.Cmd {
			case "assign":
				tr.assign(part(td))
			case "resume":
				var at int64
				td.ScanArgs(t, "at", &at)
				tr.resume(part(td), position{at, 1})
			case "revoke", "lose":
				tr.drop(part(td))
			case "poll":
				for _, a := range td.CmdArgs {
					if a.Key != "last" {
						continue
					}
					for _, v := range a.Vals {
						var last int64
						fmt.Sscan(v, &last)
						k, ok := tr.poll(part(td), last, 1)
						if !ok {
							fmt.Fprintf(&out, "not ours\n")
							continue
						}
						name := string(rune('a' + len(spans)))
						spans[name] = k
						fmt.Fprintf(&out, "%s: to %d\n", name, last)
					}
				}
			case "finish":
				for _, a := range td.CmdArgs {
					tr.finish(spans[a.Key])
				}
			case "commits":
				for _, c := range tr.commits(func(partition) bool { return true }) {
					fmt.Fprintf(&out, "commit %d at %d\n", c.partition.id, c.at.offset)
					if !td.HasArg("refused") {
						tr.committed(c)
					}
				}
			}
			return out.String() + tr.draw()
		})
	})
}

// draw prints each partition: the committed offset, the finished offset, and the spans behind, finished ones in brackets.
func (t *tracker) draw() string {
	var lines []string
	for p, g := range t.parts {
		var s strings.Builder
		fmt.Fprintf(&s, "  %d: committed %d, done %d", p.id, g.committed.offset, g.done.offset)
		for _, x := range g.spans {
			if x.finished {
				fmt.Fprintf(&s, " [%d]", x.end.offset)
			} else {
				fmt.Fprintf(&s, " %d", x.end.offset)
			}
		}
		lines = append(lines, s.String()+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// TestNothingUnfinishedIsEverCommitted compares with a model that keeps every record.
func TestNothingUnfinishedIsEverCommitted(t *testing.T) {
	type rec struct{ finished bool }
	rapid.Check(t, func(t *rapid.T) {
		tr := newTracker()
		p := partition{0, "m", 0}
		var assigned bool
		var log map[int64]*rec // of this assignment, by offset
		var next int64         // to be polled
		stable := int64(0)     // committed at the brokers
		type open struct {
			k           ticket
			first, last int64
			log         map[int64]*rec
		}
		var flying []open
		t.Repeat(map[string]func(*rapid.T){
			"assign": func(t *rapid.T) {
				if assigned {
					t.Skip()
				}
				tr.assign(p)
				assigned, log, next = true, map[int64]*rec{}, stable
			},
			"poll": func(t *rapid.T) {
				last := next + rapid.Int64Range(0, 5).Draw(t, "records")
				k, ok := tr.poll(p, last, 0)
				if ok != assigned {
					t.Fatalf("poll of an assigned partition %v: %v", assigned, ok)
				}
				if !ok {
					return
				}
				for o := next; o <= last; o++ {
					log[o] = &rec{}
				}
				flying = append(flying, open{k, next, last, log})
				next = last + 1
			},
			"finish": func(t *rapid.T) {
				if len(flying) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(flying)-1).Draw(t, "span")
				f := flying[i]
				flying = slices.Delete(flying, i, i+1)
				for o := f.first; o <= f.last; o++ {
					f.log[o].finished = true
				}
				tr.finish(f.k)
			},
			"commit": func(t *rapid.T) {
				for _, c := range tr.commits(func(partition) bool { return true }) {
					for o := stable; o < c.at.offset; o++ {
						if r := log[o]; r == nil || !r.finished {
							t.Fatalf("commit at %d, and %d is not settled", c.at.offset, o)
						}
					}
					if o := log[c.at.offset]; o != nil && o.finished && log[c.at.offset-1] != nil && len(flying) == 0 {
						t.Fatalf("commit at %d, and more is settled", c.at.offset)
					}
					if rapid.Bool().Draw(t, "taken") {
						stable = c.at.offset
						tr.committed(c)
					}
				}
			},
			"drop": func(t *rapid.T) {
				tr.drop(p)
				assigned = false
			},
		})
	})
}
