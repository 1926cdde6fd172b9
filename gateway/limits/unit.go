package limits

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// Count is a number, written plain or with k, M or G: 250000, 250k, 2M.
type Count int64

// Bytes is a number of bytes, written plain or with a unit: 65536, 64KiB, 10MB.
type Bytes int64

// Span is a time, written as in Prometheus: 30s, 5m, 1d, 2w, 10y, or 0.
type Span time.Duration

// unit is a suffix and what it multiplies by. Longer suffixes come before those they end with.
type unit struct {
	suffix string
	times  int64
}

var (
	countUnits = [...]unit{{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"", 1}}
	byteUnits  = [...]unit{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}
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

// UnmarshalYAML reads 250k. Like those of the other units it reports a mistake in such a way that reading goes on, and
// all mistakes of a file are reported together.
func (c *Count) UnmarshalYAML(n *yaml.Node) error {
	v, ok := parse(n.Value, countUnits[:])
	if !ok {
		return mistake(n, "is no number; write 0 for no limit, or one as in 50000, 50k, 2M")
	}
	*c = Count(v)
	return nil
}

// UnmarshalYAML reads 64KiB.
func (b *Bytes) UnmarshalYAML(n *yaml.Node) error {
	v, ok := parse(n.Value, byteUnits[:])
	if !ok {
		return mistake(n, "is no size; write 0 for no limit, bytes, or a unit as in 64KiB, 10MB")
	}
	*b = Bytes(v)
	return nil
}

// UnmarshalYAML reads 30s.
func (s *Span) UnmarshalYAML(n *yaml.Node) error {
	v, err := model.ParseDuration(n.Value)
	if err != nil {
		return mistake(n, "is no time; write 0 for no limit, or one as in 30s, 10m, 2d")
	}
	*s = Span(v)
	return nil
}

func mistake(n *yaml.Node, what string) error {
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q %s", n.Line, n.Value, what)}}
}

// MarshalText writes what UnmarshalYAML reads.
func (s Span) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String is the time as it is written in a file.
func (s Span) String() string { return model.Duration(s).String() }
