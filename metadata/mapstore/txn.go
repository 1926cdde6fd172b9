package mapstore

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Txn is one change of one table's row, as its coordinator sees it: Step(input) effects. It has no clock, lock, I/O or
// goroutine, and the proposer drew everything random. It belongs to one goroutine.
//
//	ReadRow ─▶ is it done? may it be done? ─▶ Load ─▶ Store on all ─▶ a majority has it ─▶ guards ─▶ Swap ─▶ Done
//	   ▲                │ no: Look whether it was done before         durably, each said     │
//	   │                ▼                                             so after ReadRow      │
//	   │             Done                                                                   │
//	   └───────────────── the row changed, or the answer was lost ◀─────────────────────────┘
//
// Invariant: Swap compares the revision that the newest ReadRow gave, and every answer of Store that counts was given
// after it. So any touch of the row makes all earlier answers of Store worthless; that is how an undecided file
// may be deleted (see Sweep).
type Txn struct {
	// Constant after New.
	goal    goal
	table   string
	id      peer.TxnID
	base    peer.TxnID
	ops     []byte
	inRound uint64              // peer.Change.Round
	subject topology.ServerID   // of join and remove
	chosen  []topology.ServerID // of create and adopt
	first   *topology.Map       // of create

	phase    phase
	round    int // of reading the row
	failed   int // reads and swaps that were not answered
	unknown  bool
	row      Row
	rev      coord.Revision
	began    *Row // of ruleOut: the row as it was first read
	next     Row
	compared coord.Revision // by the newest Swap

	guards    []lease.Guard // the lease rows that the swap must compare and write
	marked    int           // of them, those marked before the swap
	conflicts int           // in a row, of the batch that is being marked

	file      *peer.File    // the file to store; with its map encoded once a server needs it
	content   *topology.Map // its map
	m         *topology.Map // the same, if it was made here
	asked     []ask
	need      int
	out       []Effect
	failure   error          // the last one of a server that should have stored it
	overtaken bool           // a server has a file with a higher number
	looked    bool           // at the row after that was seen
	late      coord.Revision // of the row that was read when it was seen
}

type goal uint8

const (
	change goal = iota
	create
	adopt
	join
	remove
	drop
	touch
	beginDrop
	ruleOut
)

type phase uint8

const (
	reading phase = iota
	loading
	storing
	guarding
	marking
	swapping
	looking
	done
)

// ask is one request to a server to store a file.
type ask struct {
	server topology.ServerID
	whole  bool
	state  askState
}

type askState uint8

const (
	waiting askState = iota
	stored
	lacking // it has no base, and needs the file whole
	refused
)

const (
	roundsMax  = 8 // how often a changed row is read again
	silenceMax = 4 // how often a store that does not answer is asked again
)

// NewChange makes a proposed transaction. The bytes of c.Ops are kept.
func NewChange(c *peer.Change) *Txn {
	return &Txn{goal: change, table: c.Table, id: c.Txn, base: c.Base, ops: c.Ops, inRound: c.Round}
}

// NewCreate makes a table (C19): the file on a majority of the servers first, then the row. Where a table of that name
// was dropped, the new one goes on from its sequence number and partition ids, with the rest of m, whether or not its last file can be
// had. Where the table exists, it ends as Stale.
func NewCreate(txn peer.TxnID, m *topology.Map, servers []topology.ServerID) *Txn {
	return &Txn{goal: create, table: m.Table, id: txn, first: m, chosen: sorted(slices.Clone(servers))}
}

// NewAdopt turns a row that holds a whole map into a file and a row of this layout.
func NewAdopt(table string, txn peer.TxnID, servers []topology.ServerID) *Txn {
	return &Txn{goal: adopt, table: table, id: txn, chosen: sorted(slices.Clone(servers))}
}

// NewJoin adds a metadata server to a table's list, once it has the committed file (C11).
func NewJoin(table string, s topology.ServerID) *Txn {
	return &Txn{goal: join, table: table, subject: s}
}

// NewRemove removes a metadata server from a table's list, once a majority of the others has the committed file (C12).
func NewRemove(table string, s topology.ServerID) *Txn {
	return &Txn{goal: remove, table: table, subject: s}
}

