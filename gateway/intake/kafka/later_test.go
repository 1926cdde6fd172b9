package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// waiting is the rows of one record: a row for each series, at one time.
func waiting(at point.Nanos, series ...point.SeriesID) *point.Batch {
	s := &point.Batch{}
	for _, id := range series {
		s.Append(id, at, float64(id))
	}
	return s
}

// TestItemsLeaveInTheOrderOfTheirTimes draws what waits: for each item its time, its table and its series.
func TestItemsLeaveInTheOrderOfTheirTimes(t *testing.T) {
	var l later
	b := &batch{ticket: ticket{partition: partition{0, "a", 0}}, fates: make([]fate, 8)}
	now := zero
	plan := func(i int, table string, s *point.Batch, delays ...point.Nanos) {
		l.plan(b, i, table, s, delays, func(d point.Nanos) time.Time { return dueAt(zero, now, time.Duration(d), time.Second) })
	}
	draw := func(want string) {
		t.Helper()
		var all []string
		for _, it := range l.items {
			all = append(all, fmt.Sprintf("%v %s%v", it.due.Sub(zero), it.table, it.rows.IDs))
		}
		if got := strings.Join(all, ", "); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	const s = point.Nanos(time.Second)
	plan(0, "t", waiting(100, 1, 2, 3), 0, 20*s, 10*s)
	draw("0s t[1], 10s t[3], 20s t[2]")
	now = now.Add(1500 * time.Millisecond)
	plan(1, "t", waiting(101, 1, 3), 0, 10*s)
	plan(2, "u", waiting(101, 3), 10*s)
	draw("0s t[1], 1s t[1], 10s t[3], 11s t[3], 11s u[3], 20s t[2]")
	if l.rows != 6 || b.open[0] != 3 || b.open[1] != 2 || b.fates[0] != waits {
		t.Errorf("%d rows, records wait for %v", l.rows, b.open)
	}
	plan(3, "t", waiting(50, 2), smear.Jumps) // of a time at which none waits
	draw("0s t[1], 1s t[1 2], 10s t[3], 11s t[3], 11s u[3], 20s t[2]")
	if l.hurry != noHurry || len(l.leave(zero.Add(11*time.Second), 1<<20)) != 5 {
		t.Error("rows of other times make none leave")
	}
	plan(4, "t", waiting(100, 2), smear.Jumps) // of the time of one that waits
	plan(5, "t", waiting(102, 1), 0)
	draw("20s t[2 2 1]")
	if l.hurry != forOrder || !l.due(now) {
		t.Error("rows that would be passed do not leave")
	}
}

// TestRowsThatWaitKeepTheirOrder has random records wait, and writes fail. Rows of a series are written in their order. None is written before it is due, unless its partition
// hurries. A batch is finished when all its rows are written, and not before. What waits is counted, and all rows are written in the end.
func TestRowsThatWaitKeepTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 20_000
		q := newQueue(most)
		parts := []partition{{0, "a", 0}, {0, "a", 1}, {0, "b", 0}}
		some := rapid.SampledFrom(parts)
		type row struct {
			p  partition
			id point.SeriesID
		}
		open := map[partition]uint64{} // assignment
		next := map[partition]uint64{}
		newest := map[row]float64{} // value that was written last; values rise
		wrote := map[*batch]int{}
		rows := map[*batch]int{}
		finished := map[*batch]bool{}
		var flight int64
		var flying []*work
		value, now := 0.0, zero
		write := func(t *rapid.T, b *batch, s *point.Batch) {
			for i, id := range s.IDs {
				at := row{b.ticket.partition, id}
				if open[at.p] != b.ticket.assignment {
					continue // another may write it again meanwhile
				}
				if s.Values[i] < newest[at] {
					t.Fatalf("%v: value %v is written after %v", at, s.Values[i], newest[at])
				}
				newest[at] = s.Values[i]
			}
			wrote[b] += len(s.IDs)
		}
		end := func(t *rapid.T, w *work, fails func() bool) {
			stuck := map[partition]bool{}
			for _, it := range w.items {
				if stuck[it.partition] || fails() {
					stuck[it.partition] = true
					continue
				}
				if now.Before(it.due) && !it.early {
					t.Fatalf("rows of %v leave at %v", it.due, now)
				}
				from := part{}
				for k := range it.parts {
					p := it.parts[k]
					if !p.done {
						s := between(it.rows, from, p)
						write(t, p.b, &s)
						p.of, p.at = it, k
						p.store()
					}
					from = p
				}
			}
			for _, b := range w.batches {
				l := w.lanes[slices.IndexFunc(w.lanes, func(l *lane) bool { return l.partition == b.ticket.partition })]
				for i := range b.fates {
					if w.items != nil || b.fates[i] != pending || stuck[l.partition] {
						continue
					}
					if fails() {
						stuck[l.partition] = true
						break
					}
					s, delays := &point.Batch{}, []point.Nanos(nil)
					jumps := rapid.IntRange(0, 9).Draw(t, "jumps") == 0
					for range rapid.IntRange(1, 3).Draw(t, "rows") {
						id := point.SeriesID(rapid.IntRange(0, 3).Draw(t, "series"))
						value++
						s.Append(id, 7, value)
						d := point.Nanos(id) * 10
						if jumps && d > 0 {
							d = smear.Jumps
						}
						delays = append(delays, d)
					}
					rows[b] += len(s.IDs)
					back := rapid.IntRange(0, 9).Draw(t, "set back") == 0
					if back {
						delays = nil
					}
					if back && !l.later.passes("t", s, nil) {
						write(t, b, s)
						b.store(i)
						continue
					}
					l.later.plan(b, i, "t", s, delays, func(d point.Nanos) time.Time { return dueAt(zero, now, time.Duration(d), 4) })
				}
			}
			q.giveBack(w, now.Add(2), func(b *batch) {
				if finished[b] || wrote[b] != rows[b] {
					t.Fatalf("a batch is finished with %d of %d rows written", wrote[b], rows[b])
				}
				finished[b] = true
			}, func(b *batch) { flight -= b.bytes })
		}
		take := func(t *rapid.T) bool {
			w, _ := q.take(now, rapid.Int64Range(1, 4000).Draw(t, "room"))
			if w == nil {
				return false
			}
			for _, f := range flying {
				for _, l := range f.lanes {
					if slices.ContainsFunc(w.lanes, func(o *lane) bool { return o == l }) {
						t.Fatalf("%v is at two workers", l.partition)
					}
				}
			}
			flying = append(flying, w)
			return true
		}
		var all []*batch
		t.Repeat(map[string]func(*rapid.T){
			"assign": func(t *rapid.T) {
				p := some.Draw(t, "p")
				if open[p] != 0 {
					t.Skip()
				}
				q.assign(p)
				next[p]++
				open[p] = next[p]
				for at := range newest {
					if at.p == p {
						delete(newest, at) // it is read again from the commit on
					}
				}
			},
			"push": func(t *rapid.T) {
				p := some.Draw(t, "p")
				if open[p] == 0 {
					t.Skip()
				}
				n := rapid.IntRange(1, 3).Draw(t, "records")
				b := &batch{ticket: ticket{partition: p, assignment: open[p]}, records: make([]*kgo.Record, n), bytes: int64(n) * 100, fates: make([]fate, n)}
				all = append(all, b)
				flight += b.bytes
				q.push(b)
			},
			"drop": func(t *rapid.T) {
				p := some.Draw(t, "p")
				flight -= q.drop(p)
				open[p] = 0
			},
			"take": func(t *rapid.T) { take(t) },
			"end": func(t *rapid.T) {
				if len(flying) == 0 {
					t.Skip()
				}
				w := flying[0]
				flying = flying[1:]
				end(t, w, func() bool { return rapid.IntRange(0, 4).Draw(t, "fails") == 0 })
			},
			"wait": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 9).Draw(t, "for"))) },
			"": func(t *rapid.T) {
				bytes, n := int64(0), 0
				for _, l := range q.parts {
					bytes, n = bytes+l.held, n+l.heldRows
					if !l.busy && (l.held != l.later.bytes+l.parked || l.heldRows != l.later.rows || len(l.later.items) == 0 && l.held > 0 && len(l.batches) == 0) {
						t.Fatalf("%v: %d bytes are counted, %d of items and %d of batches wait", l.partition, l.held, l.later.bytes, l.parked)
					}
				}
				if bytes != q.laterBytes || n != q.laterRows {
					t.Fatalf("%d bytes and %d rows wait, %d and %d are counted", bytes, n, q.laterBytes, q.laterRows)
				}
			},
		})
		for len(flying) > 0 {
			w := flying[0]
			flying = flying[1:]
			end(t, w, func() bool { return false })
		}
		for now = now.Add(1000); take(t); now = now.Add(1000) {
			end(t, flying[0], func() bool { return false })
			flying = nil
		}
		for _, b := range all {
			if !finished[b] && open[b.ticket.partition] == b.ticket.assignment {
				t.Fatal("a batch is not finished in the end")
			}
		}
		if flight != 0 || q.laterBytes != 0 || q.laterRows != 0 {
			t.Fatalf("%d bytes in flight in the end, %d wait, and %d rows", flight, q.laterBytes, q.laterRows)
		}
	})
}

