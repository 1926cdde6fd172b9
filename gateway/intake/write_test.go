package intake_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestRemoteWrite1(t *testing.T) {
	f := start(t)
	body := rw1(t, series("up", now, 1, "job", "node"), series("temp", now, -3.5))
	for _, path := range []string{"/api/v1/write", "/api/v1/push", "/api/v1/prom/write"} {
		a := f.do(t, "POST /t/"+strings.ReplaceAll(path[1:], "/", "_")+path, body, rw1Header...)
		a.want(t, 204)
		for name := range a.header {
			if strings.HasSuffix(name, "-Written") {
				t.Errorf("remote write 1 got %s", name)
			}
		}
		got := f.memory.table(strings.ReplaceAll(path[1:], "/", "_")).dump()
		want := fmt.Sprintf("{__name__=\"temp\"} -3.5 @%[1]d\n{__name__=\"up\", job=\"node\"} 1 @%[1]d\n", now.UnixNano())
		if got != want {
			t.Errorf("%s stored %s", path, got)
		}
	}
	f.do(t, "POST /api/v1/write", body, append(rw1Header, "X-Scope-OrgID", "team-a")...).want(t, 204)
	f.do(t, "POST /api/v1/write", body, rw1Header...).want(t, 204)
	if f.memory.table("team-a").count() != 2 || f.memory.table("default").count() != 2 {
		t.Error("tables by header or default are wrong")
	}
	packed, _ := zstd.NewWriter(nil)
	plain, _ := snappy.Decode(nil, body)
	f.do(t, "POST /t/zstd/api/v1/write", packed.EncodeAll(plain, nil), "Content-Type", "application/x-protobuf", "Content-Encoding", "zstd").want(t, 204)
	if f.memory.table("zstd").count() != 2 {
		t.Error("zstd body was not stored")
	}
}

func TestRemoteWrite1Errors(t *testing.T) {
	f := start(t, func(s *intake.Settings) { s.BodyBytesMax, s.DecodedBytesMax = 64<<10, 128<<10 })
	ok := rw1(t, series("up", now, 1))
	f.do(t, "POST /api/v1/write", []byte("not snappy"), rw1Header...).want(t, 400, "snappy")
	f.do(t, "POST /api/v1/write", snappy.Encode(nil, []byte{0xff, 0xff, 1}), rw1Header...).want(t, 400)
	f.do(t, "POST /api/v1/write", ok, "Content-Type", "text/plain").want(t, 415)
	f.do(t, "POST /api/v1/write", ok, "Content-Type", "application/x-protobuf", "Content-Encoding", "br").want(t, 415)
	f.do(t, "POST /api/v1/write", make([]byte, 65<<10), rw1Header...).want(t, 413)
	f.do(t, "POST /api/v1/write", snappy.Encode(nil, make([]byte, 129<<10)), rw1Header...).want(t, 413)
	f.do(t, "GET /api/v1/write", nil).want(t, 405, "Allow: POST")
	f.do(t, "POST /t/no%20name/api/v1/write", ok, rw1Header...).want(t, 400, "table name")
	f.do(t, "POST /api/v1/write", ok, append(rw1Header, intake.AckHeader, "maybe")...).want(t, 400, "use received, one or all")

	double := series("up", now, 2, "a", "1", "a", "2")
	f.do(t, "POST /api/v1/write", rw1(t, double, series("kept", now, 1)), rw1Header...).want(t, 400, `"a" appears twice`)
	old := series("up", time.Unix(5, 0), 2, "x", "old")
	f.memory.table("default").lo = now.Add(-time.Hour).UnixNano()
	f.do(t, "POST /api/v1/write", rw1(t, old, series("kept", now, 2)), rw1Header...).want(t, 400, "1970-01-01T00:00:05Z is older than what the table keeps")
	f.do(t, "POST /api/v1/write", rw1(t, series("up", now.Add(time.Hour), 2), series("kept", now, 3)), rw1Header...).want(t, 400, "too far ahead")
	if got := f.memory.table("default").dump(); got != fmt.Sprintf("{__name__=\"kept\"} 3 @%d\n", now.UnixNano()) {
		t.Errorf("stored %s", got)
	}
	for kind, status := range map[fault.Kind]int{
		fault.Throttled: 503, fault.Unavailable: 503, fault.Stale: 503, fault.Invalid: 400, fault.TooLarge: 413, fault.Internal: 500,
	} {
		table := "fails_" + kind.String() // one each: a table without room is held back for a moment
		f.memory.table(table).fail(fault.Errorf(kind, "as asked"))
		a := f.do(t, "POST /t/"+table+"/api/v1/write", ok, rw1Header...)
		a.want(t, status)
		if (a.header.Get("Retry-After") == "1") != (status == 503) {
			t.Errorf("%v: Retry-After %q", kind, a.header.Get("Retry-After"))
		}
	}
	f.memory.createOnWrite = false
	f.do(t, "POST /t/unknown/api/v1/write", ok, rw1Header...).want(t, 404, "unknown")
}

