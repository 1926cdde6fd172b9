package querytest

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Paged is a Store with sets that are read by pages, of one series up to PageMax. The rows of a page are overwritten as
// soon as they may be.
type Paged struct {
	*Store
	PageMax int
}

// Select implements peer.Storage.
func (p Paged) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	in, err := p.Store.Select(ctx, q)
	if err != nil {
		return nil, err
	}
	return &pagedSet{set: in.(*set), most: p.PageMax}, nil
}

type pagedSet struct {
	*set
	most int

	mu     sync.Mutex
	number int
}

var _ peer.PagedSet = (*pagedSet)(nil)

// Pager implements peer.PagedSet.
func (s *pagedSet) Pager(seriesMax int) peer.Pager {
	return &pager{set: s, most: min(s.most, seriesMax)}
}

type pager struct {
	set  *pagedSet
	most int
	page []peer.Series
	back []peer.Series // memory of pages
}

// Next implements peer.Pager. The page uses the memory of the page before if it fits.
func (p *pager) Next() (page peer.Page, ok bool, err error) {
	p.spoil()
	s := p.set
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(page.Series) < p.most && s.Next() {
		page.Series = append(page.Series, p.copyOf(len(page.Series), s.At()))
	}
	page.Number, page.Last = s.number, s.next+1 >= len(s.series)
	s.number++
	p.page = page.Series
	return page, len(page.Series) > 0, s.Err()
}

func (p *pager) copyOf(i int, s *peer.Series) peer.Series {
	if i == len(p.back) {
		p.back = append(p.back, peer.Series{})
	}
	b := &p.back[i]
	b.Times, b.Values = append(b.Times[:0], s.Times...), append(b.Values[:0], s.Values...)
	return peer.Series{Labels: s.Labels, Times: slices.Clip(b.Times), Values: slices.Clip(b.Values), Hists: s.Hists}
}

func (p *pager) spoil() {
	for i := range p.page {
		s := &p.page[i]
		for j := range s.Times {
			s.Times[j], s.Values[j] = point.Nanos(math.MinInt64), math.Inf(-1)
		}
		*s = peer.Series{}
	}
}

// Close implements peer.Pager.
func (p *pager) Close() { p.spoil() }
