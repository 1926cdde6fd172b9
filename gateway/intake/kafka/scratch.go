package kafka

import "github.com/spillwaydb/spillway/protocols/point"

// scratch is the place where one record is decoded and judged, before its rows join those of the other records of a write.
//
// Its float rows lie where they will stay, in the free memory behind the rows of the table's batch, as long as there is
// some; then they join without a copy:
//
//	table's batch:  │ rows of records 1 to 6 │ rows of record 7 │  free   │
//	                ╰───────── len ──────────╯                            ╰ cap
//	scratch:                                 ╰─ len ─╯
//
// A record with more rows than fit has its own memory, and the rows are copied. Of a refused record nothing joins,
// and the next one overwrites it.
//
// Copies, and the regrowth of batches that the pool had lost, cost 5.6 % of the consumer's processor time with 8 records of
// 4600 rows a batch; the remaining copies cost 1.2 % (profiles of BenchmarkRecords/100kB,none, 2026-11-21).
type scratch struct {
	*point.Batch
	own  columns // not the table's; as large as the largest record needed it
	lent columns // the columns that the batch began with
}

// columns are memory for float rows.
type columns struct {
	ids    []point.SeriesID
	times  []point.Nanos
	values []float64
}

// begin empties s for the next record; its rows may lie behind those of d. It holds until end.
func (s *scratch) begin(d *point.Batch) {
	s.Reset()
	s.Dict = d.Dict
	s.lent = columns{room(d.IDs, s.own.ids), room(d.Times, s.own.times), room(d.Values, s.own.values)}
	s.IDs, s.Times, s.Values = s.lent.ids, s.lent.times, s.lent.values
}

// end lets go of the table's memory, which may be another's from now on.
func (s *scratch) end() {
	s.own = columns{larger(s.own.ids, s.IDs, s.lent.ids), larger(s.own.times, s.Times, s.lent.times), larger(s.own.values, s.Values, s.lent.values)}
	s.lent = columns{}
	s.IDs, s.Times, s.Values = nil, nil, nil
}

// room is the free memory behind d, unless there is more of one's own.
func room[T any](d, own []T) []T {
	if free := d[len(d):]; cap(free) >= cap(own) {
		return free
	}
	return own
}

// larger is own, or the slice that append made in place of lent if that is larger.
func larger[T any](own, used, lent []T) []T {
	if cap(used) <= cap(own) || same(used, lent) {
		return own
	}
	return used[:0]
}

// join puts s behind d, where it may lie already.
func join[T any](d, s []T) []T {
	if same(d[len(d):], s) {
		return d[:len(d)+len(s)]
	}
	return append(d, s...)
}

// same: both begin at the same place.
func same[T any](a, b []T) bool {
	return cap(a) > 0 && cap(b) > 0 && &a[:1][0] == &b[:1][0]
}