func TestRemoteWrite2CountsWhatWasWritten(t *testing.T) {
	f := start(t)
	symbols := []string{"", "__name__", "up", "job", "node", "down"}
	sample := func(at time.Time) []writev2.Sample { return []writev2.Sample{{Timestamp: at.UnixMilli(), Value: 1}} }
	body := rw2(t, symbols,
		writev2.TimeSeries{LabelsRefs: []uint32{1, 2, 3, 4}, Samples: sample(now),
			Exemplars: []writev2.Exemplar{{LabelsRefs: []uint32{3, 4}, Timestamp: now.UnixMilli(), Value: 7}}},
		writev2.TimeSeries{LabelsRefs: []uint32{1, 5}, Samples: sample(now.Add(time.Hour))})
	a := f.do(t, "POST /api/v1/write", body, rw2Header...)
	a.want(t, 400, "too far ahead", "X-Prometheus-Remote-Write-Samples-Written: 1",
		"X-Prometheus-Remote-Write-Histograms-Written: 0", "X-Prometheus-Remote-Write-Exemplars-Written: 1")
	body = rw2(t, symbols, writev2.TimeSeries{LabelsRefs: []uint32{1, 2}, Samples: sample(now)})
	f.do(t, "POST /api/v1/write", body, rw2Header...).want(t, 204, "X-Prometheus-Remote-Write-Samples-Written: 1")
	f.memory.table("default").fail(fault.Errorf(fault.Unavailable, "no leader"))
	f.do(t, "POST /api/v1/write", body, rw2Header...).want(t, 503, "X-Prometheus-Remote-Write-Samples-Written: 0", "Retry-After: 1")
	f.do(t, "POST /api/v1/write", rw2(t, []string{"x"}, writev2.TimeSeries{}), rw2Header...).want(t, 400)
}

