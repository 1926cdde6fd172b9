package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/gateway/deletion"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// TestDeletionScripts plays deletions of one series x of which values are staged, by hand: the machine of the gateway, and those of the servers. x=n has rank n, and is frame n.
//
//	servers A B [old=B]   servers; an old one knows no holds
//	stage 1 A+B           x=1 is staged at A and B
//	write 1               x=1 is written to the partition
//	delete                a deletion begins; each command draws its next state
//	does [ok | fails]     it does that; or the servers, or the leader of the partition, do not answer in time
//	does part             the partition of x deletes, and another one does not
//	forward 1             every server that wants to forwards frame 1, and the leader acks it; the others' frames wait
//	run 15s               time goes by
//	renew                 the gateway renews the hold
//	restart A             A starts again, with the frames on its disk
func TestDeletionScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/deletions", func(t *testing.T, path string) {
		w := &deletionWorld{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return w.play(t, d) })
	})
}

// deletionWorld is a partition with a row of x, and servers with staged ones.
type deletionWorld struct {
	now       time.Time
	names     []topology.ServerID
	servers   map[topology.ServerID]*deletionServer
	partition int  // the value of x; 0: it has none
	cut       bool // the partition has deleted
	deletion  *deletion.Machine
	step      deletion.Step
}

type deletionServer struct {
	m      *staging.Machine
	frames map[int]staging.Frame
	old    bool
}

const holdOfScript = 1

var deletionSteps = map[deletion.Do]string{deletion.Find: "find", deletion.Hold: "hold", deletion.Partitions: "delete in partitions", deletion.Staged: "delete in staged rows", deletion.StagedPart: "delete in staged rows of partitions that deleted", deletion.Release: "release", deletion.End: "end"}

func (w *deletionWorld) play(t *testing.T, d *datadriven.TestData) string {
	arg := func(i int) string { return d.CmdArgs[i].Key }
	number := func() int {
		n, err := strconv.Atoi(arg(0))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	said := ""
	switch d.Cmd {
	case "servers":
		*w = deletionWorld{now: time.Unix(1700000000, 0), servers: map[topology.ServerID]*deletionServer{}}
		for _, a := range d.CmdArgs {
			if a.Key == "old" {
				w.servers[topology.ServerID(a.Vals[0])].old = true
				continue
			}
			id := topology.ServerID(a.Key)
			w.names = append(w.names, id)
			w.servers[id] = &deletionServer{m: staging.New(staging.Settings{Server: id}), frames: map[int]staging.Frame{}}
		}
	case "stage":
		w.stage(t, number(), strings.Split(arg(1), "+"))
	case "write":
		w.partition = max(w.partition, number())
	case "delete":
		w.deletion, w.cut = new(deletion.Machine), false
		w.step = w.deletion.Begin()
	case "does":
		w.step = w.deletion.Next(w.do(arg(0)))
	case "forward":
		said = w.forward(number())
	case "renew":
		for _, id := range w.names {
			if s := w.servers[id]; !s.old {
				said += fmt.Sprintf("%s holds %t\n", id, s.m.Renew(w.now, holdOfScript))
			}
		}
	case "run":
		by, err := time.ParseDuration(arg(0))
		if err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(by)
	case "restart":
		s := w.servers[topology.ServerID(arg(0))]
		s.m = staging.New(staging.Settings{Server: topology.ServerID(arg(0))})
		for _, f := range s.frames {
			s.m.Restore(f)
		}
	default:
		t.Fatalf("no command %s", d.Cmd)
	}
	return said + w.draw()
}

func (w *deletionWorld) stage(t *testing.T, n int, at []string) {
	f := staging.Frame{ID: staging.ID{Stamp: point.Stamp(n), Nonce: uint64(n)}, Table: "t", Bytes: 10, Rows: 1, Since: w.now}
	for _, id := range at {
		f.Holders = append(f.Holders, topology.ServerID(id))
	}
	for _, id := range f.Holders {
		s := w.servers[id]
		if _, err := s.m.Admit(f); err != nil {
			t.Fatal(err)
		}
		s.m.Logged(f.ID)
		s.frames[n] = f
	}
}

var errNotInTime = errors.New("no answer in time")

// do carries out the step that the deletion wants.
func (w *deletionWorld) do(how string) (found []topology.ServerID, err error) {
	if how == "fails" {
		return nil, errNotInTime
	}
	switch w.step.Do {
	case deletion.Find:
		return w.names, nil
	case deletion.Hold:
		for _, id := range w.step.Servers {
			if s := w.servers[id]; !s.old {
				onWay, err := s.m.Hold(w.now, holdOfScript, "t", 0, 0)
				if err != nil || len(onWay) > 0 {
					return found, errNotInTime
				}
				found = append(found, id)
			}
		}
	case deletion.Partitions:
		w.partition, w.cut = 0, true
		if how == "part" {
			return nil, errNotInTime
		}
	case deletion.Staged, deletion.StagedPart:
		if !w.cut {
			return nil, nil
		}
		for _, id := range w.step.Servers {
			s := w.servers[id]
			if slices.Contains(w.step.Held, id) && !s.m.Holds(w.now, holdOfScript) {
				return nil, fmt.Errorf("%s holds the rows no more", id)
			}
			for n, f := range s.frames {
				s.m.Forget(f.ID)
				delete(s.frames, n)
			}
		}
	case deletion.Release:
		for _, id := range w.step.Servers {
			w.servers[id].m.Release(holdOfScript)
		}
	}
	return found, nil
}

func (w *deletionWorld) forward(n int) (said string) {
	for _, id := range w.names {
		s := w.servers[id]
		for _, f := range s.m.Due(w.now) {
			if int(f.ID.Stamp) != n {
				s.m.Postponed(w.now, f.ID)
				continue
			}
			said += fmt.Sprintf("%s forwards x=%d\n", id, n)
			w.partition = max(w.partition, n)
			for _, h := range f.Holders {
				w.servers[h].m.Forwarded(f.ID)
				delete(w.servers[h].frames, n)
			}
		}
	}
	if said == "" {
		return "nobody forwards it\n"
	}
	return said
}

// draw lists the frames of each server, the value that is read, and the next step of the deletion.
func (w *deletionWorld) draw() string {
	var b strings.Builder
	read := w.partition
	for _, id := range w.names {
		var all []int
		for n := range w.servers[id].frames {
			all, read = append(all, n), max(read, n)
		}
		slices.Sort(all)
		fmt.Fprintf(&b, "%s %v, ", id, all)
	}
	fmt.Fprintf(&b, "partition %d: x=%d is read\n", w.partition, read)
	if w.deletion != nil {
		fmt.Fprintf(&b, "next: %s", deletionSteps[w.step.Do])
		if w.step.Err != nil {
			fmt.Fprintf(&b, ": %v", w.step.Err)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
