package fanout

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

var _ query.Divider = (*Source)(nil)

// Divide implements query.Divider. Servers are asked by one map and again by a newer one, as Select asks them. Where several servers have copies
// of a stretch's partitions, any that surely has every row evaluates it, and the next is asked after an error or beside a late one. A stretch that no
// server surely has, or with a server that does not know the plan, is read as rows.
func (s *Source) Divide(ctx context.Context, q *peer.Select, of *columns.Request) (*query.Divided, error) {
	d := &division{q: q, of: of, silent: s.silent, noRows: s.noRows(q.Table), loan: budget.LoanOf(ctx), together: begin(ctx), ticketsMax: s.settings.ParallelMax, stretchTime: s.settings.StretchTime}
	if d.together == nil {
		d.together, d.alone = alone(ctx), true
	}
	defer d.leave()
	if !of.Plan.Requestable() {
		return nil, nil
	}
	d.staged = s.whenStaged(ctx, d.together, q)
	ask := func() error {
		_, err := s.fan(ctx, &request{table: q.Table, partitions: q.Partitions, lo: q.Lo, hi: q.Hi, matchers: q.Matchers, plan: d.plan, begin: d.begin, ask: d.ask, over: d.over, hedge: &s.evaluations})
		return err
	}
	err := ask()
	if err == nil && d.whole && d.misses() {
		if d.asked = nil; !d.undivided {
			if d.alone {
				d.together = alone(ctx)
			}
			err = ask()
		}
	}
	if err == nil && d.known == nil && d.fellSilent() { // it is planned anew, without the partitions of that server that have no rows
		err = ask()
	}
	if err != nil {
		d.parts.Close()
		return nil, err
	}
	divided, err := d.divided()
	if divided == nil { // rows are read
		d.parts.Close()
	}
	s.metrics.divided(divided, err)
	return divided, err
}

// noRows returns whether a partition of a table may have no rows, as this view knows.
func (s *Source) noRows(table string) func(*topology.Partition) bool {
	return func(p *topology.Partition) bool {
		return s.deps.HasNoRows != nil && s.deps.HasNoRows(lease.Partition{Table: table, ID: p.ID}, math.MaxUint64)
	}
}

// whenStaged returns a function that asks when rows are staged, once for all divisions that are made together; nil: none are.
func (s *Source) whenStaged(ctx context.Context, t *together, q *peer.Select) func() ([]times, bool) {
	at := s.stagedFor(ctx, q)
	if len(at) == 0 {
		return nil
	}
	known := new(knownTimes)
	if t != nil {
		ctx, known = t.ctx, &t.staged
	}
	return func() ([]times, bool) {
		return known.get(func() ([]times, bool) { return s.stagedTimes(ctx, at, q.Table) })
	}
}

// division is a plan that is being divided.
type division struct {
	q      *peer.Select
	of     *columns.Request
	staged func() (all []times, ok bool) // asks for the times of staged rows; nil: there are none
	silent func(topology.ServerID) bool  // a server gives no sign of life
	noRows func(*topology.Partition) bool
	loan   *budget.Loan // of the request

	stretchTime time.Duration // Settings.StretchTime

	// Of the map asked by, constant while servers are asked.
	stretches []stretch
	form      columns.Form
	asked     []*asked     // by group
	several   bool         // a server is asked more than one question
	tried     bool         // all rows were asked for once
	whole     bool         // all rows are asked for
	undivided bool         // a plan that evaluates nothing is the other one
	parts     *budget.Loan // of loan, that has the parts of these

	// The first questions travel together, also with those of other divisions.
	together   *together // nil: they do not
	alone      bool      // there are no others
	ticketsMax int       // no more than questions that are under way at a time

	known error // ErrAbandoned or ErrTooManySamples; written while answers are kept, by one goroutine at a time
}

