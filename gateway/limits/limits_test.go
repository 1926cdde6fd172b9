package limits_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// write plays a request of so many bytes and samples; the error is the door's.
func write(r *limits.Registry, table string, bytes, samples int) error {
	tk, err := r.Begin(table, int64(bytes))
	defer tk.End()
	if err != nil {
		return err
	}
	if err := tk.Read(table, bytes); err != nil {
		return err
	}
	tk.Found(table)
	tk.Samples(samples)
	tk.Accepted(samples)
	return nil
}

func enter(r *limits.Registry, ctx context.Context, table string) (func(), error) {
	r.Table(table)
	_, leave, err := r.EnterQuery(ctx, table)
	return leave, err
}

func limitOf(err error) string {
	if r := (*limits.Refusal)(nil); errors.As(err, &r) {
		return r.Limit.String()
	}
	return fmt.Sprint(err)
}

// TestARateIsKeptOnAverage: a table may have 100 samples a second and 200 at once; its sender tries 50 every 100 ms.
func TestARateIsKeptOnAverage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry(t, "defaults: {samples_per_second: 100, samples_burst: 200}")
		stored := 0
		for range 1000 {
			if err := write(r, "x", 10, 50); err == nil {
				stored += 50
			} else if limitOf(err) != "samples_per_second" || !fault.Is(err, fault.Throttled) {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if stored < 10_000 || stored > 10_000+200+50 {
			t.Errorf("%d samples in 100 s", stored)
		}
	})
}

// TestARequestIsTakenWholeAndDelaysTheNext: more than a burst at once is accepted, since it is read already, and paid later.
func TestARequestIsTakenWholeAndDelaysTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry(t, "defaults: {samples_per_second: 100, samples_burst: 100}")
		if err := write(r, "x", 1, 1100); err != nil {
			t.Fatal(err)
		}
		err := write(r, "x", 1, 1)
		if limitOf(err) != "samples_per_second" {
			t.Fatal(err)
		}
		if d := limits.RetryAfter(err, time.Hour); d < 10*time.Second || d > 11*time.Second {
			t.Errorf("come again in %v", d)
		}
		if !strings.Contains(err.Error(), `table "x": it may send 100 samples a second and sends more; come again in 11s (limit samples_per_second)`) {
			t.Error(err)
		}
		time.Sleep(limits.RetryAfter(err, 0))
		if err := write(r, "x", 1, 1); err != nil {
			t.Errorf("came again when it was asked to: %v", err)
		}
	})
}

func TestBytesAreRefusedBeforeTheyAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry(t, "defaults: {bytes_per_second: 1KiB, bytes_burst: 4KiB, request_bytes: 8KiB}")
		if err := write(r, "x", 9000, 1); limitOf(err) != "request_bytes" || !fault.Is(err, fault.TooLarge) {
			t.Fatal(err) // also of a table without writes
		}
		if err := write(r, "x", 5000, 1); err != nil {
			t.Fatal(err)
		}
		if err := write(r, "x", 10, 1); limitOf(err) != "bytes_per_second" {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		// A body with a large declared length is charged at once; the part that does not come is refunded.
		tk, err := r.Begin("x", 8000)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(r, "x", 10, 1); limitOf(err) != "bytes_per_second" {
			t.Fatal(err)
		}
		tk.End()
		if err := write(r, "x", 10, 1); err != nil {
			t.Fatal(err)
		}
		// One that does not say is measured when it was read.
		tk, err = r.Begin("x", -1)
		if err != nil {
			t.Fatal(err)
		}
		if err := tk.Read("x", 9000); limitOf(err) != "request_bytes" {
			t.Fatal(err)
		}
		tk.End()
	})
}

func TestRequestsUnderWayAreBounded(t *testing.T) {
	r := registry(t, "defaults: {request_concurrency: 2}")
	r.Table("x")
	a, errA := r.Begin("x", 1)
	b, errB := r.Begin("x", 1)
	c, errC := r.Begin("x", 1)
	if errA != nil || errB != nil || limitOf(errC) != "request_concurrency" {
		t.Fatal(errA, errB, errC)
	}
	c.End() // gives nothing back that it has not
	if _, err := r.Begin("x", 1); limitOf(err) != "request_concurrency" {
		t.Fatal(err)
	}
	a.End()
	a.End()
	if d, err := r.Begin("x", 1); err != nil {
		t.Fatal(err)
	} else if e, err := r.Begin("x", 1); limitOf(err) != "request_concurrency" {
		t.Fatal(err)
	} else {
		d.End()
		e.End()
	}
	b.End()
}

