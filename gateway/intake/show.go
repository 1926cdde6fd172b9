package intake

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/point"
)

// show is the clauses of a SHOW statement about series.
type show struct {
	db, from string
	keys     []string // of WITH KEY
	limit    int      // 0: none
}

// readShow reads ON <db>, FROM <measurement>, WITH KEY = <key> or IN (<keys>), LIMIT <n>, in this order. Anything else is an
// error for the sender: ignoring a condition would answer another question.
func readShow(ts []token) (s show, err error) {
	if len(ts) >= 2 && ts[0].is("ON") {
		s.db, ts = ts[1].text, ts[2:]
	}
	if len(ts) >= 2 && ts[0].is("FROM") {
		s.from, ts = ts[1].text, ts[2:]
	}
	if len(ts) >= 3 && ts[0].is("WITH") && ts[1].is("KEY") {
		if s.keys, ts, err = readKeys(ts[2:]); err != nil {
			return s, err
		}
	}
	_, s.limit, err = clauses(ts)
	return s, err
}

// keysMax bounds the keys of one SHOW TAG VALUES: each is looked up in each series.
const keysMax = 100

func readKeys(ts []token) (keys []string, rest []token, err error) {
	if len(ts) >= 2 && ts[0].text == "=" && !ts[0].quoted && ts[1].text != "~" {
		return []string{ts[1].text}, ts[2:], nil
	}
	if len(ts) >= 3 && ts[0].is("IN") && ts[1].text == "(" {
		for i := 2; i+1 < len(ts); i += 2 {
			if !slices.Contains(keys, ts[i].text) {
				if len(keys) == keysMax {
					return nil, nil, fmt.Errorf("WITH KEY IN has more than %d keys", keysMax)
				}
				keys = append(keys, ts[i].text)
			}
			switch ts[i+1].text {
			case ")":
				return keys, ts[i+2:], nil
			case ",":
				continue
			}
			break
		}
	}
	return nil, nil, errors.New("WITH KEY wants = and a key, or IN and keys in parentheses; other operators are not supported here")
}

// showTagValues lists the values of the tags that WITH KEY names, by measurement.
func (f *Front) showTagValues(ctx context.Context, ts []token, by asker) ([]rows, error) {
	s, err := readShow(ts)
	if err == nil && len(s.keys) == 0 {
		err = errors.New("error parsing query: SHOW TAG VALUES wants WITH KEY")
	}
	if err != nil {
		return nil, err
	}
	series, release, err := f.seriesOf(ctx, &s, by, scanMax)
	if err != nil {
		return nil, err
	}
	defer release()
	type value struct{ metric, key, value string }
	seen := map[value]bool{}
	all := byMetric(series, []string{"key", "value"}, func(r *rows, l point.Labels) {
		for _, key := range s.keys {
			v := value{r.Name, key, l.Get(key)}
			if v.value != "" && key != point.MetricName && !seen[v] {
				seen[v] = true
				r.Values = append(r.Values, []any{key, strings.Clone(v.value)})
			}
		}
	})
	all = slices.DeleteFunc(all, func(r rows) bool { return len(r.Values) == 0 })
	for i := range all {
		slices.SortFunc(all[i].Values, func(a, b []any) int {
			if c := strings.Compare(a[0].(string), b[0].(string)); c != 0 {
				return c
			}
			return strings.Compare(a[1].(string), b[1].(string))
		})
	}
	return limited(all, s.limit), nil
}

// durationIn reads the DURATION of a retention policy, that of shards left out; nil: there is none.
func durationIn(ts []token) (*time.Duration, error) {
	for i := range ts {
		if !ts[i].is("DURATION") || i > 0 && ts[i-1].is("SHARD") {
			continue
		}
		if i+1 == len(ts) {
			return nil, errors.New("error parsing query: found EOF, expected duration")
		}
		d, ok := parseInfluxDuration(ts[i+1].text)
		if !ok {
			return nil, fmt.Errorf("error parsing query: found %s, expected duration as 7d, 1h30m or INF", ts[i+1].text)
		}
		return &d, nil
	}
	return nil, nil
}