// asked is a group's stretch and its request. Questions hold it by themselves: one that was overtaken may begin when the plan has been divided anew.
type asked struct {
	// Constant while servers are asked.
	stretch int
	request *columns.Request
	raw     bool // it asks for rows
	bytes   []byte
	ticket  *ticket      // nil: the question travels by itself
	loan    *budget.Loan // that has the part

	partitions []*topology.Partition
	leads      []topology.ServerID // of the partitions; "": it gave no sign of life when the plan was made

	part *columns.Part // nil: rows are read; written while answers are kept, by one goroutine at a time
}

// plan is request.plan: a group for each unit of each stretch. Where a partition has neither a leader nor copies rows are read, which waits for one. Servers are asked for the
// times of staged rows only if there is something to divide.
func (d *division) plan(ps []*topology.Partition, of func(*topology.Partition) (target, error)) ([]group, []orphan) {
	d.stretches, d.asked, d.whole = nil, nil, false
	targets := map[point.PartitionID]target{}
	for _, p := range ps {
		t, err := of(p)
		if err != nil {
			return nil, nil
		}
		targets[p.ID] = t
	}
	p, step := &d.of.Plan, time.Duration(d.of.Plan.Grid.Step)*time.Millisecond
	on := func(p *topology.Partition) []topology.ServerID {
		t := targets[p.ID]
		return t.servers()
	}
	all := stretches(p, ps, nil, d.stretchTime, on)
	var staged []times
	if all != nil && d.staged != nil {
		waiting, known := d.staged()
		if !known {
			return nil, nil
		}
		all = stretches(p, ps, waiting, d.stretchTime, on)
		staged = waiting
	}
	if !d.tried && (all == nil && d.staged == nil || short(all, step, d.stretchTime)) {
		d.tried = true
		if reads := readsOfAll(p, ps, staged, on); len(reads) > 0 && len(reads) <= readsMax && !slices.ContainsFunc(reads, d.isSilent) {
			d.whole, d.undivided = true, all == nil
			all = []stretch{{first: 0, steps: p.Grid.Len(), reads: reads}}
		}
	}
	shared := slices.ContainsFunc(all, func(s stretch) bool { return len(s.units) > 1 })
	form, ok := p.FormOf(shared)
	if many := len(all) > 1 || shared; all == nil || !ok || many && !p.Distinct(false) {
		return nil, nil
	}
	d.stretches, d.form = all, form
	var groups []group
	reads := 0
	for i := range all {
		s := &all[i]
		if reads += len(s.reads); reads > readsMax || slices.ContainsFunc(s.reads, d.isSilent) {
			s.reads = nil
		}
		r := *d.of
		r.Form, r.Plan.Grid = form, p.Grid.Cut(s.first, s.steps)
		units := s.units
		if s.reads != nil {
			r.Form, r.Plan.Stages, units = columns.Raw, nil, s.reads
		}
		bytes := r.Append(nil)
		for _, u := range units {
			g := u.group(targets)
			g.asked = &asked{stretch: i, request: &r, raw: s.reads != nil, bytes: bytes, partitions: g.partitions, leads: slices.Clone(g.leads)}
			for j, id := range g.leads {
				if d.silent(id) {
					g.asked.leads[j] = ""
				}
			}
			d.asked, groups = append(d.asked, g.asked), append(groups, g)
		}
	}
	d.several = several(groups)
	return groups, nil
}

// readsMax bounds the questions for rows of a division, and with columns.RawBytesMax their memory. Rows of further stretches are read by selects.
const readsMax = 16

// isSilent reports whether the server that is asked first gives no sign of life.
func (d *division) isSilent(u unit) bool { return d.silent(u.servers[0]) }

// misses reports whether any part is missing.
func (d *division) misses() bool {
	return slices.ContainsFunc(d.asked, func(at *asked) bool { return at.part == nil })
}

// several reports whether any server is asked more than one question.
func several(groups []group) bool {
	asked := make([]topology.ServerID, 0, len(groups))
	for i := range groups {
		id := groups[i].server
		if groups[i].copies != nil {
			id = groups[i].copies[0]
		}
		if slices.Contains(asked, id) {
			return true
		}
		asked = append(asked, id)
	}
	return false
}

