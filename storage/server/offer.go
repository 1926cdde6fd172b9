package server

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/share"
	"github.com/spillwaydb/spillway/storage/series"
)

// tableSeries counts the series of one table that are in memory within those of all tables. A sender that invents series, through however many
// gateways, must not keep out those of other tables (package share).
type tableSeries struct {
	member *share.Member
	index  *series.Index
	weight func() int64 // of the table; nil: 1
	reason string       // of a refusal; made once, since a flood would make millions

	// Guards the step from Len and Used to Add: two that count at once would both add the difference.
	counting sync.Mutex
}

// newTableSeries counts within all, which is nil where series are not bounded here: a process that is alone refuses them in its dictionaries.
func newTableSeries(table string, all *share.Pool, index *series.Index, weight func() int64) *tableSeries {
	if all == nil {
		return &tableSeries{index: index}
	}
	reason := fmt.Sprintf("table %q has as many series on a storage server as its share of the %d that there is memory for: new ones are refused until some are gone (storage.memory_bytes, intake.series_max)", table, all.Most())
	return &tableSeries{member: all.Member(), index: index, weight: weight, reason: reason}
}

// count brings the count up to date: partitions and streams make series, and sweeps free them.
func (t *tableSeries) count() {
	if t.member == nil {
		return
	}
	t.counting.Lock()
	defer t.counting.Unlock()
	t.member.Add(int64(t.index.Len()) - t.member.Used())
}

// admits reports whether the table may have more series, by counts that are a moment old.
func (t *tableSeries) admits() bool {
	if t.member == nil {
		return true
	}
	if t.weight != nil {
		t.member.SetWeight(t.weight())
	}
	t.count()
	return t.member.Admits()
}

// admitsSeries reports whether a table may have more series. None is refused before those of all tables are counted.
func (s *Server) admitsSeries(t *table) bool {
	if t.series.admits() {
		return true
	}
	s.countSeries()
	return t.series.admits()
}

func (s *Server) countSeries() {
	for _, t := range s.tables() {
		t.series.count()
	}
}

// offerSection is how many series are defined between two looks at the table's share.
const offerSection = 256

var _ peer.Offerer = (*stream)(nil)

// Offer implements peer.Offerer.
func (st *stream) Offer(_ context.Context, defs []peer.Def) (refused peer.Refused, err error) {
	st.life.RLock()
	defer st.life.RUnlock()
	if st.closed {
		return refused, errClosed
	}
	st.define.Lock()
	defer st.define.Unlock()
	// The share is looked at again for each section, so that one request of a million new series passes the bound by a
	// section at most, and not by itself.
	for part := range slices.Chunk(defs, offerSection) {
		ids, err := st.defineLocked(part, st.s.admitsSeries(st.t))
		if err != nil {
			return refused, err
		}
		refused.IDs = append(refused.IDs, ids...)
	}
	if len(refused.IDs) > 0 {
		refused.Reason = st.t.series.reason
		st.s.metrics.refusedSeries.Add(float64(len(refused.IDs)))
	}
	return refused, nil
}
