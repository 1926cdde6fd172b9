package runner

import (
	"reflect"
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/storage/chain"
)

// news are the waiting events with one subject, of which only the newest counts: messages without a frame, or ticks. At most two wait, so that the queue stays
// short while a disk hangs. Events between the two are dropped, which looks to the machine like a lossy link.
//
//	the oldest  keeps its place: else pings that come faster than frames are handled would never be answered
//	the newest  is at the end, behind all frames that came before it: the time of its answer shows how busy this server is (chain.Machine.Stalled)
type news struct {
	of      newsOf
	waiting int // one or two
}

// newsOf is the subject of news.
type newsOf struct {
	kind reflect.Type // of a message, or of an input
	from lease.Member // of a Linked its server alone
}

// newsMax bounds the subjects of events that wait: eight kinds of messages of the most members that a chain has. Beyond it messages are lost, and sent again.
const newsMax = 512

// about returns the subject of an event; false: it has none, and each such event counts.
func (e *event) about() (of newsOf, ok bool) {
	if e.tick {
		return newsOf{kind: reflect.TypeFor[chain.Tick]()}, true
	}
	switch in := e.in.(type) {
	case chain.Received:
		return newsOf{reflect.TypeOf(in.Message), in.From}, e.rec == nil
	case chain.Linked:
		return newsOf{reflect.TypeOf(in), lease.Member{Server: in.Server}}, true
	case chain.Wanted, chain.Leaving:
		return newsOf{kind: reflect.TypeOf(in)}, true
	}
	return newsOf{}, false
}

// queueLocked appends an event. Of three with the same subject the middle one is dropped.
func (x *placement) queueLocked(e event) {
	of, ok := e.about()
	if !ok {
		x.mu.events = append(x.mu.events, e)
		return
	}
	i := slices.IndexFunc(x.mu.news, func(n *news) bool { return n.of == of })
	if i < 0 {
		if _, message := e.in.(chain.Received); message && len(x.mu.news) >= newsMax {
			return
		}
		i = len(x.mu.news)
		x.mu.news = append(x.mu.news, &news{of: of})
	}
	e.news = x.mu.news[i]
	if e.news.waiting == 2 {
		x.loseNewestLocked(e.news)
	}
	e.news.waiting++
	x.mu.events = append(x.mu.events, e)
}

// loseNewestLocked removes the newest waiting event of a subject. The search begins at the end of the queue: it passes the events that came since, each once
// for a subject.
func (x *placement) loseNewestLocked(n *news) {
	for i := len(x.mu.events) - 1; i >= 0; i-- {
		if x.mu.events[i].news == n {
			x.mu.events = slices.Delete(x.mu.events, i, i+1)
			n.waiting--
			return
		}
	}
}

// unqueuedLocked notes that an event left the queue.
func (x *placement) unqueuedLocked(e *event) {
	n := e.news
	if n == nil {
		return
	}
	if n.waiting--; n.waiting == 0 {
		x.mu.news = slices.DeleteFunc(x.mu.news, func(o *news) bool { return o == n })
	}
}
