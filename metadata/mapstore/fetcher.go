package mapstore

import (
	"context"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Wanted is a METADATA file that a table's row names.
type Wanted struct {
	Table   string
	Txn     peer.TxnID
	Seq     uint64
	Servers []topology.ServerID // that should have it
	// Since is a transaction of the table with a map that is here, Have: then only the changes since need travel. Zero: none.
	Since peer.TxnID
	Have  *topology.Map
}

// Fetch gets a file from metadata servers, the own one first: the next one is asked at once after an error, and beside the
// one before after a silence of HedgeAfter. The map was checked: transaction id, sequence number, table and digest are those
// wanted. All processes get METADATA by this method. The file has no encoded map; where ops since w.Since came, they are
// its Steps. Both results are shared. Errors are Unavailable or Canceled.
func (c *Coordinator) Fetch(ctx context.Context, w Wanted) (*peer.File, *topology.Map, error) {
	type found struct {
		f *peer.File
		m *topology.Map
	}
	x, err := search(c, ctx, w.Table, w.Servers, func(ctx context.Context, p peer.Metadata) (found, error) {
		f, m, err := c.fetchFrom(ctx, p, w)
		return found{f, m}, err
	})
	return x.f, x.m, err
}

// decoded is a metadata server that has maps at hand: the one in this process.
type decoded interface {
	own(table string, txn peer.TxnID) (*peer.File, *topology.Map, error)
	// since gives the ops of each transaction from one to another; false: they are not remembered.
	since(table string, from, to peer.TxnID) ([][]byte, bool)
}

func (c *Coordinator) fetchFrom(ctx context.Context, p peer.Metadata, w Wanted) (*peer.File, *topology.Map, error) {
	if d, ok := p.(decoded); ok {
		f, m, err := d.own(w.Table, w.Txn)
		if err == nil && m.Seq != w.Seq {
			err = fault.Errorf(fault.Corrupt, "asked for transaction %d of table %q, got %d", w.Seq, w.Table, m.Seq)
		}
		if steps, ok := d.since(w.Table, w.Since, w.Txn); err == nil && ok {
			f = headOf(f, m)
			f.Since, f.Steps = w.Since, steps
		}
		return f, m, err
	}
	q := &peer.FileQuery{Table: w.Table, Txn: w.Txn, Since: w.Since}
	f, err := p.Fetch(ctx, q)
	if err != nil {
		return nil, nil, err
	}
	m, err := Open(q, w.Seq, w.Have, f)
	if err != nil && f.Map == nil && q.Since != (peer.TxnID{}) {
		c.deps.Log.Warn("the ops since a map that is here do not lead to the map asked for; it is fetched whole", "table", w.Table, "seq", w.Seq, "error", err)
		q.Since = peer.TxnID{}
		if f, err = p.Fetch(ctx, q); err != nil {
			return nil, nil, err
		}
		m, err = Open(q, w.Seq, nil, f)
	}
	if err != nil {
		return nil, nil, err
	}
	c.metrics.fetched(f)
	head := headOf(f, m)
	head.Since, head.Steps = f.Since, f.Steps
	return head, m, nil
}

// headOf returns a file without the fields that stand for its map.
func headOf(f *peer.File, m *topology.Map) *peer.File {
	return &peer.File{Table: f.Table, Txn: f.Txn, Seq: f.Seq, Digest: m.Digest(), Base: f.Base}
}

// link asks servers for the transactions before a given one.
func (c *Coordinator) link(ctx context.Context, table string, txn peer.TxnID, servers []topology.ServerID) (Link, error) {
	return search(c, ctx, table, servers, func(ctx context.Context, p peer.Metadata) (Link, error) {
		f, err := p.Fetch(ctx, &peer.FileQuery{Table: table, Txn: txn, Since: txn}) // an older build sends the file whole
		if err == nil && (f.Table != table || f.Txn != txn) {
			err = fault.Errorf(fault.Corrupt, "asked for a file, got another one: %q, transaction %d", f.Table, f.Seq)
		}
		if err != nil {
			return Link{}, err
		}
		return Link{Txn: f.Txn, Base: f.Base, Seq: f.Seq}, nil
	})
}

// fetchesMax bounds the concurrent fetches from one server. Others wait, and are asked elsewhere meanwhile: a
// silent server delays no request that another one can serve.
const fetchesMax = 8

// search runs a Fetch: ask asks one server. The machine asks each server at most once, so answers has room for all that may come after search returned, and no goroutine is
// left behind that cannot send.
func search[T any](c *Coordinator, ctx context.Context, table string, servers []topology.ServerID, ask func(context.Context, peer.Metadata) (T, error)) (result T, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		server topology.ServerID
		result T
		err    error
	}
	answers := make(chan answer, len(servers))
	tick := time.NewTimer(time.Hour)
	defer tick.Stop()
	machine := NewFetch(table, c.order(servers))
	var effects []FetchEffect
	var in FetchInput = FetchTick{}
	for {
		effects = machine.Step(time.Now(), in, effects[:0])
		for _, e := range effects {
			switch e := e.(type) {
			case FetchAsk:
				go func() {
					a := answer{server: e.Server}
					a.result, a.err = askOne(c, ctx, e.Server, ask)
					answers <- a
				}()
				if e.After > 0 {
					tick.Reset(e.After)
				}
			case FetchFound: // only in the step of a good answer, so result is that of this server
				return result, nil
			case FetchLost:
				var none T
				return none, e.Err
			}
		}
		select {
		case a := <-answers:
			in, result = FetchAnswer{a.server, a.err}, a.result
		case <-tick.C:
			in = FetchTick{}
		case <-ctx.Done():
			var none T
			return none, fault.Annotate(ctx.Err(), "METADATA of table %q", table)
		}
	}
}

func askOne[T any](c *Coordinator, ctx context.Context, s topology.ServerID, ask func(context.Context, peer.Metadata) (T, error)) (result T, err error) {
	p, ok := c.deps.Peers(s)
	if !ok {
		return result, fault.Errorf(fault.Unavailable, "it is not known or not connected")
	}
	place := c.fetchPlaces(s)
	select {
	case place <- struct{}{}:
	case <-ctx.Done():
		return result, ctx.Err()
	}
	defer func() { <-place }()
	limit, cancel := context.WithTimeout(ctx, c.settings.FetchTimeout)
	defer cancel()
	return ask(limit, p)
}

func (c *Coordinator) fetchPlaces(s topology.ServerID) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.fetching[s] == nil {
		c.mu.fetching[s] = make(chan struct{}, fetchesMax)
	}
	return c.mu.fetching[s]
}

// order is the servers as they are asked: the one of this process first, the others as it comes.
func (c *Coordinator) order(servers []topology.ServerID) []topology.ServerID {
	servers = slices.Clone(servers)
	c.mu.Lock()
	c.mu.rng.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	c.mu.Unlock()
	if i := slices.Index(servers, c.deps.First); i > 0 {
		servers[0], servers[i] = servers[i], servers[0]
	}
	return servers
}
