package admit_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano()

func settings() admit.Settings {
	var s admit.Settings
	s.SetDefaults()
	return s
}

func hours(n int) point.Nanos { return int64(n) * int64(time.Hour) }

// lines makes a batch of one line a slice; each line has one row a time, all of series m{line="n"}.
func lines(t testing.TB, times ...[]point.Nanos) *point.Batch {
	t.Helper()
	b := point.GetBatch(point.NewDict(0))
	for i, ts := range times {
		l := point.MakeLabels(point.MetricName, "m", "line", fmt.Sprint(i+1))
		id, err := b.Dict.InternLabels(l, point.Hash{Lo: uint64(i)})
		if err != nil {
			t.Fatal(err)
		}
		b.BeginItem()
		for j, at := range ts {
			b.Append(id, at, float64(100*(i+1)+j))
		}
	}
	return b
}

func TestRowsOlderThanTheRetentionAreRefusedWithTheirLine(t *testing.T) {
	b := lines(t,
		[]point.Nanos{noon, noon - hours(50)},
		[]point.Nanos{noon - hours(49), noon - hours(48)},
		[]point.Nanos{},
		[]point.Nanos{noon - hours(1)})
	n, err := settings().Batch(b, clock.At(noon), admit.Bounds{Lo: noon - hours(24), Hi: math.MaxInt64})
	if err != nil || n.Old != 3 || n.Ahead != 0 {
		t.Fatalf("counts %+v, err %v; want 3 old", n, err)
	}
	if got := fmt.Sprint(b.Values); got != "[100 400]" {
		t.Errorf("kept %s", got)
	}
	if b.Item(0) != 1 || b.Item(1) != 4 {
		t.Errorf("kept rows belong to lines %d and %d, want 1 and 4", b.Item(0), b.Item(1))
	}
	if len(b.Refused) != 2 || b.Refused[0].Item != 1 || b.Refused[1].Item != 2 || b.RefusedRows != 3 {
		t.Fatalf("refused %+v, %d rows", b.Refused, b.RefusedRows)
	}
	want := "time 2026-02-27T10:00:00Z is older than what the table keeps: from 2026-02-28T12:00:00Z on"
	if b.Refused[0].Reason != want {
		t.Errorf("reason %q", b.Refused[0].Reason)
	}
	want = "times from 2026-02-27T11:00:00Z to 2026-02-27T12:00:00Z are older than what the table keeps: from 2026-02-28T12:00:00Z on"
	if b.Refused[1].Reason != want || b.Refused[1].Text != `{__name__="m", line="2"}` {
		t.Errorf("refusal %+v", b.Refused[1])
	}
}

// TestRowsOfSendersWithARightClockAreKeptBeforeOursIsSet: after a boot in 1970 they were refused as too far ahead, and senders drop rows that are refused so.
func TestRowsOfSendersWithARightClockAreKeptBeforeOursIsSet(t *testing.T) {
	for boot, ahead := range map[point.Nanos]int{0: 0, int64(time.Minute): 0, point.ClockFirst - 1: 0, point.ClockFirst: 1} {
		b := lines(t, []point.Nanos{noon})
		if n, err := settings().Batch(b, clock.At(boot), admit.Everything); err != nil || n.Ahead != ahead {
			t.Errorf("at %d: %+v, %v", boot, n, err)
		}
	}
}

func TestRowsTooFarAheadAreRefused(t *testing.T) {
	minute := int64(time.Minute)
	b := lines(t, []point.Nanos{noon + 10*minute, noon + 10*minute + 1}, []point.Nanos{math.MaxInt64})
	n, err := settings().Batch(b, clock.At(noon), admit.Everything)
	if err != nil || n.Ahead != 2 || len(b.IDs) != 1 {
		t.Fatalf("counts %+v, kept %d, err %v", n, len(b.IDs), err)
	}
	if r := b.Refused[0].Reason; !strings.Contains(r, "2026-03-01T12:10:00.000000001Z is too far ahead: more than 10m0s after now, 2026-03-01T12:00:00Z") {
		t.Errorf("reason %q", r)
	}
	b = lines(t, []point.Nanos{noon + minute})
	if _, err := settings().Batch(b, clock.At(noon), admit.Bounds{Lo: 0, Hi: noon}); err != nil {
		t.Fatal(err)
	}
	if r := b.Refused[0].Reason; !strings.HasSuffix(r, "is beyond what the table keeps: up to 2026-03-01T12:00:00Z") {
		t.Errorf("reason %q", r)
	}
}

