package deliver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// to is the other end of a stream: a table at a server.
type to struct {
	server topology.ServerID
	table  string
}

// streams are those open, one per server and table.
type streams struct {
	mu struct {
		sync.Mutex
		open map[to]*Stream
	}
}

// Stream is a stream of inserts, and its defined series. It is closed once it is dropped and no frame uses it.
type Stream struct {
	stream peer.Stream
	users  int // and one while it is in streams; guarded by streams.mu

	mu struct {
		sync.Mutex
		ids   map[point.Labels]point.SeriesID
		kept  map[stringPointer]point.SeriesID // of strings that others keep; here they are kept, too
		texts []stringPointer                  // by number, a string in kept; zero: none
		// unacked are numbers whose definition failed, or its answer was lost. Their series keep them, as the server may have them, and are defined again by frames
		// that got the stream before it was dropped.
		unacked map[point.SeriesID]bool
	}
}

// streamSeriesMax is how many series are defined on a stream before another one is opened.
const streamSeriesMax = 200_000

// get returns a stream, opened if need be; leave gives it back.
func (ss *streams) get(ctx context.Context, at to, server peer.Storage) (*Stream, error) {
	ss.mu.Lock()
	st := ss.mu.open[at]
	if st != nil {
		st.users++
	}
	ss.mu.Unlock()
	if st != nil {
		return st, nil
	}
	stream, err := server.OpenStream(ctx, at.table)
	if err != nil {
		return nil, err
	}
	st = newStream(stream, 2)
	ss.mu.Lock()
	old := ss.mu.open[at]
	ss.mu.open[at] = st
	ss.mu.Unlock()
	_ = ss.leave(old) // another frame's: it says nothing about this one
	return st, nil
}

func newStream(stream peer.Stream, users int) *Stream {
	st := &Stream{stream: stream, users: users}
	st.mu.ids, st.mu.kept, st.mu.unacked = map[point.Labels]point.SeriesID{}, map[stringPointer]point.SeriesID{}, map[point.SeriesID]bool{}
	return st
}

func (ss *streams) leave(st *Stream) error {
	if st == nil {
		return nil
	}
	ss.mu.Lock()
	st.users--
	last := st.users == 0
	ss.mu.Unlock()
	if !last {
		return nil
	}
	return st.stream.Close()
}

// drop removes a stream: the next frame opens another.
func (ss *streams) drop(at to, st *Stream) error {
	ss.mu.Lock()
	in := ss.mu.open[at] == st
	if in {
		delete(ss.mu.open, at)
	}
	ss.mu.Unlock()
	if !in {
		return nil
	}
	return ss.leave(st)
}

func (ss *streams) close() (err error) {
	ss.mu.Lock()
	all := ss.mu.open
	ss.mu.open = map[to]*Stream{}
	ss.mu.Unlock()
	for _, st := range all {
		err = errors.Join(err, ss.leave(st))
	}
	return err
}

// with calls f with a stream to a server.
func (ss *streams) with(ctx context.Context, at to, server peer.Storage, f func(*Stream) error) error {
	st, err := ss.get(ctx, at, server)
	if err != nil {
		return err
	}
	err = f(st)
	if err != nil || st.len() > streamSeriesMax {
		_ = ss.drop(at, st)
	}
	_ = ss.leave(st)
	return err
}

// Insert sends an insert whose series are numbered as Define said.
func (st *Stream) Insert(ctx context.Context, in *peer.Insert) error {
	return st.stream.Insert(ctx, in)
}

// InsertTogether is Insert for several that go together.
func (st *Stream) InsertTogether(ctx context.Context, all []*peer.Insert) error {
	return peer.InsertTogether(ctx, st.stream, all)
}

func (st *Stream) len() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return max(len(st.mu.ids), len(st.mu.kept))
}

// Define appends the stream's numbers of series. Nothing of labels is kept.
func (st *Stream) Define(ctx context.Context, ids []point.SeriesID, labels []point.Labels) ([]point.SeriesID, error) {
	return st.define(ctx, ids, labels, false)
}

// define is Define. Strings that others keep are kept here, too: the same ones come with the next frames of their series, and are found without being read.
func (st *Stream) define(ctx context.Context, ids []point.SeriesID, labels []point.Labels, kept bool) ([]point.SeriesID, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	ids = slices.Grow(ids, len(labels))
	var defs []peer.Def
	var next point.SeriesID // after the one before: senders write their series in the same order again and again
	for _, l := range labels {
		id := point.SeriesID(0)
		if kept {
			id = st.keptLocked(l, next, &defs)
		} else {
			id = st.numberLocked(l, false, &defs)
		}
		ids, next = append(ids, id), id+1
	}
	if len(defs) == 0 {
		return ids, nil
	}
	err := st.stream.Define(ctx, defs) // after an error the stream is dropped
	for _, d := range defs {
		if err == nil {
			delete(st.mu.unacked, d.ID)
		} else {
			st.mu.unacked[d.ID] = true
		}
	}
	return ids, fault.Annotate(err, "define %d series", len(defs))
}

// keptLocked returns the number of a series whose string others keep. It looks first whether that is next: two places in memory that follow those of the series before, where
// a look into a map of many series is a miss of the processor's cache.
func (st *Stream) keptLocked(l point.Labels, next point.SeriesID, defs *[]peer.Def) point.SeriesID {
	text := pointerTo(string(l))
	if int(next) < len(st.mu.texts) && st.mu.texts[next] == text && !st.mu.unacked[next] {
		return next
	}
	id, ok := st.mu.kept[text]
	if !ok || st.mu.unacked[id] {
		id = st.numberLocked(l, true, defs)
		st.mu.kept[text] = id
		for len(st.mu.texts) <= int(id) {
			st.mu.texts = append(st.mu.texts, stringPointer{})
		}
		st.mu.texts[id] = text
	}
	return id
}

// numberLocked returns the number of a series, and adds its definition to defs if it is new, or not acked.
func (st *Stream) numberLocked(l point.Labels, kept bool, defs *[]peer.Def) point.SeriesID {
	id, ok := st.mu.ids[l]
	if ok && !st.mu.unacked[id] {
		return id
	}
	if !kept {
		l = point.Labels(strings.Clone(string(l)))
	}
	if !ok {
		id = point.SeriesID(len(st.mu.ids))
		st.mu.ids[l] = id
	}
	*defs = append(*defs, peer.Def{ID: id, Labels: l})
	return id
}
