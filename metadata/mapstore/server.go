package mapstore

import (
	"context"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Server is a metadata server. All methods are safe for concurrent use.
type Server struct {
	*Coordinator

	work chan struct{} // wakes Run

	state struct {
		sync.Mutex
		shelf *Shelf
		steps *steps
		turns map[string]*turn
		rows  map[string]known // of all tables, as Run has received them
		miss  map[string]bool  // tables without their committed file, though it belongs here
		sweep map[string]bool  // tables to sweep
		swept map[string]Mark  // when tables with undecided files were swept last

		arriving map[cacheKey]chan struct{} // files on their way to the disk; closed when they are there, or will not be
	}
}

// arrivingMax bounds the files that others may wait for; beyond, nothing is waited for.
const arrivingMax = 1024

type known struct {
	row Row
	rev coord.Revision
}

var _ peer.Metadata = (*Server)(nil)

// turn is the right to change a table: coordinate, or write and delete its files.
type turn struct {
	change, disk chan struct{}
	waiting      int
}

// New makes the metadata server of a process; its disk is read. Call Run, and Close in the end. Errors are Invalid, or
// the disk's.
func New(d Deps, s Settings) (*Server, error) {
	if d.Self == "" || d.Disk == nil {
		return nil, fault.Errorf(fault.Invalid, "a metadata server needs a name and a disk")
	}
	c, err := newCoordinator(d, s)
	if err != nil {
		return nil, err
	}
	found, err := d.Disk.List()
	if err != nil {
		return nil, fault.Annotate(err, "METADATA files")
	}
	srv := &Server{Coordinator: c, work: make(chan struct{}, 1)}
	srv.state.arriving = map[cacheKey]chan struct{}{}
	srv.state.shelf, srv.state.steps, srv.state.turns = NewShelf(found), newSteps(), map[string]*turn{}
	srv.state.rows, srv.state.miss, srv.state.sweep = map[string]known{}, map[string]bool{}, map[string]bool{}
	srv.state.swept = map[string]Mark{}
	c.keep, c.newest = srv.keepOwn, srv.newestOwn
	c.shelf = func(table string, txn peer.TxnID) []Link {
		srv.state.Lock()
		defer srv.state.Unlock()
		return srv.state.shelf.Links(table, txn)
	}
	return srv, nil
}

// enterTurn waits for a turn; leaveTurn gives it back. Errors are Throttled (too many wait) or Canceled.
func (s *Server) enterTurn(ctx context.Context, table string, which func(*turn) chan struct{}) error {
	s.state.Lock()
	t := s.state.turns[table]
	if t == nil {
		t = &turn{change: make(chan struct{}, 1), disk: make(chan struct{}, 1)}
		s.state.turns[table] = t
	}
	if t.waiting >= s.settings.QueueMax {
		s.state.Unlock()
		return fault.Errorf(fault.Throttled, "%d changes of table %q wait for their turn here", s.settings.QueueMax, table)
	}
	t.waiting++
	s.state.Unlock()
	select {
	case which(t) <- struct{}{}:
		return nil
	case <-ctx.Done():
		s.state.Lock()
		defer s.state.Unlock()
		s.forgetTurnLocked(table, t)
		return ctx.Err()
	}
}

func (s *Server) leaveTurn(table string, which func(*turn) chan struct{}) {
	s.state.Lock()
	defer s.state.Unlock()
	t := s.state.turns[table]
	<-which(t)
	s.forgetTurnLocked(table, t)
}

func (s *Server) forgetTurnLocked(table string, t *turn) {
	if t.waiting--; t.waiting == 0 {
		delete(s.state.turns, table)
	}
}

func changeTurn(t *turn) chan struct{} { return t.change }
func diskTurn(t *turn) chan struct{}   { return t.disk }

// Change implements peer.Metadata. Changes of one table run one after another; a change with an overtaken base is
// answered at once when its turn comes. Besides the errors of the interface: Throttled (too many wait), TooLarge, Corrupt (servers
// do not agree; nothing is committed, and the operator gets an alarm), Canceled.
func (s *Server) Change(ctx context.Context, c *peer.Change) (*peer.Changed, error) {
	if err := CheckName(c.Table); err != nil {
		return nil, err
	}
	if c.Txn == (peer.TxnID{}) || c.Txn == c.Base {
		return nil, fault.Errorf(fault.Invalid, "table %q: the change has no transaction id of its own", c.Table)
	}
	if len(c.Ops) > peer.MapBytesMax {
		return nil, fault.Errorf(fault.TooLarge, "table %q: ops of %d bytes", c.Table, len(c.Ops))
	}
	if err := s.enterTurn(ctx, c.Table, changeTurn); err != nil {
		return nil, err
	}
	defer s.leaveTurn(c.Table, changeTurn)
	own := *c
	own.Ops = slices.Clone(c.Ops) // the transaction may outlive the call
	d, err := s.run(ctx, c.Table, NewChange(&own))
	if err != nil {
		return nil, err
	}
	return &d.Changed, nil
}

// Store implements peer.Metadata. Besides the errors of the interface: Invalid, Throttled, Canceled.
func (s *Server) Store(ctx context.Context, f *peer.File) error {
	err := s.overtaken(f)
	if err == nil {
		err = s.take(ctx, f, nil)
	}
	s.metrics.stores.WithLabelValues(resultName(err, "stored")).Inc()
	return err
}

// overtaken refuses a new file where one with a higher number is here, which stands on a transaction that was committed, or another of its number that this
// server acted by: this one is late, or the coordination store was restored from an older backup. Then no transaction may build on the store's row.
func (s *Server) overtaken(f *peer.File) error {
	if f.Base == f.Txn { // a committed file for a server that joins
		return nil
	}
	acted := s.acted(f.Table)
	s.state.Lock()
	defer s.state.Unlock()
	_, here := s.state.shelf.Get(f.Table, f.Txn)
	newest, ok := s.state.shelf.Newest(f.Table)
	if here || !ok || newest.Seq < f.Seq || f.Seq <= s.state.rows[f.Table].row.Over {
		return nil
	}
	if _, kept := s.state.shelf.Get(f.Table, acted.Txn); newest.Seq == f.Seq && (acted.Seq != f.Seq || !kept) {
		return nil
	}
	return fault.Errorf(fault.Stale, "table %q: transaction %d is on this disk, and this is another %d: if the coordination store was restored from an older backup, `spillway table repair %s` goes on from the newest",
		f.Table, newest.Seq, f.Seq, f.Table)
}

// acted returns the transaction that this server acted by, so that it was committed; zero: it is not known.
func (s *Server) acted(table string) peer.Acted {
	if s.deps.Acted == nil {
		return peer.Acted{}
	}
	return s.deps.Acted(table)
}

// setBack reports whether the files here show that a newer transaction than the row's was committed, and no person decided against it: this server
// acted by it, or another file stands on it. Either the row was just read and has changed, or the coordination store was restored from an older backup.
func (s *Server) setBack(table string, r Row) bool {
	acted := s.acted(table)
	s.state.Lock()
	defer s.state.Unlock()
	_, kept := s.state.shelf.Get(table, acted.Txn)
	newest, ok := s.state.shelf.Newest(table)
	switch {
	case !ok || newest.Seq <= max(r.Seq, r.Over):
		return false
	case newest.Seq > r.Seq+1:
		return true
	}
	return kept && acted.Seq > r.Seq
}

// newestOwn returns the newest map of a table that is here, so that later changes are fetched as ops since.
func (s *Server) newestOwn(table string) (peer.TxnID, *topology.Map) {
	s.state.Lock()
	i, ok := s.state.shelf.Newest(table)
	s.state.Unlock()
	if !ok {
		return peer.TxnID{}, nil
	}
	if _, m, err := s.own(table, i.Txn); err == nil {
		return i.Txn, m
	}
	return peer.TxnID{}, nil
}

func (s *Server) keepOwn(ctx context.Context, f *peer.File, m *topology.Map) error {
	if err := s.overtaken(f); err != nil {
		return err
	}
	return s.take(ctx, f, m)
}

// take stores a file durably before it returns. m is its map, if at hand.
func (s *Server) take(ctx context.Context, f *peer.File, m *topology.Map) error {
	if m != nil {
		s.cache.put(f, m) // the next transaction may be planned on this file before it is on this disk
	}
	arrived, err := s.arrive(ctx, f)
	if err != nil {
		return err
	}
	defer arrived()
	if err := s.enterTurn(ctx, f.Table, diskTurn); err != nil {
		return err
	}
	defer s.leaveTurn(f.Table, diskTurn)
	f = s.comparable(f)
	here, err := s.accept(f)
	if here || err != nil {
		return err
	}
	if f, m, err = s.open(f, m); err != nil {
		return err
	}
	s.cache.put(f, m) // first: once the file is on the disk it may be asked for
	if err := s.deps.Disk.Put(f, m); err != nil {
		s.cache.remove(f.Table, f.Txn)
		return err
	}
	s.state.Lock()
	defer s.state.Unlock()
	switch {
	case f.Ops != nil:
		s.state.steps.put(f.Table, f.Txn, f.Base, slices.Clone(f.Ops))
	case len(f.Steps) > 0:
		s.state.steps.put(f.Table, f.Txn, f.Since, f.Steps...)
	}
	s.state.shelf.Put(Info{Table: f.Table, Txn: f.Txn, Base: f.Base, Seq: f.Seq, Digest: m.Digest(), Bytes: m.EncodedBytes()})
	s.missLocked(f.Table)
	return nil
}

// arrive waits while the file that f stands on is on its way to the disk, so that files that overtake each other need not be
// sent whole. done must be called when f is on the disk, or will not be.
func (s *Server) arrive(ctx context.Context, f *peer.File) (done func(), err error) {
	key, base := cacheKey{f.Table, f.Txn}, cacheKey{f.Table, f.Base}
	s.state.Lock()
	before := s.state.arriving[base]
	mine, again := s.state.arriving[key]
	if !again && len(s.state.arriving) < arrivingMax {
		mine = make(chan struct{})
		s.state.arriving[key] = mine
	}
	s.state.Unlock()
	done = func() {
		if mine != nil && !again {
			s.state.Lock()
			delete(s.state.arriving, key)
			s.state.Unlock()
			close(mine)
		}
	}
	if before == nil || key == base {
		return done, nil
	}
	select {
	case <-before:
		return done, nil
	case <-ctx.Done():
		done()
		return nil, ctx.Err()
	}
}

// comparable returns a file that an older build sent, without a digest, with one where the same file is here and has the
// sender's sum.
func (s *Server) comparable(f *peer.File) *peer.File {
	if f.Digest != 0 {
		return f
	}
	s.state.Lock()
	i, here := s.state.shelf.Get(f.Table, f.Txn)
	s.state.Unlock()
	if !here || i.Digest == 0 || i.Seq != f.Seq {
		return f
	}
	w, err := s.encoded(f.Table, f.Txn)
	if err != nil {
		return f
	}
	c := *f
	c.Digest = i.Digest
	if w.Sum != f.Sum {
		c.Digest = ^i.Digest // another content
	}
	return &c
}

// accept reports whether a file is here already; if not, a nil error means that it may come.
func (s *Server) accept(f *peer.File) (here bool, err error) {
	s.state.Lock()
	defer s.state.Unlock()
	here, err = s.state.shelf.Take(f)
	if err != nil {
		return false, err
	}
	if here {
		i, _ := s.state.shelf.Get(f.Table, f.Txn)
		s.state.shelf.Put(i) // it is being counted again
		return true, nil
	}
	row := s.state.rows[f.Table].row
	row.Seq = max(row.Seq, f.Seq-1) // the coordinator read the row: the base of this file is committed
	if f.Seq > row.Seq && s.state.shelf.Undecided(f.Table, row) >= s.settings.UndecidedMax {
		s.state.sweep[f.Table] = true
		s.wake()
		return false, fault.Errorf(fault.Throttled, "table %q: %d files lie here that no transaction decided about; they are being swept", f.Table, s.settings.UndecidedMax)
	}
	return false, nil
}

// open returns a file and its map: the one at hand, the one that was sent, or the result of the ops on the base.
func (s *Server) open(f *peer.File, m *topology.Map) (*peer.File, *topology.Map, error) {
	w := *f
	switch {
	case m != nil:
		return &w, m, nil
	case f.Map != nil:
		w.Ops, w.Steps = nil, nil // they may be anything
		m, err := Decode(&w)
		return &w, m, err
	}
	_, base, err := s.own(f.Table, f.Base)
	if err != nil || f.Base == f.Txn {
		if fault.Is(err, fault.Corrupt) {
			s.lose(f.Table, f.Base, err)
		}
		return nil, nil, fault.Errorf(fault.Stale, "table %q: what transaction %d stands on is not here: send it whole", f.Table, f.Seq)
	}
	ops, err := topology.DecodeOps(f.Ops)
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.Invalid, "ops")
	}
	if m, err = base.Apply(ops...); err != nil {
		return nil, nil, fault.Wrap(err, fault.Corrupt, "table %q: the ops that made transaction %d elsewhere are refused here", f.Table, f.Seq)
	}
	same := m.Digest() == f.Digest
	if f.Digest == 0 { // an older build sends the sum of the encoded map
		w.Map = m.Encode()
		same = xxhash.Sum64(w.Map) == f.Sum
	}
	if !same || m.Seq != f.Seq {
		return nil, nil, fault.Errorf(fault.Corrupt, "table %q: the ops of transaction %d make another map here: digest %016x, elsewhere %016x", f.Table, f.Seq, m.Digest(), f.Digest)
	}
	return &w, m, nil
}