// group asks the leader, or copies if any partition has some: then the answer of one that surely has every row counts, and none is merged with others.
func (u *unit) group(targets map[point.PartitionID]target) group {
	g := group{server: u.servers[0], accepts: true, partitions: u.partitions}
	for _, p := range u.partitions {
		t := targets[p.ID]
		g.leads, g.epochs, g.guesses = append(g.leads, t.leader), append(g.epochs, t.epoch), append(g.guesses, t.guess)
		if t.copies != nil {
			g.copies, g.enough = u.servers, len(u.servers)+1
		}
	}
	if g.copies != nil {
		g.server = ""
	}
	return g
}

// servers are those that the partition may be read from.
func (t *target) servers() []topology.ServerID {
	if t.copies != nil {
		return t.copies
	}
	return []topology.ServerID{t.leader}
}

// begin is request.begin. Parts of a plan before count no more, and their memory is given back.
func (d *division) begin() {
	d.known = nil
	d.parts.Close()
	d.parts = d.loan.Part()
	for _, at := range d.asked {
		at.loan = d.parts
	}
	if d.alone && !d.several {
		d.leave()
	}
	if d.together == nil {
		return
	}
	for i, t := range d.together.tickets(min(len(d.asked), d.ticketsMax)) {
		d.asked[i].ticket = t
	}
	d.together = nil
}

// leave ends the division: nothing more is put.
func (d *division) leave() {
	if d.together != nil {
		d.together.change(-1, nil)
		d.together = nil
	}
}

// over is request.over.
func (d *division) over(g *group) { g.asked.ticket.leave() }

// ask is request.ask: it returns when the server's answer is complete.
func (d *division) ask(ctx context.Context, g *group, st peer.Storage) (answer, error) {
	keep, err := d.evaluate(ctx, g, st)
	return answer{keep: keep, drop: func() {}, complete: true}, err
}

// evaluate asks a server and returns how its answer is kept. Answers of copies that were overtaken are not.
func (d *division) evaluate(ctx context.Context, g *group, st peer.Storage) (keep func(), err error) {
	at := g.asked
	server, ok := st.(peer.Evaluator)
	if !ok {
		return func() {}, nil
	}
	q := g.ask(d.q) // of the times of the whole query: a server with more partitions there answers Stale, whichever steps it is asked for
	short := false
	in := columns.Receiver{Of: at.request, Take: at.loan.TakeSoon}
	if at.raw { // they are not needed at once: a select reads them page by page
		in.Take = func(n int64) error {
			err := at.loan.TakeSpare(n)
			short = short || err != nil
			return err
		}
	}
	begun, moved := time.Now(), 0
	give := func(b []byte) error {
		moved += len(b)
		return in.Add(b)
	}
	together, err := at.ticket.put(ctx, g.server, st, q, at.bytes, give)
	if !together {
		err = evaluateOne(ctx, server, q, at.bytes, give)
	}
	switch {
	case short:
		return func() {}, nil
	case err != nil:
		return nil, err
	}
	part, err := in.Part()
	took := time.Since(begun)
	known := errors.Is(err, columns.ErrAbandoned) || errors.Is(err, columns.ErrTooManySamples)
	if err != nil && !known && !errors.Is(err, columns.ErrUnknown) {
		return nil, err
	}
	return func() {
		if !at.raw { // rows are explained when they are evaluated
			explain(ctx, g, at.request, part, moved, took)
		}
		if at.part = part; known {
			d.known = err
		}
	}, nil
}

// evaluateOne asks for one evaluation, by one message where the server accepts several.
func evaluateOne(ctx context.Context, server peer.Evaluator, q *peer.Select, request []byte, give func([]byte) error) (err error) {
	many, ok := server.(peer.Evaluations)
	if !ok {
		return server.Evaluate(ctx, q, request, give)
	}
	many.EvaluateAll(ctx, []*peer.Evaluation{{Select: q, Request: request, Give: give, End: func(e error) { err = e }}})
	return err
}