// influxUnits are the units of InfluxQL's durations.
var influxUnits = map[string]time.Duration{
	"ns": 1, "u": time.Microsecond, "µ": time.Microsecond, "ms": time.Millisecond, "s": time.Second, "m": time.Minute,
	"h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour,
}

// parseInfluxDuration reads 7d or 1h30m; INF and 0s are 0, for ever.
func parseInfluxDuration(text string) (sum time.Duration, ok bool) {
	if strings.EqualFold(text, "INF") {
		return 0, true
	}
	for rest := text; rest != ""; {
		digits := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if digits <= 0 {
			return 0, false
		}
		n, err := strconv.ParseInt(rest[:digits], 10, 64)
		rest = rest[digits:]
		end := strings.IndexFunc(rest, func(r rune) bool { return '0' <= r && r <= '9' })
		if end < 0 {
			end = len(rest)
		}
		unit, known := influxUnits[rest[:end]]
		rest = rest[end:]
		if err != nil || !known || n > int64(math.MaxInt64-sum)/int64(unit) {
			return 0, false
		}
		sum += time.Duration(n) * unit
	}
	return sum, text != ""
}

// overTime are the functions of PromQL that do what those of InfluxQL do over a window.
var overTime = map[string]string{
	"mean": "avg_over_time", "max": "max_over_time", "min": "min_over_time", "sum": "sum_over_time", "count": "count_over_time",
	"last": "last_over_time", "first": "first_over_time", "stddev": "stddev_over_time", "median": "quantile_over_time", "derivative": "deriv", "non_negative_derivative": "rate",
}

// selectHint is the answer to a SELECT, with the PromQL that asks about the same: SELECT mean("usage") FROM "cpu" … GROUP BY
// time(1m) is avg_over_time(cpu_usage[1m]).
func selectHint(ts []token) string {
	const ask = "SELECT is not supported here: ask in PromQL, at /api/v1/query or /api/v1/query_range"
	from := slices.IndexFunc(ts, func(t token) bool { return t.is("FROM") })
	if from < 1 || from+1 >= len(ts) {
		return ask
	}
	field, function := ts[0].text, ""
	if from >= 4 && ts[1].text == "(" {
		field, function = ts[2].text, overTime[strings.ToLower(ts[0].text)]
	}
	metric := ts[from+1].text
	switch {
	case field == "*":
		metric = "{__name__=~\"" + metric + "(_.+)?\"}"
	case field != "value":
		metric += "_" + field
	}
	if function == "" {
		return ask + ", as in " + metric
	}
	window := "5m"
	for i := range ts[:max(len(ts)-2, 0)] {
		if _, ok := parseInfluxDuration(ts[i+2].text); ok && ts[i].is("time") && ts[i+1].text == "(" {
			window = ts[i+2].text
		}
	}
	metric += "[" + window + "]"
	if function == "quantile_over_time" {
		metric = "0.5, " + metric
	}
	return ask + ", as in " + function + "(" + metric + ")"
}

// policyHint is the answer to a statement that would change a retention policy, with the command that does: a table has one policy, autogen.
// ALTER RETENTION POLICY autogen ON hosts DURATION 30d is spillway table set hosts --retention 30d.
func policyHint(ts []token, by asker) string {
	table, keep := by.Table, "30d"
	for i, t := range ts[:len(ts)-1] {
		switch next := ts[i+1].text; {
		case t.is("ON") && tablename.Check(next) == nil:
			table = next
		case t.is("DURATION") && !ts[i-1].is("SHARD"):
			if d, ok := parseInfluxDuration(next); ok && d == 0 {
				keep = "0"
			} else if ok {
				keep = next
			}
		}
	}
	return strings.ToUpper(ts[0].text) + " RETENTION POLICY is not done from here: a table has one policy, autogen, and `spillway table set " + table + " --retention " + keep + "` sets how long it keeps its rows"
}