const hour = point.Nanos(time.Hour)

// slowly has rows of series that begin with slow wait for so long, unless their record opts out.
func slowly(wait point.Nanos) func(*memoryTable) {
	return func(t *memoryTable) {
		t.delay = func(b *point.Batch, i int) point.Nanos {
			switch {
			case !strings.HasPrefix(b.Dict.Labels(b.IDs[i]).Get("s"), "slow"):
				return 0
			case b.Smear == point.SmearOff:
				return smear.Jumps
			}
			return wait
		}
	}
}

// waitLater waits until so many rows wait in their topics, and nothing is in flight.
func waitLater(t *testing.T, r *running, rows int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d rows wait", rows), func() (bool, any) {
		s := r.Status()
		return s.LaterRows == rows && s.InFlightBytes == 0, s
	})
}

func (t *memoryTable) written() []float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.order)
}

// at is a row of a series at a time of its own, so that the value written last is the one that is left.
func at(series string, v int) string { return fmt.Sprintf("m,s=%s v=%d 7", series, v) }

// TestRowsThatWaitAreNotLostWithTheirGateway: a record has a row that waits for an hour, and one that does not wait. The gateway stops before the hour is over. Nothing
// of the batch was committed, and the next gateway writes the row.
func TestRowsThatWaitAreNotLostWithTheirGateway(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	m.table("default").set(slowly(hour))
	w.produce("metrics", 0, at("fast", 1), at("slow", 2)+"\n"+at("fast", 3), at("fast", 4))
	w.produce("metrics", 1, at("fast", 5))
	r := w.start(m)
	waitLater(t, r, 1)
	w.waitCommitted("g", map[string]int64{"metrics/1": 1}) // it may come in an answer of its own
	if got := m.table("default").written(); !slices.Equal(slices.Sorted(slices.Values(got)), []float64{1, 3, 4, 5}) {
		t.Errorf("written are %v", got)
	}
	if s := r.Status(); s.LaterBytes == 0 || s.Clusters[0].Lag != 3 {
		t.Errorf("%d bytes wait, and the lag is %d records", s.LaterBytes, s.Clusters[0].Lag)
	}
	r.stop()
	next := newMemory()
	w.start(next)
	w.waitCommitted("g", map[string]int64{"metrics/0": 3, "metrics/1": 1})
	if got := next.table("default").written(); !slices.Equal(got, []float64{1, 2, 3, 4}) {
		t.Errorf("the next gateway wrote %v", got)
	}
}