func TestHistogramsAndExemplarsAreHeldToTheSameTimes(t *testing.T) {
	b := lines(t, []point.Nanos{noon})
	b.Hists = append(b.Hists, point.HistRow{Time: noon - hours(2)}, point.HistRow{Time: noon, H: []byte{1}})
	b.Exemplars = append(b.Exemplars, point.ExemplarRow{Time: noon}, point.ExemplarRow{Time: noon + hours(2)})
	n, err := settings().Batch(b, clock.At(noon), admit.Bounds{Lo: noon - hours(1), Hi: math.MaxInt64})
	if err != nil || n != (admit.Counts{Old: 1, Exemplars: 1}) || b.RefusedRows != 1 || b.RefusedExemplars != 1 {
		t.Fatalf("counts %+v, err %v, refused %d rows, %d exemplars", n, err, b.RefusedRows, b.RefusedExemplars)
	}
	if r := b.Refused; len(r) != 2 || r[0].Exemplar || !r[1].Exemplar || !strings.HasPrefix(r[1].Reason, "exemplar: time ") {
		t.Errorf("refused %+v", r)
	}
	if len(b.Hists) != 1 || len(b.Hists[0].H) != 1 || len(b.Exemplars) != 1 || b.Exemplars[0].Time != noon {
		t.Errorf("kept %+v %+v", b.Hists, b.Exemplars)
	}
}

func TestTooManyRowsRefuseTheRequest(t *testing.T) {
	s := settings()
	s.RowsMax = 2
	b := lines(t, []point.Nanos{noon, noon, noon})
	if _, err := s.Batch(b, clock.At(noon), admit.Everything); !fault.Is(err, fault.TooLarge) {
		t.Errorf("err %v, want too large", err)
	}
	if len(b.IDs) != 3 {
		t.Error("the batch was changed")
	}
}

func TestReasonsAreBoundedButRowsAreCounted(t *testing.T) {
	var times [][]point.Nanos
	for range 3 * point.RefusalsMax {
		times = append(times, []point.Nanos{0})
	}
	b := lines(t, times...)
	if n, _ := settings().Batch(b, clock.At(noon), admit.Bounds{Lo: 1, Hi: noon}); n.Old != len(times) {
		t.Errorf("old %d", n.Old)
	}
	if len(b.Refused) != point.RefusalsMax || b.RefusedRows != len(times) {
		t.Errorf("%d reasons, %d rows", len(b.Refused), b.RefusedRows)
	}
}

// TestKeptRowsAreThoseInsideInOrder compares with the plainest way to say the same.
func TestKeptRowsAreThoseInsideInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.SampledFrom([]point.Nanos{math.MinInt64, noon - 5, noon - 1, noon, noon + 1, noon + 2, noon + 5, noon + 9, math.MaxInt64})
		table := admit.Bounds{Lo: at.Draw(t, "lo"), Hi: at.Draw(t, "hi")}
		if table.Lo > table.Hi {
			table.Lo, table.Hi = table.Hi, table.Lo
		}
		s := admit.Settings{FutureMax: 3, RowsMax: 1000}
		b := point.GetBatch(point.NewDict(0))
		id, _ := b.Dict.InternLabels(point.MakeLabels(point.MetricName, "m"), point.Hash{})
		type row struct {
			value float64
			item  int
		}
		var want []row
		refused := 0
		items := rapid.SliceOfN(rapid.SliceOfN(at, 0, 4), 0, 12).Draw(t, "items")
		for i, ts := range items {
			b.BeginItem()
			for _, x := range ts {
				v := float64(len(b.IDs))
				b.Append(id, x, v)
				hi := min(table.Hi, noon+3)
				lo := min(table.Lo, hi)
				if x >= lo && x <= hi {
					want = append(want, row{v, i + 1})
				} else {
					refused++
				}
			}
		}
		n, err := s.Batch(b, clock.At(noon), table)
		if err != nil {
			t.Fatal(err)
		}
		var got []row
		for i, v := range b.Values {
			got = append(got, row{v, b.Item(i)})
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || len(b.IDs) != len(want) || len(b.Times) != len(want) {
			t.Fatalf("kept %v, want %v", got, want)
		}
		if b.RefusedRows != refused || n.Old+n.Ahead != refused {
			t.Fatalf("refused %d, counts %+v, want %d", b.RefusedRows, n, refused)
		}
	})
}

func TestValidateReportsEveryMistake(t *testing.T) {
	s := admit.Settings{FutureMax: -1, RowsMax: -1}
	if err := s.Validate(); err == nil || strings.Count(err.Error(), "negative") != 2 {
		t.Errorf("err %v", err)
	}
	s = settings()
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
}

func fullBatch(rows int) *point.Batch {
	b := point.GetBatch(point.NewDict(0))
	for i := range rows {
		if i%10 == 0 {
			b.BeginItem()
		}
		b.Append(point.SeriesID(i), noon-int64(i), 1)
	}
	return b
}

func TestNothingRefusedAllocatesNothing(t *testing.T) {
	b, s := fullBatch(1000), settings()
	table := admit.Bounds{Lo: noon - hours(1), Hi: math.MaxInt64}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := s.Batch(b, clock.At(noon), table); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkBatchAllKept(b *testing.B) {
	batch, s := fullBatch(10_000), settings()
	table := admit.Bounds{Lo: noon - hours(1), Hi: math.MaxInt64}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Batch(batch, clock.At(noon), table); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10_000, "ns/row")
}
