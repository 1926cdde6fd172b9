package mapstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// world is metadata servers around one table, in one goroutine: the effects of a Txn lie in a list until the test
// performs one, loses it, or loses its answer.
type world struct {
	store   coord.Store
	servers []*node
	pending []*effect
	txns    []*running
	history []Row // as the row named them
	trace   []string
	names   map[peer.TxnID]string
	wiped   bool
	broken  string

	keep, undecidedMax int
}

const cpu = "cpu"

// node is a server: its disk survives a crash.
type node struct {
	id    topology.ServerID
	disk  map[peer.TxnID]*peer.File
	away  bool
	shelf *Shelf
	lie   bool // its ops make other maps
}

// running is a transaction and its coordinator.
type running struct {
	name string
	at   *node
	t    *Txn
	done *Done
	dead bool
}

// effect waits to be performed, or is an answer that waits to be delivered.
type effect struct {
	r  *running
	e  Effect
	in Input
}

func newWorld(n, listed int) *world {
	w := &world{store: mem.New(), names: map[peer.TxnID]string{}, keep: 3, undecidedMax: 3}
	for i := range n {
		w.servers = append(w.servers, &node{id: topology.ServerID(fmt.Sprint("s", i+1)), disk: map[peer.TxnID]*peer.File{}, shelf: NewShelf(nil)})
	}
	m, err := topology.New(cpu, topology.Config{PartitionWidth: 24 * time.Hour})
	if err != nil {
		panic(err)
	}
	w.begin("first", w.servers[0], NewCreate(w.id("first"), m, w.ids(listed)))
	w.run()
	if w.row().Seq != 1 {
		panic("no table: " + w.broken)
	}
	w.trace = nil
	return w
}

func (w *world) ids(n int) (out []topology.ServerID) {
	for _, s := range w.servers[:n] {
		out = append(out, s.id)
	}
	return out
}

func (w *world) id(name string) (id peer.TxnID) {
	copy(id[:], name)
	w.names[id] = name
	return id
}

func (w *world) node(id topology.ServerID) *node {
	for _, s := range w.servers {
		if s.id == id {
			return s
		}
	}
	panic("no server " + id)
}

func (w *world) row() Row {
	row, ok, err := w.store.Get(context.Background(), Key(cpu))
	if err != nil || !ok {
		return Row{}
	}
	r, err := DecodeRow(row)
	if err != nil {
		panic(err)
	}
	return r
}

// cover proposes a partition for a day, based on a transaction.
func (w *world) cover(name string, base peer.TxnID, day int) *Txn {
	ops := w.coverOps(w.mapOf(base), day)
	return NewChange(&peer.Change{Table: cpu, Base: base, Txn: w.id(name), Ops: topology.EncodeOps(ops), Round: w.row().Round + 1})
}

func (w *world) coverOps(m *topology.Map, day int) []topology.Op {
	c := m.Covering([]point.Nanos{int64(day) * int64(24*time.Hour)}, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(p), Server: "s1"}}
	})
	return []topology.Op{c}
}

func (w *world) begin(name string, at *node, t *Txn) *running {
	r := &running{name: name, at: at, t: t}
	w.txns = append(w.txns, r)
	w.step(r, Begin{})
	return r
}

func (w *world) step(r *running, in Input) {
	if r.dead {
		return
	}
	for _, e := range r.t.Step(in, nil) {
		switch e := e.(type) {
		case Done:
			if r.done != nil {
				w.fail("%s ended twice", r.name)
			}
			r.done = &e
			w.ended(r)
		case Alarm:
			w.say("%s: ALARM %s: %s", r.name, e.Server, e.Text)
		default:
			w.pending = append(w.pending, &effect{r: r, e: e})
		}
	}
}

func (w *world) say(form string, args ...any) { w.trace = append(w.trace, fmt.Sprintf(form, args...)) }
func (w *world) fail(form string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(form, args...)
	}
}

func (w *world) ended(r *running) {
	if r.done.Err == nil {
		w.say("%s: done, seq %d, servers %v", r.name, r.done.Changed.Seq, r.done.Row.Servers)
	} else {
		w.say("%s: %v: %v", r.name, fault.KindOf(r.done.Err), r.done.Err)
	}
	w.checkEnd(r)
}

// checkEnd compares the answer to a proposer with the committed state.
func (w *world) checkEnd(r *running) {
	if r.t.goal != change && r.t.goal != create {
		return
	}
	committed := slices.ContainsFunc(w.history, func(row Row) bool { return row.Txn == r.t.id })
	switch {
	case r.done.Err == nil && !committed:
		w.fail("%s was notified that it is committed, and is not", r.name)
	case fault.Is(r.done.Err, fault.Stale) && committed:
		w.fail("%s was notified that it is not committed, and is", r.name)
	}
}

