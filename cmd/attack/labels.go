package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/prompb"
)

// Strange rows, which are either refused or kept: acked ones must be readable, also after flushes and a restart.
func labelAttacks() []attack {
	return []attack{
		{name: "labels/long-values", does: "1,040 series with label values of 64 KiB in one request", run: longValues, check: poisonReads("poison_long")},
		{name: "labels/many", does: "series with ten thousand labels, long names, odd bytes", run: manyLabels, check: poisonReads("poison_many")},
		{name: "labels/histograms", does: "native histograms with 100,000 buckets and absurd schemas", run: hugeHistograms, check: poisonReads("poison_histogram")},
		{name: "labels/exemplars", does: "exemplars as fast as they are taken, for one series", run: exemplarFlood, check: poisonReads("poison_exemplar")},
		{name: "labels/times", does: "rows at the ends of 64-bit time, of 1970, 2262 and before Christ", run: wildTimes, check: poisonReads("poison_time")},
	}
}

const poisonTable = "poison"

// checkedMost is about how many of the acked things a check looks at.
const checkedMost = 50

// poisonReads checks that every acked series, noted by its label id, is there, and that queries of the table work at all.
func poisonReads(metric string) func(context.Context, *attacker) error {
	return func(ctx context.Context, a *attacker) error {
		acks := a.acked()
		for i := 0; i < len(acks); i += max(1, len(acks)/checkedMost) {
			id := acks[i]
			q := url.Values{"query": {fmt.Sprintf("present_over_time(%s{id=%q}[1h])", metric, id)}}
			status, answer, err := a.ask(ctx, http.MethodGet, "/t/"+poisonTable+"/api/v1/query?"+q.Encode(), nil, nil)
			if err != nil || status != http.StatusOK {
				return fmt.Errorf("query of %s: %d %.300s %w", metric, status, answer, err)
			}
			if v, err := firstValue(answer); err != nil || v != 1 {
				return fmt.Errorf("acked series %s{id=%q} is not there: %.300s %w", metric, id, answer, err)
			}
		}
		status, answer, err := a.ask(ctx, http.MethodGet, "/t/"+poisonTable+"/api/v1/query?query="+url.QueryEscape(`count({__name__=~"poison.+"})`), nil, nil)
		if err != nil || status != http.StatusOK && status != http.StatusUnprocessableEntity { // it may need more memory than there is
			return fmt.Errorf("query of everything: %d %.300s %w", status, answer, err)
		}
		return nil
	}
}

func (a *attacker) poison(ctx context.Context, body []byte, id string) {
	if status, _ := a.post(ctx, "/t/"+poisonTable+"/api/v1/write", rw1Header(), body); status/100 == 2 {
		a.ack(id)
	}
}

func longValues(ctx context.Context, a *attacker) {
	a.workers(ctx, 2, func(ctx context.Context, w, turn int) bool {
		id := fmt.Sprintf("%d-%d", w, turn)
		size := []int{64 << 10, 32 << 10, 8 << 10, 4 << 10}[turn%4]
		var rows []row
		for i := range 1040 {
			value := strings.Repeat("v", size-8) + fmt.Sprintf("%08d", i)
			rows = append(rows, row{labels: []string{"__name__", "poison_long", "id", id, "l", value}, ms: time.Now().UnixMilli(), value: 1})
			if len(rows)*size > 24<<20 {
				break
			}
		}
		a.poison(ctx, rw1(rows), id)
		return turn < 3
	})
}

func manyLabels(ctx context.Context, a *attacker) {
	odd := []string{"", " ", "\x00", "\xff\xfe", "é\u0301", "a\nb", strings.Repeat("x", 1<<20), `"`, "{}", "..", "__name__"}
	a.workers(ctx, 4, func(ctx context.Context, w, turn int) bool {
		r := a.rand(w*1000 + turn)
		id := fmt.Sprintf("%d-%d", w, turn)
		labels := []string{"__name__", "poison_many", "id", id}
		switch turn % 4 {
		case 0:
			for i := range 1 << r.IntN(15) {
				labels = append(labels, "l"+strconv.Itoa(i), "v")
			}
		case 1:
			labels = append(labels, odd[r.IntN(len(odd))], odd[r.IntN(len(odd))])
		case 2:
			labels = append(labels, strings.Repeat("n", 1<<r.IntN(22)), "v")
		case 3:
			labels = append(labels, "v", strings.Repeat("n", 1<<r.IntN(22)))
		}
		a.poison(ctx, rw1([]row{{labels, time.Now().UnixMilli(), 1}}), id)
		return true
	})
}

