package clustertest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
)

// blow is harm that was done, and how it is undone.
type blow struct {
	kind  string // for the table of figures
	what  string
	kills int
	lasts time.Duration
	heal  func()
}

// storm does harm to a cluster, by a seed.
type storm struct {
	c      *crowd
	rng    *rand.Rand
	wires  *wires // nil: no link can be cut
	disk   string // of the last storage server: a small one, or ""
	faults string // the directory with the files that the program of .ci/faults reads; "": the program is another one
}

// chaosBlows are the blows with their weights. Most are kills, which the record counts.
var chaosBlows = []struct {
	name   string
	weight int
	strike func(s *storm) blow
}{
	{"kill leader", 5, func(s *storm) blow { return s.kill(s.leader()) }},
	{"kill follower", 5, func(s *storm) blow { return s.kill(s.follower()) }},
	{"kill gateway", 3, func(s *storm) blow { return s.kill(oneOf(s.rng, s.c.Gateways)) }},
	{"kill etcd", 2, func(s *storm) blow { return s.kill(oneOf(s.rng, s.c.Etcd)) }},
	{"pause leader", 2, func(s *storm) blow { return s.pause(s.leader(), 20) }},
	{"pause follower", 2, func(s *storm) blow { return s.pause(s.follower(), 20) }},
	{"pause gateway", 1, func(s *storm) blow { return s.pause(oneOf(s.rng, s.c.Gateways), 6) }},
	{"pause etcd", 1, func(s *storm) blow { return s.pause(oneOf(s.rng, s.c.Etcd), 10) }},
	{"cut link", 2, func(s *storm) blow { return s.cut(s.leader(), s.follower(), false) }},
	{"cut link one way", 2, func(s *storm) blow { return s.cut(s.leader(), s.follower(), true) }},
	{"cut server off", 2, func(s *storm) blow { return s.cutOff(oneOf(s.rng, s.c.Storage)) }},
	{"cut server from etcd", 1, func(s *storm) blow { return s.cutFromEtcd(oneOf(s.rng, s.c.Storage)) }},
	{"flip segment", 2, func(s *storm) blow { return s.flip(oneOf(s.rng, s.c.Storage)) }},
	{"wipe follower", 2, func(s *storm) blow { return s.wipe(s.follower()) }},
	{"wipe leader", 1, func(s *storm) blow { return s.wipe(s.leader()) }},
	{"fill disk", 2, func(s *storm) blow { return s.fill() }},
	{"kill server and gateway", 2, func(s *storm) blow {
		return both(s.kill(oneOf(s.rng, s.c.Storage)), s.kill(oneOf(s.rng, s.c.Gateways)))
	}},
	{"kill server and etcd", 2, func(s *storm) blow { return both(s.kill(oneOf(s.rng, s.c.Storage)), s.kill(oneOf(s.rng, s.c.Etcd))) }},
	{"kill leader, pause gateway", 1, func(s *storm) blow { return both(s.kill(s.leader()), s.pause(oneOf(s.rng, s.c.Gateways), 6)) }},
	{"kill all storage", 1, func(s *storm) blow { return s.killAll() }},
	{"fail fsyncs of leader", 2, func(s *storm) blow { return s.failSyncs(s.leader()) }},
	{"fail fsyncs of follower", 2, func(s *storm) blow { return s.failSyncs(s.follower()) }},
	{"jump clock forwards", 1, func(s *storm) blow { return s.jump(oneOf(s.rng, s.c.Storage), time.Hour) }},
	{"jump clock backwards", 1, func(s *storm) blow { return s.jump(oneOf(s.rng, s.c.Storage), -time.Hour) }},
	{"jump clock of master by a month", 1, func(s *storm) blow { return s.jump(s.master(), 30*24*time.Hour) }},
	{"jump clock, then kill", 1, func(s *storm) blow {
		p, by := s.leader(), time.Hour
		if s.rng.IntN(2) == 0 {
			by = -by
		}
		return both(s.jump(p, by), s.kill(p)) // it starts by the wrong clock
	}},
}

// next strikes by the seed's next choice among the allowed kinds.
func (s *storm) next(allowed func(kind string) bool) blow {
	sum := 0
	for _, k := range chaosBlows {
		if allowed(k.name) {
			sum += k.weight
		}
	}
	if sum == 0 {
		s.c.t.Fatal("CHAOS_BLOWS names no blow that is possible here")
	}
	at := s.rng.IntN(sum)
	for _, k := range chaosBlows {
		if !allowed(k.name) {
			continue
		}
		if at -= k.weight; at < 0 {
			b := k.strike(s)
			b.kind = k.name
			return b
		}
	}
	panic("unreachable")
}

