package setting

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Count is a number that is not negative, written plain or with k, M or G: 250000, 250k, 2M.
type Count int64

// Bytes is a size, written plain or with a unit: 65536, 64KiB, 10MB.
type Bytes int64

// Span is a time span that is not negative, written as in Prometheus: 30s, 5m, 1d, 2w, 10y, or 0.
type Span time.Duration

// Moment is a point in time in nanoseconds since 1970, written as 2026-12-31, which means the end of that day, or
// 2026-12-31T12:00:00Z; 0, written as nothing: none.
type Moment int64

type unit struct {
	suffix string
	times  int64
}

// Longer suffixes come before those they end with.
var (
	countUnits = []unit{{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"", 1}}
	byteUnits  = []unit{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1}}
)

// parse reads a whole number that is not negative with one of the units; the first suffix that fits counts.
func parse(text string, units []unit) (int64, bool) {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.ReplaceAll(strings.TrimSpace(number), "_", ""), 10, 64)
		return n * u.times, err == nil && n >= 0 && n <= math.MaxInt64/u.times
	}
	return 0, false
}

// format writes n with the largest unit of base 1024, or 1000, that divides it.
func format(n int64, units []unit, base int64) string {
	best := unit{"", 1}
	for _, u := range units {
		if n != 0 && n%u.times == 0 && u.times > best.times && u.times%base == 0 {
			best = u
		}
	}
	return strconv.FormatInt(n/best.times, 10) + best.suffix
}

// UnmarshalText reads 250k. Errors are Invalid.
func (c *Count) UnmarshalText(text []byte) error {
	v, ok := parse(string(text), countUnits)
	if !ok {
		return fault.Errorf(fault.Invalid, "%q is no number; write 0 for none, or one as in 50000, 50k, 2M", text)
	}
	*c = Count(v)
	return nil
}

// String writes the number as UnmarshalText reads it.
func (c Count) String() string { return strconv.FormatInt(int64(c), 10) }

// UnmarshalText reads 64KiB. Errors are Invalid.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, ok := parse(string(text), byteUnits)
	if !ok {
		return fault.Errorf(fault.Invalid, "%q is no size; write 0 for none, bytes, or a unit as in 64KiB, 10MB, 4GiB", text)
	}
	*b = Bytes(v)
	return nil
}

// String writes the size as UnmarshalText reads it: 64MiB.
func (b Bytes) String() string { return format(int64(b), byteUnits, 1<<10) }

// MarshalText is the inverse of UnmarshalText.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// MarshalYAML writes a plain number where no unit fits.
func (b Bytes) MarshalYAML() (any, error) {
	if text := b.String(); text != strconv.FormatInt(int64(b), 10) {
		return text, nil
	}
	return int64(b), nil
}

// UnmarshalText reads 30s. Errors are Invalid.
func (s *Span) UnmarshalText(text []byte) error {
	v, err := model.ParseDuration(string(text))
	if err != nil {
		return fault.Errorf(fault.Invalid, "%q is no time; write 0 for none, or one as in 30s, 10m, 2d", text)
	}
	*s = Span(v)
	return nil
}

// String is the time as it is written in a file.
func (s Span) String() string { return model.Duration(s).String() }

// MarshalText is the inverse of UnmarshalText.
func (s Span) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the output of MarshalText, and a date, which means its end. Errors are Invalid.
func (m *Moment) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*m = 0
		return nil
	}
	t, err := time.Parse(time.DateOnly, string(text))
	if err == nil {
		t = t.Add(24*time.Hour - 1)
	} else if t, err = time.Parse(time.RFC3339Nano, string(text)); err != nil {
		return fault.Errorf(fault.Invalid, "%q is no time; write 2026-12-31, or 2026-12-31T12:00:00Z", text)
	}
	*m = Moment(t.UnixNano())
	return nil
}

// String is the time in RFC 3339, or nothing.
func (m Moment) String() string {
	if m == 0 {
		return ""
	}
	return time.Unix(0, int64(m)).UTC().Format(time.RFC3339Nano)
}

// MarshalText writes RFC 3339.
func (m Moment) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// The types read YAML by themselves, so that a mistake carries its line and reading goes on: all mistakes of a file are reported together.

// UnmarshalYAML reads a scalar as UnmarshalText does.
func (c *Count) UnmarshalYAML(n *yaml.Node) error { return scalar(n, c) }

// UnmarshalYAML reads a scalar as UnmarshalText does.
func (b *Bytes) UnmarshalYAML(n *yaml.Node) error { return scalar(n, b) }

// UnmarshalYAML reads a scalar as UnmarshalText does.
func (s *Span) UnmarshalYAML(n *yaml.Node) error { return scalar(n, s) }

// UnmarshalYAML reads a scalar as UnmarshalText does.
func (m *Moment) UnmarshalYAML(n *yaml.Node) error { return scalar(n, m) }

func scalar(n *yaml.Node, v interface{ UnmarshalText([]byte) error }) error {
	if n.Kind != yaml.ScalarNode {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: a list or block stands where one value is expected", n.Line)}}
	}
	if err := v.UnmarshalText([]byte(n.Value)); err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %v", n.Line, err)}}
	}
	return nil
}