func hugeHistograms(ctx context.Context, a *attacker) {
	a.workers(ctx, 4, func(ctx context.Context, w, turn int) bool {
		r := a.rand(w*1000 + turn)
		id := fmt.Sprintf("%d-%d", w, turn)
		buckets := 1 << r.IntN(18)
		h := prompb.Histogram{
			Schema: int32(r.IntN(14) - 5), Sum: 1, ZeroThreshold: 1e-128, Timestamp: time.Now().UnixMilli(),
			ZeroCount: &prompb.Histogram_ZeroCountInt{}, PositiveSpans: []prompb.BucketSpan{{Offset: int32(r.Uint32()), Length: uint32(buckets)}},
		}
		if turn%3 == 0 {
			h.PositiveSpans = nil // as many spans as buckets
			for range buckets {
				h.PositiveSpans = append(h.PositiveSpans, prompb.BucketSpan{Offset: 1, Length: 1})
			}
		}
		// The largest steps there are in a histogram: the encoded form is then at its largest.
		var sum, count int64
		for i := range buckets {
			delta := int64(1) << 30
			if i%2 == 1 {
				delta = -delta
			}
			sum += delta
			count += sum
			h.PositiveDeltas = append(h.PositiveDeltas, delta)
		}
		h.Count = &prompb.Histogram_CountInt{CountInt: uint64(count)}
		one := prompb.TimeSeries{Labels: labelsOf([]string{"__name__", "poison_histogram", "id", id}), Histograms: []prompb.Histogram{h}}
		a.poison(ctx, packRW1(&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{one}}), id)
		return true
	})
}

func exemplarFlood(ctx context.Context, a *attacker) {
	a.workers(ctx, 4, func(ctx context.Context, w, turn int) bool {
		id := strconv.Itoa(w)
		one := prompb.TimeSeries{Labels: labelsOf([]string{"__name__", "poison_exemplar", "id", id})}
		now := time.Now().UnixMilli()
		one.Samples = []prompb.Sample{{Value: 1, Timestamp: now}}
		for i := range 5000 {
			trace := fmt.Sprintf("%064d%032d", turn, i)
			one.Exemplars = append(one.Exemplars, prompb.Exemplar{Labels: labelsOf([]string{"trace_id", trace}), Value: float64(i), Timestamp: now - int64(i)})
		}
		a.poison(ctx, packRW1(&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{one}}), id)
		return true
	})
}

func wildTimes(ctx context.Context, a *attacker) {
	wild := []int64{
		math.MinInt64, math.MinInt64 + 1, -1 << 53, -62_135_596_800_000, -1, 0, 1, 9_223_372_036_854, 9_223_372_036_855, 1 << 53,
		math.MaxInt64 - 1, math.MaxInt64, math.MaxInt64 / 1000, math.MaxInt64 / 1_000_000, 253_402_300_799_000,
	}
	a.workers(ctx, 2, func(ctx context.Context, w, turn int) bool {
		at := wild[turn%len(wild)]
		// An honest row beside the wild one: it is kept whatever becomes of the other.
		id := fmt.Sprintf("%d-%d", w, turn)
		rows := []row{
			{[]string{"__name__", "poison_time", "id", id}, time.Now().UnixMilli(), 1},
			{[]string{"__name__", "poison_time", "id", "wild"}, at, 1},
		}
		status, _ := a.post(ctx, "/t/"+poisonTable+"/api/v1/write", rw1Header(), rw1(rows))
		if status/100 == 2 || status == http.StatusBadRequest {
			a.ack(id)
		}
		for _, precision := range []string{"ns", "u", "ms", "s", "m", "h"} {
			a.post(ctx, "/write?db="+poisonTable+"&precision="+precision, nil, fmt.Appendf(nil, "poison_time,id=wild value=1 %d\n", at))
		}
		return turn < 2*len(wild)
	})
}