// TestSamplesBesideRefusedExemplarsAreKeptAndNotSentAgain: with a retention or past_max shorter than the time between two observations of a bucket, each request had
// an old exemplar, and was answered 400: Prometheus counted all of its samples as lost.
func TestSamplesBesideRefusedExemplarsAreKeptAndNotSentAgain(t *testing.T) {
	f := start(t)
	table := f.memory.table("default")
	table.lo = now.Add(-time.Hour).UnixNano()
	long := strings.Repeat("x", point.ExemplarLabelsMax)
	times := []time.Time{now, now.Add(-time.Minute), now.Add(-2 * time.Hour), now.Add(24 * time.Hour)} // out of order, too old, too far ahead
	one := series("up", now, 1)
	for _, at := range times {
		one.Exemplars = append(one.Exemplars, prompb.Exemplar{Labels: []prompb.Label{{Name: "trace_id", Value: "a"}}, Timestamp: at.UnixMilli()})
	}
	one.Exemplars = append(one.Exemplars, prompb.Exemplar{Labels: []prompb.Label{{Name: "trace_id", Value: long}}, Timestamp: now.UnixMilli()})
	f.do(t, "POST /api/v1/write", rw1(t, one), rw1Header...).want(t, 204)
	if table.count() != 1 || table.exempl != 2 {
		t.Errorf("1.0: %d samples and %d exemplars are kept, want 1 and 2", table.count(), table.exempl)
	}
	wantMetric(t, f, "spillway_intake_exemplars_refused_total", 3, "protocol", "rw1")

	two := writev2.TimeSeries{LabelsRefs: []uint32{1, 2}, Samples: []writev2.Sample{{Timestamp: now.UnixMilli(), Value: 1}}}
	for _, at := range times {
		two.Exemplars = append(two.Exemplars, writev2.Exemplar{LabelsRefs: []uint32{3, 4}, Timestamp: at.UnixMilli()})
	}
	two.Exemplars = append(two.Exemplars, writev2.Exemplar{LabelsRefs: []uint32{3, 5}, Timestamp: now.UnixMilli()})
	f.do(t, "POST /api/v1/write", rw2(t, []string{"", "__name__", "down", "trace_id", "a", long}, two), rw2Header...).want(t, 400, "rows not taken: 0", "exemplar: ",
		"X-Prometheus-Remote-Write-Samples-Written: 1", "X-Prometheus-Remote-Write-Histograms-Written: 0", "X-Prometheus-Remote-Write-Exemplars-Written: 2")
	if table.count() != 2 || table.exempl != 4 {
		t.Errorf("2.0: %d samples and %d exemplars are kept, want 2 and 4", table.count(), table.exempl)
	}
	wantMetric(t, f, "spillway_intake_exemplars_refused_total", 3, "protocol", "rw2")
	f.do(t, "POST /api/v1/write", rw1(t, one), append(rw1Header, intake.AtomicHeader, "true")...).want(t, 204)
}

// TestManySeriesComeBackAsTheyWereSent writes enough to make every buffer grow, and compares every row.
func TestManySeriesComeBackAsTheyWereSent(t *testing.T) {
	f := start(t)
	var all []prompb.TimeSeries
	for i := range 20_000 {
		all = append(all, series("m", now, float64(i), "host", fmt.Sprintf("host-%05d", i), "pad", strings.Repeat("x", i%50)))
	}
	for range 2 { // new series, then existing ones
		f.do(t, "POST /api/v1/write", rw1(t, all...), rw1Header...).want(t, 204)
	}
	var want strings.Builder
	for i := range all {
		pad := ""
		if i%50 > 0 {
			pad = `, pad="` + strings.Repeat("x", i%50) + `"`
		}
		fmt.Fprintf(&want, "{__name__=\"m\", host=\"host-%05d\"%s} %d @%d\n", i, pad, i, now.UnixNano())
	}
	if got := f.memory.table("default").dump(); got != want.String() {
		t.Errorf("what came back differs; it begins with %.300s", got)
	}
}

func TestInflux1(t *testing.T) {
	f := start(t)
	sec := strconv.FormatInt(now.Unix(), 10)
	line := "cpu,host=a usage=1.5,idle=2i " + sec + "\n"
	a := f.do(t, "POST /write?db=telegraf&precision=s&rp=autogen", []byte(line))
	a.want(t, 204, "X-Influxdb-Version: 1.8.10")
	if a.header.Get("Request-Id") == "" || a.header.Get("Request-Id") != a.header.Get("X-Request-Id") {
		t.Errorf("ids %q %q", a.header.Get("Request-Id"), a.header.Get("X-Request-Id"))
	}
	want := fmt.Sprintf("{__name__=\"cpu_idle\", host=\"a\"} 2 @%[1]d\n{__name__=\"cpu_usage\", host=\"a\"} 1.5 @%[1]d\n", now.UnixNano())
	if got := f.memory.table("telegraf").dump(); got != want {
		t.Errorf("stored %s", got)
	}
	f.do(t, "POST /write?db=members&precision=s", gzipped("a v=1 "+sec+"\nb v=", "2 "+sec+"\n"), "Content-Encoding", "gzip").want(t, 204)
	if got := f.memory.table("members").count(); got != 2 {
		t.Errorf("%d rows of two gzip members, want 2", got)
	}
	f.do(t, "POST /t/path/write?precision=s", []byte(line), "X-Request-Id", "mine").want(t, 204, "X-Request-Id: mine")
	f.do(t, "POST /write?db=now", []byte("m v=1")).want(t, 204)
	f.do(t, "POST /write?db=empty", nil).want(t, 204)
}