// lose notes that a file is damaged: it counts as absent, and is fetched again if needed.
func (s *Server) lose(table string, txn peer.TxnID, err error) {
	s.deps.Log.Error("a METADATA file is damaged; it is fetched from another metadata server if it is needed", "table", table, "error", err)
	s.cache.remove(table, txn)
	s.state.Lock()
	defer s.state.Unlock()
	s.state.shelf.Remove(table, txn)
	s.missLocked(table)
	s.wake()
}

// Fetch implements peer.Metadata: only ever the file that was asked for (C14). The answer's bytes are shared, and must not
// be changed. Errors are NotFound, Unavailable, Invalid.
func (s *Server) Fetch(_ context.Context, q *peer.FileQuery) (*peer.File, error) {
	if err := CheckName(q.Table); err != nil {
		return nil, err
	}
	if q.Txn == (peer.TxnID{}) {
		return s.newest(q)
	}
	f, _, err := s.own(q.Table, q.Txn)
	if fault.Is(err, fault.Corrupt) {
		s.lose(q.Table, q.Txn, err)
		return nil, fault.Wrap(err, fault.NotFound, "the file was damaged")
	}
	if err != nil {
		return nil, err
	}
	if steps, ok := s.since(q.Table, q.Since, q.Txn); ok {
		answer := *f
		answer.Since, answer.Steps = q.Since, steps
		return &answer, nil
	}
	return s.encoded(q.Table, q.Txn)
}

