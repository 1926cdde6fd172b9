package presplit

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	name = "testdata/" + name
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs:\n%s\nwant\n%s", name, got, want)
	}
}

// replay is a backtest with the settings of the product: partitions exist two hours ahead, and can be cut again until two minutes before their time.
func replay(kind string, days int, target float64, learn point.Nanos) Report {
	return Backtest(*Synthetic(kind, days, 1), Test{Plan: Plan{Target: target, WidthMin: 1e9, WidthMax: day}, Horizon: 120 * minute, Learn: learn})
}

// TestPartitionsCloseNearTheTarget: over a week of daily and weekly load with growth after two days, and around each event.
func TestPartitionsCloseNearTheTarget(t *testing.T) {
	lines := make([]string, len(Traces))
	var wg sync.WaitGroup
	for i, kind := range Traces {
		wg.Go(func() {
			const target = 10e9
			days, learn := 6, 2*day
			switch kind {
			case "weekly", "growth":
				days = 9
			case "new":
				days, learn = 2, 0
			}
			r := replay(kind, days, target, learn)
			p50, p95 := r.Quantile(0.5), r.Quantile(0.95)
			if p50 > 0.10 || p95 > 0.30 {
				t.Errorf("%s: the median error is %.3f, the 95th percentile %.3f", kind, p50, p95)
			}
			lines[i] = fmt.Sprintf("%-8s %10d  %4.1f %%  %4.1f %%  %3.0f %%  %5.0f\n", kind, len(r.Errors), 100*p50, 100*p95, 100*r.Quantile(1), float64(r.Cuts)/float64(days))
		})
	}
	wg.Wait()
	golden(t, "backtest.txt", []byte("trace    partitions  median   p95   max  transactions/day\n"+strings.Join(lines, "")))
}

// departures is a load that people made: six weeks of flights, a value each ten minutes. testdata/README.md has its source.
func departures(t *testing.T) Trace {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "departures.csv"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")[1:]
	trace := Trace{Start: 978912000e9}
	for i, line := range lines {
		var at int64
		var rate float64
		if _, err := fmt.Sscanf(line, "%d,%g", &at, &rate); err != nil || at*1e9 != trace.Start+point.Nanos(i)*10*minute {
			t.Fatalf("line %d is %q: %v", i+2, line, err)
		}
		for range 10 {
			trace.Bytes = append(trace.Bytes, 60*rate)
		}
	}
	return trace
}

// TestPartitionsOfARecordedLoadCloseNearTheTarget: its season and its noise are those of a real service. At night nearly nothing comes, so that the last partition of
// a day closes too small, or reaches into the morning.
func TestPartitionsOfARecordedLoadCloseNearTheTarget(t *testing.T) {
	trace := departures(t)
	trace.Bytes = trace.Bytes[:21*1440] // the command of docs/presplit.md replays all
	r := Backtest(trace, Test{Plan: Plan{Target: 200e6, WidthMin: WidthMin, WidthMax: day}, Horizon: 120 * minute, Learn: 7 * day})
	p50, p95 := r.Quantile(0.5), r.Quantile(0.95)
	if p50 > 0.10 || p95 > 0.35 {
		t.Errorf("the median error is %.3f, the 95th percentile %.3f", p50, p95)
	}
	small, large := 0, 0
	for _, e := range r.Errors {
		if e < -0.5 {
			small++
		} else if e > 0.5 {
			large++
		}
	}
	golden(t, "departures.txt", fmt.Appendf(nil, "%d partitions: %.1f %% off in the median, %.1f %% at the 95th percentile; %d are below half of the target, %d above three halves; %.0f transactions a day\n",
		len(r.Errors), 100*p50, 100*p95, small, large, float64(r.Cuts)/21))
}