// NewBeginDrop marks a table as being dropped: from then on no transaction makes its partitions.
func NewBeginDrop(table string) *Txn { return &Txn{goal: beginDrop, table: table} }

// NewDrop marks a table as dropped, if at is still its committed transaction.
func NewDrop(table string, at peer.TxnID) *Txn { return &Txn{goal: drop, table: table, base: at} }

// NewTouch gives a row a new revision, so that no Swap of before succeeds.
func NewTouch(table string) *Txn { return &Txn{goal: touch, table: table} }

// NewRuleOut begins a new round of proposals: no change that was proposed on the committed transaction before is committed
// any more, however late its coordinator begins or goes on, because it names the round it was proposed in. Should the table
// move on to another transaction meanwhile, that rules out the same. It needs the coordination store alone.
func NewRuleOut(table string) *Txn { return &Txn{goal: ruleOut, table: table} }

// Step handles the next input and appends the effects to perform. The first input is Begin.
func (t *Txn) Step(in Input, out []Effect) []Effect {
	t.out = out
	switch in := in.(type) {
	case Begin:
		t.read()
	case RowRead:
		if t.phase == reading {
			t.rowRead(in)
		}
	case Loaded:
		if t.phase == loading {
			t.loaded(in)
		}
	case Stored:
		if in.Round == t.round {
			t.storedAt(in)
		}
	case GuardsRead:
		if t.phase == guarding {
			t.guardsRead(in)
		}
	case RowsMarked:
		if t.phase == marking {
			t.markedRows(in)
		}
	case Swapped:
		if t.phase == swapping {
			t.swapped(in)
		}
	case History:
		if t.phase == looking {
			t.history(in)
		}
	case Expired:
		if t.phase != done {
			t.unknown = t.unknown || t.phase == swapping
			t.unavailable(fault.Errorf(fault.Canceled, "its time ran out"))
		}
	}
	out, t.out = t.out, nil
	return out
}

func (t *Txn) do(e Effect) { t.out = append(t.out, e) }

func (t *Txn) read() {
	t.phase = reading
	t.asked, t.need = nil, 0
	t.round++
	t.do(ReadRow{Round: t.round, Failed: t.failed})
}

func (t *Txn) rowRead(in RowRead) {
	if in.Err != nil {
		if t.failed++; t.failed > silenceMax {
			t.unavailable(in.Err)
			return
		}
		t.read()
		return
	}
	if t.round > roundsMax+silenceMax {
		t.unavailable(fault.Errorf(fault.Unavailable, "the row changed %d times meanwhile", roundsMax))
		return
	}
	t.rev = in.Row.Revision
	if !in.OK {
		t.rev = 0
		t.absent()
		return
	}
	if t.goal == adopt {
		t.adopt(in.Row)
		return
	}
	row, err := DecodeRow(in.Row)
	if err != nil {
		t.end(err)
		return
	}
	t.row = row
	if t.began == nil {
		t.began = &row
	}
	t.decide()
}

func (t *Txn) absent() {
	if t.goal != create {
		t.end(fault.Errorf(fault.NotFound, "table %q does not exist", t.table))
		return
	}
	t.row = Row{}
	t.store(t.first, Row{Servers: t.chosen}, nil)
}

