package rpc

import (
	"context"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Offer implements peer.Offerer: without room every series of an odd number is refused.
func (s *memoryStream) Offer(ctx context.Context, defs []peer.Def) (r peer.Refused, err error) {
	kept := slices.DeleteFunc(slices.Clone(defs), func(d peer.Def) bool { return s.m.noRoom && d.ID%2 == 1 })
	for _, d := range defs {
		if s.m.noRoom && d.ID%2 == 1 {
			r.IDs, r.Reason = append(r.IDs, d.ID), "the table has its share"
		}
	}
	return r, s.Define(ctx, kept)
}

// TestAGatewayReceivesWhichSeriesAreRefused: of several parts of an offer. A server of the version before is not offered anything, and those that are
// defined are never refused.
func TestAGatewayReceivesWhichSeriesAreRefused(t *testing.T) {
	const n = definePartMax + 100
	var defs []peer.Def
	for i := range n {
		defs = append(defs, peer.Def{ID: point.SeriesID(n - i), Labels: point.MakeLabels("__name__", "m")})
	}
	for version, want := range map[uint8]int{streamOffers - 1: 0, streamOffers: n / 2} {
		m := newMemory()
		m.noRoom = true
		addr, _ := serve(t, m, Settings{})
		st := openStream(t, dial(t, addr, DialSettings{})).(*stream)
		st.limits.version = version
		refused, err := st.Offer(t.Context(), defs)
		if err != nil {
			t.Fatal(err)
		}
		if len(refused.IDs) != want || want > 0 && refused.Reason != "the table has its share" {
			t.Errorf("version %d: %d series are refused, want %d: %q", version, len(refused.IDs), want, refused.Reason)
		}
		if slices.ContainsFunc(refused.IDs, func(id point.SeriesID) bool { return id%2 == 0 }) {
			t.Errorf("version %d: the refused are not those that the server named", version)
		}
		if kept := len(m.defs); kept != n-want {
			t.Errorf("version %d: %d of %d series are defined", version, kept, n-want)
		}
		if err := st.Define(t.Context(), defs); err != nil || len(m.defs) != n {
			t.Errorf("version %d: %d of %d series that are defined, not offered, are kept: %v", version, len(m.defs), n, err)
		}
	}
}
