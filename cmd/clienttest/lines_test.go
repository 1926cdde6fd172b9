//go:build clients

package clienttest

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// line is a line of line protocol with its meaning.
type line struct {
	measurement string
	tags        []tag
	fields      []field
	time        time.Time
}

type tag struct{ name, value string }

// field is a field as it is written, and the sample that it means.
type field struct {
	name, text string
	value      float64
	isString   bool
}

func integer(name string, v int64) field {
	return field{name: name, text: strconv.FormatInt(v, 10) + "i", value: float64(v)}
}

func unsigned(name string, v uint64) field {
	return field{name: name, text: strconv.FormatUint(v, 10) + "u", value: float64(v)}
}

func float(name string, v float64) field {
	return field{name: name, text: strconv.FormatFloat(v, 'g', -1, 64), value: v}
}

func boolean(name string, v bool) field {
	f := field{name: name, text: strconv.FormatBool(v)}
	if v {
		f.value = 1
	}
	return f
}

func text(name, v string) field {
	return field{name: name, text: `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`, isString: true}
}

var (
	inMeasurement = strings.NewReplacer(`,`, `\,`, ` `, `\ `)
	inName        = strings.NewReplacer(`,`, `\,`, ` `, `\ `, `=`, `\=`)
)

// String is the line as a file holds it.
func (l line) String() string {
	var b strings.Builder
	b.WriteString(inMeasurement.Replace(l.measurement))
	for _, t := range l.tags {
		b.WriteString("," + inName.Replace(t.name) + "=" + inName.Replace(t.value))
	}
	for i, f := range l.fields {
		b.WriteString([]string{" ", ","}[min(i, 1)] + inName.Replace(f.name) + "=" + f.text)
	}
	return b.String() + " " + strconv.FormatInt(l.time.UnixNano(), 10) + "\n"
}

func fileOf(lines []line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.String())
	}
	return b.String()
}

// The lines of a fleet: times lie fleetStep apart, but not on the grid.
const (
	fleetHosts = 40
	fleetTimes = 30
	fleetStep  = 10 * time.Second
	fleetOff   = 7*time.Millisecond + 654321*time.Nanosecond
	perTime    = 3*fleetHosts + 2 // lines
)

// fleet is the reports of many hosts from start on, with every type of field and whatever the format allows in names.
// Lines are in the order of time, perTime for each.
func fleet(start time.Time) []line {
	var lines []line
	for n := range fleetTimes {
		at := start.Add(time.Duration(n) * fleetStep).Add(fleetOff)
		for h := range fleetHosts {
			host := tag{"host", fmt.Sprintf("node-%02d", h)}
			region := tag{"region", []string{"eu west", "us=east", "süd,ost", `back\slash`}[h%4]}
			x := float64(n*fleetHosts + h)
			lines = append(lines,
				line{"cpu", []tag{host, region, {"cpu", "cpu0"}}, []field{
					float("usage_user", math.Sqrt(x)), integer("ticks", int64(n)*1e12-int64(h)), boolean("online", (n+h)%3 > 0),
				}, at},
				line{"mem", []tag{host, region}, []field{
					integer("free", -int64(h)<<32), unsigned("pages", uint64(n)<<40), float("value", -x/7), text("note", `says "5 = 2", \ and so on`),
				}, at},
				line{"net", []tag{host, region, {"path", `a=b,c d`}}, []field{
					integer("in", int64(n)*1000), float("ratio", 1/(x+1)), text("log", "first,a=b x=1 1"),
				}, at},
			)
		}
		lines = append(lines,
			line{"disk io,all", []tag{{"mount point", "/mnt/a b"}, {"k=v", "x=y"}, {"größe", "ÄÖÜ 世界"}}, []field{
				integer("read time", int64(n)), float("a,b=c", float64(n)+0.5),
			}, at},
			line{"limits", []tag{{"host", "edge"}}, []field{
				integer("min", math.MinInt64+int64(n)), integer("max", math.MaxInt64-int64(n)), float("tiny", 5e-324*float64(n+1)),
				float("huge", math.MaxFloat64/float64(n+1)), float("zero", math.Copysign(0, -1)), float("exp", 1e21*float64(n)),
			}, at},
		)
	}
	return lines
}

// speech has strings that go over several lines, one of which looks like a whole line.
func speech(at time.Time) []line {
	var lines []line
	for i, said := range []string{"one\ntwo", "\n", "x\nnet,host=liar in=666i 1\n", "\"\n\\\"\n"} {
		lines = append(lines, line{"speech", []tag{{"speaker", strconv.Itoa(i)}}, []field{text("said", said), integer("n", int64(i))}, at})
	}
	return lines
}

// naming says which series a protocol makes of a field.
type naming struct {
	metric func(measurement, field string) string
	label  func(name string) string
	value  func(v float64) float64
}

// byInflux is how Spillway names series from line protocol.
func byInflux() naming {
	return naming{
		metric: func(measurement, field string) string {
			if field == "value" {
				return measurement
			}
			return measurement + "_" + field
		},
		label: func(name string) string { return name },
		value: func(v float64) float64 { return v },
	}
}

// byTelegraf is how Telegraf names series in remote write: it supports no UTF-8 in names. Its encoder leaves out a
// value that equals zero, and so makes 0 of -0.
func byTelegraf() naming {
	plain := func(s string, more string) string {
		return strings.Trim(strings.Map(func(r rune) rune {
			if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || strings.ContainsRune(more, r) {
				return r
			}
			return '_'
		}, s), "_")
	}
	return naming{
		metric: func(measurement, field string) string { return plain(measurement+"_"+field, ":") },
		label:  func(name string) string { return plain(name, "") },
		value:  func(v float64) float64 { return v + 0 },
	}
}

// expected is the correct answer of the query API for lines. Strings are no samples.
func expected(lines []line, by naming) rows {
	want := rows{}
	for _, l := range lines {
		labels := map[string]string{}
		for _, t := range l.tags {
			labels[by.label(t.name)] = t.value
		}
		for _, f := range l.fields {
			if f.isString {
				continue
			}
			labels["__name__"] = by.metric(l.measurement, f.name)
			key := seriesKey(labels)
			want[key] = append(want[key], sample{l.time.UnixMilli(), by.value(f.value)})
		}
	}
	return want
}

// stepped is the correct answer of query_range where each sample is visible for the lookback after it.
func (r rows) stepped(start, end time.Time, step, lookback time.Duration) rows {
	out := rows{}
	for key, list := range r {
		next, newest := 0, -1
		for at := start.UnixMilli(); at <= end.UnixMilli(); at += step.Milliseconds() {
			for next < len(list) && list[next].ms <= at {
				newest, next = next, next+1
			}
			if newest >= 0 && at-list[newest].ms < lookback.Milliseconds() {
				out[key] = append(out[key], sample{at, list[newest].value})
			}
		}
	}
	return out
}
