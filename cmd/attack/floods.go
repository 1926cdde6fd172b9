package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Floods of things that cost memory each: tables, partitions, series. A flood that is refused must leave the others alone.
func tableFloods() []attack {
	return []attack{{name: "tables/one-row-each", does: "a row in each of 4,000 tables", run: manyTables, check: checkTables}}
}

func partitionFloods() []attack {
	return []attack{
		{name: "partitions/one-row-each", does: "a row in each of 4,000 days, one request each", run: manyPartitions, check: checkPartitions},
		{name: "partitions/one-request", does: "requests that touch 10,000 days", run: widePartitions},
		{name: "partitions/backfill", does: "honest: years of one series, oldest first, again and again until all is acked", run: backfill, check: checkBackfill},
	}
}

func seriesFloods() []attack {
	return []attack{
		{name: "series/one-table", does: "new series as fast as they are taken", run: func(ctx context.Context, a *attacker) { newSeries(ctx, a, 1) }},
		{name: "series/five-tables", does: "new series in five tables", run: func(ctx context.Context, a *attacker) { newSeries(ctx, a, 5) }},
		{name: "series/new-names", does: "a new metric name in every row, by line protocol", run: newNames},
	}
}

// floodMost is how many of a thing there are. A flood lasts several times as long as other attacks, unless all are in
// before.
const (
	floodMost  = 4000
	floodTimes = 6
)

func manyTables(ctx context.Context, a *attacker) {
	a.last *= floodTimes
	a.workers(ctx, 8, func(ctx context.Context, w, turn int) bool {
		name := fmt.Sprintf("flood_%d_%d", w, turn)
		at := time.Now().UnixMilli()
		if status, _ := a.post(ctx, "/write?precision=ms&db="+name, nil, fmt.Appendf(nil, "flood value=1 %d\n", at)); status/100 == 2 {
			a.ack(name)
		}
		return turn < floodMost/8
	})
}

// checkTables reads a share of the acked tables.
func checkTables(ctx context.Context, a *attacker) error {
	acks := a.acked()
	for i := 0; i < len(acks); i += max(1, len(acks)/checkedMost) {
		if err := a.counts(ctx, acks[i], "count(present_over_time(flood[1h]))", time.Now(), 1); err != nil {
			return err
		}
	}
	return nil
}

// counts asks for one number and compares it.
func (a *attacker) counts(ctx context.Context, table, query string, at time.Time, want float64) error {
	q := url.Values{"query": {query}, "time": {strconv.FormatInt(at.Unix()+1, 10)}} // rows of this second too
	status, answer, err := a.ask(ctx, http.MethodGet, "/t/"+table+"/api/v1/query?"+q.Encode(), nil, nil)
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("table %s, %s: %d %.300s %w", table, query, status, answer, err)
	}
	if got, err := firstValue(answer); err != nil || got != want {
		return fmt.Errorf("table %s, %s is %v, acked were %v: %.200s %w", table, query, got, want, answer, err)
	}
	return nil
}

const day = 24 * time.Hour

func manyPartitions(ctx context.Context, a *attacker) {
	a.last *= floodTimes
	a.workers(ctx, 8, func(ctx context.Context, w, turn int) bool {
		at := a.began.Add(-time.Duration(turn*8+w) * day).UnixMilli()
		if status, _ := a.post(ctx, "/write?precision=ms&db=days", nil, fmt.Appendf(nil, "flood value=1 %d\n", at)); status/100 == 2 {
			a.ack(strconv.FormatInt(at, 10))
		}
		return turn < floodMost/8
	})
}

func checkPartitions(ctx context.Context, a *attacker) error {
	acks := a.acked()
	for i := 0; i < len(acks); i += max(1, len(acks)/checkedMost) {
		ms, err := strconv.ParseInt(acks[i], 10, 64)
		if err != nil {
			return err
		}
		if err := a.counts(ctx, "days", "count(present_over_time(flood[1m]))", time.UnixMilli(ms).Add(10*time.Second), 1); err != nil {
			return err
		}
	}
	return nil
}

func widePartitions(ctx context.Context, a *attacker) {
	a.workers(ctx, 4, func(ctx context.Context, w, turn int) bool {
		var body []byte
		for d := range 10_000 {
			body = fmt.Appendf(body, "wide,w=%d value=1 %d\n", w, a.began.Add(-time.Duration(d)*day).Unix())
		}
		a.post(ctx, "/write?precision=s&db=wide", nil, body)
		return true
	})
}

// backfillDays is the history of the honest sender. It sends ten days a request and repeats a request that is refused.
const backfillDays = 1000

func backfill(ctx context.Context, a *attacker) {
	ctx, cancel := context.WithTimeout(ctx, max(a.last, time.Minute))
	defer cancel()
	for d := 0; d < backfillDays && ctx.Err() == nil; d += 10 {
		var body []byte
		for i := range 10 {
			body = fmt.Appendf(body, "history value=%d %d\n", d+i, a.began.Add(-time.Duration(backfillDays-d-i)*day).Unix())
		}
		for ctx.Err() == nil {
			status, answer := a.post(ctx, "/write?precision=s&db=history", nil, body)
			if status/100 == 2 {
				a.ack(strconv.Itoa(d))
				break
			}
			if status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
				a.blame(fmt.Sprintf("an honest backfill is answered %d %.200s", status, answer))
				return
			}
			sleep(ctx, 100*time.Millisecond)
		}
	}
	if n := len(a.acked()); n < backfillDays/10 {
		a.blame(fmt.Sprintf("of a backfill of %d days %d went in within %s", backfillDays, 10*n, time.Since(a.began).Round(time.Second)))
	}
}

func checkBackfill(ctx context.Context, a *attacker) error {
	n := float64(10 * len(a.acked()))
	return a.counts(ctx, "history", fmt.Sprintf("sum(count_over_time(history[%dd]))", backfillDays+2), a.began, n)
}

func newSeries(ctx context.Context, a *attacker, tables int) {
	a.workers(ctx, 4, func(ctx context.Context, w, turn int) bool {
		rows := make([]row, 2000)
		now := time.Now().UnixMilli()
		for i := range rows {
			rows[i] = row{labels: []string{
				"__name__", "flood", "instance", fmt.Sprintf("host-%d-%d:9100", w, turn), "job", "node", "path", fmt.Sprintf("/var/lib/data/%d", i),
				"request_id", fmt.Sprintf("%d-%d-%d-%032d", w, turn, i, i),
			}, ms: now, value: 1}
		}
		a.post(ctx, fmt.Sprintf("/t/series_%d/api/v1/write", (w+turn)%tables), rw1Header(), rw1(rows))
		return true
	})
}

func newNames(ctx context.Context, a *attacker) {
	a.workers(ctx, 4, func(ctx context.Context, w, turn int) bool {
		var body []byte
		for i := range 5000 {
			body = fmt.Appendf(body, "name_%d_%d_%d,t=x value=1\n", w, turn, i)
		}
		a.post(ctx, "/write?db=names", nil, body)
		return true
	})
}