// fate is the outcome of an effect.
type fate int

const (
	performed  fate = iota
	lost            // the request
	answerLost      // performed, and the answer never arrives
	answerLate      // performed, and the answer arrives later
)

var errLost = fault.Errorf(fault.Unavailable, "no answer")

// perform removes effect i from the list and performs it.
func (w *world) perform(i int, f fate) {
	p := w.pending[i]
	w.pending = slices.Delete(w.pending, i, i+1)
	if p.in != nil {
		w.step(p.r, p.in)
		return
	}
	in := w.effect(p, f)
	w.check()
	if f == answerLate {
		w.pending = append(w.pending, &effect{r: p.r, e: p.e, in: in})
		return
	}
	w.step(p.r, in)
}

func (w *world) effect(p *effect, f fate) Input {
	how := [...]string{"", " (request lost)", " (answer lost)", " (answer late)"}[f]
	ctx := context.Background()
	switch e := p.e.(type) {
	case ReadRow:
		w.say("%s: read the row%s", p.r.name, how)
		if f == lost || f == answerLost {
			return RowRead{Err: errLost}
		}
		row, ok, err := w.store.Get(ctx, Key(cpu))
		return RowRead{Row: row, OK: ok, Err: err}
	case Load:
		file, m := w.load(p.r.at, e.Txn, e.Servers)
		if f == lost || f == answerLost || file == nil {
			w.say("%s: load %s: not found", p.r.name, w.names[e.Txn])
			return Loaded{Err: errLost}
		}
		w.say("%s: load %s", p.r.name, w.names[e.Txn])
		return Loaded{File: file, Map: m}
	case Store:
		what := "as ops"
		switch {
		case e.File.Map != nil:
			what = "whole"
		case e.File.Base == e.File.Txn:
			what = "if it has it"
		}
		err := errLost
		if f != lost && !w.node(e.Server).away {
			err = w.take(w.node(e.Server), e.File)
		} else {
			how = " (request lost)"
		}
		answer := "stored"
		if err != nil {
			answer = fault.KindOf(err).String()
		}
		w.say("%s: store on %s %s: %s%s", p.r.name, e.Server, what, answer, how)
		if f == answerLost {
			err = errLost
		}
		return Stored{Round: e.Round, Server: e.Server, Err: err}
	case Swap:
		if f == lost {
			w.say("%s: swap%s", p.r.name, how)
			return Swapped{Err: errLost}
		}
		rev, ok, err := w.store.Commit(ctx, e.Conditions, e.Writes)
		w.say("%s: swap: %v%s", p.r.name, map[bool]string{true: "done", false: "the row had changed"}[ok], how)
		if ok {
			w.swapped(e.Writes[0])
		}
		if f == answerLost {
			return Swapped{Err: errLost}
		}
		return Swapped{OK: ok, Revision: rev, Err: err}
	case ReadGuards:
		w.say("%s: read %d lease rows%s", p.r.name, len(e.Keys)/2, how)
		if f == lost || f == answerLost {
			return GuardsRead{Round: e.Round, Err: errLost}
		}
		rows := map[string]coord.Row{}
		for _, key := range e.Keys {
			if row, ok, _ := w.store.Get(ctx, key); ok {
				rows[key] = row
			}
		}
		return GuardsRead{Round: e.Round, Rows: rows}
	case MarkRows:
		if f == lost {
			w.say("%s: mark%s", p.r.name, how)
			return RowsMarked{Round: e.Round, Err: errLost}
		}
		_, ok, err := w.store.Commit(ctx, e.Conditions, e.Writes)
		w.say("%s: mark %d lease rows: %v%s", p.r.name, len(e.Writes), map[bool]string{true: "done", false: "a row had changed"}[ok], how)
		if f == answerLost {
			err = errLost
		}
		return RowsMarked{Round: e.Round, OK: ok, Err: err}
	case Look:
		w.say("%s: look what came before%s", p.r.name, how)
		if f == lost || f == answerLost {
			return History{}
		}
		return History{Links: w.links(p.r.at, e)}
	}
	panic("no effect")
}

