package columns_test

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// someRows are series with times of their own and shared ones, before 1970 too, and with values of all kinds of bits.
func someRows(series int) (all []peer.Series) {
	times := []point.Nanos{-5, 0, 1_700_000_000_000_000_000, 1_700_000_010_000_000_001}
	for i := range series {
		s := peer.Series{Labels: point.MakeLabels("__name__", "m", "host", strings.Repeat("h", 1+i%200)), Times: times}
		if i%3 == 2 {
			s.Times = times[i%2 : 2+i%3]
		}
		for j := range s.Times {
			s.Values = append(s.Values, []float64{columns.Absent, math.Inf(-1), math.Copysign(0, -1), math.Float64frombits(0x7ff8000000000abc), float64(i) / 3}[(i+j)%5])
		}
		all = append(all, s)
	}
	return all
}

func rawMessages(t testing.TB, q *columns.Request, rows []peer.Series) (out [][]byte) {
	t.Helper()
	var w columns.RawWriter
	for i := range rows {
		if !w.Add(&rows[i]) {
			t.Fatalf("series %d of %d does not fit", i, len(rows))
		}
	}
	if err := w.Send(q, func(b []byte) error { out = append(out, bytes.Clone(b)); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRowsThatTravelWithEvaluationsKeepTheirBits(t *testing.T) {
	q := plans()["raw"]
	for _, series := range []int{0, 1, 3, 1000} {
		want := someRows(series)
		all := rawMessages(t, q, append(want[:series:series], peer.Series{Labels: point.MakeLabels("__name__", "z")})) // without rows
		if series == 3 {
			golden(t, "raw-head", all[0])
			golden(t, "raw-series", all[1])
		}
		part, err := receive(q, all, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, part.Found, cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) })); d != "" {
			t.Errorf("%d series: %s", series, d)
		}
		if !columns.AsksForRows(q.Append(nil)) || columns.AsksForRows(plans()["single"].Append(nil)) {
			t.Error("requests for rows are not told from evaluations")
		}
		for n := range all {
			if _, err := receive(q, all[:n], nil); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%d messages of %d: %v", n, len(all), err)
			}
		}
	}
}

// TestRowsThatAreManyDoNotTravelWithEvaluations: a select has flow control of its own. Histograms are not evaluated over columns.
func TestRowsThatAreManyDoNotTravelWithEvaluations(t *testing.T) {
	var w columns.RawWriter
	fit := 0
	for _, s := range someRows(200_000) {
		if !w.Add(&s) {
			break
		}
		fit++
	}
	if fit == 0 || fit == 200_000 || w.Bytes() > 2*columns.RawBytesMax {
		t.Errorf("%d series fit, in %d bytes", fit, w.Bytes())
	}
	w = columns.RawWriter{}
	if w.Add(&peer.Series{Labels: point.MakeLabels("__name__", "h"), Hists: []peer.Hist{{Time: 1}}}) {
		t.Error("a series of histograms travels")
	}
}

func TestRowsCutOrChangedAnywhereAreRefusedOrWhole(t *testing.T) {
	q := plans()["raw"]
	all := rawMessages(t, q, someRows(3))
	for m := range all {
		for i := range all[m] {
			with := append([][]byte{}, all...)
			if with[m] = all[m][:i]; true {
				if _, err := receive(q, with, nil); err == nil {
					t.Errorf("message %d cut at %d is decoded", m, i)
				}
			}
			for bit := range 8 {
				with[m] = bytes.Clone(all[m])
				with[m][i] ^= 1 << bit
				checkRows(t, q, with)
			}
		}
	}
}

// checkRows wants an answer to be refused, or its rows to be what readers rely on.
func checkRows(t *testing.T, q *columns.Request, all [][]byte) {
	t.Helper()
	taken := int64(0)
	part, err := receive(q, all, func(n int64) error {
		if taken += n; taken > 64<<20 {
			return fault.Errorf(fault.TooLarge, "enough")
		}
		return nil
	})
	switch {
	case errors.Is(err, columns.ErrUnknown), errors.Is(err, columns.ErrAbandoned), errors.Is(err, columns.ErrTooManySamples), fault.Is(err, fault.Corrupt), fault.Is(err, fault.TooLarge):
		return
	case err != nil:
		t.Fatal(err)
	}
	for i, s := range part.Found {
		if len(s.Times) == 0 || len(s.Times) != len(s.Values) || !s.Labels.Valid() {
			t.Fatalf("series %d: %+v", i, s)
		}
		for j := 1; j < len(s.Times); j++ {
			if s.Times[j] <= s.Times[j-1] {
				t.Fatalf("series %d: times %v", i, s.Times)
			}
		}
	}
}

func FuzzRows(f *testing.F) {
	q := plans()["raw"]
	for _, n := range []int{1, 3, 40} {
		all := rawMessages(f, q, someRows(n))
		f.Add(all[0], all[1])
	}
	f.Fuzz(func(t *testing.T, head, body []byte) { checkRows(t, q, [][]byte{head, body}) })
}
