package unload

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestNothingIsLostAndNothingComesBack unloads a partition of random rows while its successors get writes, series are deleted, slices fail after some of their rows
// arrived, and leaders die with slices on their way, which arrive at any moment of the next SendWithin. At each moment parent and heir together, by rank, have the
// rows acked last and no deleted one; and at Finish the heir has them alone.
func TestNothingIsLostAndNothingComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newUnloadWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"":       func(t *rapid.T) { w.check(t) },
			"time":   func(t *rapid.T) { w.pass(rapid.IntRange(1, 3000).Draw(t, "ms")) },
			"read":   w.read,
			"send":   w.send,
			"write":  w.write,
			"delete": w.erase,
			"carry":  w.carry,
			"die":    w.die,
			"stray":  w.stray,
		})
		w.settle(t)
	})
}

const modelTimes = 12

type ranked struct {
	value int
	rank  int
}

// erasure is a deletion of the rows of all times from lo to hi, in its steps.
type erasure struct {
	id     uint64
	lo, hi point.Nanos
	parent bool // the parent has carried it out
}

type unloadWorld struct {
	m         *Machine
	now       time.Time
	rank      int
	parent    map[point.Nanos]ranked
	heir      map[point.Nanos]ranked
	want      map[point.Nanos]int // the value acked last
	reads     []ReadSlice
	held      map[uint64]map[point.Nanos]ranked // rows of slices that were read
	sends     []uint64
	strays    []map[point.Nanos]ranked
	strayTo   time.Time
	erasure   *erasure
	permitted bool
	finished  bool
	last      uint64
}

func newUnloadWorld(t *rapid.T) *unloadWorld {
	w := &unloadWorld{now: time.Unix(1700000000, 0), parent: map[point.Nanos]ranked{}, heir: map[point.Nanos]ranked{}, want: map[point.Nanos]int{}}
	for at := range point.Nanos(modelTimes) {
		if rapid.Bool().Draw(t, "has a row") {
			w.rank++
			w.parent[at] = ranked{w.rank, w.rank}
			w.want[at] = w.rank
		}
	}
	w.lead(true)
	return w
}

// lead gives the partition to a leader that knows nothing of the one before, if there was one.
func (w *unloadWorld) lead(first bool) {
	w.m = New(Settings{After: time.Second, SendWithin: 2 * time.Second, SliceBytes: 3, Window: 2}, 0, modelTimes)
	w.reads, w.sends, w.held = nil, nil, map[uint64]map[point.Nanos]ranked{}
	w.step(Begin{first})
}

func (w *unloadWorld) step(in Input) {
	for _, e := range slices.Clone(w.m.Step(w.now, in)) {
		switch e := e.(type) {
		case ReadSlice:
			w.reads = append(w.reads, e)
			// The rows are those of the moment in which the reader begins.
			rows := map[point.Nanos]ranked{}
			for at, r := range w.parent {
				if at >= e.From && at < e.To {
					rows[at] = r
				}
			}
			w.held[e.ID] = rows
		case Send:
			w.sends = append(w.sends, e.ID)
		case Drop:
			delete(w.held, e.ID)
		case Permit:
			w.permitted = w.erasure != nil && e.ID == w.erasure.id
		case Finish:
			w.finished = true
		}
	}
}

func (w *unloadWorld) pass(ms int) {
	w.now = w.now.Add(time.Duration(ms) * time.Millisecond)
	if w.now.After(w.strayTo) {
		w.strays = nil
	}
	w.step(Tick{})
}

func (w *unloadWorld) read(t *rapid.T) {
	if len(w.reads) == 0 {
		t.Skip("nothing is read")
	}
	i := rapid.IntRange(0, len(w.reads)-1).Draw(t, "read")
	r := w.reads[i]
	w.reads = slices.Delete(w.reads, i, i+1)
	if rapid.IntRange(0, 5).Draw(t, "fails") == 0 {
		delete(w.held, r.ID)
		w.step(Unread{r.ID})
		return
	}
	to := r.From + point.Nanos(rapid.IntRange(1, int(r.To-r.From)).Draw(t, "times"))
	maps.DeleteFunc(w.held[r.ID], func(at point.Nanos, _ ranked) bool { return at >= to })
	n := len(w.held[r.ID])
	w.step(Read{ID: r.ID, To: to, Rows: n, Bytes: int64(n)})
}

// arrive inserts rows into the heir with their ranks.
func (w *unloadWorld) arrive(rows map[point.Nanos]ranked) {
	for at, r := range rows {
		if have, ok := w.heir[at]; !ok || have.rank < r.rank {
			w.heir[at] = r
		}
	}
}