// decide looks at the row: is the goal reached, is it allowed, which part is missing.
func (t *Txn) decide() {
	switch {
	case t.reached():
		t.end(nil)
	case t.row.Dropped && t.goal == change:
		t.end(fault.Errorf(fault.NotFound, "table %q was dropped", t.table))
	case t.goal == create && !t.row.Dropped:
		t.look() // it may be ours, and others have built on it
	case t.goal == change && t.row.Txn != t.base:
		t.look()
	case t.goal == change && t.inRound > 0 && t.row.Round >= t.inRound:
		t.end(fault.Errorf(fault.Stale, "table %q: this change was ruled out after it had been proposed: propose anew", t.table))
	case t.goal == drop && t.row.Txn != t.base:
		t.end(fault.Errorf(fault.Stale, "table %q has moved on to transaction %d", t.table, t.row.Seq))
	case t.goal == remove && len(t.row.Servers) == 1:
		t.end(fault.Errorf(fault.Invalid, "%s is the only metadata server of table %q: let another one join first", t.subject, t.table))
	case t.goal == join && len(t.row.Servers) >= ServersMax:
		t.end(fault.Errorf(fault.Invalid, "table %q has %d metadata servers, the most there may be", t.table, ServersMax))
	case t.goal == beginDrop:
		t.next = t.row
		t.next.Dropping = true
		t.swap(nil, nil)
	case t.goal == create && t.row.NextID > 0:
		t.anew(t.row.NextID)
	case t.goal == touch:
		t.next = t.row
		t.swap(nil, nil)
	case t.goal == ruleOut:
		t.next = t.row
		t.next.Round++
		t.swap(nil, nil)
	default:
		t.phase = loading
		t.do(Load{Round: t.round, Table: t.table, Txn: t.row.Txn, Seq: t.row.Seq, Servers: t.row.Servers})
	}
}

// reached reports whether the row shows that the goal is reached, by us or by another coordinator of the same proposal.
func (t *Txn) reached() bool {
	switch t.goal {
	case change, create:
		return t.row.Txn == t.id
	case join:
		return t.row.has(t.subject)
	case remove:
		return !t.row.has(t.subject)
	case beginDrop:
		return t.row.Dropping || t.row.Dropped
	case drop:
		return t.row.Dropped
	case touch:
		return t.compared > 0 && t.rev != t.compared // another process's swap came between: as good
	case ruleOut:
		return t.row.Round > t.began.Round || t.row.Txn != t.began.Txn
	}
	return false
}

func (t *Txn) loaded(in Loaded) {
	if in.Err != nil && t.goal == create {
		t.anew(afterUnknown)
		return
	}
	if t.goal == drop {
		t.next = t.row
		t.next.Dropped, t.next.Dropping = true, false
		if in.Err == nil {
			t.next.NextID = in.Map.NextID
		}
		t.swap(nil, nil)
		return
	}
	if in.Err != nil {
		t.unavailable(fault.Annotate(in.Err, "find the file of transaction %d", t.row.Seq))
		return
	}
	if in.Map.Seq != t.row.Seq || in.Map.Table != t.table {
		t.do(Alarm{Table: t.table, Text: "the file of the committed transaction is of another table or sequence number"})
		t.end(fault.Errorf(fault.Corrupt, "table %q: the file of transaction %d says it is %d of %q", t.table, t.row.Seq, in.Map.Seq, in.Map.Table))
		return
	}
	switch t.goal {
	case change:
		ops, err := topology.DecodeOps(t.ops)
		if err != nil {
			t.end(fault.Wrap(err, fault.Invalid, "ops"))
			return
		}
		next, err := in.Map.Apply(ops...)
		switch {
		case err != nil:
			t.end(err)
		case next.Seq == in.Map.Seq: // nothing to change is no transaction
			t.id = t.row.Txn
			t.end(nil)
		case t.row.Dropping && next.NextID != in.Map.NextID: // certain, and readers of the row see why
			t.end(fault.Errorf(fault.Stale, "table %q is being dropped: no partitions are made of it", t.table))
		default:
			t.guards = lease.Guards(in.Map, next, ops)
			t.store(next, t.row, t.ops)
		}
	case create:
		t.anew(in.Map.NextID)
	case join:
		t.file, t.content = in.File, in.Map
		t.next = t.row
		t.next.Servers = t.row.with(t.subject)
		t.ask([]topology.ServerID{t.subject}, 1)
	case remove:
		t.file, t.content = in.File, in.Map
		t.next = t.row
		t.next.Servers = t.row.without(t.subject)
		t.ask(t.next.Servers, majority(len(t.next.Servers)))
	}
}

