package server

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// ReadTwice makes a set read each of its views a second time behind all others, so that no view follows the one before it.
func ReadTwice(set peer.SeriesSet) {
	if ss := set.(*seriesSet); len(ss.sn.views) > 1 {
		ss.sn.parts = slices.Concat(ss.sn.parts, ss.sn.parts)
	}
}

// ReadLast makes a set read a view behind all others.
func ReadLast(set peer.SeriesSet, view int) {
	sn := set.(*seriesSet).sn
	late := func(p part) int {
		if p.view == view {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(sn.parts, func(a, b part) int { return late(a) - late(b) })
}
