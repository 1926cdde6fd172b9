package record

import (
	"math"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Precision is the unit of written timestamps. The zero Precision is the format's own: nanoseconds for line protocol,
// seconds for Telegraf JSON (its json_timestamp_units), by magnitude for Prometheus JSON. Remote write and OTLP have
// units of their own and do not look at it.
type Precision uint8

const (
	ByFormat Precision = iota
	Nanosecond
	Microsecond
	Millisecond
	Second
	Minute
	Hour
	// Auto judges each timestamp by its magnitude, as lineproto.Auto does.
	Auto
	precisions
)

var precisionNames = [precisions]string{
	ByFormat: "", Nanosecond: "ns", Microsecond: "us", Millisecond: "ms", Second: "s", Minute: "m", Hour: "h", Auto: "auto",
}

var linePrecisions = [precisions]lineproto.Precision{
	ByFormat: lineproto.Nanosecond, Nanosecond: lineproto.Nanosecond, Microsecond: lineproto.Microsecond,
	Millisecond: lineproto.Millisecond, Second: lineproto.Second, Minute: lineproto.Minute, Hour: lineproto.Hour,
	Auto: lineproto.Auto,
}

// ParsePrecision reads ns, us, ms, s, m, h, auto, or one of the ways in which Influx and Telegraf write them. The error
// is Invalid.
func ParsePrecision(s string) (Precision, error) {
	switch strings.ToLower(s) {
	case "":
		return ByFormat, nil
	case "n", "ns", "1ns", "nanosecond":
		return Nanosecond, nil
	case "u", "us", "µ", "µs", "1us", "1µs", "microsecond":
		return Microsecond, nil
	case "ms", "1ms", "millisecond":
		return Millisecond, nil
	case "s", "1s", "second":
		return Second, nil
	case "m", "1m", "minute":
		return Minute, nil
	case "h", "1h", "hour":
		return Hour, nil
	case "auto":
		return Auto, nil
	}
	return 0, fault.Errorf(fault.Invalid, "precision %q is none of ns, us, ms, s, m, h, auto", cut(s))
}

// String gives the short name.
func (p Precision) String() string { return precisionNames[p%precisions] }

// UnmarshalText reads a precision in settings.
func (p *Precision) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePrecision(string(text))
	return err
}

// MarshalText is the inverse of UnmarshalText.
func (p Precision) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// or is p, or the format's own unit where nothing is said.
func (p Precision) or(def Precision) Precision {
	if p == ByFormat {
		return def
	}
	return p
}

// unit is the length of one in nanoseconds; by is how many there are of Auto.
func (p Precision) unit(magnitude float64) int64 {
	switch p {
	case Microsecond:
		return 1e3
	case Millisecond:
		return 1e6
	case Second:
		return 1e9
	case Minute:
		return 60e9
	case Hour:
		return 3600e9
	case Auto:
		return guess(math.Abs(magnitude)).unit(0) // never Auto again
	}
	return 1
}

// As seconds, 5e9 is the year 2128; as milliseconds it is February 1970. So today's times are recognised in each unit, and times near 1970 are not.
func guess(magnitude float64) Precision {
	switch {
	case magnitude < 5e9:
		return Second
	case magnitude < 5e12:
		return Millisecond
	case magnitude < 5e15:
		return Microsecond
	}
	return Nanosecond
}

// nanos scales a whole number; ok is false where the result does not fit.
func (p Precision) nanos(t int64) (ns point.Nanos, ok bool) {
	u := p.unit(float64(t))
	// Compared before the product, which could wrap.
	if t > math.MaxInt64/u || t < math.MinInt64/u {
		return 0, false
	}
	return t * u, true
}

// nanosOf scales a decimal: its whole part exactly, the rest in the precision of a float64.
func (p Precision) nanosOf(t float64) (ns point.Nanos, ok bool) {
	// Below it the whole part fits int64. 1700000000.123456789 as a float64 has steps of 0.24 µs: its fraction is good to that.
	if math.IsNaN(t) || math.Abs(t) >= 1<<62 {
		return 0, false
	}
	whole, frac := math.Modf(t)
	ns, ok = p.nanos(int64(whole))
	add := int64(math.Round(frac * float64(p.unit(t))))
	if !ok || add > 0 && ns > math.MaxInt64-add || add < 0 && ns < math.MinInt64-add {
		return 0, false
	}
	return ns + add, true
}