// TestTheWishNotToWaitReachesTheTable: by the header, or the parameter.
func TestTheWishNotToWaitReachesTheTable(t *testing.T) {
	f := start(t)
	ask := func(what string, want point.Smear, header ...string) {
		t.Helper()
		f.do(t, what, []byte("m v=1"), header...).want(t, 204)
		all := f.memory.table("x").smears
		if got := all[len(all)-1]; got != want {
			t.Errorf("%s %v: the wish is %v, want %v", what, header, got, want)
		}
	}
	ask("POST /write?db=x", point.SmearByTable)
	ask("POST /write?db=x&smear=off", point.SmearOff)
	ask("POST /write?db=x&smear=false", point.SmearOff)
	ask("POST /write?db=x", point.SmearOff, intake.SmearHeader, "off")
	ask("POST /write?db=x&smear=off&smear=false", point.SmearOff, intake.SmearHeader, "off", intake.SmearHeader, "0")
	ask("POST /api/v2/write?bucket=x&smear=on", point.SmearOn)
	f.do(t, "POST /api/v1/write", rw1(t, series("m", now, 1)), append(rw1Header, "X-Spillway-Table", "x", intake.SmearHeader, "off")...).want(t, 204)
	if all := f.memory.table("x").smears; all[len(all)-1] != point.SmearOff {
		t.Errorf("remote write: the wish is %v", all[len(all)-1])
	}
	f.do(t, "POST /write?db=x", []byte("m v=1"), intake.SmearHeader, "maybe").want(t, 400, "neither on nor off")
}

func TestAckLevels(t *testing.T) {
	f := start(t)
	ask := func(what string, want point.Level, header ...string) {
		t.Helper()
		f.do(t, what, []byte("m v=1"), header...).want(t, 204)
		if got := f.memory.table("x").lastLevel(); got != want {
			t.Errorf("%s %v: level %v, want %v", what, header, got, want)
		}
	}
	ask("POST /write?db=x", point.All)
	ask("POST /write?db=x&consistency=any", point.Received)
	ask("POST /write?db=x&consistency=one", point.One)
	ask("POST /write?db=x&consistency=quorum", point.All)
	ask("POST /write?db=x&consistency=any", point.All, intake.AckHeader, "all")
	ask("POST /api/v2/write?bucket=x", point.One, intake.AckHeader, "one")
	ask("POST /api/v3/write_lp?db=x", point.All)
	ask("POST /api/v3/write_lp?db=x&no_sync=true", point.Received)
	f.do(t, "POST /api/v1/write", rw1(t, series("m", now, 1)), append(rw1Header, "X-Spillway-Table", "x", intake.AckHeader, "received")...).want(t, 204)
	if got := f.memory.table("x").lastLevel(); got != point.Received {
		t.Errorf("remote write: level %v", got)
	}
}

