package runner

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// recent are the newest frames of a log, so that frames passed on at once are not read back from the disk.
type recent struct {
	frames []kept
	bytes  int
}

type kept struct {
	serial, prev point.Serial
	rec          []byte
}

// cacheBytesMax bounds them, for one partition.
// Enough for members that keep up; one that is further behind is sent frames out of the log.
const cacheBytesMax = 1 << 20

// add copies a frame. One that does not follow the newest, after a cut, starts a new list.
// The copy may be on its way on several links (TryFrame keeps it): it is never reused, and goes with the collector.
func (r *recent) add(s, prev point.Serial, rec []byte) {
	if n := len(r.frames); n > 0 && r.frames[n-1].serial != prev {
		*r = recent{}
	}
	r.frames = append(r.frames, kept{s, prev, slices.Clone(rec)})
	r.bytes += len(rec)
	for r.bytes > cacheBytesMax && len(r.frames) > 1 {
		r.bytes -= len(r.frames[0].rec)
		r.frames[0] = kept{}
		r.frames = r.frames[1:]
	}
}

// after returns the frames behind a serial, about so many bytes; found: the first one, if there is any, follows serial.
func (r *recent) after(s point.Serial, bytes int) (frames []kept, found bool) {
	// From the end: the frame asked for is nearly always one of the newest.
	i := len(r.frames)
	for i > 0 && r.frames[i-1].prev != s && s.Less(r.frames[i-1].serial) {
		i--
	}
	switch {
	case i > 0 && r.frames[i-1].prev == s:
		i--
	case i > 0 && r.frames[i-1].serial == s:
	default:
		return nil, false
	}
	for _, f := range r.frames[i:] {
		if frames = append(frames, f); bytes < len(f.rec) {
			break
		}
		bytes -= len(f.rec)
	}
	return frames, true
}
