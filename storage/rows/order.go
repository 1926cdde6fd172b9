package rows

import (
	"bytes"
	"math"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Beats reports whether float a of stamp as wins over float b of stamp bs at the same time.
func Beats(a float64, as point.Stamp, b float64, bs point.Stamp) bool {
	if sa, sb := point.IsStale(a), point.IsStale(b); sa != sb {
		return sb
	}
	if as != bs {
		return as > bs
	}
	return math.Float64bits(a) > math.Float64bits(b)
}

// BeatsHist is Beats for two encoded histograms.
func BeatsHist(a []byte, as point.Stamp, b []byte, bs point.Stamp) bool {
	if sa, sb := point.IsStaleHistogram(a), point.IsStaleHistogram(b); sa != sb {
		return sb
	}
	if as != bs {
		return as > bs
	}
	return bytes.Compare(a, b) > 0
}

// floatBeatsHist is Beats for a float against an encoded histogram: of equal rank, the histogram stays.
func floatBeatsHist(v float64, vs point.Stamp, h []byte, hs point.Stamp) bool {
	if sv, sh := point.IsStale(v), point.IsStaleHistogram(h); sv != sh {
		return sh
	}
	return vs > hs
}
