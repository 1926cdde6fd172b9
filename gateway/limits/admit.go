package limits

import (
	"time"

	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Admit is s.Batch with the table's own bounds of time in addition, and counts the rows that those refuse. In dry run they
// refuse nothing; s and the table's retention refuse all the same.
func (t *Table) Admit(s admit.Settings, b *point.Batch, now clock.Reading, table admit.Bounds) (admit.Counts, error) {
	v := t.Values()
	if v.PastMax == 0 && v.FutureMax == 0 {
		return s.Batch(b, now, table)
	}
	own := s
	own.PastMax = time.Duration(v.PastMax)
	if future := time.Duration(v.FutureMax); future > 0 && (s.FutureMax == 0 || future < s.FutureMax) {
		own.FutureMax = future
	}
	var n, of admit.Counts
	var err error
	if v.DryRun {
		if n, err = s.Batch(b, now, table); err == nil {
			of = own.Outside(b, now, table)
		}
	} else if n, err = own.Batch(b, now, table); err == nil {
		of = n
	}
	if of.Old > 0 && own.PastMax > 0 && now.Earliest-int64(own.PastMax) > table.Lo {
		t.Refused(PastMax, of.Old)
	}
	if of.Ahead > 0 && own.FutureMax != s.FutureMax {
		t.Refused(FutureMax, of.Ahead)
	}
	return n, err
}