func (w *unloadWorld) send(t *rapid.T) {
	if len(w.sends) == 0 {
		t.Skip("nothing is sent")
	}
	i := rapid.IntRange(0, len(w.sends)-1).Draw(t, "slice")
	id := w.sends[i]
	w.sends = slices.Delete(w.sends, i, i+1)
	rows, ok := w.held[id], rapid.IntRange(0, 3).Draw(t, "acked") > 0
	if !ok {
		rows = maps.Clone(rows)
		maps.DeleteFunc(rows, func(at point.Nanos, _ ranked) bool { return rapid.Bool().Draw(t, "lost") })
	}
	w.arrive(rows)
	w.step(Sent{ID: id, OK: ok})
}

func (w *unloadWorld) write(t *rapid.T) {
	at := point.Nanos(rapid.IntRange(0, modelTimes-1).Draw(t, "at"))
	if e := w.erasure; e != nil && at >= e.lo && at <= e.hi {
		t.Skip("what is written while it is deleted may be there or not")
	}
	w.rank++
	w.heir[at] = ranked{w.rank, w.rank}
	w.want[at] = w.rank
}

// erase begins a deletion.
func (w *unloadWorld) erase(t *rapid.T) {
	if w.erasure != nil {
		t.Skip("one after the other")
	}
	lo := point.Nanos(rapid.IntRange(0, modelTimes-1).Draw(t, "lo"))
	w.last++
	w.erasure = &erasure{id: w.last, lo: lo, hi: lo + point.Nanos(rapid.IntRange(0, 3).Draw(t, "width"))}
	w.permitted = false
	w.step(Delete{w.erasure.id})
}

// carry does the next step of a deletion: the parent, then the heir.
func (w *unloadWorld) carry(t *rapid.T) {
	e := w.erasure
	covers := func(at point.Nanos, _ ranked) bool { return at >= e.lo && at <= e.hi }
	switch {
	case e == nil || !e.parent && !w.permitted:
		t.Skip("no deletion can go on")
	case !e.parent:
		maps.DeleteFunc(w.parent, covers)
		e.parent = true
		w.step(Deleted{e.id})
	default:
		maps.DeleteFunc(w.heir, covers)
		maps.DeleteFunc(w.want, func(at point.Nanos, _ int) bool { return at >= e.lo && at <= e.hi })
		w.erasure = nil
	}
}

// die has another server lead. A deletion that the parent has not carried out is asked for again.
func (w *unloadWorld) die(t *rapid.T) {
	if w.finished {
		t.Skip("it is over")
	}
	for _, id := range w.sends {
		w.strays = append(w.strays, w.held[id])
	}
	w.strayTo = w.now.Add(2*time.Second - 1)
	w.lead(false)
	if e := w.erasure; e != nil && !e.parent {
		w.permitted = false
		w.step(Delete{e.id})
	}
}

// stray lets rows arrive that an earlier leader sent.
func (w *unloadWorld) stray(t *rapid.T) {
	if len(w.strays) == 0 {
		t.Skip("there are none")
	}
	w.arrive(w.strays[0])
	w.strays = w.strays[1:]
}

func (w *unloadWorld) check(t *rapid.T) {
	for at := range point.Nanos(modelTimes) {
		if e := w.erasure; e != nil && at >= e.lo && at <= e.hi {
			continue
		}
		best, ok := w.heir[at]
		if r, has := w.parent[at]; !w.finished && has && (!ok || r.rank > best.rank) {
			best, ok = r, true
		}
		if value, wanted := w.want[at]; ok != wanted || best.value != value {
			t.Fatalf("at %d: value %d (found: %v), acked was %d (%v); finished: %v", at, best.value, ok, value, wanted, w.finished)
		}
	}
}

// settle answers everything until the unload is over.
func (w *unloadWorld) settle(t *rapid.T) {
	for range 1000 {
		switch {
		case w.erasure != nil && (w.erasure.parent || w.permitted):
			w.carry(t)
		case len(w.reads) > 0:
			r := w.reads[0]
			w.reads = w.reads[1:]
			w.step(Read{ID: r.ID, To: r.To, Rows: len(w.held[r.ID]), Bytes: 1})
		case len(w.sends) > 0:
			id := w.sends[0]
			w.sends = w.sends[1:]
			w.arrive(w.held[id])
			w.step(Sent{ID: id, OK: true})
		case w.finished:
			w.check(t)
			return
		default:
			at := w.m.Wake(w.now)
			if at.IsZero() {
				t.Fatalf("the unload waits for nothing: %+v", w.m)
			}
			w.pass(int(at.Sub(w.now)/time.Millisecond) + 1)
		}
	}
	t.Fatal("the unload does not end")
}