// TestABystanderSeesNoneOfIt: one table's traffic beyond its limits costs another nothing.
func TestABystanderSeesNoneOfIt(t *testing.T) {
	r := registry(t, "defaults: {samples_per_second: 100, bytes_per_second: 1KiB, active_series: 10, request_concurrency: 1}")
	for range 100 {
		_ = write(r, "noisy", 1000, 100_000)
		_ = r.Table("noisy").NewSeries(10, 0)
	}
	if err := write(r, "calm", 100, 10); err != nil {
		t.Error(err)
	}
	if err := r.Table("calm").NewSeries(9, 0); err != nil {
		t.Error(err)
	}
}

func TestNamesThatDoNotExistHaveNoState(t *testing.T) {
	r := registry(t, "")
	for i := range 1000 {
		tk, err := r.Begin(fmt.Sprint("guess", i), 10)
		if err != nil {
			t.Fatal(err)
		}
		if err := tk.Read(fmt.Sprint("guess", i), 10); err != nil {
			t.Fatal(err)
		}
		tk.Samples(1)
		tk.End()
	}
	if n := len(r.Top(0)); n != 0 {
		t.Errorf("%d tables are kept", n)
	}
}

func TestSeriesLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry(t, "{new_series_grace: 1s, defaults: {active_series: 30, new_series_per_second: 5, new_series_burst: 10}}")
		x := r.Table("x")
		if err := x.NewSeries(30, 0); limitOf(err) != "active_series" || !fault.Is(err, fault.Invalid) {
			t.Fatal(err)
		}
		add := func(from int) (to int) {
			for to = from; ; to++ {
				if err := x.NewSeries(to, 0); err != nil {
					if limitOf(err) == "new_series_per_second" && !fault.Is(err, fault.Throttled) {
						t.Fatal(err)
					}
					return to
				}
			}
		}
		if n := add(0); n != 30 { // all are new to a gateway that starts
			t.Errorf("%d series within the grace", n)
		}
		time.Sleep(time.Minute)
		x.Renumbered(20)
		if n := add(0); n != 30 {
			t.Errorf("%d series when 20 were known before, and 10 may be new", n)
		}
		x.Renumbered(0)
		time.Sleep(time.Second)
		if n := add(0); n != 5 {
			t.Errorf("%d new series a second", n)
		}
	})
}

