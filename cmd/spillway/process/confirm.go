package process

import (
	"context"
	"fmt"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/retention"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// confirmedRows are the rows of the coordination store with the losses that persons confirmed (retention.Confirmed), by table: three numbers, in nanoseconds. One
// is there from the order on until the partitions are gone.
const confirmedRows = "retention/confirmed/"

const confirmedFormat = "%d %d %d"

// confirmed is the loss that a person confirmed of a table, and the revision of its row. The error is Corrupt, or the store's: then there is none.
func (p *standalone) confirmed(ctx context.Context, table string) (c retention.Confirmed, at coord.Revision, err error) {
	row, ok, err := p.coord.Get(ctx, confirmedRows+table)
	if err != nil || !ok {
		return c, 0, err
	}
	if _, err := fmt.Sscanf(string(row.Value), confirmedFormat, &c.Retention, &c.From, &c.Through); err != nil {
		return retention.Confirmed{}, row.Revision, fault.Wrap(err, fault.Corrupt, "confirmed retention of table %s in the coordination store", table)
	}
	return c, row.Revision, nil
}

// noteConfirmed implements administration.Keeping. Where it is in doubt which clock is right, a person confirms the loss of partitions that are too old by both.
func (p *standalone) noteConfirmed(ctx context.Context, m, next *topology.Map, seen bool) error {
	earlier, at, err := p.confirmed(ctx, m.Table)
	if err != nil && !fault.Is(err, fault.Corrupt) {
		return err
	}
	w := coord.Write{Key: confirmedRows + m.Table, Delete: true}
	if c, ok := retention.Confirm(m, next, p.retention.clock.Read().Earliest); ok && seen {
		c = c.And(earlier)
		w = coord.Write{Key: w.Key, Value: fmt.Appendf(nil, confirmedFormat, int64(c.Retention), c.From, c.Through)}
	} else if at == 0 || earlier.Stands(next) {
		return nil
	}
	_, _, err = p.coord.Commit(ctx, nil, []coord.Write{w})
	return err
}

// doneConfirmed forgets the loss that a person confirmed of a table once it has come.
func (p *standalone) doneConfirmed(ctx context.Context, m *topology.Map) error {
	c, at, err := p.confirmed(ctx, m.Table)
	if err != nil || at == 0 || !c.Stands(m) || c.Left(m) {
		return err
	}
	key := confirmedRows + m.Table
	_, _, err = p.coord.Commit(ctx, []coord.Condition{{Key: key, Revision: at}}, []coord.Write{{Key: key, Delete: true}}) // a later order may have noted more
	return err
}

// forgetConfirmed forgets the loss that a person confirmed of a table that is dropped: another one of that name has other rows.
func (p *standalone) forgetConfirmed(ctx context.Context, table string) error {
	_, ok, err := p.coord.Get(ctx, confirmedRows+table)
	if err != nil || !ok {
		return err
	}
	_, _, err = p.coord.Commit(ctx, nil, []coord.Write{{Key: confirmedRows + table, Delete: true}})
	return err
}
