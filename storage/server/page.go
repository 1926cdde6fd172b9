package server

import (
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/segment"
)

// A page is small enough to stay in a processor's cache from decoding to evaluation, and no smaller than a group of
// series on disk. A set of few rows is one page: handing it around would cost more than reading it.
const (
	pageRows      = 1 << 16
	pageSeriesMin = 32
	pageSeriesMax = 256
	onePageRows   = 1 << 13
)

// From manyViews views on a page has room for all of the whole groups that come next, if they have few rows: a group that is on two pages would be looked up
// twice in each view.
const manyViews = 16

var _ peer.PagedSet = (*seriesSet)(nil)

// Pager implements peer.PagedSet.
func (ss *seriesSet) Pager(seriesMax int) peer.Pager {
	p := &pager{set: ss, reader: newReader(ss.sn), most: seriesMax}
	p.reader.reuse()
	return p
}

// pager reads pages of a set into its own memory.
// Several pagers share a set, one for each worker: cut hands each page to one of them under pages, which also guards
// rest and samples. Pages are numbered there, so that an evaluation can put results into the order of labels. A page's
// rows are valid until the next one of the same pager.
type pager struct {
	set    *seriesSet
	reader *reader
	most   int // series of a page
}

// Next implements peer.Pager.
func (p *pager) Next() (page peer.Page, ok bool, err error) {
	ss := p.set
	batch, err := p.cut(&page)
	if err == nil && len(batch) == 0 {
		return page, false, nil
	}
	if err == nil {
		page.Series, err = p.reader.read(batch, ss.q.Lo, ss.q.Hi)
	}
	ss.pages.Lock()
	defer ss.pages.Unlock()
	for i := range page.Series {
		ss.samples += len(page.Series[i].Times) + len(page.Series[i].Hists)
	}
	if most := ss.q.SamplesMax; err == nil && most > 0 && ss.samples > most {
		err = tooManySamples(most)
	}
	if err != nil {
		ss.rest = nil
		return page, false, err
	}
	return page, true, nil
}

// cut splits a page's series from the rest.
func (p *pager) cut(page *peer.Page) ([]found, error) {
	ss := p.set
	ss.pages.Lock()
	defer ss.pages.Unlock()
	if err := ss.ctx.Err(); err != nil {
		return nil, err
	}
	if ss.pages.least == 0 {
		ss.pages.least, ss.pages.most = ss.pageLen()
	}
	n, err := ss.whole(min(ss.pages.least, p.most), min(ss.pages.most, p.most))
	if err != nil {
		return nil, err
	}
	batch := ss.rest[:n]
	ss.rest = ss.rest[n:]
	page.Number, page.Last = ss.pages.number, len(ss.rest) == 0
	ss.pages.number++
	return batch, nil
}

// pageLen gives how many series a page should have, at least and at most.
func (ss *seriesSet) pageLen() (least, most int) {
	rows := 1
	for _, v := range ss.sn.views {
		rows += v.Rows(ss.q.Lo, ss.q.Hi)
	}
	if all := len(ss.rest); rows*all <= onePageRows {
		return max(1, all), max(1, all)
	}
	// At least two pages for each processor: the last to end then works alone for half a page's time on average.
	fair := len(ss.rest)/(2*ss.ahead) + 1
	least = max(pageSeriesMin, min(pageSeriesMax, fair, pageRows/rows))
	most = 2*least - 1
	wide := least + segment.GroupSeriesMax - 1
	if len(ss.sn.views) >= manyViews && rows*wide <= 2*pageRows && len(ss.rest) > wide {
		most = max(most, wide)
	}
	return least, most
}

// whole gives how many series come next, so that those that lie together on disk are read together.
// Series are stored in groups whose columns are compressed together. A page that ends within a group makes the next
// page decode that group again, so the end is moved within [least, most] to where a group ends.
func (ss *seriesSet) whole(least, most int) (int, error) {
	if len(ss.rest) <= most || least == most {
		return min(len(ss.rest), most), nil
	}
	list := ss.rest[0].in[0].list // other lists and views have mostly the same neighbours
	p := &ss.sn.parts[ss.sn.first[list]]
	near := make([]partition.Series, most+1)
	for i := range near {
		m := ss.rest[i].in[0]
		if m.list != list {
			return most, nil
		}
		near[i].ID = p.ids[m.at]
	}
	return ss.sn.views[p.view].Whole(near, least, most)
}

// Close implements peer.Pager.
func (p *pager) Close() { p.reader.close() }

func tooManySamples(most int) error {
	return fault.Errorf(fault.TooLarge, "the query reads more than %d samples; make it narrower or raise the limit on samples of a query", most)
}