// TestRowsThatWaitAreWrittenWhenTheyAreDue, without being smeared again, and their offsets are committed then.
func TestRowsThatWaitAreWrittenWhenTheyAreDue(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	m.table("default").set(slowly(point.Nanos(smear.Tick)))
	w.produce("metrics", 0, at("slow", 1), at("fast", 2))
	r := w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": 2})
	waitLater(t, r, 0)
	if got := m.table("default").smears; got[1] != point.SmearWaited || got[2] != point.SmearWaited {
		t.Errorf("the table saw %v", got)
	}
	if s := r.Status(); s.LaterBytes != 0 {
		t.Errorf("%d bytes are counted of nothing", s.LaterBytes)
	}
}

// TestNoRecordPassesRowsThatWait: of two values at one time the later record's wins, also where it does not wait: it opts out, or its table was set back.
func TestNoRecordPassesRowsThatWait(t *testing.T) {
	t.Parallel()
	f := func(name string, second func(*world, *memoryTable)) {
		t.Run(name, func(t *testing.T) {
			w, m := newWorld(t), newMemory()
			m.table("default").set(slowly(hour))
			w.produce("metrics", 0, at("slow", 1))
			r := w.start(m)
			waitLater(t, r, 1)
			second(w, m.table("default"))
			w.waitCommitted("g", map[string]int64{"metrics/0": 2})
			if got := m.table("default").written(); !slices.Equal(got, []float64{1, 2}) {
				t.Errorf("written in the order %v", got)
			}
			if s := r.Status(); s.early[forOrder] == 0 {
				t.Error("none is counted as early")
			}
		})
	}
	f("opting out", func(w *world, _ *memoryTable) {
		if err := w.producer.ProduceSync(context.Background(), &kgo.Record{Topic: "metrics", Value: []byte(at("slow", 2)),
			Headers: []kgo.RecordHeader{{Key: "smear", Value: []byte("off")}}}).FirstErr(); err != nil {
			w.t.Fatal(err)
		}
	})
	f("set back", func(w *world, tab *memoryTable) {
		tab.set(func(tab *memoryTable) { tab.delay = nil })
		w.produce("metrics", 0, at("slow", 2))
	})
}