func TestInflux1Errors(t *testing.T) {
	f := start(t, func(s *intake.Settings) { s.BodyBytesMax, s.DecodedBytesMax = 64<<10, 128<<10 })
	good := []byte("m v=1")
	a := f.do(t, "POST /write", good)
	a.want(t, 400, `{"error":"database is required"}`, "X-Influxdb-Error: database is required")
	f.do(t, "POST /write?db=x&precision=d", good).want(t, 400, `invalid precision \"d\" (use n, u, ms, s, m or h)`)
	f.do(t, "POST /write?db=x&consistency=most", good).want(t, 400, "consistency")
	f.do(t, "POST /write?db=x", []byte("bad line"), "Content-Encoding", "br").want(t, 400, "encoding")
	f.do(t, "POST /write?db=x", []byte("not gzip at all"), "Content-Encoding", "gzip").want(t, 400, "gzip")
	f.do(t, "POST /write?db=x", []byte("cpu")).want(t, 400, "unable to parse 'cpu'")
	f.do(t, "POST /write?db=x", []byte("cpu\nm v=1\nm2 v=\n")).want(t, 400, "partial write", "dropped=2")
	f.memory.table("x").lo = now.UnixNano()
	f.do(t, "POST /write?db=x", []byte("m v=1 1\nm v=2")).want(t, 400, "partial write", "older than what the table keeps", "dropped=1")
	f.do(t, "POST /write?db=x", make([]byte, 65<<10)).want(t, 413)
	f.do(t, "POST /write?db=x", gzipped(strings.Repeat("m v=1\n", 30<<10)), "Content-Encoding", "gzip").want(t, 413)
	if n := f.memory.table("x").count(); n != 2 {
		t.Errorf("%d rows, want those of the two good lines", n)
	}
	f.memory.createOnWrite = false
	f.do(t, "POST /write?db=nobody", good).want(t, 404, `database not found: \"nobody\"`)
}

// TestTelegrafKeepsTheBatchWhenWeAreOverloaded: at any status but 4xx Telegraf drops a batch if the answer contains one of
// these words, even when another server wrote them.
func TestTelegrafKeepsTheBatchWhenWeAreOverloaded(t *testing.T) {
	f := start(t)
	words := []string{"retention policy not found", "hinted handoff queue not empty", "points beyond retention policy", "partial write", "unable to parse"}
	for _, kind := range []fault.Kind{fault.Throttled, fault.Unavailable, fault.Stale, fault.Canceled, fault.Internal, fault.Corrupt} {
		for i, text := range append(words, "busy") {
			table := fmt.Sprintf("x_%v_%d", kind, i)
			f.memory.table(table).fail(fault.Errorf(kind, "shard 3: %s", text))
			a := f.do(t, "POST /write?db="+table, []byte("m v=1"))
			if a.status < 500 {
				t.Errorf("%v: status %d", kind, a.status)
			}
			for _, w := range words {
				if strings.Contains(strings.ToLower(a.body+a.header.Get("X-Influxdb-Error")), w) {
					t.Errorf("%v: answer %q would make Telegraf forget the batch", kind, a.body)
				}
			}
		}
	}
}

