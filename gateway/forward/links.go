package forward

import (
	"context"
	"errors"
	"sync"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// links are the streams of one generation, one per server. A broken stream is dropped, and the next batch opens another, on
// which all its series have to be defined again.
type links struct {
	mu struct {
		sync.Mutex
		byServer map[topology.ServerID]*slot
	}
}

// slot is a link that is being opened, or is open. No lock is held while one is opened: a server that does not answer would keep batches to all others waiting.
type slot struct {
	ready chan struct{} // closed once the rest is there, and constant: a goroutine that has seen it closed may read
	link  *link
	err   error
}

// get returns the link to a server. The first caller opens it, the others wait for that.
func (ls *links) get(ctx context.Context, id topology.ServerID, open func(context.Context) (peer.Stream, error)) (*link, error) {
	for {
		s, first := ls.slot(id)
		if first {
			return ls.open(ctx, id, s, open)
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if s.err == nil || !fault.Is(s.err, fault.Canceled) {
			return s.link, s.err
		}
		if err := ctx.Err(); err != nil { // otherwise only the caller that opened it went away
			return nil, err
		}
	}
}

func (ls *links) slot(id topology.ServerID) (s *slot, first bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if s, ok := ls.mu.byServer[id]; ok {
		return s, false
	}
	if ls.mu.byServer == nil {
		ls.mu.byServer = map[topology.ServerID]*slot{}
	}
	s = &slot{ready: make(chan struct{})}
	ls.mu.byServer[id] = s
	return s, true
}

func (ls *links) open(ctx context.Context, id topology.ServerID, s *slot, open func(context.Context) (peer.Stream, error)) (*link, error) {
	stream, err := open(ctx)
	if err != nil {
		s.err = err
		ls.remove(id, s) // before ready is closed: a caller that comes again finds no slot, and opens another link
	} else {
		s.link = &link{stream: stream, slot: s}
	}
	close(s.ready)
	return s.link, s.err
}

// drop closes a link that broke. Others that use it at this moment get errors of their own and come here too: the first one closes it, and none closes the one that was
// opened since.
func (ls *links) drop(id topology.ServerID, l *link) error {
	if !ls.remove(id, l.slot) {
		return nil
	}
	return l.stream.Close()
}

func (ls *links) remove(id topology.ServerID, s *slot) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.mu.byServer[id] != s {
		return false
	}
	delete(ls.mu.byServer, id)
	return true
}

// close closes all links. No goroutine opens any meanwhile: the last user of the generation has left.
func (ls *links) close() error {
	ls.mu.Lock()
	all := ls.mu.byServer
	ls.mu.byServer = nil
	ls.mu.Unlock()
	var errs []error
	for _, s := range all {
		<-s.ready
		if s.link != nil {
			errs = append(errs, s.link.stream.Close())
		}
	}
	return errors.Join(errs...)
}
