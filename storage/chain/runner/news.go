package runner

import (
	"reflect"
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/storage/chain"
)

// news is the content of an event of which the newest one alone counts: a message without a frame, or that time went by. A newer one replaces one
// that waits, so that the queue stays short while a disk hangs. To the machine the older one is a message that was lost, and the newer one overtook frames:
// it allows both. It is not moved to the end of the queue, or pings that come faster than frames are handled would never be answered.
type news struct {
	of newsOf
	in chain.Input // nil: time went by
}

// newsOf names what news are about: of two with the same one the newer counts.
type newsOf struct {
	kind reflect.Type // of a message, or of an input
	from lease.Member // of a Linked its server alone
}

// newsMax bounds the messages that wait: eight kinds of the most members that a chain has. Beyond it messages are lost, and sent again.
const newsMax = 512

// about returns what an event is news of; false: each counts.
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

// queueLocked appends an event, unless it is news of something that waits already.
func (x *placement) queueLocked(e event) {
	of, ok := e.about()
	if !ok {
		x.mu.events = append(x.mu.events, e)
		return
	}
	if i := slices.IndexFunc(x.mu.news, func(n *news) bool { return n.of == of }); i >= 0 {
		x.mu.news[i].in = e.in
		return
	}
	if _, message := e.in.(chain.Received); message && len(x.mu.news) >= newsMax {
		return
	}
	e.news = &news{of, e.in}
	e.in = nil
	x.mu.news = append(x.mu.news, e.news)
	x.mu.events = append(x.mu.events, e)
}

// unqueuedLocked completes an event that left the queue.
func (x *placement) unqueuedLocked(e *event) {
	if e.news != nil {
		x.mu.news = slices.DeleteFunc(x.mu.news, func(n *news) bool { return n == e.news })
		e.in, e.news = e.news.in, nil
	}
}
