package main

import (
	"bytes"
	"context"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/protocols/fault"
)

const (
	storeTimeout = time.Second
)

func newStore(w *world) *store {
	return &store{w: w, rows: mem.New(), leases: map[string]decoded[lease.Lease]{}, beats: map[string]decoded[lease.Beat]{}}
}

// decoded is the newest value of a row that was decoded. Every process is shown every change, so most values are decoded once and not for each. What the rows
// hold is shared, and must not be changed.
type decoded[T any] struct {
	value []byte
	row   T
	err   error
}

// lease is lease.DecodeLease of a row.
func (s *store) lease(key string, value []byte) (lease.Lease, error) {
	return decodeOnce(s.leases, key, value, lease.DecodeLease)
}

// beat is lease.DecodeBeat of a row.
func (s *store) beat(key string, value []byte) (lease.Beat, error) {
	return decodeOnce(s.beats, key, value, lease.DecodeBeat)
}

func decodeOnce[T any](all map[string]decoded[T], key string, value []byte, decode func([]byte) (T, error)) (T, error) {
	d, ok := all[key]
	if !ok || !bytes.Equal(d.value, value) {
		d.value = value
		d.row, d.err = decode(value)
		all[key] = d
	}
	return d.row, d.err
}

// commit makes a transaction at the store itself.
func (s *store) commit(conditions []coord.Condition, writes []coord.Write) (coord.Revision, bool) {
	rev, ok, err := s.rows.Commit(context.Background(), conditions, writes)
	if err != nil {
		fault.Bug("the store in memory failed: %v", err)
	}
	if !ok {
		return 0, false
	}
	s.rev = rev
	for _, wr := range writes {
		s.history = append(s.history, coord.Event{Row: coord.Row{Key: wr.Key, Value: wr.Value, Revision: rev}, Deleted: wr.Delete})
		s.w.check.written(wr, rev)
	}
	if drop := len(s.history) - s.w.limits.history; drop > 0 {
		s.compact(drop)
	}
	for _, x := range s.watches {
		if slices.ContainsFunc(writes, func(wr coord.Write) bool { return strings.HasPrefix(wr.Key, x.prefix) }) {
			s.schedule(x, s.w.delay())
		}
	}
	return rev, true
}

// compact forgets the oldest changes.
func (s *store) compact(n int) {
	if n == 0 {
		return
	}
	s.forgotten = s.history[n-1].Revision
	for n < len(s.history) && s.history[n].Revision == s.forgotten { // a transaction is one
		n++
	}
	clear(s.history[:n])
	s.history = s.history[n:]
}

// get reads at the store itself.
func (s *store) get(key string) (coord.Row, bool) {
	row, ok, _ := s.rows.Get(context.Background(), key)
	return row, ok
}

func (s *store) list(prefix string) []coord.Row {
	rows, _, _ := s.rows.List(context.Background(), prefix)
	return rows
}

func (s *store) schedule(x *watch, d time.Duration) {
	if x.due || x.over {
		return
	}
	x.due = true
	s.w.after(max(d, x.stalled-s.w.now), "watch", func() { s.pump(x) })
}

// pump sends a watch the new changes. A connection that is cut keeps it for later, as long as the store remembers.
//
// The watch's revision moves in the turn that hands its events over, and not before: a watch that said that it is up to date while events waited had a
// gateway trust its old map as the newest one.
func (s *store) pump(x *watch) {
	x.due = false
	switch {
	case x.over:
		return
	case x.p.dead:
		x.over = true
		s.watches = slices.DeleteFunc(s.watches, func(y *watch) bool { return y == x })
		return
	case x.wanted != nil && !x.wanted():
		x.over = true
		s.watches = slices.DeleteFunc(s.watches, func(y *watch) bool { return y == x })
		return
	case s.w.now < x.stalled:
		s.schedule(x, 0)
		return
	case x.p.lags && x.prefix == mapstore.Prefix:
		s.schedule(x, 200*time.Millisecond)
		return
	case s.w.now < s.away || s.w.severed(s.node(), x.p.node) || s.w.severed(x.p.node, s.node()):
		s.schedule(x, 200*time.Millisecond)
		return
	case x.after < s.forgotten:
		x.over = true
		s.watches = slices.DeleteFunc(s.watches, func(y *watch) bool { return y == x })
		s.w.mark(watchListsAnew)
		x.p.do(x.again)
		return
	}
	var events []coord.Event
	from := sort.Search(len(s.history), func(i int) bool { return s.history[i].Revision > x.after })
	for _, e := range s.history[from:] {
		if strings.HasPrefix(e.Key, x.prefix) {
			events = append(events, e)
		}
	}
	x.after = s.rev
	if len(events) > 0 {
		s.w.events++
		x.p.do(func() { x.changed(events) })
	}
}

// The processes' requests to the store.

type committed struct {
	rev coord.Revision
	ok  bool
}

type listed struct {
	rows []coord.Row
	rev  coord.Revision
}

type got struct {
	row coord.Row
	ok  bool
}

// request sends a request to the store. While the store is away it neither accepts requests nor answers.
func request[T any](p *proc, timeout time.Duration, what string, f func() T, done func(T, bool)) {
	s := p.w.store
	ask(p, s.node(), timeout, what, func(answer func(T)) {
		if p.w.now >= s.away {
			answer(f())
		}
	}, done)
}

func (p *proc) commit(conditions []coord.Condition, writes []coord.Write, timeout time.Duration, done func(c committed, answered bool)) {
	request(p, timeout, "commit", func() committed {
		rev, ok := p.w.store.commit(conditions, writes)
		return committed{rev, ok}
	}, done)
}

func (p *proc) list(prefix string, timeout time.Duration, done func(l listed, answered bool)) {
	request(p, timeout, "list", func() listed { return listed{p.w.store.list(prefix), p.w.store.rev} }, done)
}

func (p *proc) get(key string, timeout time.Duration, done func(g got, answered bool)) {
	request(p, timeout, "get", func() got {
		row, ok := p.w.store.get(key)
		return got{row, ok}
	}, done)
}

// follow receives all rows under a prefix, as coord.Follow does: a list, then every change in order; after a gap a list.
func (p *proc) follow(prefix string, all func(listed), changed func([]coord.Event)) {
	p.followWhile(nil, prefix, all, changed)
}

// followWhile is follow, for as long as it is wanted; nil: for ever.
func (p *proc) followWhile(wanted func() bool, prefix string, all func(listed), changed func([]coord.Event)) {
	again := func() { p.followWhile(wanted, prefix, all, changed) }
	p.list(prefix, storeTimeout, func(l listed, ok bool) {
		if wanted != nil && !wanted() {
			return
		}
		if !ok {
			p.after(p.w.spread(500*time.Millisecond), "follow", again)
			return
		}
		all(l)
		x := &watch{p: p, prefix: prefix, after: l.rev, wanted: wanted, changed: changed, again: again}
		p.w.store.watches = append(p.w.store.watches, x)
		p.w.store.schedule(x, p.w.delay())
	})
}
