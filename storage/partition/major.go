package partition

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/segment"
)

// A major lists definitions by dense id and rows by labels, and a partition may have more series than their labels fit into
// memory. So definitions are streamed, and rows are written stretch by stretch of the label order: as many series as
// Settings.CompactBytes hold, found by one more walk over the definitions for each stretch.
//
//	walk 1:   definitions ─▶ major; every so many a sample
//	          samples, sorted ─▶ where stretches begin
//	walk 2…:  definitions ─▶ those of the stretch, sorted ─▶ their rows ─▶ major
//	last:     exemplars, by dense id
//
// A walk over a million definitions needs half a second, so there are at most walksMax stretches, of more series if need be.
//
// A minor of some minors is written in the same way. It has the definitions of these alone, and rows of series that older segments define: so the walks are over all segments, and pass over the series
// without rows in the minors.
//
// The rows of compactBatch series are read together, as far as they fit into Settings.CompactBytes, too: of a week of one row a second 256 series are gigabytes.

const (
	stretchSlack = 40 // bytes a series, beside its labels
	samplesMax   = 1 << 14
	walksMax     = 8
)

// majorWriter writes one major of a view, or one minor of its newest segments.
type majorWriter struct {
	p      *Partition
	w      *segment.Writer
	all    *View           // whose segments define the series
	v      *View           // of the segments that are folded; they are retained by all
	first  point.DenseID   // those below are defined in segments that stay
	having *roaring.Bitmap // series with rows; nil: perhaps all
	excess *excess
	turn   *lane.Turn
	bytes  int         // of a stretch's labels
	ranks  point.Stamp // of rows with this one or a higher one ranks are kept: 0 in a minor, since its rows are not compared with those below it yet
	size   int         // of all labels
	// weights are about the bytes of each series' rows as they are read, in KiB, by dense id; nil: those of all series fit.
	weights []uint32
}

// newMajorWriter makes the writer of the view's segments from one on.
func (p *Partition) newMajorWriter(w *segment.Writer, v *View, from int, x *excess, turn *lane.Turn) *majorWriter {
	m := &majorWriter{p: p, w: w, all: v, v: &View{p: p, segments: v.segments[from:], fixed: v.fixed}, excess: x, turn: turn, bytes: p.settings.CompactBytes}
	m.first = point.DenseID(definitions(v.segments[:from]))
	if from == 0 {
		m.ranks = p.ranksFrom(time.Now())
	}
	w.RanksFrom(m.ranks)
	return m
}

func (m *majorWriter) write(ctx context.Context) error {
	if err := m.findSeries(); err != nil {
		return err
	}
	total, edges, err := m.define(ctx)
	if err != nil {
		return err
	}
	held := int64(m.held(total, len(edges)+1))
	m.p.deps.Compacting.Add(held)
	defer m.p.deps.Compacting.Add(-held)
	if err := m.weigh(ctx, total); err != nil {
		return err
	}
	for i := range len(edges) + 1 {
		var lo, hi point.Labels // hi "": to the end
		if i > 0 {
			lo = edges[i-1]
		}
		if i < len(edges) {
			hi = edges[i]
		}
		if err := m.stretch(ctx, lo, hi, i > 0, i < len(edges)); err != nil {
			return err
		}
	}
	return m.exemplars(ctx)
}

// goOn waits for a turn, and ends a compaction that is not needed any more.
func (m *majorWriter) goOn(ctx context.Context) error {
	if err := m.turn.Yield(ctx); err != nil {
		return err
	}
	return m.p.stopReason(ctx)
}

// findSeries finds the series with rows, where not all are folded.
func (m *majorWriter) findSeries() error {
	if len(m.v.segments) == len(m.all.segments) {
		return nil
	}
	m.having = roaring.New()
	for _, g := range m.v.segments {
		ids, err := g.reader.SeriesIDs()
		if err != nil {
			return m.v.failed(err, g)
		}
		m.having.Or(ids)
	}
	return nil
}

// define writes the definitions, and returns how many series there are and where all stretches but the first begin.
func (m *majorWriter) define(ctx context.Context) (total int, edges []point.Labels, err error) {
	every := max(1, m.all.definitions()/samplesMax)
	var samples []point.Labels
	size, rows := 0, 0
	err = m.all.eachDefinition(func(id point.DenseID, l point.Labels) error {
		if m.having == nil || m.having.Contains(uint32(id)) {
			if rows%every == 0 {
				samples = append(samples, point.Labels(strings.Clone(string(l))))
			}
			rows++
			size += len(l) + stretchSlack
		}
		if total++; total%compactBatch == 0 {
			if err := m.goOn(ctx); err != nil {
				return err
			}
		}
		if id < m.first {
			return nil
		}
		return m.w.Define(id, l)
	})
	if err != nil {
		return 0, nil, err
	}
	m.size = size
	stretches := min(size/m.bytes+1, walksMax, len(samples))
	if stretches <= 1 {
		return total, nil, nil
	}
	slices.SortFunc(samples, point.Labels.Compare)
	for i := 1; i < stretches; i++ {
		edges = append(edges, samples[i*len(samples)/stretches])
	}
	return total, edges, nil
}

// held is about the memory used while rows are written: a stretch, and the places of all series.
func (m *majorWriter) held(total, stretches int) int {
	const placeBytes, weightBytes = 16, 4
	return m.size/stretches + total*(placeBytes+weightBytes)
}