// leader returns the server that leads the partition of now.
func (s *storm) leader() *processes.Process {
	p := s.c.ofNow("default")
	s.c.within(processtest.Patience, "the partition of now is led", func() bool { l, _ := s.c.leader(p); return l != "" })
	l, _ := s.c.leader(p)
	return s.c.server(l)
}

// ofNow returns a partition that accepts rows of now.
func (c *crowd) ofNow(table string) (p lease.Partition) {
	c.t.Helper()
	c.within(processtest.Patience, "a partition accepts rows of now", func() bool {
		m, _ := c.view.Tables.Get(table)
		at, ok := m.Find(0, time.Now().UnixNano())
		if ok {
			p = lease.Partition{Table: table, ID: at.ID}
		}
		return ok
	})
	return p
}

func (s *storm) follower() *processes.Process {
	leader := s.leader()
	others := slices.DeleteFunc(slices.Clone(s.c.Storage), func(p *processes.Process) bool { return p == leader })
	return oneOf(s.rng, others)
}

func (s *storm) kill(p *processes.Process) blow {
	p.Kill()
	away := time.Duration(s.rng.IntN(3000)) * time.Millisecond
	if s.rng.IntN(3) == 0 {
		away += 5 * time.Second // longer than the acquisition of a lease needs
	}
	return blow{what: p.Name + " is killed", kills: 1, lasts: away, heal: func() { s.c.start(p) }}
}

func (s *storm) killAll() blow {
	for _, p := range s.c.Storage {
		p.Kill()
	}
	return blow{what: "all storage servers are killed", kills: len(s.c.Storage), lasts: time.Duration(s.rng.IntN(2000)) * time.Millisecond, heal: func() { s.c.start(s.c.Storage...) }}
}

func (s *storm) pause(p *processes.Process, most int) blow {
	s.c.must(p.Pause())
	lasts := time.Duration(1000+s.rng.IntN(1000*(most-1))) * time.Millisecond
	return blow{what: fmt.Sprintf("%s is paused", p.Name), lasts: lasts, heal: func() { s.c.must(p.Resume()) }}
}

func (s *storm) cutLast() time.Duration {
	return time.Duration(1000+s.rng.IntN(9000)) * time.Millisecond
}

func (s *storm) cut(a, b *processes.Process, oneWay bool) blow {
	if s.rng.IntN(2) == 0 {
		a, b = b, a
	}
	if oneWay {
		s.wires.oneWay("add", a.Name, b.Name)
		return blow{what: fmt.Sprintf("nothing from %s reaches %s", a.Name, b.Name), lasts: s.cutLast(), heal: func() { s.wires.oneWay("del", a.Name, b.Name) }}
	}
	s.wires.cut(a.Name, b.Name)
	return blow{what: fmt.Sprintf("%s and %s are cut apart", a.Name, b.Name), lasts: s.cutLast(), heal: func() { s.wires.heal(a.Name, b.Name) }}
}

// cutOff cuts a server off from all others.
func (s *storm) cutOff(p *processes.Process) blow {
	return s.cutFrom(p, slices.Concat(s.names(s.c.Storage), s.names(s.c.Etcd), []string{here}), "everything")
}

func (s *storm) cutFromEtcd(p *processes.Process) blow {
	return s.cutFrom(p, s.names(s.c.Etcd), "etcd")
}

func (s *storm) names(ps []*processes.Process) (names []string) {
	for _, p := range ps {
		names = append(names, p.Name)
	}
	return names
}

func (s *storm) cutFrom(p *processes.Process, others []string, what string) blow {
	others = slices.DeleteFunc(others, func(o string) bool { return o == p.Name })
	for _, o := range others {
		s.wires.cut(p.Name, o)
	}
	return blow{what: fmt.Sprintf("%s is cut off from %s", p.Name, what), lasts: s.cutLast(), heal: func() {
		for _, o := range others {
			s.wires.heal(p.Name, o)
		}
	}}
}

func (s *storm) flip(p *processes.Process) blow {
	path := s.c.flip(p)
	return blow{what: fmt.Sprintf("bytes of %s's %s are flipped", p.Name, filepath.Base(path)), lasts: 2 * time.Second, heal: func() {}}
}

// wipe ends a server and empties its directory.
func (s *storm) wipe(p *processes.Process) blow {
	p.Kill()
	dir, err := os.ReadDir(s.c.dirOf(p))
	s.c.must(err)
	for _, f := range dir { // the directory itself may be a file system
		s.c.must(os.RemoveAll(filepath.Join(s.c.dirOf(p), f.Name())))
	}
	return blow{what: p.Name + " is killed and its directory emptied", kills: 1, lasts: time.Duration(s.rng.IntN(6000)) * time.Millisecond, heal: func() {
		line := p.Line
		p.Line = append(slices.Clone(line), "--replace-store")
		s.c.start(p)
		p.Line = line
	}}
}