// swapped notes the new content of the row.
func (w *world) swapped(wr coord.Write) {
	row, err := DecodeRow(coord.Row{Key: wr.Key, Value: wr.Value})
	if err != nil {
		w.fail("a bad row: %v", err)
		return
	}
	if n := len(w.history); n > 0 && row.Txn != w.history[n-1].Txn && row.Seq != w.history[n-1].Seq+1 {
		w.fail("transaction %d after %d", row.Seq, w.history[n-1].Seq)
	}
	for _, r := range w.txns {
		if r.done != nil && fault.Is(r.done.Err, fault.Stale) && (r.t.goal == change || r.t.goal == create) && r.t.id == row.Txn {
			w.fail("%s was notified that it is not committed, and was later", r.name)
		}
	}
	if n := len(w.history); n > 0 && w.history[n-1].Dropping && !row.Dropped {
		was := w.history[n-1]
		switch old, now := w.mapOf(was.Txn), w.mapOf(row.Txn); {
		case !row.Dropping:
			w.fail("transaction %d forgets that the table is being dropped", row.Seq)
		case old != nil && now != nil && now.NextID != old.NextID:
			w.fail("transaction %d makes partitions of a table that is being dropped", row.Seq)
		}
	}
	for _, r := range w.txns {
		if n := len(w.history); n > 0 && r.t.id == row.Txn && row.Txn != w.history[n-1].Txn && r.t.goal == change && r.t.inRound <= w.history[n-1].Round {
			w.fail("%s was ruled out, and was committed later", r.name)
		}
	}
	w.history = append(w.history, row)
}

// mapOf gives a transaction's map, if any server has it.
func (w *world) mapOf(txn peer.TxnID) (m *topology.Map) {
	for _, s := range w.servers {
		if f := s.disk[txn]; f != nil {
			m, _ = topology.Decode(f.Map)
		}
	}
	return m
}

func (w *world) load(at *node, txn peer.TxnID, servers []topology.ServerID) (*peer.File, *topology.Map) {
	f := at.disk[txn]
	for _, s := range servers {
		if n := w.node(s); f == nil && !n.away {
			f = n.disk[txn]
		}
	}
	if f == nil {
		return nil, nil
	}
	m, err := Decode(f)
	if err != nil {
		w.fail("a damaged file: %v", err)
	}
	return f, m
}

func (w *world) links(at *node, e Look) (out []Link) {
	txn := e.Txn
	for {
		f, _ := w.load(at, txn, e.Servers)
		if f == nil {
			return out
		}
		out = append(out, Link{Txn: f.Txn, Base: f.Base, Seq: f.Seq})
		txn = f.Base
	}
}

// take is a server's handling of Store, without turns and disks.
func (w *world) take(n *node, f *peer.File) error {
	here, err := n.shelf.Take(f)
	if err != nil {
		return err
	}
	own := *f
	own.Ops = nil
	if !here {
		if n.shelf.Undecided(cpu, w.row()) >= w.undecidedMax && f.Seq > w.row().Seq {
			return fault.Errorf(fault.Throttled, "too many undecided files")
		}
		if f.Map == nil {
			base := n.disk[f.Base]
			if base == nil || f.Base == f.Txn {
				return fault.Errorf(fault.Stale, "not here")
			}
			m, _ := topology.Decode(base.Map)
			ops, err := topology.DecodeOps(f.Ops)
			if err != nil {
				return err
			}
			if n.lie {
				ops = append(ops, topology.SetConfig{Config: topology.Config{PartitionWidth: 48 * time.Hour}})
			}
			if m, err = m.Apply(ops...); err != nil {
				return fault.Wrap(err, fault.Corrupt, "apply")
			}
			if err := Check(f, m); err != nil {
				return err
			}
			own.Map = m.Encode()
			own.Sum = xxhash.Sum64(own.Map)
		}
		n.disk[f.Txn] = &own
	} else {
		own = *n.disk[f.Txn]
	}
	n.shelf.Put(infoOf(&own))
	return nil
}

func infoOf(f *peer.File) Info {
	return Info{Table: f.Table, Txn: f.Txn, Base: f.Base, Seq: f.Seq, Digest: f.Digest, Sum: f.Sum, Bytes: len(f.Map)}
}

// check holds the invariant: the committed file is on a majority of the row's servers, the same everywhere.
func (w *world) check() {
	row := w.row()
	if row.Seq == 0 {
		return
	}
	have, sums := 0, map[uint64]bool{}
	for _, s := range row.Servers {
		if f := w.node(s).disk[row.Txn]; f != nil {
			have++
			sums[f.Sum] = true
		}
	}
	if 2*have <= len(row.Servers) && !w.wiped {
		w.fail("transaction %d is on %d of %d servers", row.Seq, have, len(row.Servers))
	}
	if len(sums) > 1 {
		w.fail("transaction %d is two maps", row.Seq)
	}
}

// run performs all there is, in order.
func (w *world) run() {
	for len(w.pending) > 0 && w.broken == "" {
		w.perform(0, performed)
	}
}

