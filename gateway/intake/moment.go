package intake

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/point"
)

// present is the time at which a request came, by the gateway's clock; err: that is not known, and why.
type present struct {
	at  point.Nanos
	err error
}

// nowOf reads a clock. While it is in doubt which clock is right, or a gateway has not compared its own with the storage servers' yet, a deletion by now()
// might delete the rows of years.
func nowOf(c *clock.Clock) present {
	if c.State().Unjudged {
		return present{err: errors.New("now() is not known here yet: this gateway has just begun, or the coordination store is away, and its clock was not compared with those of storage servers. " +
			"Try again in some seconds, or write the time itself, as '2026-01-02T15:04:05Z'")}
	}
	r := c.Read()
	if why := c.Problem(); why != "" && r.Earliest != r.Latest {
		return present{err: fmt.Errorf("now() is not known here. %s Write the time itself, as '2026-01-02T15:04:05Z'", why)}
	}
	return present{at: r.Now}
}

// errMoment says which times of InfluxQL are read.
var errMoment = errors.New("use now(), '2026-01-02T15:04:05Z', nanoseconds, or a number with a unit as 1767366245s; " +
	"behind it + or - and durations as 30d or 1h30m")

// moment reads a time of InfluxQL: now(), UTC as text, nanoseconds, or a number with a unit, and what is added to it or subtracted. What it does not
// read is an error that names it: a time that is understood otherwise deletes other rows.
func moment(ts []token, now present) (at point.Nanos, err error) {
	at, rest, err := momentBase(ts, now)
	if err != nil {
		return 0, err
	}
	edge := at == math.MinInt64 || at == math.MaxInt64
	for rest != "" {
		sign := rest[0]
		if sign != '+' && sign != '-' {
			return 0, fmt.Errorf("invalid time %s: found %.100q, expected + or -: %w", said(ts), rest, errMoment)
		}
		end := strings.IndexAny(rest[1:], "+-") + 1
		if end == 0 {
			end = len(rest)
		}
		by, ok := parseInfluxDuration(rest[1:end])
		if !ok || strings.EqualFold(rest[1:end], "INF") {
			return 0, fmt.Errorf("invalid time %s: found %.100q, expected a duration with units as 30d or 1h30m; a date stands in quotes", said(ts), rest[1:end])
		}
		if sign == '-' {
			by = -by
		}
		sum := at + point.Nanos(by)
		if edge || (sum > at) != (by > 0) && by != 0 {
			return 0, fmt.Errorf("invalid time %s: it is beyond those that rows can have", said(ts))
		}
		at, rest = sum, rest[end:]
	}
	return at, nil
}

// momentBase reads a time without what is added or subtracted, and returns that as text without spaces.
func momentBase(ts []token, now present) (at point.Nanos, rest string, err error) {
	if len(ts) == 0 {
		return 0, "", fmt.Errorf("found no time: %w", errMoment)
	}
	if ts[0].quoted {
		if rest, err = unquoted(ts[1:]); err == nil {
			at, err = textTime(ts[0].text)
		}
		return at, rest, err
	}
	if rest, err = unquoted(ts); err != nil {
		return 0, "", err
	}
	if len(rest) >= len("now()") && strings.EqualFold(rest[:len("now()")], "now()") {
		return now.at, rest[len("now()"):], now.err
	}
	end := strings.IndexAny(rest[1:], "+-") + 1
	if end == 0 {
		end = len(rest)
	}
	at, ok := number(rest[:end])
	if !ok {
		return 0, "", fmt.Errorf("invalid time %s: found %.100q: %w", said(ts), rest[:end], errMoment)
	}
	return at, rest[end:], nil
}

// unquoted is the text of tokens without the spaces around signs. Two words stay two: 3 0d is not 30d.
func unquoted(ts []token) (string, error) {
	var b strings.Builder
	word := false
	for _, t := range ts {
		if t.quoted {
			return "", fmt.Errorf("found %.100q after a time, expected + or -: %w", t.text, errMoment)
		}
		if word && isWord(t.text[0]) && t.text[0] != '-' {
			b.WriteByte(' ')
		}
		b.WriteString(t.text)
		last := t.text[len(t.text)-1]
		word = isWord(last) && last != '-'
	}
	return b.String(), nil
}

// number reads nanoseconds, or a number with a unit since 1970.
func number(text string) (point.Nanos, bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return point.Nanos(n), true
	}
	digits, negative := strings.CutPrefix(text, "-")
	d, ok := parseInfluxDuration(digits)
	if strings.EqualFold(digits, "INF") {
		ok = false
	}
	if negative {
		d = -d
	}
	return point.Nanos(d), ok
}

// textTime reads UTC as text, or nanoseconds.
func textTime(text string) (point.Nanos, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return point.Nanos(n), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999", time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return nanosOf(t), nil
		}
	}
	return 0, fmt.Errorf("invalid time %q: %w", text, errMoment)
}

// said is a part of a statement as it may have been written.
func said(ts []token) string {
	words := make([]string, 0, len(ts))
	for _, t := range ts {
		if t.quoted {
			t.text = strconv.Quote(t.text)
		}
		words = append(words, t.text)
	}
	text := strings.Join(words, " ")
	if len(text) > 100 {
		return text[:100] + "…"
	}
	return text
}