// since gives the ops of each transaction after one up to another, if they are remembered.
func (s *Server) since(table string, from, to peer.TxnID) ([][]byte, bool) {
	if from == (peer.TxnID{}) {
		return nil, false
	}
	s.state.Lock()
	defer s.state.Unlock()
	return s.state.steps.since(table, from, to)
}

// encoded gives a file that is here whole.
func (s *Server) encoded(table string, txn peer.TxnID) (*peer.File, error) {
	if w := s.cache.getWhole(table, txn); w != nil {
		return w, nil
	}
	f, m, err := s.own(table, txn)
	if err != nil {
		return nil, err
	}
	w := withMap(f, m)
	s.cache.putWhole(w)
	return w, nil
}

// newest gives the newest file of a table that can be read, committed or not, with the transaction that this server acted by.
func (s *Server) newest(q *peer.FileQuery) (*peer.File, error) {
	f, err := s.newestFile(q.Table)
	if s.deps.Acted == nil {
		return f, err
	}
	acted := s.deps.Acted(q.Table)
	switch {
	case err == nil:
		answer := *f
		answer.Acted = acted
		return &answer, nil
	case fault.Is(err, fault.NotFound) && q.Acted && acted != (peer.Acted{}):
		return &peer.File{Table: q.Table, Acted: acted}, nil
	}
	return f, err
}

