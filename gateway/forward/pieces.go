package forward

import (
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// pieces is the unsent part of a share: a server logs an insert as one frame, and frames have bounds.
type pieces struct {
	ids       []point.SeriesID
	times     []point.Nanos
	values    []float64
	hists     []point.HistRow
	exemplars []point.ExemplarRow
	acked     int // pieces
}

func (p *pieces) len() int { return len(p.ids) + len(p.hists) + len(p.exemplars) }

// first makes in the first n of the remaining rows: floats, then histograms, then exemplars.
func (p *pieces) first(in *peer.Insert, n int) {
	floats := min(len(p.ids), n)
	hists := min(len(p.hists), n-floats)
	exemplars := min(len(p.exemplars), n-floats-hists)
	in.IDs, in.Times, in.Values = p.ids[:floats], p.times[:floats], p.values[:floats]
	in.Hists, in.Exemplars = p.hists[:hists], p.exemplars[:exemplars]
}

// drop removes the rows that in holds.
func (p *pieces) drop(in *peer.Insert) {
	n := len(in.IDs)
	p.ids, p.times, p.values = p.ids[n:], p.times[n:], p.values[n:]
	p.hists, p.exemplars = p.hists[len(in.Hists):], p.exemplars[len(in.Exemplars):]
	p.acked++
}

// ranks are the stamps of one write: of two rows of one series and time the later wins also where they came in different
// pieces. All are of the moment of receipt, or of the moment at which a server sent them back.
//
// Invariant: a piece has a higher rank than those before it in its share that were acked, at this try or an earlier one; a
// piece that may have been kept has the same rank when it is sent again, so that its leader recognizes it.
type ranks struct {
	first point.Stamp
	n     int
	used  int         // by earlier tries; below 0: by the pieces acked before these were reserved
	anew  int         // how often they were refused
	at    point.Nanos // when they were reserved, by our wall clock
}

// rankBytes is the assumed average bound on a row's size, where a piece is cut by its bytes.
const rankBytes = 24 << 10

// reserve allocates as many ranks as that many rows can need.
func reserve(c *Clock, rows int, s *Settings) ranks {
	n := 1 + rows/min(s.InsertRowsMax, max(1, s.InsertBytesMax/rankBytes))
	at := c.now()
	return ranks{first: c.Reserve(n), n: n, at: at}
}

// of gives the rank of the piece after those that were acked.
func (r *ranks) of(acked int) point.Stamp {
	return r.first + point.Stamp(min(r.used+acked, r.n-1)*rank.Step)
}

// itemBytes is more than anything needs in a frame beside its labels or its histogram.
const itemBytes = 40

// shorten cuts in so that its frame fits into max bytes even if its partition has no series yet, but not to nothing.
// longest is at least the length of every series' labels: mostly a multiplication settles it.
func shorten(in *peer.Insert, max, longest int, d *point.Dict) {
	bound := (len(in.IDs) + len(in.Hists) + len(in.Exemplars)) * (itemBytes + longest)
	for i := range in.Hists {
		bound += len(in.Hists[i].H)
	}
	for i := range in.Exemplars {
		bound += len(in.Exemplars[i].Labels)
	}
	if bound <= max {
		return
	}
	room, taken := max, 0
	fits := func(id point.SeriesID, more int) bool {
		room -= itemBytes + len(d.Labels(id)) + more
		taken++
		return room >= 0 || taken == 1
	}
	for i, id := range in.IDs {
		if !fits(id, 0) {
			in.IDs, in.Times, in.Values, in.Hists, in.Exemplars = in.IDs[:i], in.Times[:i], in.Values[:i], nil, nil
			return
		}
	}
	for i, h := range in.Hists {
		if !fits(h.ID, len(h.H)) {
			in.Hists, in.Exemplars = in.Hists[:i], nil
			return
		}
	}
	for i, e := range in.Exemplars {
		if !fits(e.ID, len(e.Labels)) {
			in.Exemplars = in.Exemplars[:i]
			return
		}
	}
}