// TestADryRunRefusesNothingAndCountsWhatItWould runs into every limit there is.
func TestADryRunRefusesNothingAndCountsWhatItWould(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry(t, `
new_series_grace: 1ms
defaults:
  dry_run: true
  samples_per_second: 10
  bytes_per_second: 10
  request_bytes: 50
  request_concurrency: 1
  active_series: 1
  new_series_per_second: 1
  new_series_burst: 1
  past_max: 1h
  future_max: 1m
  query_concurrency: 1
`)
		time.Sleep(time.Second)
		x := r.Table("x")
		held, _ := r.Begin("x", 1)
		for range 10 {
			if err := write(r, "x", 100, 200); err != nil {
				t.Fatal(err)
			}
			if err := x.NewSeries(5, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := enter(r, t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		held.End()
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano() // a clock that is set: that of the bubble is not
		b := batchAt(t, now, now-2*int64(time.Hour), now+5*int64(time.Minute))
		if n, err := x.Admit(admit.Settings{RowsMax: 100, FutureMax: 10 * time.Minute}, b, clock.At(now), admit.Everything); err != nil || n.Old+n.Ahead > 0 || b.Rows() != 3 {
			t.Errorf("%+v %v, %d rows", n, err, b.Rows())
		}
		if x.ActiveSeriesMax() != 0 || !x.LabelLimits().DryRun {
			t.Error("the dictionary would refuse")
		}
		u := r.Top(0)[0]
		if len(u.Refused) > 0 || u.Samples != 2000 {
			t.Errorf("refused %v, stored %d", u.Refused, u.Samples)
		}
		got := counts(t, r, "dry_run")
		for _, l := range []string{"samples_per_second", "bytes_per_second", "request_bytes", "request_concurrency", "active_series", "new_series_per_second", "past_max", "future_max", "query_concurrency"} {
			if got[l] == 0 {
				t.Errorf("%s counted nothing: %v", l, got)
			}
		}
	})
}

func batchAt(t testing.TB, times ...point.Nanos) *point.Batch {
	b := point.GetBatch(point.NewDict(0))
	id, err := b.Dict.InternLabels(point.MakeLabels(point.MetricName, "m"), point.Hash{})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range times {
		b.BeginItem()
		b.Append(id, at, 1)
	}
	return b
}

func TestATablesOwnTimesAreHeldInsideTheProcess(t *testing.T) {
	r := registry(t, "defaults: {past_max: 1h, future_max: 1m}\ntables: {wide: {past_max: 0, future_max: 30d}}")
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano()
	process := admit.Settings{RowsMax: 100, FutureMax: 10 * time.Minute}
	times := []point.Nanos{now, now - 2*int64(time.Hour), now + 5*int64(time.Minute), now + 11*int64(time.Minute)}

	b := batchAt(t, times...)
	if n, err := r.Table("x").Admit(process, b, clock.At(now), admit.Everything); err != nil || n.Old != 1 || n.Ahead != 2 {
		t.Errorf("%+v %v", n, err)
	}
	if why := b.Refused[0].Reason; why != "time 2026-03-01T10:00:00Z is too old: more than 1h0m0s before now" {
		t.Error(why)
	}
	if got := counts(t, r, "enforced"); got["past_max"] != 1 || got["future_max"] != 1 {
		t.Errorf("%v", got)
	}
	b = batchAt(t, times...)
	if n, err := r.Table("wide").Admit(process, b, clock.At(now), admit.Everything); err != nil || n.Old != 0 || n.Ahead != 1 {
		t.Errorf("a table cannot be wider than the process: %+v %v", n, err)
	}
}

func TestQueriesWaitForTheirTableAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry(t, "defaults: {query_concurrency: 1}")
		leave, err := enter(r, t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := enter(r, t.Context(), "y"); err != nil {
			t.Errorf("another table's query: %v", err)
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				leave, err := enter(r, t.Context(), "x")
				if err != nil {
					t.Error(err)
					return
				}
				leave()
			})
		}
		synctest.Wait()
		if _, err := enter(r, t.Context(), "x"); limitOf(err) != "query_concurrency" || !fault.Is(err, fault.Throttled) {
			t.Errorf("the twelfth: %v", err)
		}
		leave()
		wg.Wait()
		leave, _ = enter(r, t.Context(), "x")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := enter(r, ctx, "x"); !fault.Is(err, fault.Canceled) {
			t.Errorf("it waited for a second: %v", err)
		}
		leave()
	})
}

