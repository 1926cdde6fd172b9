package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// largeSenders send honest bodies of the largest size at once, by each form of them.
const largeSenders = 4

// largeBody is a body of the largest size, of one metric.
type largeBody struct {
	metric string
	path   string
	header http.Header
	body   []byte
	ids    [2]string // labels id of two of its series: those of the first and of the last row
}

// largeBodies makes one of each form: lines of 20,000 series, by two fields, as they are, packed ones of twice that, and a million series by remote write, for which there is no memory.
func largeBodies(now time.Time) []largeBody {
	const plain, unpacked, series, million = 31 << 20, 62 << 20, 10_000, 1_000_000
	lines := func(metric string, size int) (body []byte, last string) {
		body = make([]byte, 0, size+1<<10)
		for i := 0; len(body) < size; i++ {
			last = strconv.Itoa(i % series)
			at := now.Add(time.Duration(i/series-size/(40*series)) * time.Second) // in the last minutes
			body = fmt.Appendf(body, "%s,host=h%d,id=%s value=1,load=%d %d\n", metric, i%100, last, i%7, at.UnixNano())
		}
		return body, last
	}
	one, lastOne := lines("large_lines", plain)
	two, lastTwo := lines("large_packed", unpacked)
	rows := make([]row, million)
	for i := range rows {
		rows[i] = row{labels: []string{"__name__", "large_written", "id", strconv.Itoa(i)}, ms: now.UnixMilli(), value: 1}
	}
	text := http.Header{"Content-Type": {"text/plain"}}
	packed := http.Header{"Content-Type": {"text/plain"}, "Content-Encoding": {"gzip"}}
	return []largeBody{
		{"large_lines", "/t/large/write", text, one, [2]string{"0", lastOne}},
		{"large_packed", "/t/large/write", packed, gzipped(two), [2]string{"0", lastTwo}},
		{"large_written", "/t/large/api/v1/write", rw1Header(), rw1(rows), [2]string{"0", strconv.Itoa(million - 1)}},
	}
}

// largeRequests sends large bodies. Beside them it queries, exports and reads all series. A body that is refused because memory is short is sent again.
func largeRequests(ctx context.Context, a *attacker) {
	a.crowd(ctx)
	bodies := largeBodies(a.began)
	a.last = max(a.last, 20*time.Second)
	var all sync.WaitGroup
	acked, why := make([]atomic.Int64, len(bodies)), make([]atomic.Value, len(bodies))
	for i, b := range bodies {
		all.Go(func() {
			a.workers(ctx, largeSenders, func(ctx context.Context, _, _ int) bool {
				status, answer := a.post(ctx, b.path, b.header, b.body)
				if ctx.Err() != nil {
					return false
				}
				if status/100 != 2 {
					why[i].Store(fmt.Sprintf("%d %.120s", status, answer))
					return true
				}
				acked[i].Add(1)
				for _, id := range b.ids {
					a.ack(fmt.Sprintf("%s{id=%q}", b.metric, id))
				}
				return true
			})
		})
	}
	all.Go(func() { heavyQueries(ctx, a) })
	all.Go(func() { readAll(ctx, a) })
	all.Go(func() { readLarge(ctx, a) })
	all.Wait()
	for i, b := range bodies {
		a.note += fmt.Sprintf("\n    %s: %d acked; the last refusal: %v", b.metric, acked[i].Load(), why[i].Load())
	}
}

// readLarge asks for what the bodies bring.
func readLarge(ctx context.Context, a *attacker) {
	a.workers(ctx, largeSenders, func(ctx context.Context, w, turn int) bool {
		switch (w + turn) % 3 {
		case 0:
			a.get(ctx, "/t/large/api/v1/query?query="+`{__name__=~"large.%2B"}`)
		case 1:
			a.get(ctx, "/t/large/api/v1/query?query="+`sum+by+(host)(rate({__name__=~"large.%2B"}[5m]))`)
		case 2:
			a.get(ctx, "/t/large/federate?match[]="+`{__name__=~"large.%2B"}`)
		}
		return true
	})
}

// checkLarge checks that the first and the last series of each acked body are there.
func checkLarge(ctx context.Context, a *attacker) error {
	seen := map[string]bool{}
	for _, series := range a.acked() {
		if seen[series] {
			continue
		}
		seen[series] = true
		if err := a.counts(ctx, "large", "count(last_over_time("+series+"[1d]))", time.Now(), 1); err != nil {
			return err
		}
	}
	return nil
}