// TestTheParametersOfInfluxAreAsTheirPageSays: docs/influx.md lists what each path reads, and what names nothing there.
func TestTheParametersOfInfluxAreAsTheirPageSays(t *testing.T) {
	f := start(t)
	sec := strconv.FormatInt(now.Unix(), 10)
	good, half := "m,n=%d v=1 "+sec, "m,n=%d v=1 "+sec+"\nm v=x"
	n := 0
	doors := [3]string{"/write?db=d&precision=s", "/api/v2/write?bucket=d&precision=s", "/api/v3/write_lp?db=d&precision=s"}
	f.memory.table("d")
	for _, c := range []struct {
		parameter string
		body      string
		status    [3]int
		kept      [3]int // rows that are new with it
	}{
		{"", good, [3]int{204, 204, 204}, [3]int{1, 1, 1}},
		{"rp=month", good, [3]int{204, 204, 204}, [3]int{1, 1, 1}},
		{"rp=autogen", good, [3]int{204, 204, 204}, [3]int{1, 1, 1}},
		{"rp=a&rp=b", good, [3]int{204, 204, 204}, [3]int{1, 1, 1}},
		{"org=o&orgID=1", good, [3]int{204, 204, 204}, [3]int{1, 1, 1}},
		{"precison=m", good, [3]int{204, 204, 204}, [3]int{1, 1, 1}},
		{"precision=ms", good, [3]int{400, 400, 400}, [3]int{}}, // two that differ
		{"bucket=d", good, [3]int{204, 204, 204}, [3]int{1, 1, 1}},
		{"db=e", good, [3]int{400, 400, 400}, [3]int{}},
		{"bucket=d/month", good, [3]int{204, 204, 204}, [3]int{1, 1, 1}},
		{"consistency=one", good, [3]int{204, 204, 204}, [3]int{1, 1, 1}},
		{"consistency=much", good, [3]int{400, 204, 204}, [3]int{0, 1, 1}},
		{"accept_partial=false", good, [3]int{204, 204, 204}, [3]int{1, 1, 1}},
		{"accept_partial=false", half, [3]int{400, 422, 400}, [3]int{1, 1, 0}},
		{"accept_partial=no", good, [3]int{204, 204, 400}, [3]int{1, 1, 0}},
		{"no_sync=true", good, [3]int{204, 204, 204}, [3]int{1, 1, 1}},
		{"no_sync=perhaps", good, [3]int{204, 204, 400}, [3]int{1, 1, 0}},
	} {
		for i, door := range doors {
			before := f.memory.table("d").count()
			n++ // each request has a series of its own
			a := f.do(t, "POST "+door+"&"+c.parameter, fmt.Appendf(nil, c.body, n))
			if kept := f.memory.table("d").count() - before; a.status != c.status[i] || kept != c.kept[i] {
				t.Errorf("%s with %s: %d, %d rows kept, want %d and %d: %s", door, c.parameter, a.status, kept, c.status[i], c.kept[i], a.body)
			}
		}
	}
}

func TestInflux2(t *testing.T) {
	f := start(t, func(s *intake.Settings) { s.BodyBytesMax = 64 << 10 })
	sec := strconv.FormatInt(now.Unix(), 10)
	line := []byte("m v=1 " + sec)
	f.do(t, "POST /api/v2/write?org=o&bucket=metrics/week&precision=s", line, "Authorization", "Token t").want(t, 204)
	if n := f.memory.table("metrics").count(); n != 1 {
		t.Errorf("bucket db/rp stored %d rows in db", n)
	}
	f.do(t, "POST /api/v2/write?org=o", line).want(t, 400, `"code":"invalid"`, "bucket is required")
	f.do(t, "POST /api/v2/write?bucket=x&precision=m", line).want(t, 400, `"code":"invalid"`, "precision")
	f.do(t, "POST /api/v2/write?bucket=x", line, "Content-Encoding", "br").want(t, 415)
	f.do(t, "POST /api/v2/write?bucket=x", make([]byte, 65<<10)).want(t, 413, `"code":"request too large"`)
	f.do(t, "POST /api/v2/write?bucket=x&precision=s", []byte(string(line)+"\nbad\n")).want(t, 422, "unprocessable entity", "partial write", "dropped=1")
	f.do(t, "POST /api/v2/write?bucket=x", []byte("bad")).want(t, 400, `"code":"invalid"`)
	f.memory.table("x").fail(fault.Errorf(fault.Unavailable, "no leader"))
	f.do(t, "POST /api/v2/write?bucket=x", []byte("m v=1")).want(t, 503, "Retry-After: 1")
	f.memory.table("x").fail(fault.Errorf(fault.Throttled, "queue is full"))
	f.do(t, "POST /api/v2/write?bucket=x", []byte("m v=1")).want(t, 429, "Retry-After: 1")
	f.memory.createOnWrite = false
	f.do(t, "POST /api/v2/write?bucket=nobody", []byte("m v=1")).want(t, 404, `"code":"not found"`)
}

