package terminal

import (
	"math"
	"strconv"
	"time"

	"github.com/prometheus/common/model"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// ParseMoment parses the time that a flag has: now, a span before now like 6h or 30d, a day, a time as in RFC 3339, or seconds since 1970. Errors are Invalid and name the flag.
func ParseMoment(flag, text string, now time.Time) (time.Time, error) {
	if text == "now" {
		return now, nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, time.DateTime} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	if s, err := strconv.ParseFloat(text, 64); err == nil && math.Abs(s) <= math.MaxInt64/1e9 {
		return time.UnixMilli(int64(math.Round(s * 1000))).UTC(), nil
	}
	if d, err := model.ParseDuration(text); err == nil {
		return now.Add(-time.Duration(d)), nil
	}
	return time.Time{}, fault.Errorf(fault.Invalid, "%s %q is no time: give 2026-03-01, 2026-03-01T12:00:00Z, seconds since 1970, now, or a span before now like 30d", flag, text)
}

// ParseSpan parses the span that a flag has, like 90s, 6h or 30d, longer than nothing. Errors are Invalid and name the flag.
func ParseSpan(flag, text string) (time.Duration, error) {
	d, err := model.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fault.Errorf(fault.Invalid, "%s %q is no span like 15s, 6h or 1d", flag, text)
	}
	return time.Duration(d), nil
}
