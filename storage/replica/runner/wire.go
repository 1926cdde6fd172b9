package runner

import (
	"sync/atomic"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/peer"
	chains "github.com/spillwaydb/spillway/storage/chain/runner"
	"github.com/spillwaydb/spillway/storage/replica"
)

// Handler handles the messages about segments and passes all others to Next. Before Join they are lost.
// Its methods run on the links' readers and must not wait: they only queue for the loop, or for a file's goroutine.
type Handler struct {
	Next peer.LinkHandler
	to   atomic.Pointer[Copier]
}

var _ peer.LinkHandler = (*Handler)(nil)

// Join makes messages go to a copier. No link may exist yet.
func (h *Handler) Join(c *Copier) { h.to.Store(c) }

// Linked implements peer.LinkHandler.
func (h *Handler) Linked(l peer.Link) {
	if c := h.to.Load(); c != nil {
		c.post(func() { c.links[l.Peer().Server] = l })
	}
	h.Next.Linked(l)
}

// Unlinked implements peer.LinkHandler.
func (h *Handler) Unlinked(l peer.Link, why error) {
	if c := h.to.Load(); c != nil {
		c.post(func() { c.unlinked(l) })
	}
	h.Next.Unlinked(l, why)
}

// Frame implements peer.LinkHandler.
func (h *Handler) Frame(l peer.Link, r *peer.Route, rec peer.Body) { h.Next.Frame(l, r, rec) }

// Silent implements peer.LinkHandler.
func (h *Handler) Silent(l peer.Link, silent bool) { h.Next.Silent(l, silent) }

// Piece implements peer.LinkHandler.
func (h *Handler) Piece(l peer.Link, r *peer.Route, at peer.SegmentPiece, data peer.Body) {
	c := h.to.Load()
	if c == nil {
		data.Done()
		return
	}
	c.mu.Lock()
	f := c.mu.incoming[slotOf{keyOf(partitionAt(r), r.To), chains.Sender(l, r), at.Slot}]
	c.mu.Unlock()
	if f == nil || f.epoch != r.Epoch {
		data.Done() // of a transfer that is over
		return
	}
	f.push(at.Offset, data)
}

// Message implements peer.LinkHandler.
func (h *Handler) Message(l peer.Link, r *peer.Route, m peer.LinkMessage) {
	c := h.to.Load()
	from, p, to, epoch := chains.Sender(l, r), partitionAt(r), r.To, r.Epoch
	var in replica.SenderInput
	switch m := m.(type) {
	case *peer.SegmentOffer:
		if c != nil {
			c.offer(func() { c.offered(p, from, to, epoch, m) })
		}
		return
	case *peer.CompareAsk:
		if c != nil {
			c.offer(func() { c.askedToCompare(p, from, to, epoch, m) })
		}
		return
	case *peer.CompareAnswer:
		if c != nil {
			c.offer(func() { c.onCompare(p, from, to, epoch, m) })
		}
		return
	case *peer.SegmentCommit:
		if c != nil {
			c.committed(slotOf{keyOf(p, to), from, m.Slot})
		}
		return
	case *peer.SegmentAccept:
		in = replica.Accepted{From: from, Slot: m.Slot, Offset: m.Offset}
	case *peer.SegmentDecline:
		in = replica.Declined{From: from, Slot: m.Slot, Reason: replica.Reason(m.Reason), Ends: m.Ends}
	case *peer.SegmentAck:
		in = replica.Acked{From: from, Slot: m.Slot, ID: m.ID}
	default:
		h.Next.Message(l, r, m)
		return
	}
	if c != nil {
		c.offer(func() { c.answer(p, to, epoch, in) })
	}
}

func partitionAt(r *peer.Route) lease.Partition {
	return lease.Partition{Table: r.Table, ID: r.Partition}
}

// committed passes a commit to the file. One of a slot that is over is answered when the sender offers again.
func (c *Copier) committed(s slotOf) {
	c.mu.Lock()
	f := c.mu.incoming[s]
	c.mu.Unlock()
	if f != nil {
		f.commit()
	}
}

// unlinked notes that a connection ended: data on its way is lost.
func (c *Copier) unlinked(l peer.Link) {
	server := l.Peer().Server
	if c.links[server] == l {
		delete(c.links, server)
	}
	for _, all := range []map[lease.Partition]*sending{c.senders, c.menders} {
		for _, s := range all {
			for _, m := range s.members {
				if string(m.Server) == server {
					c.step(s, replica.Unlinked{Member: m})
				}
			}
		}
	}
	ended := map[lease.Member]bool{}
	for _, f := range c.files {
		if m := f.slot.from; string(m.Server) == server && !ended[m] {
			ended[m] = true
			c.receive(replica.LinkEnded{From: m})
		}
	}
}