// TestAStepASpikeAndAnOutageAreOverWithinAHorizon: from two hours after each event on, sizes are near the target again.
func TestAStepASpikeAndAnOutageAreOverWithinAHorizon(t *testing.T) {
	for kind, end := range map[string]point.Nanos{"step": 0, "spike": 20 * minute, "outage": 120 * minute} {
		over := SyntheticStart + 4*day + 12*60*minute + end + 120*minute
		var after Report
		r := replay(kind, 6, 4e9, 3*day)
		for i, p := range r.Partitions {
			if p.Lo >= over && p.Lo < over+12*60*minute {
				after.Errors = append(after.Errors, r.Errors[i])
			}
		}
		if len(after.Errors) < 50 || after.Quantile(0.5) > 0.1 || after.Quantile(0.95) > 0.3 || after.Quantile(1) > 0.5 {
			t.Errorf("%s: %d partitions, errors %.2f, %.2f, %.2f", kind, len(after.Errors), after.Quantile(0.5), after.Quantile(0.95), after.Quantile(1))
		}
	}
}

func steady(h *History, from, to point.Nanos, rate float64) {
	for at := from; at < to; at += minute {
		h.Observe(at, at+minute, rate*60)
	}
}

func TestWhatWasNotObservedIsNotZero(t *testing.T) {
	const start = SyntheticStart
	var known, paused, stopped History
	for _, h := range []*History{&known, &paused, &stopped} {
		steady(h, start, start+day, 1e6)
	}
	steady(&known, start+day, start+day+120*minute, 1e6)
	steady(&paused, start+day+110*minute, start+day+120*minute, 1e6) // no observer for almost two hours
	steady(&stopped, start+day, start+day+120*minute, 0)             // it really stopped
	now := start + day + 120*minute
	for name, c := range map[string]struct {
		h    *History
		want float64
	}{"known": {&known, 1e6}, "paused": {&paused, 1e6}, "stopped": {&stopped, 0}} {
		f, ok := c.h.Forecast(now, now+day)
		if got := f.Rate(now + 60*minute); !ok || math.Abs(got-c.want) > 0.01*1e6 {
			t.Errorf("%s: %v in an hour, want %v (%t)", name, got, c.want, ok)
		}
	}
	if _, ok := paused.Forecast(start+day+60*minute, start+2*day); ok {
		t.Error("a forecast from minutes that are unknown")
	}
	if _, ok := new(History).Forecast(now, now+day); ok {
		t.Error("a forecast from nothing")
	}
}

// TestASourceThatIsAwayComesBackAsItWas: for half an hour partitions are laid for the rate of before.
func TestASourceThatIsAwayComesBackAsItWas(t *testing.T) {
	var h History
	steady(&h, SyntheticStart, SyntheticStart+180*minute, 1e6)
	for i := range int64(60) {
		now := SyntheticStart + (180+i)*minute
		if f, _ := h.Forecast(now, now+day); i > 5 && (i < 29) != (f.Level > 0.9e6) && (i < 29 || i > 35) {
			t.Errorf("after %d minutes without a byte: %v", i, f.Level)
		}
		h.Observe(now, now+minute, 0)
	}
}

// TestAHistoryIsReadAgainAfterAClockWasSetBack: the same minute is observed twice.
func TestAHistoryIsReadAgainAfterAClockWasSetBack(t *testing.T) {
	var h History
	for range 2 {
		h.Observe(1, minute, 1e6)
	}
	again, err := DecodeHistory(h.Append(nil))
	if err != nil || h.fine.covered > fineWidth || again.Until() != h.Until() {
		t.Fatalf("%d of %d observed: %v", h.fine.covered, fineWidth, err)
	}
}

func TestHistoriesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h History
		at := rapid.Int64Range(-1e18, 1e18).Draw(t, "start")
		for range rapid.IntRange(1, 40).Draw(t, "observations") {
			at += rapid.SampledFrom([]int64{-minute, 0, 1, minute, 17 * minute, day, 20 * day}).Draw(t, "pause")
			d := rapid.SampledFrom([]int64{-1, 1, 1e9, minute, 61 * 1e9, 3 * 60 * minute, 16 * day}).Draw(t, "span")
			h.Observe(at, at+d, rapid.SampledFrom([]float64{0, 1, 1e3, 1e12, 1e30, -1, math.NaN(), math.Inf(1)}).Draw(t, "bytes"))
			at += max(d, 0)
		}
		if len(h.fine.codes) > fineMax || len(h.coarse.codes) > coarseMax || h.fine.covered > fineWidth || h.coarse.covered > coarseWidth {
			t.Fatalf("%d and %d buckets, %d and %d observed", len(h.fine.codes), len(h.coarse.codes), h.fine.covered, h.coarse.covered)
		}
		b := h.Append(nil)
		again, err := DecodeHistory(b)
		if err != nil || !bytes.Equal(again.Append(nil), b) {
			t.Fatalf("read again: %v", err)
		}
		f, ok := h.Forecast(at, at+day)
		if !ok {
			return
		}
		p := Plan{Target: 1e6, WidthMin: 1e9, WidthMax: day}
		last := at
		for _, e := range p.Edges(&f, at, at+day, 0) {
			if e-last < p.WidthMin || e-last > p.WidthMax || math.IsNaN(f.Rate(e)) {
				t.Fatalf("an edge %d after the last", e-last)
			}
			last = e
		}
	})
}

