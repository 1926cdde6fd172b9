package frame

import (
	"encoding/binary"
	"math"

	"github.com/spillwaydb/spillway/protocols/point"
)

// The low bits of a time token.
const (
	timeRun    = 1 << 0 // the difference is that of the next rows too
	timeMillis = 1 << 1 // it counts milliseconds, else nanoseconds
	timeBits   = 2

	// timeWhole, zero nanoseconds, is free since zero milliseconds means the same: it marks that the whole time follows in 8 bytes.
	timeWhole = 0
)

const nanosPerMilli = 1_000_000

// appendTimes writes times as tokens: the difference to the row before, and a run length where it repeats: 0 where rows
// share a time, the interval where a series has several rows. Differences wrap around: no time is out of range.
func appendTimes(b []byte, times []point.Nanos) []byte {
	prev := point.Nanos(0)
	for i := 0; i < len(times); {
		d := times[i] - prev
		n := timesApart(times[i:], d)
		var whole bool
		if b, whole = appendTimeToken(b, d, n); whole {
			n = 1
			b = binary.LittleEndian.AppendUint64(b, uint64(times[i]))
		}
		i += n
		prev = times[i-1]
	}
	return b
}

// timesApart counts the times from the first on of which each is d after the one before.
func timesApart(times []point.Nanos, d int64) int {
	prev := times[0] - d
	for i, t := range times {
		if t-prev != d {
			return i
		}
		prev = t
	}
	return len(times)
}

func appendTimeToken(b []byte, d int64, n int) (_ []byte, whole bool) {
	flags := uint64(0)
	if d%nanosPerMilli == 0 {
		d, flags = d/nanosPerMilli, timeMillis
	} else if d >= 1<<60 || d <= -1<<60 {
		return append(b, timeWhole), true
	}
	if n > 1 {
		flags |= timeRun
	}
	b = binary.AppendUvarint(b, zigzag(d)<<timeBits|flags)
	if n > 1 {
		b = binary.AppendUvarint(b, uint64(n-2))
	}
	return b, false
}

// times reads the output of appendTimes into times.
func (r *reader) times(times []point.Nanos) {
	prev := point.Nanos(0)
	for len(times) > 0 && r.err == nil {
		token := r.uvarint()
		if token == timeWhole {
			prev = int64(r.u64())
			times[0], times = prev, times[1:]
			continue
		}
		d := unzigzag(token >> timeBits)
		if token&timeMillis != 0 {
			if d > math.MaxInt64/nanosPerMilli || d < math.MinInt64/nanosPerMilli {
				r.fail("a time is out of range")
				return
			}
			d *= nanosPerMilli
		}
		n := 1
		if token&timeRun != 0 {
			n = r.run(len(times))
		}
		for i := range times[:n] {
			prev += d
			times[i] = prev
		}
		times = times[n:]
	}
}