// crash ends a server's memory. Requests on their way arrive, or not.
func (w *world) crash(n *node, arrives func() bool) {
	w.say("%s crashes", n.id)
	for _, r := range w.txns {
		if r.at == n {
			r.dead = true
		}
	}
	var found []Info
	for _, f := range n.disk {
		found = append(found, infoOf(f))
	}
	n.shelf = NewShelf(found)
	pending := w.pending
	w.pending = nil
	for _, p := range pending {
		if !p.r.dead {
			w.pending = append(w.pending, p)
		} else if p.in == nil && arrives() {
			w.effect(p, answerLost)
			w.check()
		}
	}
}

// catchUp makes every server that is up fetch its missing files.
func (w *world) catchUp() {
	row := w.row()
	for _, s := range row.Servers {
		n := w.node(s)
		if n.away || n.disk[row.Txn] != nil {
			continue
		}
		if f, _ := w.load(n, row.Txn, row.Servers); f != nil {
			whole := *f
			n.disk[row.Txn] = &whole
			n.shelf.Put(infoOf(&whole))
			w.say("%s catches up with transaction %d", n.id, row.Seq)
		}
	}
}

// sweep is a server's periodic sweep; between its steps others may do theirs.
func (w *world) sweep(n *node, between func()) {
	before := n.shelf.Mark()
	row := w.row()
	between()
	touched := false
	if n.shelf.Undecided(cpu, row) >= w.undecidedMax {
		r := &running{name: "touch by " + string(n.id), at: n, t: NewTouch(cpu)}
		w.txns = append(w.txns, r)
		var ins []Input = []Input{Begin{}}
		for len(ins) > 0 {
			in := ins[0]
			ins = ins[1:]
			for _, e := range r.t.Step(in, nil) {
				if d, ok := e.(Done); ok {
					r.done = &d
				} else {
					ins = append(ins, w.effect(&effect{r: r, e: e}, performed))
				}
			}
		}
		if r.done.Err != nil {
			return
		}
		row, touched = r.done.Row, true
	}
	between()
	gone := n.shelf.Decided(cpu, row, w.keep)
	if touched {
		gone = append(gone, n.shelf.Abandoned(cpu, row, before)...)
	}
	for _, i := range gone {
		n.shelf.Remove(cpu, i.Txn)
		delete(n.disk, i.Txn)
		w.say("%s sweeps %s", n.id, w.names[i.Txn])
	}
	w.check()
}

// draw shows the row and the disks: * marks the committed transaction.
func (w *world) draw() string {
	var b strings.Builder
	row := w.row()
	dropped := ""
	if row.Dropped {
		dropped = ", dropped"
	}
	if row.Dropping {
		dropped = ", being dropped"
	}
	if row.Round > 0 {
		dropped += fmt.Sprintf(", round %d", row.Round)
	}
	fmt.Fprintf(&b, "row  %s seq %d on %v%s\n", w.names[row.Txn], row.Seq, row.Servers, dropped)
	for _, n := range w.servers {
		var fs []string
		for _, f := range slices.SortedFunc(mapValues(n.disk), func(a, b *peer.File) int {
			return strings.Compare(fmt.Sprintf("%09d%s", a.Seq, w.names[a.Txn]), fmt.Sprintf("%09d%s", b.Seq, w.names[b.Txn]))
		}) {
			mark := ""
			if f.Txn == row.Txn {
				mark = "*"
			}
			fs = append(fs, fmt.Sprintf("%d:%s%s", f.Seq, w.names[f.Txn], mark))
		}
		away := ""
		if n.away {
			away = "  (away)"
		}
		fmt.Fprintf(&b, "%s   %s%s\n", n.id, strings.Join(fs, " "), away)
	}
	for _, p := range w.pending {
		heard := ""
		if p.in != nil {
			heard = ", the answer"
		}
		fmt.Fprintf(&b, "  waits: %s %s%s\n", p.r.name, describe(p.e), heard)
	}
	return b.String()
}

func describe(e Effect) string {
	switch e := e.(type) {
	case ReadRow:
		return "read the row"
	case Load:
		return "load"
	case Store:
		return "store on " + string(e.Server)
	case ReadGuards:
		return "read guards"
	case MarkRows:
		return "mark"
	case Swap:
		return "swap"
	case Look:
		return "look what came before"
	}
	return "?"
}

func mapValues(m map[peer.TxnID]*peer.File) func(func(*peer.File) bool) {
	return func(yield func(*peer.File) bool) {
		for _, f := range m {
			if !yield(f) {
				return
			}
		}
	}
}

func chance(rng *rand.Rand, percent int) bool { return rng.IntN(100) < percent }