func sample() *History {
	var h History
	steady(&h, SyntheticStart, SyntheticStart+20*minute, 1234)
	steady(&h, SyntheticStart+40*minute, SyntheticStart+60*minute, 0)
	h.Observe(SyntheticStart+60*minute, SyntheticStart+60*minute+25e9, 5e9)
	return &h
}

func TestAHistoryIsStoredAsDrawn(t *testing.T) {
	b := sample().Append(nil)
	golden(t, "history.golden", b)
	for i := range b {
		if _, err := DecodeHistory(b[:i]); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("%d bytes: %v", i, err)
		}
		for bit := range 8 {
			b[i] ^= 1 << bit
			if _, err := DecodeHistory(b); !fault.Is(err, fault.Corrupt) {
				t.Fatalf("bit %d of byte %d: %v", bit, i, err)
			}
			b[i] ^= 1 << bit
		}
	}
	if _, err := DecodeHistory(append(b, 0)); !fault.Is(err, fault.Corrupt) {
		t.Fatal(err)
	}
}

func FuzzDecodeHistory(f *testing.F) {
	f.Add(sample().Append(nil))
	f.Add([]byte{version})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := DecodeHistory(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
			return
		}
		if again := h.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x is written as %x", b, again)
		}
		now := h.fine.open() * fineWidth
		fc, _ := h.Forecast(now, now+day)
		h.Observe(now, now+minute, fc.Bytes(now, now+minute))
	})
}

func TestEdges(t *testing.T) {
	var h History
	steady(&h, SyntheticStart, SyntheticStart+60*minute, 1e6)
	now := SyntheticStart + 60*minute
	f, _ := h.Forecast(now, now+day)
	p := Plan{Target: 600e6, WidthMin: 10e9, WidthMax: 60 * minute}
	edges := p.Edges(&f, now, now+25*minute, 300e6)
	want := []point.Nanos{now + 5*minute, now + 15*minute, now + 25*minute} // the first was half full
	if fmt.Sprint(edges) != fmt.Sprint(want) {
		t.Errorf("edges %v, want %v", edges, want)
	}
	for what, c := range map[string]struct {
		from         point.Nanos
		ends         []point.Nanos
		until, limit point.Nanos
		n            int
		all          bool
	}{
		"its own edges":            {now + 5*minute, want[1:], now + 25*minute, now + day, 2, true},
		"edges that end too early": {now + 5*minute, want[1:], now + 26*minute, now + day, 2, false},
		"edges up to the limit":    {now + 5*minute, want[1:], now + 26*minute, now + 25*minute, 2, true},
		"half a partition":         {now, want[:1], now + 5*minute, now + day, 0, false},
		"half of one, to a limit":  {now, want[:1], now + 5*minute, now + 5*minute, 1, true},
		"one of twice the target":  {now + 5*minute, want[2:], now + 25*minute, now + day, 0, false},
	} {
		if n, all := p.Fitting(&f, c.from, c.ends, c.until, c.limit); n != c.n || all != c.all {
			t.Errorf("%s: %d fit, all: %t", what, n, all)
		}
	}
	if at, full := p.Full(&f, now+2*minute, now+day, 540e6); !full || at != now+2*minute {
		t.Errorf("a partition that is nearly full ends at %d (%t)", at-now, full)
	}
	if at, full := p.Full(&f, now+2*minute, now+day, 0); !full || at != now+10*minute {
		t.Errorf("an empty one ends at %d (%t)", at-now, full)
	}
	if _, full := p.Full(&f, now+2*minute, now+15*minute, 0); full {
		t.Error("one that ends at 1.5 times the target is split")
	}
}

