package runner

import (
	"context"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
)

// LinkWire is the Wire over the links between storage servers. Its Handler receives their messages.
type LinkWire struct {
	chains atomic.Pointer[Chains]
	link   atomic.Pointer[func(server string) (peer.Link, bool)]
}

var (
	_ Wire             = (*LinkWire)(nil)
	_ peer.LinkHandler = Handler{}
)

// Handler passes messages that arrive on links to a wire's chains.
type Handler struct{ Wire *LinkWire }

// Join connects the wire: incoming messages go to chains, and theirs to links. Messages before that are lost.
func (w *LinkWire) Join(c *Chains, link func(server string) (peer.Link, bool)) {
	w.link.Store(&link)
	w.chains.Store(c)
}

func (w *LinkWire) to(server topology.ServerID) (peer.Link, bool) {
	f := w.link.Load()
	if f == nil {
		return nil, false
	}
	return (*f)(string(server))
}

func routeOf(p lease.Partition, epoch point.Epoch, from, to lease.Member) *peer.Route {
	return &peer.Route{Table: p.Table, Partition: p.ID, From: from.Placement, To: to.Placement, Epoch: epoch}
}

// Send implements Wire.
// The store's id is compared, not the name alone: a server that came back with an emptied directory is another member,
// and must not answer for the old one.
func (w *LinkWire) Send(p lease.Partition, from, to lease.Member, m chain.Message) {
	l, ok := w.to(to.Server)
	if !ok || StoreOf(l.Peer().Store) != to.Store {
		return
	}
	if out := outward(m, l.Peer().Capabilities); out != nil {
		_ = l.Send(routeOf(p, chain.EpochOf(m), from, to), out) // lost messages are sent again
	}
}

// TryFrame implements Wire.
func (w *LinkWire) TryFrame(p lease.Partition, epoch point.Epoch, from, to lease.Member, rec []byte) bool {
	l, ok := w.to(to.Server)
	return ok && StoreOf(l.Peer().Store) == to.Store && l.TryFrame(routeOf(p, epoch, from, to), rec, nil) == nil
}

// LastReceived implements Wire.
func (w *LinkWire) LastReceived(x lease.Member) (ago time.Duration, ok bool) {
	l, ok := w.to(x.Server)
	if !ok || StoreOf(l.Peer().Store) != x.Store {
		return 0, false
	}
	return l.Silence(), true
}

// Frames implements Wire.
func (w *LinkWire) Frames(ctx context.Context, p lease.Partition, epoch point.Epoch, from, to lease.Member, n, bytes int, send func(func(rec []byte) error) error) error {
	l, ok := w.to(to.Server)
	if !ok || StoreOf(l.Peer().Store) != to.Store {
		return fault.Errorf(fault.Unavailable, "there is no link to %s, store %s", to.Server, to.Store)
	}
	route := routeOf(p, epoch, from, to)
	return l.Frames(ctx, n, bytes, func(queue peer.QueueFrame) error {
		return send(func(rec []byte) error {
			b := newRecord()
			b.data = append(b.data[:0], rec...) // the link keeps it until it is sent; rec is the caller's, and read from the log into the same place again
			return queue(route, b.data, b.done)
		})
	})
}

// record is memory for a frame on its way.
type record struct {
	data []byte
	done func()
}

// recordKept bounds the memory that a record keeps between frames, in bytes.
const recordKept = 256 << 10

var records = sync.Pool{New: func() any { return new(record) }}

func newRecord() *record {
	b := records.Get().(*record)
	if b.done == nil {
		// Made once for each record, not for each frame: a closure for every frame on its way would be garbage.
		b.done = func() {
			if cap(b.data) <= recordKept {
				records.Put(b)
			}
		}
	}
	return b
}

// Message implements peer.LinkHandler.
func (h Handler) Message(l peer.Link, r *peer.Route, m peer.LinkMessage) {
	if c, in := h.Wire.chains.Load(), inward(r.Epoch, m); c != nil && in != nil {
		c.Message(lease.Partition{Table: r.Table, ID: r.Partition}, Sender(l, r), r.To, in)
	}
}

// Linked implements peer.LinkHandler.
func (h Handler) Linked(l peer.Link) {
	if c := h.Wire.chains.Load(); c != nil {
		c.linked(topology.ServerID(l.Peer().Server))
	}
}

// Piece and Silent do nothing: the machines find out by their own pings.

// Piece implements peer.LinkHandler.
func (h Handler) Piece(_ peer.Link, _ *peer.Route, _ peer.SegmentPiece, data peer.Body) { data.Done() }

// Silent implements peer.LinkHandler.
func (h Handler) Silent(peer.Link, bool) {}

