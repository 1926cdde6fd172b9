package chain

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// The ends of a log: for each epoch, in rising order, the last frame that the log holds of it. Epochs without a frame are missing.
//
//	head's     5/100          7/140                     common: 7/120 — the newest epoch that both have, as far as both have it
//	member's   5/100  6/103?  7/120                     (6 cannot be: 7's first frame has one predecessor, and both logs have it)
//	member's   5/103                                    common: 5/100, and 101…103 of epoch 5 are surplus

// last is the newest serial of a log.
func last(ends []point.EpochEnd) point.Serial {
	if len(ends) == 0 {
		return point.Serial{}
	}
	return point.Serial(ends[len(ends)-1])
}

// Common is the newest serial that two logs share. Frames of an epoch have one author and a log accepts a frame only behind its
// predecessor, so that logs with a serial in common are equal up to it.
func Common(a, b []point.EpochEnd) point.Serial {
	for i, j := len(a)-1, len(b)-1; i >= 0 && j >= 0; {
		switch {
		case a[i].Epoch > b[j].Epoch:
			i--
		case a[i].Epoch < b[j].Epoch:
			j--
		default:
			return point.Serial{Epoch: a[i].Epoch, Seq: min(a[i].Seq, b[j].Seq)}
		}
	}
	return point.Serial{}
}

// cutAt returns the ends of a log that was cut behind a serial which it holds.
func cutAt(ends []point.EpochEnd, after point.Serial) []point.EpochEnd {
	out := slices.Clone(ends)
	for n := len(out); n > 0 && out[n-1].Epoch > after.Epoch; n-- {
		out = out[:n-1]
	}
	if n := len(out); n > 0 && out[n-1].Epoch == after.Epoch {
		out[n-1].Seq = min(out[n-1].Seq, after.Seq)
	}
	return out
}

// grown returns the ends of a log with one more frame.
func grown(ends []point.EpochEnd, s point.Serial) []point.EpochEnd {
	if n := len(ends); n > 0 && ends[n-1].Epoch == s.Epoch {
		ends[n-1].Seq = s.Seq
		return ends
	}
	return append(ends, point.EpochEnd(s))
}

func lower(a, b point.Serial) point.Serial {
	if b.Less(a) {
		return b
	}
	return a
}
