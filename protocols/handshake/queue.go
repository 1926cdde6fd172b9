package handshake

import (
	"net"
	"net/netip"
	"slices"
)

// sender is an address at one of our ports.
type sender struct {
	port string
	addr netip.Addr // HostOf
}

func senderOf(port string, from net.Addr) sender {
	return sender{port, HostOf(from)}
}

// HostOf is the address by which connections are counted. Of IPv6 it is the network of 64 bits, since a host has all of its addresses; of no connection by TCP: none.
func HostOf(from net.Addr) netip.Addr {
	tcp, ok := from.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	if addr.Is6() {
		net, _ := addr.Prefix(64) // always valid
		addr = net.Addr()
	}
	return addr
}

// waiter is a handshake that is ready to compute.
type waiter struct {
	from  sender
	begun bool       // it had a turn before, and may go ahead of those that had none
	come  chan error // of the Gate: nil for its turn, or the refusal
}

// queue decides which handshakes compute. It is a machine: no clock, no lock. Handshakes wait only while no turn is free.
type queue struct {
	free    int // turns
	most    int // constant: that may wait for their first turn
	waiting int // for their first turn
	begun   []*waiter
	senders map[sender]*line
	order   []*line // with any waiting, the next first
}

// line is the waiting handshakes of a sender, first come first.
type line struct {
	from    sender
	waiting []*waiter
}

// arrive begins the turn of a handshake, or has it wait. Refused is one that waits no more, which may be w; nil: none.
func (q *queue) arrive(w *waiter) (turn bool, refused *waiter) {
	switch {
	case q.free > 0:
		q.free--
		return true, nil
	case w.begun: // it was in line once, and its connections are bounded by that
		q.begun = append(q.begun, w)
		return false, nil
	}
	l := q.senders[w.from]
	if q.waiting >= q.most {
		longest := l
		for _, other := range q.order {
			if longest == nil || len(other.waiting) > len(longest.waiting) {
				longest = other
			}
		}
		if longest == l || longest == nil || len(longest.waiting) == 1 {
			return false, w
		}
		refused = longest.waiting[len(longest.waiting)-1]
		q.remove(refused)
	}
	if l == nil {
		l = &line{from: w.from}
		if q.senders == nil {
			q.senders = map[sender]*line{}
		}
		q.senders[w.from] = l
		q.order = append(q.order, l)
	}
	l.waiting = append(l.waiting, w)
	q.waiting++
	return false, refused
}

// leave ends a turn, and gives the one that begins by it; nil: none waits.
func (q *queue) leave() *waiter {
	if len(q.begun) > 0 {
		w := q.begun[0]
		q.begun = q.begun[1:]
		return w
	}
	if len(q.order) == 0 {
		q.free++
		return nil
	}
	l := q.order[0]
	w := l.waiting[0]
	q.remove(w)
	if len(l.waiting) > 0 { // to the end of the order
		q.order = append(q.order[1:], l)
	}
	return w
}

// remove removes a handshake from the queue, and reports whether it was there.
func (q *queue) remove(w *waiter) bool {
	if w.begun {
		n := len(q.begun)
		q.begun = slices.DeleteFunc(q.begun, func(o *waiter) bool { return o == w })
		return len(q.begun) < n
	}
	l := q.senders[w.from]
	if l == nil {
		return false
	}
	i := slices.Index(l.waiting, w)
	if i < 0 {
		return false
	}
	q.waiting--
	if l.waiting = slices.Delete(l.waiting, i, i+1); len(l.waiting) == 0 {
		delete(q.senders, l.from)
		q.order = slices.DeleteFunc(q.order, func(o *line) bool { return o == l })
	}
	return true
}
