package api

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/timestamp"
)

// The range of a request without start and end: about all that milliseconds can represent.
func minTime() time.Time { return time.Unix(math.MinInt64/1000+62135596801, 0).UTC() }

func maxTime() time.Time { return time.Unix(math.MaxInt64/1000-62135596801, 999999999).UTC() }

// secondsMax bounds a time in float seconds, so that it fits milliseconds.
const secondsMax = math.MaxInt64 / 1000

// parseTime accepts float seconds, RFC 3339, and the two bounds above as Go prints them: their years have more digits than
// RFC 3339 allows, and clients send them.
func parseTime(s string) (time.Time, error) {
	if t, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(t) <= secondsMax {
		whole, frac := math.Modf(t)
		frac = math.Round(frac*1000) / 1000
		return time.Unix(int64(whole), int64(frac*float64(time.Second))).UTC(), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	switch s {
	case minTime().Format(time.RFC3339Nano):
		return minTime(), nil
	case maxTime().Format(time.RFC3339Nano):
		return maxTime(), nil
	}
	return time.Time{}, fmt.Errorf("cannot parse %q to a valid timestamp", s)
}

// parseDuration accepts float seconds and Prometheus' own spelling, as 1h30m.
func parseDuration(s string) (time.Duration, error) {
	if d, err := strconv.ParseFloat(s, 64); err == nil {
		ns := d * float64(time.Second)
		if !(math.Abs(ns) < math.MaxInt64) { // false for NaN too
			return 0, fmt.Errorf("cannot parse %q to a valid duration. It overflows int64", s)
		}
		return time.Duration(ns), nil
	}
	if d, err := model.ParseDuration(s); err == nil {
		return time.Duration(d), nil
	}
	return 0, fmt.Errorf("cannot parse %q to a valid duration", s)
}

// onlyValue gives the value of a parameter of ours, "" when it is absent. A request that asks for an answer that lacks nothing and for
// one that may lack rows is refused: a proxy that checks one of the two could not know which counts. Prometheus' own parameters are
// read as it reads them, the first of several.
func onlyValue(name string, values []string) (string, error) {
	value := ""
	for _, v := range values {
		switch {
		case v == "" || v == value:
		case value == "":
			value = v
		default:
			return "", invalidParam(name, fmt.Errorf("the request contradicts itself: %.40q and %.40q", value, v))
		}
	}
	return value, nil
}

// timeParam returns a time parameter, or def when it is absent.
func (c *call) timeParam(name string, def time.Time) (time.Time, error) {
	v := c.Form.Get(name)
	if v == "" {
		return def, nil
	}
	t, err := parseTime(v)
	if err != nil {
		return time.Time{}, invalidParam(name, fmt.Errorf("invalid time value for '%s': %w", name, err))
	}
	return t, nil
}

// bounds returns start and end of a look-up in milliseconds; absent ones are open.
func (c *call) bounds() (mint, maxt int64, err error) {
	start, err := c.timeParam("start", minTime())
	if err != nil {
		return 0, 0, err
	}
	end, err := c.timeParam("end", maxTime())
	if err != nil {
		return 0, 0, err
	}
	return timestamp.FromTime(start), timestamp.FromTime(end), nil
}

// limit returns the number of results wanted; 0: all.
func (c *call) limit() (int, error) {
	v := c.Form.Get("limit")
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err == nil && n < 0 {
		err = errors.New("limit must be non-negative")
	}
	if err != nil {
		return 0, invalidParam("limit", err)
	}
	return n, nil
}

// matchers parses match[]; each must have a matcher that does not match the empty string, or it would mean everything.
func (a *API) matchers(c *call) ([][]*labels.Matcher, error) {
	sets, err := a.parser.ParseMetricSelectors(c.Form["match[]"])
	if err != nil {
		return nil, err
	}
	for _, ms := range sets {
		if !selective(ms) {
			return nil, errors.New("match[] must contain at least one non-empty matcher")
		}
	}
	return sets, nil
}

func selective(ms []*labels.Matcher) bool {
	for _, m := range ms {
		if m != nil && !m.Matches("") {
			return true
		}
	}
	return false
}