// changing is a table that begins to let rows wait with its second record.
type changing struct {
	*memoryTable
	*memory
	asked int
}

func (c *changing) Table(context.Context, string) (intake.Table, error) { return c, nil }

func (c *changing) Delays(_ time.Time, b *point.Batch, delays []point.Nanos) ([]point.Nanos, bool) {
	c.asked++
	return append(delays, make([]point.Nanos, len(b.IDs))...), c.asked > 1
}

// TestRowsThatWaitDoNotPassOnesThatAreTriedAgain: a table is set to wait between two records of one write, and the write of the first fails. The second is not put where it would
// be written first.
func TestRowsThatWaitDoNotPassOnesThatAreTriedAgain(t *testing.T) {
	t.Parallel()
	m := newMemory()
	table := &changing{memory: m, memoryTable: m.table("default")}
	table.fail = func(*point.Batch) error {
		return fault.Errorf(fault.Unavailable, "the storage is away for a moment")
	}
	b := newBench(t, m, func(*Settings) {})
	b.c.deps.Writer = table
	l := &lane{partition: partition{0, "metrics", 0}}
	b.work.lanes = []*lane{l}
	b.from(0, nil, at("slow", 1), at("slow", 2))
	if err := b.run(); fault.KindOf(err) != fault.Unavailable || len(l.later.items) > 0 {
		t.Fatalf("%d items, %v", len(l.later.items), err)
	}
	table.fail = nil
	err := b.run()
	var values []float64
	for _, it := range l.later.items {
		values = append(values, it.rows.Values...)
	}
	if err != nil || !slices.Equal(values, []float64{1, 2}) {
		t.Errorf("%v wait, %v", values, err)
	}
}

// TestNoMoreRowsWaitThanMay: at its share of memory a partition's rows leave at once, and it goes on.
func TestNoMoreRowsWaitThanMay(t *testing.T) {
	t.Parallel()
	const most, n = 64 << 10, 2000
	w, m := newWorld(t), newMemory()
	m.table("default").set(slowly(hour))
	var all []string
	for i := range n {
		all = append(all, line("slow", i))
	}
	w.produce("metrics", 0, all...)
	r := w.start(m, func(s *Settings) { s.InFlightBytesMax, s.WriteBytesMax = most, 4<<10 })
	eventually(t, "most are written", func() (bool, any) {
		s := r.Status()
		if s.LaterBytes > most {
			t.Errorf("%d bytes wait, %d may", s.LaterBytes, most)
		}
		written := m.table("default").count()
		return written+s.LaterRows == n && s.InFlightBytes == 0 && s.LaterBytes < most/4, fmt.Sprint(written, s)
	})
	if s := r.Status(); s.early[forRoom] == 0 || s.early[forRoom] != uint64(m.table("default").count()) {
		t.Errorf("%d rows are counted as early of %d", s.early[forRoom], m.table("default").count())
	}
}

// TestARecordInTwoItemsHasOneLetter: both rows of a record are refused, at their times. It is put aside once, after the second, and committed then.
func TestARecordInTwoItemsHasOneLetter(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	tab.set(slowly(point.Nanos(smear.Tick)))
	tab.refuse = func(b *point.Batch, i int) bool { return b.Values[i] < 3 }
	w.produce("metrics", 0, at("slow", 1)+"\n"+at("fast", 2)+"\n"+at("slow", 3), at("fast", 4))
	w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": 2})
	l := w.letters(1)
	if len(l) != 1 || header(l[0], headerOffset) != "0" || header(l[0], headerRows) != "2" {
		t.Errorf("letters: %v", l)
	}
	if got := tab.written(); !slices.Equal(slices.Sorted(slices.Values(got)), []float64{3, 4}) {
		t.Errorf("written are %v", got)
	}
}

