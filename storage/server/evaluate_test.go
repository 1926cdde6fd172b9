package server_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
)

// TestEvaluationsKeepTheBoundsOfReads: memory, series and rows, the engine's samples, and a caller that leaves.
func TestEvaluationsKeepTheBoundsOfReads(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	w := newWriter(t, p.server)
	var rows []row
	for i := range 40 {
		for at := range int64(20) {
			rows = append(rows, row{series: i % 10, at: at * 1e9, value: float64(i)})
		}
	}
	w.insert(t, 1<<10, rows, model{})
	sum := &columns.Request{Form: columns.States, SamplesMax: 1 << 20, Plan: columns.Plan{
		Grid:   columns.Grid{Start: 10_000, End: 10_000 + 59_999, Step: 1},
		Source: columns.Source{Window: 10 * time.Second, Function: columns.FunctionOf("count_over_time")},
		Stages: []columns.Stage{{Aggregation: &columns.Aggregation{Op: columns.Sum, Without: true}}},
	}}
	q := &peer.Select{Table: "t", Partitions: []point.PartitionID{1}}
	evaluate := func(ctx context.Context, r *columns.Request) (*columns.Part, error) {
		in := columns.Receiver{Of: r}
		if err := p.server.Evaluate(ctx, q, r.Append(nil), in.Add); err != nil {
			return nil, err
		}
		return in.Part()
	}
	part, err := evaluate(t.Context(), sum)
	if err != nil || len(part.Columns) != 10 || part.Series != 10 || part.Rows == 0 {
		t.Fatalf("%+v %v", part, err)
	}

	account := budget.New("queries", 3<<20)
	loan, err := account.Borrow(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := evaluate(budget.WithLoan(t.Context(), loan), sum); !fault.Is(err, fault.TooLarge) && !fault.Is(err, fault.Throttled) {
		t.Errorf("ten groups of 60,000 steps in 3 MiB: %v", err)
	}
	loan.Close()

	few := *sum
	few.SamplesMax = 100
	if _, err := evaluate(t.Context(), &few); !errors.Is(err, columns.ErrTooManySamples) {
		t.Errorf("100 samples: %v", err)
	}
	q.SeriesMax = 9
	if _, err := evaluate(t.Context(), sum); !fault.Is(err, fault.TooLarge) {
		t.Errorf("9 series: %v", err)
	}
	q.SeriesMax, q.SamplesMax = 0, 5
	if _, err := evaluate(t.Context(), sum); !fault.Is(err, fault.TooLarge) {
		t.Errorf("5 rows: %v", err)
	}
	q.SamplesMax = 0
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := evaluate(gone, sum); err == nil {
		t.Error("the caller left, and has an answer")
	}
	later := sum.Append(nil)
	later[0]++
	in := columns.Receiver{Of: sum}
	if err := p.server.Evaluate(t.Context(), q, later, in.Add); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Part(); !errors.Is(err, columns.ErrUnknown) {
		t.Errorf("a plan of a later build: %v", err)
	}
	if err := p.server.Evaluate(t.Context(), q, later[:0], in.Add); !fault.Is(err, fault.Corrupt) {
		t.Errorf("no plan: %v", err)
	}
	q.Copies = peer.StagedRows
	if _, err := evaluate(t.Context(), sum); !fault.Is(err, fault.Invalid) {
		t.Errorf("of staged rows: %v", err)
	}
}

// TestRowsTravelWithEvaluationsAsASelectReadsThem, from heads and segments, and do not where they are many, which is known before most of them are read.
func TestRowsTravelWithEvaluationsAsASelectReadsThem(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	w := newWriter(t, p.server)
	for i := range int64(3) {
		var rows []row
		for series := range 12 {
			for at := range int64(30) {
				rows = append(rows, row{series: series, at: (30*i+at)*1e9 + int64(series%2), value: float64(i) + float64(at)/7})
			}
		}
		w.insert(t, point.Stamp(1+i)<<10, rows, model{})
		if i == 1 {
			if err := p.server.FlushAll(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := &columns.Request{Form: columns.Raw, SamplesMax: 100, Plan: columns.Plan{
		Grid: columns.Grid{Start: 40_000, End: 80_000, Step: 10_000}, Source: columns.Source{Window: 15 * time.Second, Function: columns.FunctionOf("rate")},
	}}
	q := &peer.Select{Table: "t", Partitions: []point.PartitionID{1}, Lo: 0, Hi: 1e12}
	ask := func(r *columns.Request) (*columns.Part, error) {
		in := columns.Receiver{Of: r}
		if err := p.server.Evaluate(t.Context(), q, r.Append(nil), in.Add); err != nil {
			return nil, err
		}
		return in.Part()
	}
	part, err := ask(r)
	if err != nil {
		t.Fatal(err)
	}
	mine := *q
	mine.Lo, mine.Hi = 25_001e6, 80_000e6+999_999
	set, err := p.server.Select(t.Context(), &mine)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	n := 0
	for ; set.Next(); n++ {
		if n == len(part.Found) || !reflect.DeepEqual(*set.At(), part.Found[n]) {
			t.Fatalf("series %d is %+v, and of a select %+v", n, part.Found[min(n, len(part.Found)-1)], set.At())
		}
	}
	if set.Err() != nil || n != 12 || n != len(part.Found) || part.Series != n || part.Rows != 12*55 {
		t.Errorf("%d series, %d found, %d rows, %v", n, len(part.Found), part.Rows, set.Err())
	}
	var many []row
	for series := range 3000 {
		for at := range int64(30) {
			many = append(many, row{series: 20 + series, at: (40 + at) * 1e9, value: 1})
		}
	}
	w.insert(t, 1<<20, many, model{})
	if _, err := ask(r); !errors.Is(err, columns.ErrUnknown) {
		t.Errorf("90,000 rows: %v", err)
	}
}

// TestAValueBesideAMarkerIsTheNewest: rows of one millisecond are one sample, and a stale marker stands for them only if there is no value. A selector at one time looked at the
// newest row alone, the marker, and the series was gone.
func TestAValueBesideAMarkerIsTheNewest(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	w := newWriter(t, p.server)
	w.insert(t, 1<<10, []row{{series: 1, at: 1e9 + 100, value: 7}}, model{})
	w.insert(t, 2<<10, []row{{series: 1, at: 1e9 + 200, value: columns.Absent}}, model{})
	r := &columns.Request{Form: columns.Single, SamplesMax: 100, Plan: columns.Plan{
		Grid: columns.Grid{Start: 1000, End: 1000, Step: 1}, Source: columns.Source{Window: time.Minute, Function: columns.LastValue, Instant: true},
	}}
	in := columns.Receiver{Of: r}
	if err := p.server.Evaluate(t.Context(), &peer.Select{Table: "t", Partitions: []point.PartitionID{1}}, r.Append(nil), in.Add); err != nil {
		t.Fatal(err)
	}
	if part, err := in.Part(); err != nil || len(part.Columns) != 1 || part.Columns[0].Values[0] != 7 {
		t.Errorf("%+v, %v", part, err)
	}
}

// TestASlowGatewayKeepsNoOtherWaiting: it reads none of its answers, of as many evaluations as there may be at a time. Those of other gateways waited until its connection was
// given up.
func TestASlowGatewayKeepsNoOtherWaiting(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1, func(d *server.Deps) { d.Processors = 1 })
	defer p.stop(t)
	newWriter(t, p.server).insert(t, 1<<10, []row{{series: 1, at: 1e9, value: 7}}, model{})
	r := &columns.Request{Form: columns.Single, SamplesMax: 100, Plan: columns.Plan{
		Grid: columns.Grid{Start: 1000, End: 1000, Step: 1}, Source: columns.Source{Window: time.Minute, Function: columns.FunctionOf("last_over_time")},
	}}
	q := &peer.Select{Table: "t", Partitions: []point.PartitionID{1}}
	var slow, unread sync.WaitGroup
	reads := make(chan struct{})
	for range 4 {
		unread.Add(1)
		slow.Go(func() {
			begun := sync.OnceFunc(unread.Done)
			if err := p.server.Evaluate(t.Context(), q, r.Append(nil), func([]byte) error { begun(); <-reads; return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	unread.Wait() // all answers are there, and are not read
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	in := columns.Receiver{Of: r}
	if err := p.server.Evaluate(ctx, q, r.Append(nil), in.Add); err != nil {
		t.Error(err)
	}
	if part, err := in.Part(); err != nil || len(part.Columns) != 1 {
		t.Errorf("%+v, %v", part, err)
	}
	close(reads)
	slow.Wait()
}

// TestRowsThatTravelAreThoseThatCount: values that were written again, before and after a flush, deleted rows, stale markers and NaNs, and rows of one millisecond.
func TestRowsThatTravelAreThoseThatCount(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	w := newWriter(t, p.server)
	rng := rand.New(rand.NewPCG(5, 6))
	values := []float64{math.Float64frombits(point.StaleNaN), math.NaN(), math.Float64frombits(0x7ff8000000000abc), math.Inf(1), math.Copysign(0, -1), 1, 2}
	r := &columns.Request{Form: columns.Raw, SamplesMax: 100, Plan: columns.Plan{
		Grid: columns.Grid{Start: 20_000, End: 80_000, Step: 10_000}, Source: columns.Source{Window: 15 * time.Second, Function: columns.FunctionOf("rate")},
	}}
	all := 0
	for round := range int64(40) {
		var rows []row
		for range 60 {
			rows = append(rows, row{series: rng.IntN(8), at: rng.Int64N(100)*1e9 + rng.Int64N(3), value: values[rng.IntN(len(values))]})
		}
		w.insert(t, point.Stamp(1+round)<<10, rows, model{})
		switch rng.IntN(4) {
		case 0:
			must(t, p.server.FlushAll(t.Context(), true))
		case 1:
			from := rng.Int64N(90) * 1e9
			of := []peer.Matcher{{Name: "i", Value: strconv.Itoa(rng.IntN(8))}}
			must(t, p.server.DeleteSeries(t.Context(), &peer.Select{Table: "t", Lo: from, Hi: from + 5e9, Matchers: of}))
		}
		r.Plan.Grid.Start = rng.Int64N(40_000)
		r.Plan.Grid.End = r.Plan.Grid.Start + 40_000
		q := &peer.Select{Table: "t", Partitions: []point.PartitionID{1}, Lo: 0, Hi: 1e12}
		in := columns.Receiver{Of: r}
		must(t, p.server.Evaluate(t.Context(), q, r.Append(nil), in.Add))
		part, err := in.Part()
		must(t, err)
		lo, hi := r.Plan.Reach()
		q.Lo, q.Hi = point.NanosOf(lo), point.LastNanosOf(hi)
		set, err := p.server.Select(t.Context(), q)
		must(t, err)
		var want []peer.Series
		for set.Next() {
			if len(set.At().Times) > 0 {
				want = append(want, *set.At())
			}
			all += len(set.At().Times)
		}
		must(t, errors.Join(set.Err(), set.Close()))
		bits := cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) })
		if d := cmp.Diff(want, part.Found, cmpopts.EquateEmpty(), bits); d != "" {
			t.Fatalf("round %d: %s", round, d)
		}
	}
	if all < 4000 {
		t.Errorf("only %d rows were compared", all)
	}
}