func TestInflux3(t *testing.T) {
	f := start(t, func(s *intake.Settings) { s.ClusterUUID = "c-1" })
	body := []byte(fmt.Sprintf("m v=1 %d\nbad\nm v=2 %d\n", now.Unix(), now.UnixMilli()+1))
	f.do(t, "POST /api/v3/write_lp?db=x", body).want(t, 400, "partial write of line protocol occurred", `"line_number":2`, `"original_line":"bad"`, "Cluster-Uuid: c-1")
	if n := f.memory.table("x").count(); n != 2 {
		t.Errorf("%d rows, want 2: seconds and milliseconds", n)
	}
	f.do(t, "POST /api/v3/write_lp?db=y&accept_partial=false", body).want(t, 400, "parsing failed for write_lp endpoint", `"line_number":2`)
	f.memory.table("y").lo = now.UnixNano()
	f.do(t, "POST /api/v3/write_lp?db=y&accept_partial=false", []byte("m v=1\nm v=1 5\n")).want(t, 400, "older than what the table keeps", `"line_number":2`)
	if n := f.memory.table("y").count(); n != 0 {
		t.Errorf("%d rows were kept of a body that is taken whole or not at all", n)
	}
	f.do(t, "POST /api/v3/write_lp", body).want(t, 400, "db is required")
	f.do(t, "POST /api/v3/write_lp?db=x&no_sync=perhaps", body).want(t, 400, "no_sync")
}

func TestInfluxNamingSettingsPassThrough(t *testing.T) {
	f := start(t, func(s *intake.Settings) {
		s.Influx.Separator, s.Influx.DBLabel = ".", "db"
	})
	f.do(t, "POST /write?db=x&precision=s", []byte(fmt.Sprintf("cpu usage=1 %d", now.Unix()))).want(t, 204)
	if got, want := f.memory.table("x").dump(), fmt.Sprintf("{__name__=\"cpu.usage\", db=\"x\"} 1 @%d\n", now.UnixNano()); got != want {
		t.Errorf("stored %s", got)
	}
}

// TestBothServersAnswerAlike sends the same through fasthttp and through net/http's handler.
func TestBothServersAnswerAlike(t *testing.T) {
	f := start(t)
	for _, what := range []string{
		"POST /write?db=x", "POST /write", "POST /api/v2/write?bucket=x", "POST /api/v3/write_lp?db=x", "GET /write", "GET /ping?verbose=true",
		"POST /api/v1/write", "GET /query?q=SHOW+DATABASES", "HEAD /ping", "GET /api/v2/orgs?org=o", "GET /api/v2/buckets?name=none", "DELETE /t/x/query",
	} {
		method, target, _ := strings.Cut(what, " ")
		body := "m v=1\nbad"
		fast := f.do(t, what, []byte(body))
		rec := httptest.NewRecorder()
		f.ServeHTTP(rec, httptest.NewRequest(method, target, strings.NewReader(body)))
		if rec.Code != fast.status || method != http.MethodHead && rec.Body.String() != fast.body {
			t.Errorf("%s: fasthttp %d %q, net/http %d %q", what, fast.status, fast.body, rec.Code, rec.Body.String())
		}
		for name := range rec.Header() {
			if got, want := fast.header.Get(name), rec.Header().Get(name); got != want && !strings.HasSuffix(name, "Request-Id") {
				t.Errorf("%s: header %s: fasthttp %q, net/http %q", what, name, got, want)
			}
		}
	}
}

func TestMetricsCountRows(t *testing.T) {
	f := start(t)
	f.memory.table("x").lo = 10
	f.do(t, "POST /write?db=x", []byte("m v=1\nbad\nm v=1 5\nm s=\"text\",v=2\n")).want(t, 400)
	wantMetric(t, f, "spillway_intake_rows_accepted_total", 2, "protocol", "influx1")
	wantMetric(t, f, "spillway_intake_rows_refused_total", 1, "protocol", "influx1", "reason", "invalid")
	wantMetric(t, f, "spillway_intake_rows_refused_total", 1, "protocol", "influx1", "reason", "old")
	wantMetric(t, f, "spillway_intake_string_fields_total", 1, "protocol", "influx1")
	wantMetric(t, f, "spillway_intake_requests_total", 1, "protocol", "influx1", "status", "400")
	wantMetric(t, f, "spillway_intake_in_flight_bytes", 0)
	wantMetric(t, f, "spillway_intake_connections", 1, "server", "fasthttp")
}