// anew makes a table under a name used before: sequence numbers and partition ids go on, nothing else does.
func (t *Txn) anew(next point.PartitionID) {
	m := *t.first
	m.Seq, m.NextID = t.row.Seq+1, next
	if t.m != nil { // sent to servers already: one transaction has one content, whichever file can be loaded by now
		m.NextID = t.m.NextID
	}
	t.store(&m, Row{Servers: t.chosen}, nil)
}

// store asks the servers of the new row, which continues from, to store a new map's file.
func (t *Txn) store(m *topology.Map, from Row, ops []byte) {
	if t.row.Seq > 0 && m.Seq != t.row.Seq+1 {
		fault.Bug("a transaction on %d gave %d", t.row.Seq, m.Seq)
	}
	if m.EncodedSize() > peer.MapBytesMax { // an estimate, so that an ordinary map need not be encoded
		if n := len(m.Encode()); n > peer.MapBytesMax {
			t.end(fault.Errorf(fault.TooLarge, "the map of table %q would have %d bytes, at most %d are taken: merge or drop partitions", t.table, n, peer.MapBytesMax))
			return
		}
	}
	if t.file != nil && t.file.Base != t.row.Txn { // a table of that name came and went since we began
		t.stale()
		return
	}
	t.m, t.content = m, m
	t.file = &peer.File{Table: t.table, Txn: t.id, Seq: m.Seq, Digest: m.Digest(), Base: t.row.Txn, Ops: ops}
	t.next = Row{Txn: t.id, Seq: m.Seq, Servers: from.Servers, Dropping: from.Dropping, Round: t.row.Round, Begun: from.Begun}
	if t.goal == create {
		t.next.Begun = m.Seq
	}
	if t.row.Over > m.Seq {
		t.next.Over = t.row.Over
	}
	t.ask(t.next.Servers, majority(len(t.next.Servers)))
}

// adopt begins with the map that the row itself holds.
func (t *Txn) adopt(row coord.Row) {
	if r, err := DecodeRow(row); err == nil {
		t.row, t.id = r, r.Txn
		t.end(nil)
		return
	}
	m, err := topology.Decode(row.Value)
	if err != nil {
		t.end(fault.Annotate(err, "row %s", row.Key))
		return
	}
	if m.Table != t.table {
		t.end(fault.Errorf(fault.Corrupt, "row %s holds the map of %q", row.Key, m.Table))
		return
	}
	t.row = Row{}
	t.store(m, Row{Servers: t.chosen}, nil)
}

func (t *Txn) ask(servers []topology.ServerID, need int) {
	t.phase, t.need, t.failure, t.overtaken = storing, need, nil, false
	t.asked = make([]ask, 0, len(servers))
	for _, s := range servers {
		t.asked = append(t.asked, ask{server: s})
		t.send(s, false)
	}
}

// send asks a server to store the file: first as the ops on the base that the server should have, then whole.
func (t *Txn) send(s topology.ServerID, whole bool) {
	f := *t.file
	switch {
	case !whole && f.Ops != nil:
		f.Map, f.Sum = nil, 0
	case !whole && (t.goal == join || t.goal == remove):
		f.Map, f.Sum, f.Base = nil, 0, f.Txn // no ops on itself: do you have it?
	default:
		if t.file.Map == nil {
			w := withMap(t.file, t.content)
			w.Ops = t.file.Ops
			t.file = w
		}
		f = *t.file
		f.Ops = nil
	}
	t.do(Store{Round: t.round, Server: s, File: &f, Whole: t.file, Map: t.content})
}

