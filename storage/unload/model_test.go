package unload

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestNothingIsLostAndNothingComesBack unloads a partition of random rows while its heirs get writes, series are deleted, slices fail after some of their rows
// arrived, and leaders die or are suspended with slices on their way, which arrive at any moment of the next SendWithin, or of all time. The heir's leader restarts and changes, and
// requests to end slices are lost, doubled and late. At each moment parent and heir together, by rank, have the rows acked last and no deleted one; and at Finish the heir has them alone.
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
			"die":    func(t *rapid.T) { w.die(t, false) },
			"lapse":  func(t *rapid.T) { w.die(t, true) },
			"stray":  func(t *rapid.T) { w.draw(t, "stray", len(w.heirs.strays), w.stray) },
			"insert": func(t *rapid.T) { w.draw(t, "insertion", len(w.heirs.inserting), w.insert) },
			"find":   func(t *rapid.T) { w.draw(t, "look-up", len(w.finds), w.found) },
			"end":    w.end,
			"answer": func(t *rapid.T) { w.draw(t, "answer", len(w.heirs.answers), w.answer) },
			"heir": func(t *rapid.T) {
				restarts := rapid.IntRange(-1, 1).Draw(t, "restarts")
				if restarts >= 0 {
					w.restart(restarts)
				}
				if rapid.Bool().Draw(t, "another leads") {
					w.heirs.acquire(rapid.IntRange(0, 1).Draw(t, "leader"), w.drawn(t, "inserted"))
				}
			},
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
	want      map[point.Nanos]int // the value acked last
	reads     []ReadSlice
	held      map[uint64]map[point.Nanos]ranked // rows of slices that were read
	sends     []sent
	strayTo   time.Time // zero: strays arrive for ever, and only their end lets deletions begin
	suspends  bool
	epoch     point.Epoch
	finds     []FindLeaders
	ends      []asking
	heirs     *heirWorld
	erasure   *erasure
	permitted bool
	finished  bool
	last      uint64
}

// sent is a slice of the leader with the lease of the heir by which it chose the receiver.
type sent struct {
	id    uint64
	under point.Epoch
	to    int
}

// asking is a request to end slices on its way.
type asking struct {
	EndSlices
	m     *Machine
	epoch point.Epoch
}

func newUnloadWorld(t *rapid.T) *unloadWorld {
	w := emptyUnloadWorld(rapid.Bool().Draw(t, "suspends"))
	for at := range point.Nanos(modelTimes) {
		if rapid.Bool().Draw(t, "has a row") {
			w.had(at)
		}
	}
	w.lead(Begin{First: true})
	return w
}

func emptyUnloadWorld(suspends bool) *unloadWorld {
	return &unloadWorld{now: time.Unix(1700000000, 0), parent: map[point.Nanos]ranked{}, want: map[point.Nanos]int{}, suspends: suspends, heirs: newHeirWorld()}
}

// had gives the parent a row.
func (w *unloadWorld) had(at point.Nanos) {
	w.rank++
	w.parent[at] = ranked{w.rank, w.rank}
	w.want[at] = w.rank
}

func (w *unloadWorld) draw(t *rapid.T, what string, n int, do func(i int)) {
	if n == 0 {
		t.Skip("there is none")
	}
	do(rapid.IntRange(0, n-1).Draw(t, what))
}

func (w *unloadWorld) drawn(t *rapid.T, what string) func() bool {
	return func() bool { return rapid.Bool().Draw(t, what) }
}