func (s *Server) newestFile(table string) (*peer.File, error) {
	for {
		s.state.Lock()
		i, ok := s.state.shelf.Newest(table)
		s.state.Unlock()
		if !ok {
			return nil, fault.Errorf(fault.NotFound, "no METADATA file of table %q is here", table)
		}
		f, err := s.encoded(table, i.Txn)
		if !fault.Is(err, fault.Corrupt) {
			return f, err
		}
		s.lose(table, i.Txn, err)
	}
}

// Alone reaches the metadata servers of the only process: itself.
func (s *Server) Alone(id topology.ServerID) (peer.Metadata, bool) { return s, id == s.deps.Self }

// Only lists the metadata servers of such a process.
func (s *Server) Only() []topology.ServerID { return []topology.ServerID{s.deps.Self} }

// Map returns the decoded map of a transaction from its file here; it is shared.
func (s *Server) Map(table string, txn peer.TxnID) (*topology.Map, error) {
	_, m, err := s.own(table, txn)
	return m, err
}

// Adopt turns the rows of the previous layout, which hold whole maps, into files on this disk and rows that name them. It
// is for the only process: its rows then name it as the only metadata server.
func (s *Server) Adopt(ctx context.Context) error {
	rows, _, err := s.deps.Store.List(ctx, Prefix)
	if err != nil {
		return fault.Annotate(err, "read the tables")
	}
	for _, row := range rows {
		if _, err := DecodeRow(row); err == nil {
			continue
		}
		table := TableOf(row.Key)
		if _, err := s.run(ctx, table, NewAdopt(table, s.NewTxnID(), []topology.ServerID{s.deps.Self})); err != nil {
			return fault.Annotate(err, "move the map of table %q out of its row", table)
		}
		s.deps.Log.Info("a table's map was moved out of its row", "table", table)
	}
	return nil
}

func (s *Server) wake() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}