func TestSeasonsAreLearnt(t *testing.T) {
	for kind, want := range map[string]struct{ at, ratio float64 }{
		"daily":  {8, daily(0, 8) / daily(0, 2)}, // at 02:00 on day 8, for 08:00
		"weekly": {8, daily(0, 8) / daily(0, 2)},
	} {
		var h History
		tr := Synthetic(kind, 9, 3)
		now := tr.Start + 8*day + 120*minute
		for i, b := range tr.Bytes {
			if at := tr.Start + point.Nanos(i)*minute; at < now {
				h.Observe(at, at+minute, b)
			}
		}
		f, ok := h.Forecast(now, now+day)
		if got := f.Rate(now+6*60*minute) / f.Rate(now); !ok || math.Abs(got/want.ratio-1) > 0.1 || f.Days == 0 {
			t.Errorf("%s: six hours on the rate is %.2f times as high, want %.2f", kind, got, want.ratio)
		}
	}
}

func BenchmarkForecast(b *testing.B) {
	var h History
	tr := Synthetic("weekly", 15, 1)
	for i, v := range tr.Bytes {
		h.Observe(tr.Start+point.Nanos(i)*minute, tr.Start+point.Nanos(i+1)*minute, v)
	}
	now := tr.Start + 15*day
	for b.Loop() {
		h.Forecast(now, now+day)
	}
}

// TestTheForecastComesBackWithTheClock: a master whose clock was wrong for ten minutes recorded growth there. When the clock is right again, the growth is forecast within 25 minutes, by
// the past days that the jump did not push out.
func TestTheForecastComesBackWithTheClock(t *testing.T) {
	f := func(name string, jump time.Duration, days int) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			var h History
			begin := point.Nanos(time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC).UnixNano())
			rate := func(at point.Nanos) float64 { // bytes a minute: twice as much in the second half of a day
				if at%day >= day/2 {
					return 2e6
				}
				return 1e6
			}
			now := begin
			run := func(d, off point.Nanos) {
				for end := now + d; now < end; now += minute {
					h.Observe(now+off, now+off+minute, rate(now))
				}
			}
			run(6*day+11*60*minute, 0)
			run(10*minute, point.Nanos(jump))
			run(25*minute, 0)
			got, ok := h.Forecast(now, now+2*60*minute)
			if !ok || got.Days < days {
				t.Fatalf("known %t, from %d days, want %d", ok, got.Days, days)
			}
			if r := got.Rate(now) * 60; r < 0.9e6 || r > 1.1e6 {
				t.Errorf("the rate is %.0f a minute, want 1e6", r)
			}
			if r := got.Rate(now+90*minute) * 60; days > 0 && (r < 1.8e6 || r > 2.2e6) {
				t.Errorf("in 90 min it is %.0f a minute, want 2e6", r)
			}
		})
	}
	f("right all the time", 0, 6)
	f("a few seconds ahead", 5*time.Second, 6)
	f("an hour ahead", time.Hour, 6)
	f("two days ahead", 48*time.Hour, 6)
	f("twelve days ahead", 12*24*time.Hour, 2)
	f("a year ahead", 365*24*time.Hour, 0)
	f("a minute behind", -time.Minute, 6)
	f("an hour behind", -time.Hour, 6)
	f("a year behind", -365*24*time.Hour, 6)
}