// lead gives the partition to a leader that knows nothing of the one before, if there was one.
func (w *unloadWorld) lead(begin Begin) {
	within := 2 * time.Second
	if w.suspends {
		within = 1000 * time.Hour
	}
	w.m = New(Settings{After: time.Second, SendWithin: within, SliceBytes: 3, Window: 2}, 0, modelTimes)
	w.reads, w.sends, w.held, w.finds = nil, nil, map[uint64]map[point.Nanos]ranked{}, nil
	if !begin.Again {
		w.epoch++
	}
	w.step(begin)
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
			w.sends = append(w.sends, sent{e.ID, w.heirs.epoch, w.heirs.leader})
		case FindLeaders:
			w.finds = append(w.finds, e)
		case EndSlices:
			w.ends = append(w.ends, asking{e, w.m, w.epoch})
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
	if w.now.After(w.strayTo) && !w.suspends {
		w.heirs.pass()
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

func (w *unloadWorld) send(t *rapid.T) {
	if len(w.sends) == 0 {
		t.Skip("nothing is sent")
	}
	i := rapid.IntRange(0, len(w.sends)-1).Draw(t, "slice")
	x := w.sends[i]
	w.sends = slices.Delete(w.sends, i, i+1)
	rows, ok := w.held[x.id], rapid.IntRange(0, 3).Draw(t, "acked") > 0
	if !ok {
		rows = maps.Clone(rows)
		maps.DeleteFunc(rows, func(at point.Nanos, _ ranked) bool { return rapid.Bool().Draw(t, "lost") })
	}
	w.deliver(x, rows, ok)
}

// deliver inserts a slice of the leader.
func (w *unloadWorld) deliver(x sent, rows map[point.Nanos]ranked, ok bool) {
	h := w.heirs
	h.strays = append(h.strays, stray{rows: rows, parent: w.epoch, under: x.under, to: x.to})
	before := len(h.inserting)
	h.enter(len(h.strays) - 1)
	entered := len(h.inserting) > before
	if entered {
		h.insert(before)
	}
	w.step(Sent{ID: x.id, OK: ok && entered})
}

func (w *unloadWorld) stray(i int)  { w.heirs.enter(i) }
func (w *unloadWorld) insert(i int) { w.heirs.insert(i) }

// found answers a look-up of the heir's leader.
func (w *unloadWorld) found(i int) {
	f := w.finds[i]
	w.finds = slices.Delete(w.finds, i, i+1)
	w.step(Leaders{ID: f.ID, Known: true, Servers: []topology.ServerID{heirNames[w.heirs.leader]}})
}

// end has a request to end slices arrive, again later if it is doubled, or not at all.
func (w *unloadWorld) end(t *rapid.T) {
	w.draw(t, "request", len(w.ends), func(i int) {
		w.ask(i, rapid.IntRange(0, 3).Draw(t, "doubled") == 0, rapid.IntRange(0, 3).Draw(t, "lost") == 0)
	})
}

func (w *unloadWorld) ask(i int, doubled, lost bool) {
	x := w.ends[i]
	if !doubled {
		w.ends = slices.Delete(w.ends, i, i+1)
	}
	if lost {
		if x.m == w.m {
			w.step(Answered{ID: x.ID, Server: x.Server})
		}
		return
	}
	w.heirs.end(x)
}

// answer gives the leader the answer of a server, once it may be given. One for an earlier leader is dropped.
func (w *unloadWorld) answer(i int) {
	if x, ok := w.heirs.answer(i); ok && x.m == w.m {
		w.step(Answered{ID: x.ID, Server: x.Server, OK: true})
	}
}

func (w *unloadWorld) write(t *rapid.T) {
	at := point.Nanos(rapid.IntRange(0, modelTimes-1).Draw(t, "at"))
	if e := w.erasure; e != nil && at >= e.lo && at <= e.hi {
		t.Skip("what is written while it is deleted may be there or not")
	}
	w.rank++
	w.heirs.rows[at] = ranked{w.rank, w.rank}
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
		maps.DeleteFunc(w.heirs.rows, covers)
		maps.DeleteFunc(w.want, func(at point.Nanos, _ int) bool { return at >= e.lo && at <= e.hi })
		w.erasure = nil
	}
}

// die has another server lead. A deletion that the parent has not carried out is asked for again.
// die ends a leader, or only its lease, which it then gets back under its epoch.
func (w *unloadWorld) die(t *rapid.T, again bool) {
	if w.finished {
		t.Skip("it is over")
	}
	w.takeOver(Begin{Again: again})
}

func (w *unloadWorld) takeOver(begin Begin) {
	for _, x := range w.sends {
		w.heirs.strays = append(w.heirs.strays, stray{rows: w.held[x.id], parent: w.epoch, under: x.under, to: x.to})
	}
	w.strayTo = w.now.Add(2*time.Second - 1)
	w.lead(begin)
	if e := w.erasure; e != nil && !e.parent {
		w.permitted = false
		w.step(Delete{e.id})
	}
}

func (w *unloadWorld) check(t *rapid.T) {
	if wrong := w.wrong(); wrong != "" {
		t.Fatal(wrong)
	}
}

// wrong says which row is lost or came back.
func (w *unloadWorld) wrong() string {
	for at := range point.Nanos(modelTimes) {
		if e := w.erasure; e != nil && at >= e.lo && at <= e.hi {
			continue
		}
		best, ok := w.heirs.rows[at]
		if r, has := w.parent[at]; !w.finished && has && (!ok || r.rank > best.rank) {
			best, ok = r, true
		}
		if value, wanted := w.want[at]; ok != wanted || best.value != value {
			return fmt.Sprintf("at %d: value %d (found: %v), acked was %d (%v); finished: %v", at, best.value, ok, value, wanted, w.finished)
		}
	}
	return ""
}

// settle answers everything until the unload is over.
func (w *unloadWorld) settle(t *rapid.T) {
	for range 1000 {
		switch {
		case !w.heirs.leads:
			w.heirs.acquire(w.heirs.leader, w.drawn(t, "inserted"))
		case len(w.finds) > 0:
			w.found(0)
		case len(w.heirs.inserting) > 0:
			w.insert(0)
		case len(w.ends) > 0:
			w.ask(0, false, false)
		case len(w.heirs.answers) > 0:
			w.answer(0)
		case w.erasure != nil && (w.erasure.parent || w.permitted):
			w.carry(t)
		case len(w.reads) > 0:
			r := w.reads[0]
			w.reads = w.reads[1:]
			w.step(Read{ID: r.ID, To: r.To, Rows: len(w.held[r.ID]), Bytes: 1})
		case len(w.sends) > 0:
			x := w.sends[0]
			w.sends = w.sends[1:]
			w.deliver(x, w.held[x.id], true)
		case w.finished:
			w.check(t)
			return
		default:
			at := w.m.Wake()
			if at.IsZero() {
				t.Fatalf("the unload waits for nothing: %+v", w.m)
			}
			w.pass(int(at.Sub(w.now)/time.Millisecond) + 1)
		}
	}
	t.Fatal("the unload does not end")
}
