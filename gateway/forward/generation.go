package forward

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// generation is a dictionary and the streams on which its numbers are defined.
type generation struct {
	// Constant.
	dict *point.Dict
	born time.Time

	users   atomic.Int64 // batches under way, and one for being current
	retired atomic.Bool
	full    atomic.Bool // said so
	book    *seriesBook

	prev atomic.Pointer[previous] // nil: no series are preferred

	labelsLimited atomic.Uint64 // series beyond limits of labels that were counted
	droppedRows   atomic.Uint64 // rows of dropped series that were counted
	relabel       point.Relabeller
	replicas      point.ReplicaLabels

	links links
	rings ringPoints // of series of tables that smear rows
}

func (t *Table) newGeneration(book *seriesBook) *generation {
	g := &generation{dict: point.NewDict(t.f.settings.GenerationSeriesMax), born: time.Now(), book: book}
	if t.limits == nil {
		g.dict.SetLabelLimits(t.f.settings.Labels)
	} else {
		g.dict.SetLabelLimits(t.limits.LabelLimits())
	}
	if g.relabel = t.relabel(); g.relabel != nil {
		g.dict.Relabel(g.relabel)
	}
	g.replicas = t.replicas()
	g.dict.Replicas(g.replicas)
	g.dict.Guard(func(known int, again bool) error { return t.newSeries(g, known, again) })
	g.users.Store(1)
	return g
}

// enter keeps the generation's streams open until leave; false when they are closed already. 0 users is final: the goroutine that brought the count there closes the streams, and
// a batch that came in between would have its series defined on one of these.
func (g *generation) enter() bool {
	for {
		n := g.users.Load()
		if n == 0 {
			return false
		}
		if g.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (g *generation) leave() error {
	if g.users.Add(-1) > 0 {
		return nil
	}
	return g.links.close()
}

// retire ends the generation's being current. Batches that entered before go on with its numbers, and the last one of them closes the streams.
func (g *generation) retire() error {
	if g.retired.Swap(true) {
		return nil
	}
	return g.leave()
}

// link is one stream and which numbers were defined on it. They end with the stream: the server forgets them, too.
type link struct {
	slot    *slot // where it lies among the generation's links
	stream  peer.Stream
	defined bitset
	longest atomic.Int64 // at least the length of the labels of every series in defined
}

// define sends the stream the series of a share that are not yet defined on it. Two batches may define the same series at
// the same time; that is harmless, and neither goes on before its own definitions arrived.
func (l *link) define(ctx context.Context, d *point.Dict, in *peer.Insert) error {
	_, err := l.announce(ctx, d, in, func(ctx context.Context, defs []peer.Def) (peer.Refused, error) {
		return peer.Refused{}, l.stream.Define(ctx, defs)
	})
	return err
}

// offer is define for rows whose series the server may refuse: those stay undefined.
func (l *link) offer(ctx context.Context, d *point.Dict, in *peer.Insert) (peer.Refused, error) {
	to, ok := l.stream.(peer.Offerer)
	if !ok {
		return peer.Refused{}, l.define(ctx, d, in)
	}
	return l.announce(ctx, d, in, to.Offer)
}

func (l *link) announce(ctx context.Context, d *point.Dict, in *peer.Insert, send func(context.Context, []peer.Def) (peer.Refused, error)) (refused peer.Refused, err error) {
	var room *[]peer.Def // from the pool as soon as there is something to define
	need := func(id point.SeriesID) {
		if room == nil {
			room = defRooms.Get().(*[]peer.Def)
		}
		*room = append(*room, peer.Def{ID: id, Labels: d.Labels(id)})
	}
	l.defined.missing(in.IDs, need)
	for _, h := range in.Hists {
		l.defined.missing([]point.SeriesID{h.ID}, need)
	}
	for _, e := range in.Exemplars {
		l.defined.missing([]point.SeriesID{e.ID}, need)
	}
	if room == nil {
		return refused, nil
	}
	defer putDefs(room)
	longest := 0
	for i := range *room {
		longest = max(longest, len((*room)[i].Labels))
	}
	l.lengthen(int64(longest))
	if refused, err = send(ctx, *room); err != nil { // which keeps nothing of the slice
		return refused, err
	}
	not := make(map[point.SeriesID]struct{}, len(refused.IDs))
	for _, id := range refused.IDs {
		not[id] = struct{}{}
	}
	for i := range *room {
		if _, is := not[(*room)[i].ID]; !is {
			l.defined.set((*room)[i].ID)
		}
	}
	return refused, nil
}

// defRooms are lists of definitions to be filled: where all series are new they are as long as the batch.
var defRooms = sync.Pool{New: func() any { return new([]peer.Def) }}

const defsKept = 1 << 16 // 1.5 MiB

func putDefs(room *[]peer.Def) {
	clear(*room)
	if *room = (*room)[:0]; cap(*room) <= defsKept {
		defRooms.Put(room)
	}
}

func (l *link) lengthen(n int64) {
	for old := l.longest.Load(); n > old && !l.longest.CompareAndSwap(old, n); {
		old = l.longest.Load()
	}
}

// bitset remembers numbers; reads need no lock. A longer directory has the same pages as the one before, so that a bit that is set in an old one is in the new one, too.
type bitset struct {
	dir  atomic.Pointer[[]*[bitsetPage / 64]atomic.Uint64]
	grow sync.Mutex // held while the directory is made longer
}

const bitsetPage = 4096

// missing calls f for the ids that are not set.
func (b *bitset) missing(ids []point.SeriesID, f func(point.SeriesID)) {
	var dir []*[bitsetPage / 64]atomic.Uint64
	if p := b.dir.Load(); p != nil {
		dir = *p
	}
	for _, id := range ids {
		page := int(id / bitsetPage)
		if page >= len(dir) || dir[page][id%bitsetPage/64].Load()&(1<<(id%64)) == 0 {
			f(id)
		}
	}
}

func (b *bitset) set(id point.SeriesID) {
	page := int(id / bitsetPage)
	p := b.dir.Load()
	if p == nil || page >= len(*p) {
		p = b.growTo(page)
	}
	(*p)[page][id%bitsetPage/64].Or(1 << (id % 64))
}

func (b *bitset) growTo(page int) *[]*[bitsetPage / 64]atomic.Uint64 {
	b.grow.Lock()
	defer b.grow.Unlock()
	var dir []*[bitsetPage / 64]atomic.Uint64
	if p := b.dir.Load(); p != nil {
		dir = *p
	}
	if page < len(dir) {
		return &dir
	}
	next := append([]*[bitsetPage / 64]atomic.Uint64(nil), dir...)
	for len(next) <= page {
		next = append(next, new([bitsetPage / 64]atomic.Uint64))
	}
	b.dir.Store(&next)
	return &next
}
