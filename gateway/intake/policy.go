package intake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// defaultPolicy is the name of the only retention policy of a table.
const defaultPolicy = "autogen"

// policy is CREATE or ALTER RETENTION POLICY <name> ON <database>. Of a policy a table has its DURATION alone.
type policy struct {
	name, db  string
	keep      *time.Duration // nil: it is not named
	byDefault bool
}

// readPolicy reads what follows RETENTION POLICY.
func readPolicy(ts []token) (p policy, err error) {
	if len(ts) < 3 || !ts[1].is("ON") {
		return p, errors.New("error parsing query: expected a name, ON and a database")
	}
	p.name, p.db = ts[0].text, ts[2].text
	for rest := ts[3:]; len(rest) > 0; {
		read := 2
		switch {
		case rest[0].is("DEFAULT"):
			p.byDefault, read = true, 1
		case rest[0].is("DURATION"):
			if p.keep, err = durationIn(rest[:min(2, len(rest))]); err != nil {
				return p, err
			}
		case rest[0].is("REPLICATION"):
		case rest[0].is("SHARD") && len(rest) > 1 && rest[1].is("DURATION"):
			read = 3
		default:
			return p, fmt.Errorf("error parsing query: found %s, expected DURATION, REPLICATION, SHARD, DEFAULT", rest[0].text)
		}
		if len(rest) < read {
			return p, fmt.Errorf("error parsing query: found EOF after %s", rest[len(rest)-1].text)
		}
		rest = rest[read:]
	}
	return p, nil
}

// setPolicy sets how long a table keeps its rows, if the statement is about its default policy. Others are refused: rows would be
// kept by a policy that the sender did not mean.
func (f *Front) setPolicy(ctx context.Context, ts []token, by asker) error {
	p, err := readPolicy(ts[3:])
	switch {
	case f.tables == nil || ts[0].is("DROP") || err == nil && p.name != defaultPolicy && !p.byDefault:
		return errors.New(policyHint(ts, by))
	case err != nil:
		return err
	case p.keep == nil:
		return errors.New("of a retention policy a table has its DURATION alone, and none is given")
	}
	if err := f.allows(by, access.Admin, p.db); err != nil {
		return err
	}
	t, err := f.existing(ctx, p.db)
	if err == nil && ts[0].is("CREATE") && shortens(t, *p.keep) {
		err = mayMakeShorter(ctx, t, p.db)
	}
	if err != nil {
		return err
	}
	return f.keep(ctx, by, p.db, t, *p.keep)
}

// mayMakeShorter refuses a new policy that would delete rows: InfluxDB keeps rows by the policy under which they were written.
func mayMakeShorter(ctx context.Context, t Table, db string) error {
	cat, ok := t.(Catalogue)
	if !ok {
		return errNoCatalogue // whether it has rows is unknown
	}
	names, err := cat.MetricNames(ctx, 1)
	switch {
	case fault.Is(err, fault.NotFound): // the table has no rows
		return nil
	case err == nil && len(names) > 0:
		return fault.Errorf(fault.Invalid, "a table has one retention policy, and a shorter one would delete rows that it has; ALTER RETENTION POLICY %s ON %q shortens it", defaultPolicy, db)
	}
	return err
}

// shortens reports whether a retention, 0 for ever, is shorter than that of a table.
func shortens(t Table, keep time.Duration) bool {
	now := keptSeconds(t)
	return keep > 0 && (now == 0 || keep < time.Duration(now)*time.Second)
}

// keepLeast is the shortest retention that clients of Influx may set. It is InfluxDB's: 3m, meant as months, would delete all rows.
const keepLeast = time.Hour

// longEnough refuses a retention, 0 for ever, that InfluxDB refuses. The error is Invalid, in its words.
func longEnough(keep time.Duration) error {
	if keep > 0 && keep < keepLeast {
		return fault.Errorf(fault.Invalid, "retention policy duration must be at least %v", keepLeast)
	}
	return nil
}

// create makes a table that keeps its rows for so long; nil: as long as new tables do.
func (f *Front) create(ctx context.Context, name string, keep *time.Duration) error {
	if keep != nil {
		if err := longEnough(*keep); err != nil {
			return err
		}
	}
	return f.writer.Create(ctx, name, keep)
}

// keep sets how long a table keeps its rows. A shorter time deletes rows: it needs what a deletion needs.
func (f *Front) keep(ctx context.Context, by asker, name string, t Table, keep time.Duration) error {
	short, shorter := longEnough(keep), shortens(t, keep)
	switch {
	case shorter && by.deletes != nil:
		return fault.Annotate(by.deletes, "a shorter retention deletes rows")
	case shorter && short != nil:
		return short
	case by.creates != nil:
		return fault.Annotate(by.creates, "the retention stays")
	}
	return f.tables.Keep(ctx, name, keep, by.identity.Name)
}
