package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
)

func queryAttacks() []attack {
	return []attack{
		{name: "queries/bombs", does: "expressions that a line of text makes huge", run: expressionBombs},
		{name: "queries/heavy", does: "everything, over everything, eight at a time", run: heavyQueries},
		{name: "queries/lookups", does: "labels, values and series with thousands of matchers and costly patterns", run: lookups},
		{name: "queries/read-all", does: "remote read, federation and export of everything", run: readAll},
		{name: "queries/leave", does: "heavy queries whose sender leaves at once", run: leave},
	}
}

const crowdTable = "crowd"

// crowd writes the series that heavy queries read, unless an earlier attack has: 20,000 series, an hour of rows.
func (a *attacker) crowd(ctx context.Context) {
	const series, steps, each = 20_000, 60, 2000
	if a.counts(ctx, crowdTable, "count(present_over_time(crowd[2h]))", a.began, series) == nil {
		return
	}
	for s := range steps {
		at := a.began.Add(-time.Duration(steps-s) * time.Minute).UnixMilli()
		for from := 0; from < series; from += each {
			var body []byte
			for i := range each {
				n := from + i
				body = fmt.Appendf(body, "crowd,host=h%d,zone=z%d,path=/a/b/c/%d value=%d %d\n", n%500, n%7, n, s*n, at)
			}
			a.post(ctx, "/write?precision=ms&db="+crowdTable, nil, body)
			if ctx.Err() != nil {
				return
			}
		}
	}
}

func (a *attacker) query(ctx context.Context, expr string, over, step time.Duration) {
	now := time.Now()
	q := url.Values{"query": {expr}}
	path := "query"
	if over > 0 {
		path = "query_range"
		q.Set("start", strconv.FormatInt(now.Add(-over).Unix(), 10))
		q.Set("end", strconv.FormatInt(now.Unix(), 10))
		q.Set("step", strconv.FormatFloat(step.Seconds(), 'f', -1, 64))
	}
	a.post(ctx, "/t/"+crowdTable+"/api/v1/"+path, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, []byte(q.Encode()))
}

// bombs are short and cost much if they are evaluated as they stand.
func bombsOfText() []string {
	nested := "vector(1)"
	for range 6 {
		nested = "max_over_time((" + nested + ")[1d:1s])"
	}
	long := "crowd"
	for range 300 {
		long = `label_replace(` + long + `, "x", "$1$1", "x", "(.*)")`
	}
	joined := "crowd"
	for range 60 {
		joined = `label_join(` + joined + `, "x", "", "x", "x", "path")`
	}
	return []string{
		`max_over_time(vector(1)[1y:1ms])`,
		`count_over_time((vector(1))[292y:1ms])`,
		`sum_over_time(time()[10y:1s])`,
		nested,
		`absent_over_time(nothing[100y:1ms])`,
		`quantile_over_time(0.5, crowd[1h:1ms])`,
		`sum(rate(crowd[1h:1ms])) by (path)`,
		`count_values("v", crowd)`,
		`topk(1000000000, crowd)`,
		`crowd * on () group_left (` + strings.Repeat("a, ", 20_000) + `b) vector(1)`,
		`sum by (` + strings.Repeat("a, ", 100_000) + `b) (crowd)`,
		`crowd * on (zone) group_left crowd`,
		`crowd and on () crowd or crowd unless crowd`,
		`label_replace(crowd, "x", "` + strings.Repeat("$1", 10_000) + `", "path", "(.*)")`,
		long, joined,
		`{__name__=~".*"}`,
		`crowd{path=~"(a|b|c|/.*)*x(.*)*y"}`,
		`crowd{path=~"` + strings.Repeat("(x+x+)+", 100) + `y"}`,
		`crowd{path=~"(` + strings.TrimSuffix(strings.Repeat("/a/b/c/1|", 20_000), "|") + `)"}`,
		`crowd{path=~"[a-z]{1000}{1000}"}`,
		strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000),
		strings.Repeat("-", 100_000) + "1",
		"1" + strings.Repeat("+1", 100_000),
		strings.Repeat("sum(", 5_000) + "crowd" + strings.Repeat(")", 5_000),
		`crowd offset 290y`,
		`crowd @ 9223372036854775807`,
		`last_over_time(crowd[292y] offset -292y)`,
		`holt_winters(crowd[1h], 0.5, 0.5)`,
		`predict_linear(crowd[1h:1ms], 1e300)`,
		`sort_by_label(crowd, "path", "host", "zone")`,
		`histogram_quantile(0.9, crowd)`,
		`sum_over_time(crowd[1h:1s])`,
	}
}

func expressionBombs(ctx context.Context, a *attacker) {
	a.crowd(ctx)
	all := bombsOfText()
	a.last = max(a.last, time.Duration(len(all)/8+1)*time.Second)
	a.workers(ctx, 8, func(ctx context.Context, w, turn int) bool {
		expr := all[(w+8*turn)%len(all)]
		switch (turn / len(all)) % 2 {
		case 0:
			a.query(ctx, expr, 0, 0)
		case 1:
			a.query(ctx, expr, time.Hour, time.Second)
		}
		return true
	})
}