// TestAHistoryThatHasJustBegunIsItsMean: from a minute on, until there are five; a history with a gap waits for five minutes of its own, and nothing that accepts rows is
// split by a minute.
func TestAHistoryThatHasJustBegunIsItsMean(t *testing.T) {
	const start, second = SyntheticStart + 20*minute + 41e9, point.Nanos(1e9)
	var h History
	for at := start; at < start+8*minute; at += 15 * second {
		now := at + 15*second
		h.Observe(at, now, 15e3+150*float64(at/second/15%3-1))
		f, ok := h.Forecast(now, now+120*minute)
		seen := now - start
		if seen < minute && ok || seen > 90*second && !ok || h.Young(now) != (!ok || f.Short > 0) {
			t.Fatalf("after %d s: %t, %+v", seen/second, ok, f)
		}
		if ok && (math.Abs(f.Level/1000-1) > 0.02 || f.Short > seen || seen < 5*minute && f.Short == 0 || seen > 6*minute && f.Short > 0) {
			t.Fatalf("after %d s: %+v", seen/second, f)
		}
		plan := Plan{Target: 1e4, WidthMin: WidthMin, WidthMax: day}
		if _, full := plan.Full(&f, now+Lead, now+day, 0); ok && full != (f.Short == 0) {
			t.Fatalf("after %d s a partition that accepts rows is split: %t, %+v", seen/second, full, f)
		}
	}
	now := start + 60*minute
	h.Observe(now-2*minute, now, 1e6)
	if f, ok := h.Forecast(now, now+120*minute); ok {
		t.Errorf("after a gap two minutes are enough: %+v", f)
	}
}

// TestALookFarAheadTakesNoTime: minute by minute, the plan of a table with partitions of a century needed a second a column, and one to the last minute of 2262 never ended.
func TestALookFarAheadTakesNoTime(t *testing.T) {
	h := &History{}
	steady(h, 0, 3*day, 1000)
	f, ok := h.Forecast(h.Until(), h.Until()+day)
	if !ok {
		t.Fatal("nothing is forecast")
	}
	began := time.Now()
	if got, want := f.Bytes(math.MaxInt64-day, math.MaxInt64), f.Rate(f.From+20*day)*86400; math.Abs(got/want-1) > 1e-6 {
		t.Errorf("%v bytes on the last day, want %v", got, want)
	}
	far := f.From + 100*365*day
	if got, want := f.Bytes(f.From, far), f.Bytes(f.From, f.From+20*day)+f.Bytes(f.From+20*day, far); math.Abs(got/want-1) > 1e-6 {
		t.Errorf("%v bytes in a century, %v of its parts", got, want)
	}
	for range 100 {
		if end := (Plan{Target: f.Bytes(f.From, far), WidthMin: WidthMin, WidthMax: 200 * 365 * day}).Edges(&f, f.From, f.From+1, 0); len(end) != 1 || math.Abs(float64(end[0]-far)) > float64(day) {
			t.Fatalf("it ends at %v, want %v", end, far)
		}
	}
	if took := time.Since(began); took > 20*time.Second { // minute by minute it needs minutes
		t.Errorf("it took %v", took)
	}
}

// TestEveryCodeIsItsRate: a rate is read from a table, exactly as it is computed, and is written as the same code again.
func TestEveryCodeIsItsRate(t *testing.T) {
	for code := zeroRate + 1; code != 0; code++ {
		got, ok := decodeRate(code)
		if want := math.Exp2(float64(code-2)/rateSteps + rateLow); !ok || got != want {
			t.Fatalf("code %d is %v, want %v", code, got, want)
		}
		if again := encodeRate(got); again != code {
			t.Fatalf("code %d is written as %d", code, again)
		}
	}
}

// TestLatelyIsTheMeanOfWhatIsKnown: of three hours, without the gaps; one known minute is enough.
func TestLatelyIsTheMeanOfWhatIsKnown(t *testing.T) {
	h, now := &History{}, SyntheticStart
	if _, ok := h.Lately(now); ok {
		t.Error("of nothing something is known")
	}
	h.Observe(now, now+minute, 60*1000)
	h.Observe(now+minute, now+minute+1e9, 1000) // the minute is over
	for _, x := range []struct {
		after point.Nanos
		want  float64
		known bool
	}{{2 * minute, 1000, true}, {179 * minute, 1000, true}, {181 * minute, 0, false}} {
		if got, ok := h.Lately(now + x.after); ok != x.known || math.Abs(got-x.want) > 0.02*x.want {
			t.Errorf("%v later: %v, %t", time.Duration(x.after), got, ok)
		}
	}
	h.Observe(now+100*minute, now+101*minute, 60*3000)
	h.Observe(now+101*minute, now+101*minute+1e9, 3000)
	if got, ok := h.Lately(now + 102*minute); !ok || math.Abs(got-2000) > 40 {
		t.Errorf("of two minutes with a gap between: %v, %t", got, ok)
	}
}
