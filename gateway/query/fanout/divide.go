package fanout

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

var _ query.Divider = (*Source)(nil)

// Divide implements query.Divider. Servers are asked by one map and again by a newer one, as Select asks them. A stretch with a server that
// does not know the plan is read as rows.
func (s *Source) Divide(ctx context.Context, q *peer.Select, of *columns.Request) (*query.Divided, error) {
	if !of.Plan.Requestable() {
		return nil, nil
	}
	d := &division{q: q, of: of}
	r := &request{table: q.Table, partitions: q.Partitions, lo: q.Lo, hi: q.Hi, plan: d.plan, begin: d.begin, ask: d.ask}
	if _, err := s.fan(ctx, r); err != nil {
		return nil, err
	}
	divided, err := d.divided()
	s.metrics.divided(divided, err)
	return divided, err
}

// division is a plan that is being divided.
type division struct {
	q  *peer.Select
	of *columns.Request

	// Of the map asked by, and before servers are asked.
	stretches []stretch
	form      columns.Form
	asked     []asked // by group

	mu struct {
		sync.Mutex
		parts []*columns.Part // by group
		known error           // ErrAbandoned or ErrTooManySamples
	}
}

// asked is a group's stretch and its request.
type asked struct {
	stretch int
	request *columns.Request
	bytes   []byte
}

// plan is request.plan: a group for each unit of each stretch. Where a partition has no leader rows are read, which waits for one; and where
// several servers have copies.
func (d *division) plan(ps []*topology.Partition, leader func(*topology.Partition) (topology.ServerID, error)) ([]group, []orphan) {
	d.stretches, d.asked = nil, nil
	on := map[point.PartitionID]topology.ServerID{}
	for _, p := range ps {
		id, err := leader(p)
		if err != nil {
			return nil, nil
		}
		on[p.ID] = id
	}
	p := &d.of.Plan
	all := stretches(p, ps, func(p *topology.Partition) topology.ServerID { return on[p.ID] })
	shared := slices.ContainsFunc(all, func(s stretch) bool { return len(s.units) > 1 })
	form, ok := p.FormOf(shared)
	if many := len(all) > 1 || shared; all == nil || !ok || many && !p.Distinct(false) {
		return nil, nil
	}
	d.stretches, d.form = all, form
	var groups []group
	for i, s := range all {
		r := *d.of
		r.Form, r.Plan.Grid = form, p.Grid.Cut(s.first, s.steps)
		bytes := r.Append(nil)
		for _, u := range s.units {
			d.asked = append(d.asked, asked{i, &r, bytes})
			groups = append(groups, group{server: u.server, accepts: true, partitions: u.partitions})
		}
	}
	return groups, nil
}

// begin is request.begin.
func (d *division) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.parts, d.mu.known = make([]*columns.Part, len(d.asked)), nil
}

// ask is request.ask: it returns when the server's answer is complete.
func (d *division) ask(ctx context.Context, g *group, st peer.Storage) (answer, error) {
	return answer{keep: func() {}, drop: func() {}}, d.evaluate(ctx, g, st)
}

func (d *division) evaluate(ctx context.Context, g *group, st peer.Storage) error {
	at := d.asked[g.index]
	server, ok := st.(peer.Evaluator)
	if !ok {
		return nil
	}
	q := g.ask(d.q)
	lo, hi := at.request.Plan.Reach()
	q.Lo, q.Hi = point.NanosOf(lo), point.LastNanosOf(hi)
	in := columns.Receiver{Of: at.request, Take: budget.LoanOf(ctx).TakeSoon}
	begun, moved := time.Now(), 0
	err := server.Evaluate(ctx, q, at.bytes, func(b []byte) error {
		moved += len(b)
		return in.Add(b)
	})
	if err != nil {
		return err
	}
	part, err := in.Part()
	explain(ctx, g, at.request, part, moved, time.Since(begun))
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case errors.Is(err, columns.ErrAbandoned), errors.Is(err, columns.ErrTooManySamples):
		d.mu.known = err
		return nil
	case errors.Is(err, columns.ErrUnknown):
		return nil
	}
	d.mu.parts[g.index] = part
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

// divided makes the pieces.
func (d *division) divided() (*query.Divided, error) {
	if len(d.asked) == 0 {
		return nil, nil
	}
	if d.mu.known != nil {
		return nil, d.mu.known
	}
	out, useful := &query.Divided{Form: d.form}, false
	for i, s := range d.stretches {
		pieces := d.pieces(i, &s)
		if pieces == nil {
			pieces = []columns.Piece{{First: s.first, Steps: s.steps}}
		} else {
			useful = true
		}
		out.Pieces = append(out.Pieces, pieces...)
	}
	if !useful {
		return nil, nil
	}
	return out, nil
}

// pieces are those of a stretch; nil: its rows are read.
func (d *division) pieces(of int, s *stretch) (out []columns.Piece) {
	for i, at := range d.asked {
		if at.stretch != of {
			continue
		}
		if d.mu.parts[i] == nil {
			return nil
		}
		out = append(out, columns.Piece{First: s.first, Steps: s.steps, Part: d.mu.parts[i]})
	}
	return out
}