func heavyQueries(ctx context.Context, a *attacker) {
	a.crowd(ctx)
	all := []string{
		`{__name__=~".+"}`, `sum by (path) (rate(crowd[5m]))`, `quantile by (zone) (0.9, crowd)`, `sort(crowd)`, `crowd[1h]`, `crowd + crowd`,
		`stddev_over_time(crowd[30m])`, `count by (path, host, zone) (crowd)`, `avg_over_time(crowd[10m:10s])`, `absent(crowd)`, `crowd and crowd`,
	}
	a.workers(ctx, 8, func(ctx context.Context, w, turn int) bool {
		expr := all[(w+turn)%len(all)]
		if strings.HasSuffix(expr, "]") {
			a.query(ctx, expr, 0, 0)
		} else {
			a.query(ctx, expr, time.Hour, time.Second)
		}
		return true
	})
}

func lookups(ctx context.Context, a *attacker) {
	a.crowd(ctx)
	var matchers strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&matchers, "&match[]=%s", url.QueryEscape(fmt.Sprintf(`crowd{path="/a/b/c/%d"}`, i)))
	}
	form := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	all := url.QueryEscape(`{__name__=~".+"}`)
	prefix := "/t/" + crowdTable + "/api/v1/"
	a.workers(ctx, 8, func(ctx context.Context, w, turn int) bool {
		switch (w + turn) % 7 {
		case 0:
			a.post(ctx, prefix+"series", form, []byte(matchers.String()[1:]))
		case 1:
			a.post(ctx, prefix+"labels", form, []byte(matchers.String()[1:]))
		case 2:
			a.get(ctx, prefix+"label/path/values?match[]="+all)
		case 3:
			a.get(ctx, prefix+"series?start=-9223372036854775&end=9223372036854775&match[]="+all)
		case 4:
			a.get(ctx, prefix+"status/tsdb?limit=1000000000")
		case 5:
			a.get(ctx, prefix+"label/path/values?match[]="+url.QueryEscape(`{path=~".*`+strings.Repeat("(a|b)?", 500)+`"}`))
		case 6:
			a.get(ctx, prefix+"query_exemplars?query="+all+"&start=0&end=99999999999")
		}
		return true
	})
}

func readAll(ctx context.Context, a *attacker) {
	a.crowd(ctx)
	everything := &prompb.LabelMatcher{Type: prompb.LabelMatcher_RE, Name: "__name__", Value: ".*"}
	body := func(streamed bool, n int) []byte {
		r := prompb.ReadRequest{}
		if streamed {
			r.AcceptedResponseTypes = []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS}
		}
		for range n {
			r.Queries = append(r.Queries, &prompb.Query{StartTimestampMs: -1 << 60, EndTimestampMs: 1 << 60, Matchers: []*prompb.LabelMatcher{everything}})
		}
		b, err := r.Marshal()
		if err != nil {
			panic(fmt.Sprintf("a request that this program made does not encode: %v", err))
		}
		return snappy.Encode(nil, b)
	}
	header := http.Header{"Content-Encoding": {"snappy"}, "Content-Type": {"application/x-protobuf"}, "X-Prometheus-Remote-Read-Version": {"0.1.0"}}
	prefix := "/t/" + crowdTable
	small := snappy.Encode(nil, bytes.Repeat([]byte{1<<3 | 2, 0}, 2_000_000)) // 200 kB of empty queries
	a.workers(ctx, 8, func(ctx context.Context, w, turn int) bool {
		switch (w + turn) % 5 {
		case 4:
			a.post(ctx, prefix+"/api/v1/read", header, small)
		case 0:
			a.post(ctx, prefix+"/api/v1/read", header, body(false, 1))
		case 1:
			a.post(ctx, prefix+"/api/v1/read", header, body(true, 1))
		case 2:
			a.post(ctx, prefix+"/api/v1/read", header, body(false, 200))
		case 3:
			a.get(ctx, prefix+"/federate?match[]="+url.QueryEscape(`{__name__=~".*"}`))
		}
		return true
	})
}

// leave abandons queries: the server must notice, or a handful of clients occupies it for minutes.
func leave(ctx context.Context, a *attacker) {
	a.crowd(ctx)
	a.workers(ctx, 32, func(ctx context.Context, w, turn int) bool {
		r := a.rand(w*1000 + turn)
		ctx, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(30))*time.Millisecond)
		defer cancel()
		a.query(ctx, `sum by (path) (quantile_over_time(0.9, crowd[30m:1s]))`, time.Hour, time.Second)
		return true
	})
	// Abandoned queries end soon: a light one is then answered at once.
	began := time.Now()
	a.query(context.WithoutCancel(ctx), `count(crowd)`, 0, 0)
	if took := time.Since(began); took > overallGrace {
		a.blame(fmt.Sprintf("after the heavy queries were abandoned, a light one took %s", took))
	}
}
