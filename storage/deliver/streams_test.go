package deliver

import (
	"context"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// broken is a server whose streams fail when they are closed.
type broken struct {
	peer.Storage
	opening func()
	closed  *int
}

func (b *broken) OpenStream(context.Context, string) (peer.Stream, error) {
	if f := b.opening; f != nil {
		b.opening = nil
		f()
	}
	return brokenStream{closed: b.closed}, nil
}

type brokenStream struct {
	peer.Stream
	closed *int
}

func (s brokenStream) Close() error {
	*s.closed++
	return fault.Errorf(fault.Unavailable, "the connection is cut")
}

// TestRowsAreForwardedThoughAnotherStreamCannotBeClosed: two frames for a server opened a stream at once. The one that was given up failed to close, which
// counted as a failure of the other: its frame had to come again, and its stream stayed open for as long as the process ran.
func TestRowsAreForwardedThoughAnotherStreamCannotBeClosed(t *testing.T) {
	closed, sent := 0, 0
	ss := &streams{}
	ss.mu.open = map[to]*Stream{}
	at, server := to{"s1", "t"}, &broken{closed: &closed}
	send := func() error { return ss.with(t.Context(), at, server, func(*Stream) error { sent++; return nil }) }
	server.opening = func() {
		if err := send(); err != nil {
			t.Errorf("the first: %v", err)
		}
	}
	if err := send(); err != nil {
		t.Errorf("the second: %v", err)
	}
	_ = ss.close()
	if sent != 2 || closed != 2 {
		t.Errorf("%d frames are sent, %d of 2 streams closed", sent, closed)
	}
}

// numbering is a stream that notes definitions.
type numbering struct {
	peer.Stream
	defs []peer.Def
	lost error // of the next definition
}

func (n *numbering) Define(_ context.Context, defs []peer.Def) (err error) {
	if err, n.lost = n.lost, nil; err != nil {
		return err
	}
	n.defs = append(n.defs, defs...)
	return nil
}

// TestRowsAreTakenThoughTheDefinitionOfAnotherFrameWasLost: numbers were remembered before the server had acked them. Frames that waited for the definition of one that failed used them
// on the same stream, and the server refused their rows, as its stream had not defined their series: they waited for their next turn.
func TestRowsAreTakenThoughTheDefinitionOfAnotherFrameWasLost(t *testing.T) {
	for _, kept := range []bool{false, true} {
		to := &numbering{lost: fault.Errorf(fault.Throttled, "1024 inserts wait")}
		st := newStream(to, 1)
		a, b, c := point.MakeLabels(point.MetricName, "a"), point.MakeLabels(point.MetricName, "b"), point.MakeLabels(point.MetricName, "c")
		if _, err := st.define(t.Context(), nil, []point.Labels{a, b}, kept); !fault.Is(err, fault.Throttled) {
			t.Fatal(err)
		}
		for range 2 {
			if got, err := st.define(t.Context(), nil, []point.Labels{b, c}, kept); err != nil || !slices.Equal(got, []point.SeriesID{1, 2}) {
				t.Errorf("numbers %v, %v", got, err) // that of a is not used again: the server may have it
			}
		}
		if want := []peer.Def{{ID: 1, Labels: b}, {ID: 2, Labels: c}}; !slices.Equal(to.defs, want) {
			t.Errorf("defined are %v, want %v", to.defs, want)
		}
	}
}

// TestASeriesIsDefinedOnceWhereverItsLabelsLie: in a string that its frames keep, in another one after the index had the series anew, or in one that is decoded.
func TestASeriesIsDefinedOnceWhereverItsLabelsLie(t *testing.T) {
	to := &numbering{}
	st := newStream(to, 1)
	series := func(host string) point.Labels { return point.MakeLabels(point.MetricName, "m", "host", host) }
	f := func(what string, kept bool, want []point.SeriesID, labels ...point.Labels) {
		t.Helper()
		got, err := st.define(t.Context(), nil, labels, kept)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
	}
	a, b := series("a"), series("b")
	f("two", true, []point.SeriesID{0, 1}, a, b)
	f("the same strings", true, []point.SeriesID{1, 0, 1}, b, a, b)
	f("other strings", true, []point.SeriesID{0, 1}, series("a"), series("b"))
	f("decoded", false, []point.SeriesID{1, 2}, series("b"), series("c"))
	f("kept after it was decoded", true, []point.SeriesID{2, 3}, series("c"), series("d"))
	f("in the order of before, beside one that is new", true, []point.SeriesID{0, 1, 4, 2}, a, b, series("e"), series("c"))
	f("in another order", true, []point.SeriesID{1, 1, 0, 0}, b, b, a, a)
	var defined []point.Labels
	for i, d := range to.defs {
		if int(d.ID) != i {
			t.Errorf("definition %d has number %d", i, d.ID)
		}
		defined = append(defined, d.Labels)
	}
	if want := []point.Labels{a, b, series("c"), series("d"), series("e")}; !slices.Equal(defined, want) {
		t.Errorf("defined: %v, want %v", defined, want)
	}
}
