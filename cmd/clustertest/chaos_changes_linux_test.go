package clustertest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// change is what a person asks of the cluster a moment before a blow: it goes on under the blow, and ends after it.
type change struct {
	kind   string
	what   string
	settle func() // after the blow was healed; nil: nothing is to be done
}

// changes asks for them, by a seed of its own: the blows of a seed stay the same.
type changes struct {
	c   *chaos
	rng *rand.Rand
}

// chaosChanges are the kinds with their weights; "none" beside them.
var chaosChanges = []struct {
	name   string
	weight int
	begin  func(s *changes) (args []string, settle func())
}{
	{"none", 2, func(*changes) ([]string, func()) { return nil, nil }},
	{"split", 3, (*changes).split},
	{"merge", 2, (*changes).merge},
	{"move", 3, (*changes).move},
	{"drain", 2, (*changes).drain},
}

// livesMax bounds the partitions of the chaos' table: beyond it some are merged rather than split.
const livesMax = 16

// allowedChange reports whether CHAOS_CHANGES has a kind: words of which one must be in its name.
func allowedChange(kind string) bool {
	words := strings.FieldsFunc(os.Getenv("CHAOS_CHANGES"), func(r rune) bool { return r == ',' })
	return len(words) == 0 || slices.ContainsFunc(words, func(w string) bool { return strings.Contains(kind, w) })
}

// next asks for a change. One that the cluster refuses is said to be, and is none.
func (s *changes) next() change {
	s.c.t.Helper()
	sum := 0
	for _, k := range chaosChanges {
		if allowedChange(k.name) {
			sum += k.weight
		}
	}
	at := s.rng.IntN(max(sum, 1))
	for _, k := range chaosChanges {
		if !allowedChange(k.name) {
			continue
		}
		if at -= k.weight; at >= 0 {
			continue
		}
		args, settle := k.begin(s)
		if args == nil {
			return change{kind: "none"}
		}
		if out, err := s.c.try(append(args, "--reason=chaos")...); err != nil {
			s.c.t.Logf("refused: %s: %s", strings.Join(args, " "), out)
			s.c.refused++
			if settle != nil {
				settle()
			}
			return change{kind: "none"}
		}
		return change{k.name, strings.Join(args, " "), settle}
	}
	return change{kind: "none"}
}

// lives are the partitions that accept rows, and have since before now.
func (x *chaos) lives() (all []*topology.Partition) {
	x.t.Helper()
	m, _ := x.view.Tables.Get("default")
	for _, p := range x.partitions("default") {
		if at, ok := m.ByID(p.ID); ok && at.State == topology.Live {
			all = append(all, at)
		}
	}
	return all
}

// split cuts a partition, of now or of an hour before: in the middle of its time, or of its part of the ring.
func (s *changes) split() ([]string, func()) {
	lives := s.c.lives()
	if len(lives) > livesMax {
		return s.merge()
	}
	p := oneOf(s.rng, lives)
	if s.rng.IntN(2) == 0 { // one that gets most rows
		p = lives[len(lives)-1]
	}
	at := []string{"time-middle", "ring-middle"}[s.rng.IntN(2)]
	return []string{"partition", "split", "default", fmt.Sprintf("p%d", p.ID), "--at", at}, nil
}

// merge merges two neighbouring partitions that have ended.
func (s *changes) merge() ([]string, func()) {
	of := mergeable(s.rng, s.c.lives())
	if of == nil {
		return nil, nil
	}
	return append([]string{"partition", "merge", "default"}, of...), nil
}

// move moves a copy, mostly the leader's, to a server that has none.
func (s *changes) move() ([]string, func()) {
	p := oneOf(s.rng, s.c.lives())
	var free []string
	for _, srv := range s.c.Storage {
		if !s.c.isOn(lease.Partition{Table: "default", ID: p.ID}, topology.ServerID(srv.Name)) {
			free = append(free, srv.Name)
		}
	}
	if len(free) == 0 {
		return nil, nil
	}
	from := oneOf(s.rng, p.Placements).Server
	if leader, _ := s.c.leader(lease.Partition{Table: "default", ID: p.ID}); leader != "" && s.rng.IntN(3) > 0 {
		from = leader
	}
	return []string{"partition", "move", "default", fmt.Sprintf("p%d", p.ID), "--from=" + string(from), "--to=" + oneOf(s.rng, free)}, nil
}

// drain drains a server, where there is one more than copies. Once the blow is healed it is either emptied, or used again at once.
func (s *changes) drain() ([]string, func()) {
	if len(s.c.Storage) <= 3 {
		return nil, nil
	}
	victim, empties := oneOf(s.rng, s.c.Storage).Name, s.rng.IntN(2) == 0
	return []string{"server", "drain", victim}, func() {
		s.c.t.Helper()
		if empties {
			began := time.Now()
			s.c.within(3*processtest.Patience, victim+" has nothing but of what unloads", func() bool {
				return !slices.ContainsFunc(s.c.lives(), func(p *topology.Partition) bool {
					return s.c.isOn(lease.Partition{Table: "default", ID: p.ID}, topology.ServerID(victim))
				})
			})
			s.c.t.Logf("%s is empty %v after the blow was healed", victim, time.Since(began).Round(time.Millisecond))
		}
		s.c.within(processtest.Patience, victim+" is used again", func() bool {
			_, err := s.c.try("server", "undrain", victim)
			return err == nil
		})
	}
}