const (
	diskBytes = 512 << 20
	diskLeft  = 3 << 20 // soon used up
)

// smallDiskOf mounts a small file system over a storage server's directory, before its first life. "" and why: there can be none.
func smallDiskOf(t *testing.T, dir string) (why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return "a disk is filled on a tmpfs of its own, which needs root to be mounted: run this as root"
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", diskBytes)); err != nil {
		return fmt.Sprintf("a disk is filled on a tmpfs of its own, which cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return ""
}

// fill uses the space of the last server's disk. Its server goes read-only by its reserve, or hits the end of the disk and ends itself.
func (s *storm) fill() blow {
	file := filepath.Join(s.disk, "fill")
	left := uint64(diskLeft)
	p := s.c.Storage[len(s.c.Storage)-1]
	if free := processtest.FreeBytes(s.c.t, s.disk); free > left {
		if err := os.WriteFile(file, make([]byte, free-left), 0o600); !errors.Is(err, syscall.ENOSPC) { // the server wrote meanwhile: fuller than meant
			s.c.must(err)
		}
	}
	return blow{what: "the disk of " + p.Name + " is full", lasts: s.cutLast(), heal: func() {
		s.c.must(os.Remove(file))
		select {
		case <-p.Done():
			s.c.t.Logf("%s has ended itself: %.200s", p.Name, lastLine(p.Said()))
			s.c.start(p)
		default:
		}
	}}
}

// failSyncs lets the fsyncs of a storage server fail from now on. It has to end itself, and starts again on a disk that works.
func (s *storm) failSyncs(p *processes.Process) blow {
	s.c.must(os.WriteFile(s.fault(p.Name, "sync"), nil, 0o600))
	return blow{what: "fsyncs of " + p.Name + " fail", lasts: time.Duration(s.rng.IntN(4000)) * time.Millisecond, heal: func() {
		s.c.within(2*processtest.Patience, p.Name+" ends itself after an fsync failed", func() bool {
			select {
			case <-p.Done():
				return true
			default:
				return false
			}
		})
		s.c.t.Logf("%s has ended itself: %.200s", p.Name, lastLine(p.Said()))
		s.c.must(os.Remove(s.fault(p.Name, "sync")))
		s.c.start(p)
	}}
}

// jump sets the clock of a storage server, and back when it is healed.
func (s *storm) jump(p *processes.Process, by time.Duration) blow {
	s.setClockOf(p, by)
	return blow{what: fmt.Sprintf("the clock of %s is off by %v", p.Name, by), lasts: s.cutLast(), heal: func() { s.setClockOf(p, 0) }}
}

// setClockOf returns once the process goes by that clock, as the dates of its answers say.
func (s *storm) setClockOf(p *processes.Process, by time.Duration) {
	s.c.must(setClock(s.fault(p.Name, "clock"), by))
	s.c.within(processtest.Patience, fmt.Sprintf("the clock of %s is off by %v", p.Name, by), func() bool {
		answer, err := http.Get(p.Ready)
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		at, err := http.ParseTime(answer.Header.Get("Date"))
		return err == nil && (time.Until(at)-by).Abs() < time.Minute
	})
}

// master returns the server that plans, and drops old partitions.
func (s *storm) master() *processes.Process {
	var at master.Holder
	s.c.within(processtest.Patience, "there is a master", func() bool {
		row, ok, err := s.c.view.Coord.Get(s.c.t.Context(), master.Key)
		s.c.must(err)
		return ok && json.Unmarshal(row.Value, &at) == nil && at.Holder != ""
	})
	return s.c.server(at.Holder)
}

func (s *storm) fault(process, kind string) string { return filepath.Join(s.faults, process+"."+kind) }

// setClock makes the clock of the process wrong that has mapped the file: it must stay the same file.
func setClock(path string, by time.Duration) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(by)), 0)
	return errors.Join(err, f.Close())
}

// faultsOf returns the variables by which a process of the program of .ci/faults finds its files.
func (s *storm) faultsOf(t *testing.T, process string) []string {
	if err := setClock(s.fault(process, "clock"), 0); err != nil {
		t.Fatal(err)
	}
	return []string{"FAULT_CLOCK=" + s.fault(process, "clock"), "FAULT_SYNC=" + s.fault(process, "sync")}
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndex(s, "\n")+1:]
}

// both is two blows at once.
func both(a, b blow) blow {
	return blow{what: a.what + ", " + b.what, kills: a.kills + b.kills, lasts: max(a.lasts, b.lasts), heal: func() {
		b.heal()
		a.heal()
	}}
}