// TestOnlyTablesThatExistHaveState: a query names any table it likes.
func TestOnlyTablesThatExistHaveState(t *testing.T) {
	r, err := limits.New(limits.Deps{Exists: func(table string) bool { return table == "old" }}, mustRead(t, "defaults: {query_timeout: 1m, request_concurrency: 1}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"guess", "old"} {
		ctx, leave, err := r.EnterQuery(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := ctx.Deadline(); !ok {
			t.Error("no time-out")
		}
		leave()
	}
	if top := r.Top(0); len(top) != 1 || top[0].Table != "old" || top[0].Queries != 1 {
		t.Errorf("%+v", top)
	}
	// The limits of a table hold from the first request on, also after a restart.
	tk, err := r.Begin("old", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Begin("old", 1); limitOf(err) != "request_concurrency" {
		t.Error(err)
	}
	tk.End()
}

func TestAReloadIsFeltAtOnceAndABadOneNotAtAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry(t, "")
		for range 10 {
			if err := write(r, "x", 10, 1000); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Reload(mustRead(t, "tables: {x: {samples_per_second: 10, samples_burst: 10}}")); err != nil {
			t.Fatal(err)
		}
		_ = write(r, "x", 10, 1000)
		if err := write(r, "x", 10, 1); limitOf(err) != "samples_per_second" {
			t.Errorf("after the reload: %v", err)
		}
		if err := r.Reload(mustRead(t, "tables: {x: {samples_burst: 10}}")); !fault.Is(err, fault.Invalid) {
			t.Errorf("a bad reload: %v", err)
		}
		if v := r.Table("x").Values(); v.SamplesPerSecond != 10 {
			t.Errorf("after a bad reload: %+v", v)
		}
		if err := r.Reload(mustRead(t, "")); err != nil {
			t.Fatal(err)
		}
		if err := write(r, "x", 10, 1); err != nil {
			t.Errorf("without limits: %v", err)
		}
	})
}

// families gathers the metrics of a registry.
func gather(t testing.TB, reg *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, f := range all {
		out[f.GetName()] = f
	}
	return out
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// counts gives the refusals that a registry counted in a mode, by limit.
func counts(t testing.TB, r *limits.Registry, mode string) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(limits.Collector(r)); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	if f := gather(t, reg)["spillway_limits_refused_total"]; f != nil {
		for _, m := range f.GetMetric() {
			if labelOf(m, "mode") == mode {
				out[labelOf(m, "limit")] += m.GetCounter().GetValue()
			}
		}
	}
	return out
}

// TestMetricsAreBoundedAndNothingIsCountedTwice: 50 tables, 5 labels, and at every collection counters that only grow.
func TestMetricsAreBoundedAndNothingIsCountedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		reg := prometheus.NewPedanticRegistry()
		r, err := limits.New(limits.Deps{Registerer: reg}, mustRead(t, "metrics_tables_max: 5\ntables: {t49: {query_series: 5}}"))
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.Run(ctx) })
		sent, before := 0.0, map[string]float64{}
		for round := range 20 {
			for i := range 50 {
				n := 1 + (i*7+round*13)%50
				sent += float64(n)
				if err := write(r, fmt.Sprint("t", i), 1, n); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(7 * time.Second)
			sum, seen := 0.0, map[string]bool{}
			for _, m := range gather(t, reg)["spillway_limits_accepted_samples_total"].GetMetric() {
				table, v := labelOf(m, "table"), m.GetCounter().GetValue()
				if v < before[table] {
					t.Errorf("round %d: %s fell from %v to %v", round, table, before[table], v)
				}
				before[table], seen[table] = v, true
			}
			if len(seen) != 6 || !seen["(other)"] || !seen["t49"] {
				t.Fatalf("round %d: labels %v", round, seen)
			}
			for _, v := range before {
				sum += v
			}
			if sum != sent {
				t.Errorf("round %d: %v counted, %v sent", round, sum, sent)
			}
		}
		stop()
		wg.Wait()
	})
}

func TestTopShowsWhoIsToBlameFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		r := registry(t, "defaults: {samples_per_second: 1000, request_concurrency: 100}")
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.Run(ctx) })
		for range 60 {
			_ = write(r, "calm", 100, 100)
			for range 20 {
				_ = write(r, "noisy", 1000, 200)
			}
			time.Sleep(time.Second)
		}
		top := r.Top(1)
		if len(top) != 1 || top[0].Table != "noisy" {
			t.Fatalf("%+v", top)
		}
		u := top[0]
		if u.SamplesPerSecond < 900 || u.SamplesPerSecond > 1500 || u.RefusedPerSecond["samples_per_second"] < 10 || len(u.Near) == 0 || u.Near[0].Limit != "samples_per_second" {
			t.Errorf("%+v", u)
		}
		calm := r.Top(0)[1]
		if calm.SamplesPerSecond < 80 || calm.SamplesPerSecond > 120 || len(calm.RefusedPerSecond) > 0 || len(calm.Near) > 0 {
			t.Errorf("%+v", calm)
		}
		if uses := r.Uses("noisy"); len(uses) != 2 || uses[0].Limit != "samples_per_second" || uses[0].Used < 0.9 {
			t.Errorf("%+v", uses)
		}
		only := func(table string) bool { return table == "calm" }
		if top := r.TopOf(0, only); len(top) != 1 || top[0].Table != "calm" || len(top[0].Uses) != 2 {
			t.Errorf("of the calm table alone: %+v", top)
		}
		h := r.History(func(string) bool { return true })
		last := len(h.Times) - 1
		if last < 4 || last > 7 || len(h.Tables) != 2 || h.Tables[0].Table != "calm" || len(h.Tables[0].Samples) != last+1 {
			t.Fatalf("%+v", h)
		}
		if c, n := h.Tables[0], h.Tables[1]; c.Samples[last] < 80 || c.Samples[last] > 120 || c.Refused[last] != 0 || n.Refused[last] < 10 {
			t.Errorf("%+v", h)
		}
		if h := r.History(only); len(h.Tables) != 1 || h.Tables[0].Table != "calm" {
			t.Errorf("of the calm table alone: %+v", h)
		}
		if uses := r.Uses("unknown"); uses == nil || len(uses) != 0 {
			t.Errorf("%+v", uses)
		}
		stop()
		wg.Wait()
	})
}

func TestALimitCostsARequestNoMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	r := registry(t, "{new_series_grace: 1ms, defaults: {samples_per_second: 1G, bytes_per_second: 1GiB, active_series: 1G, new_series_per_second: 1G, request_concurrency: 10, query_series: 3}}")
	x := r.Table("x")
	if n := testing.AllocsPerRun(100, func() {
		if err := write(r, "x", 10, 10); err != nil {
			t.Fatal(err)
		}
		if err := x.NewSeries(3, 0); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRequest(b *testing.B) {
	r := registry(b, "defaults: {samples_per_second: 1G, bytes_per_second: 1GiB, request_concurrency: 1000}")
	b.ReportAllocs()
	for b.Loop() {
		if err := write(r, "x", 1, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewSeries(b *testing.B) {
	x := registry(b, "{new_series_grace: 1ms, defaults: {active_series: 1G, new_series_per_second: 1G}}").Table("x")
	b.ReportAllocs()
	for b.Loop() {
		if err := x.NewSeries(1, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// TestTablesThatWereUsedLongAgoLeaveRoomForTheHistoryOfOthers: the first thousand tables kept theirs when they were out of use, or dropped, and no other had one.
func TestTablesThatWereUsedLongAgoLeaveRoomForTheHistoryOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := limits.New(limits.Deps{}, limits.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.Run(ctx) })
		use := func(table string) {
			r.Table(table)
			tk, err := r.Begin(table, 10)
			if err != nil {
				t.Fatal(err)
			}
			tk.Accepted(100)
			tk.End()
		}
		shown := func() int { return len(r.History(func(string) bool { return true }).Tables) }
		time.Sleep(time.Minute)
		for i := range 1000 {
			use(fmt.Sprintf("old-%d", i))
		}
		time.Sleep(20 * time.Minute)
		use("young")
		time.Sleep(time.Minute)
		if n := shown(); n != 1000 {
			t.Errorf("%d tables have a history, want 1000", n)
		}
		time.Sleep(20 * time.Minute)
		use("young")
		time.Sleep(time.Minute)
		if h := r.History(func(string) bool { return true }); len(h.Tables) != 1 || h.Tables[0].Table != "young" {
			t.Errorf("%d tables have a history, want that of the one in use", len(h.Tables))
		}
		stop()
		wg.Wait()
	})
}

// TestADroppedTableHasNoState: each table that ever was used memory until a restart.
func TestADroppedTableHasNoState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var there, held atomic.Bool
		r, err := limits.New(limits.Deps{Exists: func(string) bool { return there.Load() }, Held: func(string) bool { return held.Load() }}, limits.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.Run(ctx) })
		there.Store(true)
		r.Table("t")
		_, leave, err := r.EnterQuery(ctx, "t")
		if err != nil {
			t.Fatal(err)
		}
		wants := func(what string, n int) {
			t.Helper()
			time.Sleep(time.Minute)
			if got := len(r.Top(0)); got != n {
				t.Errorf("%s: %d tables have state, want %d", what, got, n)
			}
		}
		wants("it is there", 1)
		there.Store(false)
		wants("a query runs", 1)
		held.Store(true)
		leave()
		wants("another part has it", 1)
		held.Store(false)
		wants("it was dropped", 0)
		there.Store(true)
		r.Table("t")
		wants("it was made anew", 1)
		stop()
		wg.Wait()
	})
}