// explain adds an answer to the explanation of a query.
func explain(ctx context.Context, g *group, r *columns.Request, part *columns.Part, moved int, took time.Duration) {
	e := query.ExplainedPart{What: "unknown", Server: string(g.server), From: r.Plan.Grid.Start, To: r.Plan.Grid.End, Bytes: int64(moved), Seconds: took.Seconds()}
	if part != nil {
		e.What, e.Series, e.Rows = "evaluated", part.Series, part.Rows
	}
	query.Explain(ctx, e)
}

// fellSilent reports whether a part is missing since the leader of a partition without rows fell silent after the plan was made: a plan without that partition may have it.
func (d *division) fellSilent() bool {
	return slices.ContainsFunc(d.asked, func(at *asked) bool {
		for i, p := range at.partitions {
			if lead := at.leads[i]; at.part == nil && !at.raw && lead != "" && d.silent(lead) && d.noRows(p) {
				return true
			}
		}
		return false
	})
}

// divided makes the pieces. Rows of steps that follow each other are read together: each read asks for staged rows, and may have to ask the coordination store.
func (d *division) divided() (*query.Divided, error) {
	if len(d.asked) == 0 {
		return nil, nil
	}
	if d.known != nil {
		return nil, d.known
	}
	out, useful, read := &query.Divided{Form: d.form}, false, false // read: rows of the last piece are read by a select
	for i, s := range d.stretches {
		pieces := d.pieces(i, &s)
		if s.reads != nil && pieces != nil {
			out.Pieces = append(out.Pieces, columns.Piece{First: s.first, Steps: s.steps})
			out.Found = append(out.Found, query.FoundRows{Piece: len(out.Pieces) - 1, Open: d.found(pieces)})
			read = false
			continue
		}
		useful = useful || pieces != nil
		if n := len(out.Pieces); pieces == nil && read && out.Pieces[n-1].First+out.Pieces[n-1].Steps == s.first {
			out.Pieces[n-1].Steps += s.steps
			continue
		}
		if read = pieces == nil; read {
			pieces = []columns.Piece{{First: s.first, Steps: s.steps}}
		}
		out.Pieces = append(out.Pieces, pieces...)
	}
	if !useful && !d.whole {
		return nil, nil
	}
	return out, nil
}

// pieces are those of a stretch; nil: its rows are read.
func (d *division) pieces(of int, s *stretch) (out []columns.Piece) {
	for _, at := range d.asked {
		if at.stretch != of {
			continue
		}
		if at.part == nil {
			return nil
		}
		out = append(out, columns.Piece{First: s.first, Steps: s.steps, Part: at.part})
	}
	return out
}

// found returns how the rows of a stretch are merged, which servers sent as parts. They are there as long as the loan of the parts.
func (d *division) found(parts []columns.Piece) func(context.Context) peer.SeriesSet {
	return func(ctx context.Context) peer.SeriesSet {
		out := &set{ctx: ctx, cancel: func() {}, q: d.q}
		for _, p := range parts {
			rd := &reader{group: &group{}, in: &foundSet{rest: p.Part.Found}}
			if out.readers = append(out.readers, rd); rd.in.Next() {
				out.push(rd)
			}
		}
		return out
	}
}

// foundSet is series that are in memory.
type foundSet struct {
	at   *peer.Series
	rest []peer.Series
}

// Next implements peer.SeriesSet.
func (f *foundSet) Next() bool {
	if len(f.rest) == 0 {
		f.at = nil
		return false
	}
	f.at, f.rest = &f.rest[0], f.rest[1:]
	return true
}

// Ready reports that Next waits for nothing.
func (f *foundSet) Ready() bool { return true }

// At implements peer.SeriesSet.
func (f *foundSet) At() *peer.Series { return f.at }

// Err implements peer.SeriesSet.
func (f *foundSet) Err() error { return nil }

// Close implements peer.SeriesSet.
func (f *foundSet) Close() error { return nil }
