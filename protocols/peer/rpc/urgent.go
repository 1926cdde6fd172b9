package rpc

import (
	"encoding/binary"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// Send implements peer.Link.
func (l *link) Send(r *peer.Route, m peer.LinkMessage) error {
	l.mu.Lock()
	if err := l.mu.err; err != nil {
		l.mu.Unlock()
		return err
	}
	if len(l.mu.urgent) > urgentBytesMax {
		l.mu.Unlock()
		return errLinkFull
	}
	b, err := appendLinkMessage(l.mu.urgent, r, m)
	l.mu.urgent = b
	more := l.urgentGrewLocked()
	l.mu.Unlock()
	l.urgentGrew(more)
	return err
}

// sendOwn queues a record of the link itself.
func (l *link) sendOwn(kind linkType, head ...uint64) {
	l.mu.Lock()
	if l.mu.err != nil || kind == linkPong && len(l.mu.urgent) > urgentBytesMax {
		l.mu.Unlock()
		return
	}
	from := len(l.mu.urgent)
	b := beginLinkRecord(l.mu.urgent, kind)
	for _, n := range head {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	l.mu.urgent = endLinkRecord(b, from, 0)
	l.mu.grants = l.mu.grants || kind == linkGrant
	more := l.urgentGrewLocked()
	l.mu.Unlock()
	l.urgentGrew(more)
}

// urgentGrewLocked returns how much more memory urgent messages have than is booked for them, where it is more than most links need. The caller books it without the lock.
func (l *link) urgentGrewLocked() (more int64) {
	n := int64(cap(l.mu.urgent))
	if n <= linkMessageBytes {
		n = 0
	}
	more = n - l.mu.booked
	l.mu.booked = n
	return more
}

func (l *link) urgentGrew(more int64) {
	if more != 0 {
		l.ls.held.Add(more)
	}
	l.poke()
}

func (l *link) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