func wantMetric(t testing.TB, f *front, name string, want float64, labels ...string) {
	t.Helper()
	if got := metric(t, f, name, labels...); got != want {
		t.Errorf("%s%v is %v, want %v", name, labels, got, want)
	}
}

func metric(t testing.TB, f *front, name string, labels ...string) float64 {
	t.Helper()
	families, err := prometheus.Gatherer(f.metrics).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, fam := range families {
		if fam.GetName() != name {
			continue
		}
		for _, m := range fam.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			match := true
			for i := 0; i < len(labels); i += 2 {
				match = match && have[labels[i]] == labels[i+1]
			}
			if match {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// TestSendersDoNotMix runs senders of all protocols at once: pooled memory must never show one sender the data of another.
func TestSendersDoNotMix(t *testing.T) {
	f := start(t)
	var wg sync.WaitGroup
	const senders, rounds, rows = 8, 15, 300
	for s := range senders {
		wg.Go(func() {
			table := fmt.Sprintf("t%d", s)
			for r := range rounds {
				var lines strings.Builder
				var all []prompb.TimeSeries
				for i := range rows {
					fmt.Fprintf(&lines, "m,s=%d,i=%d value=%d %d\n", s, i, s*1000+r, now.UnixNano())
					all = append(all, series("m", now, float64(s*1000+r), "i", strconv.Itoa(i), "s", strconv.Itoa(s)))
				}
				switch (s + r) % 4 {
				case 0:
					f.do(t, "POST /write?db="+table, []byte(lines.String())).want(t, 204)
				case 1:
					f.do(t, "POST /write?db="+table, gzipped(lines.String()), "Content-Encoding", "gzip").want(t, 204)
				case 2:
					f.do(t, "POST /api/v3/write_lp?db="+table, snappy.Encode(nil, []byte(lines.String())), "Content-Encoding", "snappy").want(t, 204)
				case 3:
					f.do(t, "POST /t/"+table+"/api/v1/write", rw1(t, all...), rw1Header...).want(t, 204)
				}
			}
		})
	}
	wg.Wait()
	for s := range senders {
		var want []string
		for i := range rows {
			want = append(want, fmt.Sprintf("{__name__=\"m\", i=\"%d\", s=\"%d\"} %d @%d\n", i, s, s*1000+rounds-1, now.UnixNano()))
		}
		slices.Sort(want)
		if got := f.memory.table(fmt.Sprintf("t%d", s)).dump(); got != strings.Join(want, "") {
			t.Errorf("sender %d: %.300s", s, got)
		}
	}
}

// TestASmallTableIsNotStarvedByRowsOnTheirWayToTheLog: a write uses a processor until it waits for the log. While one
// table's writes use all processors, another table is served, and a waiting write releases its processor.
func TestASmallTableIsNotStarvedByRowsOnTheirWayToTheLog(t *testing.T) {
	f := start(t)
	f.do(t, "POST /write?db=large", []byte("m v=1")).want(t, 204)
	large := f.memory.table("large")
	entered, release := large.stop()
	processors, more := runtime.GOMAXPROCS(0), 3
	var senders sync.WaitGroup
	for range processors + more {
		senders.Go(func() { f.do(t, "POST /write?db=large", []byte("m v=1")).want(t, 204) })
	}
	eventually(t, "the table takes all processors", func() bool { return len(entered) == processors })
	f.do(t, "POST /write?db=small", []byte("m v=1")).want(t, 204)
	if n := len(entered); n != processors {
		t.Errorf("%d writes of one table are under way on %d processors", n, processors)
	}
	for i := range more {
		large.waiting()
		eventually(t, "the next takes its place", func() bool { return len(entered) == processors+i+1 })
	}
	release()
	senders.Wait()
}
