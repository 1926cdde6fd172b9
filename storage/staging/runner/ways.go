package runner

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

// Ways are what forwarding needs to know of the cluster.
type Ways interface {
	// Map returns the newest map of a table at hand, nil if there is none, and the sequence number below which maps are of tables of that
	// name that were dropped; 0: unknown.
	Map(table string) (m *topology.Map, begun uint64)
	// Cover makes partitions for times that have none.
	Cover(ctx context.Context, table string, times []point.Nanos) error
	// Leader returns the leader of a partition. Errors are Unavailable.
	Leader(table string, p *topology.Partition) (topology.ServerID, error)
	// Server returns the way to a server, this one too.
	Server(id topology.ServerID) (peer.Storage, bool)
	// Live reports whether a server's heartbeat was seen lately.
	Live(id topology.ServerID) bool
	// Leaving reports whether this server is drained.
	Leaving() bool
	// Others lists the other servers of the cluster that may take staged frames.
	Others() []topology.ServerID
}

// ways are open streams, one per server and table.
type ways struct {
	mu struct {
		sync.Mutex
		open map[wayTo]*way
	}
}

type wayTo struct {
	server topology.ServerID
	table  string
}

// way is a stream, and the series defined on it. It is closed once it is dropped and no frame uses it.
type way struct {
	stream peer.Stream
	users  int // and one while it is in ways; guarded by ways.mu

	mu struct {
		sync.Mutex
		ids map[point.Labels]point.SeriesID
	}
}

// waySeriesMax is how many series are defined on a stream before another one is opened.
const waySeriesMax = 200_000

func newWays() *ways {
	w := &ways{}
	w.mu.open = map[wayTo]*way{}
	return w
}

// get returns a way, opened if need be; leave gives it back.
func (ws *ways) get(ctx context.Context, to wayTo, server peer.Storage) (*way, error) {
	ws.mu.Lock()
	w := ws.mu.open[to]
	if w != nil {
		w.users++
	}
	ws.mu.Unlock()
	if w != nil {
		return w, nil
	}
	stream, err := server.OpenStream(ctx, to.table)
	if err != nil {
		return nil, err
	}
	w = &way{stream: stream, users: 2}
	w.mu.ids = map[point.Labels]point.SeriesID{}
	ws.mu.Lock()
	old := ws.mu.open[to]
	ws.mu.open[to] = w
	ws.mu.Unlock()
	return w, ws.leave(old)
}

func (ws *ways) leave(w *way) error {
	if w == nil {
		return nil
	}
	ws.mu.Lock()
	w.users--
	last := w.users == 0
	ws.mu.Unlock()
	if !last {
		return nil
	}
	return w.stream.Close()
}

// drop takes a way out: the next frame opens another.
func (ws *ways) drop(to wayTo, w *way) error {
	ws.mu.Lock()
	in := ws.mu.open[to] == w
	if in {
		delete(ws.mu.open, to)
	}
	ws.mu.Unlock()
	if !in {
		return nil
	}
	return ws.leave(w)
}

func (ws *ways) close() (err error) {
	ws.mu.Lock()
	all := ws.mu.open
	ws.mu.open = map[wayTo]*way{}
	ws.mu.Unlock()
	for _, w := range all {
		err = errors.Join(err, ws.leave(w))
	}
	return err
}

// with calls f with a way to a server.
func (ws *ways) with(ctx context.Context, to wayTo, server peer.Storage, f func(*way) error) error {
	w, err := ws.get(ctx, to, server)
	if err != nil {
		return err
	}
	err = f(w)
	if err != nil || w.len() > waySeriesMax {
		_ = ws.drop(to, w)
	}
	_ = ws.leave(w)
	return err
}

func (w *way) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.mu.ids)
}

// define appends the stream's numbers of series. Nothing of labels is kept.
func (w *way) define(ctx context.Context, ids []point.SeriesID, labels []point.Labels) ([]point.SeriesID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids = slices.Grow(ids, len(labels))
	var defs []peer.Def
	for _, l := range labels {
		id, ok := w.mu.ids[l]
		if !ok {
			id, l = point.SeriesID(len(w.mu.ids)), point.Labels(strings.Clone(string(l)))
			w.mu.ids[l] = id
			defs = append(defs, peer.Def{ID: id, Labels: l})
		}
		ids = append(ids, id)
	}
	if len(defs) == 0 {
		return ids, nil
	}
	err := w.stream.Define(ctx, defs) // after an error the way is dropped
	return ids, fault.Annotate(err, "define %d series", len(defs))
}