// TestRowsThatCannotBeWrittenWhenDueComeAgain: the storage is away when they are due. They are written later, in their order, and committed then.
func TestRowsThatCannotBeWrittenWhenDueComeAgain(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	tab.set(slowly(point.Nanos(smear.Tick)))
	tries := 0
	tab.fail = func(b *point.Batch) error {
		tab.mu.Lock()
		defer tab.mu.Unlock()
		if tries++; tries < 4 {
			return fault.Errorf(fault.Unavailable, "the storage is away for a moment")
		}
		return nil
	}
	w.produce("metrics", 0, at("slow", 1), at("slow", 2), at("slow", 3))
	w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": 3})
	if got := tab.written(); !slices.Equal(got, []float64{1, 2, 3}) {
		t.Errorf("written in the order %v", got)
	}
}

// TestPartitionsMoveWithRowsThatWait: the rows wait in memory of one gateway when another joins. Partitions move at once, uncommitted, and their next owner writes the rows.
func TestPartitionsMoveWithRowsThatWait(t *testing.T) {
	t.Parallel()
	w, first, second := newWorld(t), newMemory(), newMemory()
	first.table("default").set(slowly(hour))
	for p := range int32(4) {
		w.produce("metrics", p, at("slow", int(p)))
	}
	one := w.start(first)
	waitLater(t, one, 4)
	two := w.start(second)
	eventually(t, "both have partitions, and rows wait of those of the first alone", func() (bool, any) {
		a, b := one.Status(), two.Status()
		return len(b.Clusters[0].Partitions) == 2 && a.LaterRows == 2 && len(a.Clusters[0].Partitions) == 2, fmt.Sprint(a, b)
	})
	eventually(t, "the second wrote those of its partitions", func() (bool, any) {
		got := second.table("default").written()
		return len(got) == 2, got
	})
	one.stop()
	w.waitCommitted("g", map[string]int64{"metrics/0": 1, "metrics/1": 1, "metrics/2": 1, "metrics/3": 1})
	if got := second.table("default").written(); !slices.Equal(slices.Sorted(slices.Values(got)), []float64{0, 1, 2, 3}) {
		t.Errorf("the second wrote %v", got)
	}
	if got := first.table("default").written(); len(got) != 0 {
		t.Errorf("the first wrote %v", got)
	}
}

// TestRowsThatWereDueTogetherAreWrittenInParts: a gateway that was behind has more rows due at one time than go into a write, which would not end in time. Behind a part that fails none
// is written.
func TestRowsThatWereDueTogetherAreWrittenInParts(t *testing.T) {
	t.Parallel()
	const n, most = 100, 10
	m := newMemory()
	table, largest, fails := m.table("default"), 0, 0
	slowly(hour)(table)
	b := newBench(t, m, func(s *Settings) { s.WriteRowsMax = most })
	l := &lane{partition: partition{0, "metrics", 0}}
	b.work.lanes = []*lane{l}
	var all []string
	for i := range n {
		all = append(all, at("slow", i))
	}
	b.from(0, nil, all...)
	if err := b.run(); err != nil || len(l.later.items) == 0 || l.later.rows != n {
		t.Fatalf("%d rows wait, %v", l.later.rows, err)
	}
	table.fail = func(w *point.Batch) error {
		largest = max(largest, w.Rows())
		if fails++; fails == 3 {
			return fault.Errorf(fault.Unavailable, "the storage is away for a moment")
		}
		return nil
	}
	b.work.items = l.later.items
	if err := b.run(); fault.KindOf(err) != fault.Unavailable || len(table.written()) != 2*most {
		t.Errorf("%d rows are written, %v", len(table.written()), err)
	}
	if err := b.run(); err != nil || largest > most {
		t.Errorf("%d rows are in one write, %v", largest, err)
	}
	for i, v := range table.written() {
		if v != float64(i) {
			t.Fatalf("written in the order %v", table.written())
		}
	}
	if got := b.batches[0]; !got.done() || len(table.written()) != n {
		t.Errorf("%d rows are written, %v", len(table.written()), got.fates)
	}
}