func (t *Txn) storedAt(in Stored) {
	i := slices.IndexFunc(t.asked, func(a ask) bool { return a.server == in.Server })
	if i < 0 || t.asked[i].state != waiting {
		return
	}
	a := &t.asked[i]
	switch {
	case in.Err == nil:
		a.state = stored
	case fault.Is(in.Err, fault.Stale) && !a.whole:
		a.state = lacking
	case fault.Is(in.Err, fault.Corrupt):
		a.state = refused
		t.do(Alarm{Table: t.table, Server: a.server, Text: "a metadata server came to another map by the same ops, or holds another file of the same transaction"})
		if t.phase == storing {
			t.end(fault.Annotate(in.Err, "metadata server %s disagrees; nothing is committed", a.server))
		}
		return
	default:
		a.state = refused
		t.failure = fault.Annotate(in.Err, "metadata server %s", a.server)
		t.overtaken = t.overtaken || fault.Is(in.Err, fault.Stale)
	}
	if t.phase != storing {
		return
	}
	have, left := 0, 0
	for _, a := range t.asked {
		switch a.state {
		case stored:
			have++
		case waiting:
			left++
		}
	}
	switch {
	case have >= t.need:
		t.guard()
	case have+left < t.need && t.sendWhole():
	case have+left < t.need && t.overtaken && (!t.looked || t.rev != t.late): // a server has a newer file: the row should name it too
		t.looked, t.late = true, t.rev
		t.read()
	case have+left < t.need:
		t.unavailable(fault.Annotate(t.failure, "%d of %d metadata servers stored transaction %d, %d must", have, len(t.asked), t.file.Seq, t.need))
	}
}

// sendWhole sends the file whole to the servers that lack its base, if there are any. That is done only where they are needed for
// a majority: a server that lags a little fetches the missing ops by itself, by the row, while files of many megabytes would have it lag more.
func (t *Txn) sendWhole() (sent bool) {
	for i := range t.asked {
		if a := &t.asked[i]; a.state == lacking {
			a.state, a.whole, sent = waiting, true, true
			t.send(a.server, true)
		}
	}
	return sent
}

// swap asks for the commit point, together with the other conditions and writes.
func (t *Txn) swap(conditions []coord.Condition, writes []coord.Write) {
	t.phase, t.compared = swapping, t.rev
	t.do(Swap{
		Round:      t.round,
		Conditions: append([]coord.Condition{{Key: Key(t.table), Revision: t.rev}}, conditions...),
		Writes:     append([]coord.Write{{Key: Key(t.table), Value: t.next.Encode()}}, writes...),
	})
}

func (t *Txn) swapped(in Swapped) {
	switch {
	case in.Err != nil: // it may have happened, may happen yet, or not (C08)
		t.unknown = true
		t.failed++
		if t.failed > silenceMax {
			t.unavailable(in.Err)
			return
		}
	case in.OK:
		t.row, t.rev = t.next, in.Revision
		t.end(nil)
		return
	}
	t.read()
}

// look asks for the transactions before the committed one: ours may be among them.
func (t *Txn) look() {
	t.phase = looking
	t.do(Look{Round: t.round, Table: t.table, Txn: t.row.Txn, Sought: t.id, Base: t.base, Servers: t.row.Servers})
}

func (t *Txn) history(in History) {
	for _, l := range in.Links {
		switch {
		case l.Txn == t.id:
			t.row.Txn, t.row.Seq = l.Txn, l.Seq
			t.end(nil)
			return
		case l.Base == t.base: // another one went on from where we wanted to
			t.stale()
			return
		}
	}
	// Stale means for certain that it was not committed, and never will be.
	t.unknown = true
	t.unavailable(fault.Errorf(fault.Unavailable, "what came before transaction %d is not kept as far back: look at the newest map", t.row.Seq))
}

func (t *Txn) stale() {
	if t.goal == create {
		t.end(fault.Errorf(fault.Stale, "table %q was made by another", t.table))
		return
	}
	t.end(fault.Errorf(fault.Stale, "table %q has moved on to transaction %d: propose anew on its map", t.table, t.row.Seq))
}

func (t *Txn) unavailable(err error) {
	switch {
	case t.unknown:
		err = fault.Wrap(err, fault.Unavailable, "table %q: it may or may not be committed", t.table)
	default:
		err = fault.Wrap(err, fault.Unavailable, "table %q: not committed", t.table)
	}
	t.end(err)
}

func (t *Txn) end(err error) {
	t.phase = done
	e := Done{Err: err}
	if err == nil {
		e.Row, e.Revision = t.row, t.rev
		e.Changed = peer.Changed{Txn: t.id, Seq: t.row.Seq}
		if t.m != nil && t.m.Seq == t.row.Seq && t.row.Txn == t.id {
			e.Map = t.m
		}
	}
	t.do(e)
}
