package intake

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// The answers to DROP DATABASE where this process cannot drop tables, or may not.
var (
	errDropElsewhere = errors.New("DROP DATABASE is not done from here: `spillway table drop` does it")
	errDropOff       = errors.New("DROP DATABASE is switched off here: --enable-delete switches it on, and `spillway table drop` does it without")
)

// dropDatabase drops a table with all its rows. As with the original it is no error that there is none.
func (f *Front) dropDatabase(ctx context.Context, ts []token, by asker) error {
	switch {
	case f.tables == nil:
		return errDropElsewhere
	case !f.settings.Delete:
		return errDropOff
	case len(ts) == 0:
		return errors.New("error parsing query: found EOF, expected identifier")
	case len(ts) > 1:
		return fmt.Errorf("error parsing query: found %s, expected EOF", ts[1].text)
	case by.deletes != nil:
		return by.deletes
	}
	if err := tablename.Check(ts[0].text); err != nil {
		return err
	}
	if err := f.allows(by, access.Admin, ts[0].text); err != nil {
		return err
	}
	if err := f.tables.Drop(ctx, ts[0].text, by.identity.Name); !fault.Is(err, fault.NotFound) {
		return err
	}
	return nil
}

// dropRows deletes the rows of series: DROP MEASUREMENT <name>, DROP SERIES and DELETE with FROM <name>, WHERE, or both. A
// measurement is a metric, as in SHOW MEASUREMENTS.
func (f *Front) dropRows(ctx context.Context, d deletion, err error, by asker) error {
	if err != nil {
		return fmt.Errorf("error parsing query: %w", err)
	}
	if by.deletes != nil {
		return by.deletes
	}
	name, err := by.tableOf()
	if err != nil {
		return err
	}
	if err := f.allows(by, access.Admin, name); err != nil {
		return err
	}
	t, err := f.existing(ctx, name)
	if err != nil {
		return err
	}
	return f.delete(ctx, by, name, t, d, f.metricNamed)
}

// readDropMeasurement reads what follows DROP MEASUREMENT.
func readDropMeasurement(ts []token) (deletion, error) {
	if len(ts) != 1 || ts[0].text == "" {
		return deletion{}, errors.New("expected one name of a measurement, in quotes if it is not one word")
	}
	return deletion{measurement: ts[0].text, lo: math.MinInt64, hi: math.MaxInt64}, nil
}

// readDelete reads FROM <name> WHERE <conditions>, of which one may be missing. Now is that of conditions on time; nil: there may be none.
func readDelete(ts []token, now *present) (d deletion, err error) {
	d.lo, d.hi = math.MinInt64, math.MaxInt64
	if len(ts) == 0 {
		return d, errors.New("found EOF, expected FROM, WHERE")
	}
	if len(ts) >= 2 && ts[0].is("FROM") {
		if ts[1].text == "" || !ts[1].quoted && !isWord(ts[1].text[0]) {
			return d, refused(ts[1], "found %s, expected the name of one measurement: others are not supported", ts[1].text)
		}
		d.measurement, ts = ts[1].text, ts[2:]
	}
	if len(ts) == 0 {
		return d, nil
	}
	if ts[0].text == "." && !ts[0].quoted {
		return d, errors.New("found ., expected WHERE: a database or retention policy before the measurement is not supported, db= names the database")
	}
	if !ts[0].is("WHERE") {
		return d, fmt.Errorf("found %s, expected FROM <measurement>, WHERE: no more is supported", ts[0].text)
	}
	conds, err := readConditions(ts[1:], true)
	if err != nil {
		return d, err
	}
	for _, c := range conds {
		if err := d.narrow(c, now); err != nil {
			return d, err
		}
	}
	if d.lo > d.hi {
		return d, errors.New("the times of WHERE leave nothing")
	}
	return d, nil
}

// narrow narrows a deletion by a condition of InfluxQL on a tag, or on time where there is a now.
func (d *deletion) narrow(c condition, now *present) error {
	switch {
	case c.onTime() && now == nil:
		return errors.New("DROP SERIES doesn't support time in WHERE clause: it drops whole series, DELETE deletes rows by their time")
	case c.onTime():
		return d.narrowTime(c, *now)
	case c.op != "=":
		return fmt.Errorf("%s %s: only = is supported for tags", c.key, c.op)
	case c.value == "" || c.key == point.MetricName:
		return fmt.Errorf("%s %s %q is not supported", c.key, c.op, c.value)
	}
	d.tags = append(d.tags, peer.Matcher{Type: peer.MatchEqual, Name: c.key, Value: c.value})
	return nil
}

func (d *deletion) narrowTime(c condition, now present) error {
	at, err := moment(c.moment, now)
	if err != nil {
		return err
	}
	edge := at == math.MinInt64 || at == math.MaxInt64
	switch {
	case c.op == "<" && !edge:
		d.hi = min(d.hi, at-1)
	case c.op == ">" && !edge:
		d.lo = max(d.lo, at+1)
	case c.op == "<=" || c.op == "<":
		d.hi = min(d.hi, at)
	case c.op == ">=" || c.op == ">":
		d.lo = max(d.lo, at)
	case c.op == "=":
		d.lo, d.hi = max(d.lo, at), min(d.hi, at)
	default:
		return fmt.Errorf("time %s is not supported", c.op)
	}
	return nil
}