// weigh finds the weights, from the segments' groups. Those of the smallest partitions are not walked over.
func (m *majorWriter) weigh(ctx context.Context, total int) error {
	rows := uint64(0)
	for _, g := range m.v.segments {
		rows += g.info.Rows
	}
	if rows <= uint64(m.bytes)/segment.HistogramBytesMax {
		return nil
	}
	m.weights = make([]uint32, total)
	for _, g := range m.v.segments {
		groups := 0
		err := g.reader.EachGroup(func(ids []point.DenseID, bytes int64) error {
			if groups++; groups%compactBatch == 0 {
				if err := m.goOn(ctx); err != nil {
					return err
				}
			}
			kib := uint32(min(bytes>>10+1, math.MaxUint32/2))
			for _, id := range ids {
				if int(id) >= total {
					return fault.Errorf(fault.Corrupt, "segment %v has rows of series %d, which nothing defines", g.info.ID, id)
				}
				m.weights[id] = min(m.weights[id]+kib, math.MaxUint32/2)
			}
			return nil
		})
		if err != nil {
			return m.v.failed(err, g)
		}
	}
	return nil
}

// fitting returns how many of the first series of a batch to read together, one at least, and about the bytes of their rows.
func (m *majorWriter) fitting(batch []Series) (n int, bytes int64) {
	if m.weights == nil {
		return len(batch), 0
	}
	for n < len(batch) {
		more := int64(m.weights[batch[n].ID]) << 10
		if n > 0 && bytes+more > int64(m.bytes) {
			break
		}
		n, bytes = n+1, bytes+more
	}
	return n, bytes
}

// stretch writes the rows of the series from lo on and below hi.
func (m *majorWriter) stretch(ctx context.Context, lo, hi point.Labels, from, to bool) error {
	var within []Series
	var text textArena
	err := m.all.eachDefinition(func(id point.DenseID, l point.Labels) error {
		if id%giveUpEvery == 0 {
			if err := m.goOn(ctx); err != nil {
				return err
			}
		}
		if m.having != nil && !m.having.Contains(uint32(id)) {
			return nil
		}
		if from && l.Compare(lo) < 0 || to && l.Compare(hi) >= 0 {
			return nil
		}
		within = append(within, Series{ID: id, Labels: text.copy(l)})
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(within, func(a, b Series) int { return a.Labels.Compare(b.Labels) })
	for len(within) > 0 {
		if err := m.goOn(ctx); err != nil {
			return err
		}
		n, bytes := m.fitting(within[:min(compactBatch, len(within))])
		batch := within[:n]
		within = within[n:]
		bytes *= 2 // as they are in segments, and merged
		m.p.deps.Compacting.Add(bytes)
		err := m.read(batch, func(i int, r rows.Run) error {
			if err := m.turn.Yield(ctx); err != nil {
				return err
			}
			return m.w.Add(batch[i].ID, &r)
		})
		m.p.deps.Compacting.Add(-bytes)
		if err != nil {
			return err
		}
	}
	return nil
}

// read reads all rows of some series, with their ranks if any are kept. Without them a row counts as the highest of its chunk from now on.
func (m *majorWriter) read(ss []Series, f func(i int, r rows.Run) error) error {
	const all = 1<<63 - 1
	ranked := slices.ContainsFunc(m.v.segments, func(g *segmentRef) bool { return g.info.StampHi >= m.ranks })
	return m.v.read(&Memory{once: true, ranked: ranked}, ss, -all-1, all, 0, f)
}

func (m *majorWriter) exemplars(ctx context.Context) error {
	const all = 1<<63 - 1
	if err := m.w.EndRows(); err != nil || !m.v.hasExemplars() {
		return err
	}
	having := roaring.New() // mostly few of millions
	for _, g := range m.v.segments {
		ids, err := g.reader.ExemplarIDs()
		if err != nil {
			return m.v.failed(err, g)
		}
		having.Or(ids)
	}
	n := 0
	for it := having.Iterator(); it.HasNext(); n++ { // one series' in memory, not a day's: they have up to 16 MiB
		if n%compactBatch == 0 {
			if err := m.goOn(ctx); err != nil {
				return err
			}
		}
		of := point.DenseID(it.Next())
		err := m.v.Exemplars([]Series{{ID: of}}, -all-1, all, func(_ int, ex []point.ExemplarRow) error {
			return m.w.AddExemplars(of, m.excess.exemplars(of, ex))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eachDefinition walks over the series that the view's segments define, by dense id. Labels stay valid while they are referenced,
// and keep those of their neighbours in memory: the caller copies labels that it keeps.
func (v *View) eachDefinition(f func(id point.DenseID, l point.Labels) error) error {
	n := 0
	for _, g := range v.segments {
		err := g.reader.EachDefinition(func(id point.DenseID, l point.Labels) error {
			if int(id) != n {
				return outOfOrder(g, id, n)
			}
			n++
			return f(id, l)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hasExemplars reports whether any segment has.
func (v *View) hasExemplars() bool {
	return slices.ContainsFunc(v.segments, func(g *segmentRef) bool { return g.info.Exemplars > 0 })
}

// definitions counts the series that the view's segments define.
func (v *View) definitions() int { return definitions(v.segments) }

// labels returns a series' labels from the segments, for messages: "" if they cannot be read.
func (v *View) labels(id point.DenseID) point.Labels {
	for _, g := range v.segments {
		if l, ok, err := g.reader.Labels(id); ok && err == nil {
			return l
		}
	}
	return ""
}

// textArena copies labels into pieces of memory: apart, each would be an object for the collector.
type textArena struct{ b strings.Builder }

const textPiece = 64 << 10

func (a *textArena) copy(l point.Labels) point.Labels {
	if a.b.Cap()-a.b.Len() < len(l) {
		a.b = strings.Builder{}
		a.b.Grow(max(textPiece, len(l)))
	}
	from := a.b.Len()
	a.b.WriteString(string(l)) // never moves earlier labels: there is room
	return point.Labels(a.b.String()[from:])
}