// Unlinked implements peer.LinkHandler.
func (h Handler) Unlinked(l peer.Link, _ error) { h.Linked(l) }

// Frame implements peer.LinkHandler.
func (h Handler) Frame(l peer.Link, r *peer.Route, rec peer.Body) {
	c := h.Wire.chains.Load()
	head, err := frame.Header(rec.Bytes())
	if c == nil || err != nil {
		rec.Done() // a frame that was damaged on its way is sent again
		return
	}
	c.Frame(lease.Partition{Table: r.Table, ID: r.Partition}, Sender(l, r), r.To,
		chain.Pass{Epoch: r.Epoch, Serial: head.Serial, Prev: head.Prev, Bytes: len(rec.Bytes())}, rec.Bytes(), rec.Done)
}

// Sender is the placement that a message on a link comes from.
func Sender(l peer.Link, r *peer.Route) lease.Member {
	h := l.Peer()
	return lease.Member{Placement: r.From, Server: topology.ServerID(h.Server), Store: StoreOf(h.Store)}
}

// StoreOf converts the id of a store as links have it.
func StoreOf(id [16]byte) lease.StoreID { return lease.StoreID(hex.EncodeToString(id[:])) }

// outward converts a message to its form on links; nil: it has none that the other server knows.
// can are the capabilities that the other process named in its handshake (protocols/peer). A quiet ping to a process that cannot rest is sent as a common one:
// then its answer is not quiet, and the chain stays awake.
func outward(m chain.Message, can peer.Capabilities) peer.LinkMessage {
	switch m := m.(type) {
	case chain.Begin:
		out := &peer.ChainBegin{Version: m.Version, Ends: m.Ends}
		for _, x := range m.Order {
			to := peer.LinkMember{Placement: x.Placement, Server: string(x.Server)}
			if n, err := hex.Decode(to.Store[:], []byte(x.Store)); err != nil || n != len(to.Store) || len(x.Store) != 2*n {
				return nil
			}
			out.Order = append(out.Order, to)
		}
		return out
	case chain.Report:
		return &peer.ChainReport{Version: m.Version, Upto: m.Upto, End: m.End}
	case chain.Ping:
		if m.Quiet && can.Has(peer.CanRest) {
			return &peer.ChainRest{Version: m.Version, Sent: m.Sent, Own: m.Own, End: m.End}
		}
		return &peer.ChainPing{Version: m.Version, Sent: m.Sent, Own: m.Own, End: m.End}
	case chain.Pong:
		if m.Quiet && can.Has(peer.CanRest) {
			return &peer.ChainRests{Sent: m.Sent}
		}
		return &peer.ChainPong{Sent: m.Sent, For: m.For}
	case chain.Refuse:
		return &peer.ChainRefuse{End: m.End}
	case chain.Leave:
		if can.Has(peer.CanLeave) {
			return &peer.ChainLeave{Echo: m.Echo}
		}
	case chain.Left:
		if can.Has(peer.CanLeave) {
			return &peer.ChainLeft{}
		}
	}
	return nil
}

// inward is the opposite; nil: it is not a chain's message.
func inward(epoch point.Epoch, m peer.LinkMessage) chain.Message {
	switch m := m.(type) {
	case *peer.ChainBegin:
		in := chain.Begin{Epoch: epoch, Version: m.Version, Ends: m.Ends}
		for _, x := range m.Order {
			in.Order = append(in.Order, lease.Member{Placement: x.Placement, Server: topology.ServerID(x.Server), Store: StoreOf(x.Store)})
		}
		return in
	case *peer.ChainReport:
		return chain.Report{Epoch: epoch, Version: m.Version, Upto: m.Upto, End: m.End}
	case *peer.ChainPing:
		return chain.Ping{Epoch: epoch, Version: m.Version, Sent: m.Sent, Own: m.Own, End: m.End}
	case *peer.ChainPong:
		return chain.Pong{Epoch: epoch, Sent: m.Sent, For: m.For}
	case *peer.ChainRefuse:
		return chain.Refuse{Epoch: epoch, End: m.End}
	case *peer.ChainLeave:
		return chain.Leave{Epoch: epoch, Echo: m.Echo}
	case *peer.ChainRest:
		return chain.Ping{Epoch: epoch, Version: m.Version, Sent: m.Sent, Own: m.Own, End: m.End, Quiet: true}
	case *peer.ChainRests:
		return chain.Pong{Epoch: epoch, Sent: m.Sent, Quiet: true}
	case *peer.ChainLeft:
		return chain.Left{Epoch: epoch}
	}
	return nil
}
