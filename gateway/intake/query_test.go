package intake_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/gateway/intake"
)

func TestInfluxQL(t *testing.T) {
	f := start(t)
	f.do(t, "POST /write?db=seen", []byte("cpu,host=a,zone=z value=1 1\nmem used=2 1\n")).want(t, 204)
	form := func(q string) answer {
		return f.do(t, "POST /query", []byte(url.Values{"q": {q}}.Encode()), "Content-Type", "application/x-www-form-urlencoded")
	}
	ask := func(q, want string) {
		t.Helper()
		for i, a := range []answer{form(q), f.do(t, "GET /query?q="+url.QueryEscape(q), nil)} {
			if a.status != 200 || strings.TrimSpace(a.body) != want || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("%s (%d): %d %s", q, i, a.status, a.body)
			}
		}
	}
	const ok = `{"results":[{"statement_id":0}]}`
	ask(`CREATE DATABASE "telegraf"`, ok)
	ask(`create database telegraf`, ok)
	ask(`CREATE DATABASE "x" WITH DURATION 7d REPLICATION 1 NAME "week"`, ok)
	ask(`SHOW DATABASES`, `{"results":[{"statement_id":0,"series":[{"name":"databases","columns":["name"],"values":[["seen"],["telegraf"],["x"]]}]}]}`)
	ask(`SHOW MEASUREMENTS ON seen`, `{"results":[{"statement_id":0,"series":[{"name":"measurements","columns":["name"],"values":[["cpu"],["mem_used"]]}]}]}`)
	ask(`SHOW MEASUREMENTS ON seen LIMIT 1`, `{"results":[{"statement_id":0,"series":[{"name":"measurements","columns":["name"],"values":[["cpu"]]}]}]}`)
	ask(`SHOW RETENTION POLICIES ON "seen"`, `{"results":[{"statement_id":0,"series":[{"columns":["name","duration","shardGroupDuration","replicaN","default"],"values":[["autogen","0s","168h0m0s",1,true]]}]}]}`)
	ask(`SHOW FIELD KEYS ON seen`, `{"results":[{"statement_id":0,"series":[{"name":"cpu","columns":["fieldKey","fieldType"],"values":[["value","float"]]},{"name":"mem_used","columns":["fieldKey","fieldType"],"values":[["value","float"]]}]}]}`)
	ask(`SHOW TAG KEYS ON seen`, `{"results":[{"statement_id":0,"series":[{"name":"cpu","columns":["tagKey"],"values":[["host"],["zone"]]},{"name":"mem_used","columns":["tagKey"]}]}]}`)
	ask(`SHOW SERIES ON seen`, `{"results":[{"statement_id":0,"series":[{"columns":["key"],"values":[["cpu,host=a,zone=z"],["mem_used"]]}]}]}`)
	ask(`SHOW MEASUREMENTS ON nobody`, `{"results":[{"statement_id":0,"error":"database not found: nobody"}]}`)
	ask(`SHOW MEASUREMENTS`, `{"results":[{"statement_id":0,"error":"database name required"}]}`)
	ask(`SHOW MEASUREMENTS ON seen WITH MEASUREMENT =~ /c/`, `{"results":[{"statement_id":0,"error":"WITH is not supported here"}]}`)
	ask(`CREATE DATABASE "no name"`, `{"results":[{"statement_id":0,"error":"table name \"no name\": only letters, digits, '_', '.' and '-' are taken"}]}`)
	ask(`CREATE DATABASE`, `{"results":[{"statement_id":0,"error":"error parsing query: found EOF, expected identifier"}]}`)
	ask(`CREATE DATABASE a; SHOW DATABASES LIMIT 1;DROP DATABASE a`,
		`{"results":[{"statement_id":0},{"statement_id":1,"error":"LIMIT is not supported here"},{"statement_id":2,"error":"DROP DATABASE is switched off here: --enable-delete switches it on, and `+"`spillway table drop`"+` does it without"}]}`)
	promql := func(q, want string) {
		t.Helper()
		form(q).want(t, 200, `SELECT is not supported here: ask in PromQL, at /api/v1/query or /api/v1/query_range`+want+`"}]}`)
	}
	promql(`SELECT * FROM cpu`, `, as in {__name__=~\"cpu(_.+)?\"}`)
	promql(`SELECT value FROM "cpu"`, `, as in cpu`)
	promql(`SELECT mean("usage") FROM "cpu" WHERE host='a' GROUP BY time(1m)`, `, as in avg_over_time(cpu_usage[1m])`)
	promql(`SELECT median(usage) FROM cpu`, `, as in quantile_over_time(0.5, cpu_usage[5m])`)
	promql(`SELECT 1`, ``)
	policy := func(q, want string) {
		t.Helper()
		form(q).want(t, 200, ` RETENTION POLICY is not done from here: a table has one policy, autogen, and `+"`spillway table set "+want+"`"+` sets how long it keeps its rows"}]}`)
	}
	policy(`ALTER RETENTION POLICY "year" ON "seen" DURATION 90d SHARD DURATION 1d`, `seen --retention 90d`)
	policy(`CREATE RETENTION POLICY month ON seen DURATION INF REPLICATION 1`, `seen --retention 0`)
	policy(`DROP RETENTION POLICY`, `default --retention 30d`)
	ask(`SHOW TAG VALUES ON seen WITH KEY = "host"`, `{"results":[{"statement_id":0,"series":[{"name":"cpu","columns":["key","value"],"values":[["host","a"]]}]}]}`)
	ask(`SHOW TAG VALUES ON seen FROM cpu WITH KEY IN (zone, "host") LIMIT 1`, `{"results":[{"statement_id":0,"series":[{"name":"cpu","columns":["key","value"],"values":[["host","a"]]}]}]}`)
	ask(`SHOW TAG VALUES ON seen FROM mem_used WITH KEY = host`, `{"results":[{"statement_id":0}]}`)
	ask(`SHOW TAG VALUES ON seen`, `{"results":[{"statement_id":0,"error":"error parsing query: SHOW TAG VALUES wants WITH KEY"}]}`)
	ask(`SHOW TAG VALUES ON seen WITH KEY IN (`+strings.Repeat("host, ", 150)+`host)`, `{"results":[{"statement_id":0,"series":[{"name":"cpu","columns":["key","value"],"values":[["host","a"]]}]}]}`)
	var many strings.Builder
	for i := range 101 {
		fmt.Fprintf(&many, "k%d, ", i)
	}
	form(`SHOW TAG VALUES ON seen WITH KEY IN (`+many.String()+`k)`).want(t, 200, "more than 100 keys")
	form(`SHOW TAG VALUES ON seen WITH KEY =~ /h/`).want(t, 200, "other operators are not supported")
	form(`SHOW TAG VALUES ON seen WITH KEY IN (a b)`).want(t, 200, "other operators are not supported")
	ask(`SHOW TAG KEYS ON seen FROM cpu LIMIT 1`, `{"results":[{"statement_id":0,"series":[{"name":"cpu","columns":["tagKey"],"values":[["host"]]}]}]}`)
	ask(`SHOW RETENTION POLICIES ON x`, `{"results":[{"statement_id":0,"series":[{"columns":["name","duration","shardGroupDuration","replicaN","default"],"values":[["autogen","168h0m0s","168h0m0s",1,true]]}]}]}`)
	form(`CREATE DATABASE x WITH DURATION 8d`).want(t, 200, "retention policy conflicts")
	ask(`CREATE DATABASE x WITH DURATION 1w SHARD DURATION 1h; CREATE DATABASE x`, `{"results":[{"statement_id":0},{"statement_id":1}]}`)
	form(`CREATE DATABASE y WITH DURATION week`).want(t, 200, "expected duration")
	const parts = "--b\r\nContent-Disposition: form-data; name=\"q\"%s\r\n\r\nSHOW MEASUREMENTS\r\n--b\r\nContent-Disposition: form-data; name=\"db\"\r\n\r\nseen\r\n--b--\r\n"
	for _, file := range []string{"", `; filename="a.iql"`} { // as curl -F sends it
		f.do(t, "POST /query?db=seen", fmt.Appendf(nil, parts, file), "Content-Type", `multipart/form-data; boundary="b"`).want(t, 200, `[["cpu"],["mem_used"]]`)
		f.do(t, "POST /query?db=other", fmt.Appendf(nil, parts, file), "Content-Type", "multipart/form-data; boundary=b").want(t, 400, "seen")
	}
	f.do(t, "POST /query?db=seen", []byte("--b\r\nq"), "Content-Type", "multipart/form-data; boundary=b").want(t, 400, "error parsing form values")
	f.do(t, "GET /query", nil).want(t, 400, "missing required parameter")
	form("SHOW \"DATABASES").want(t, 400, "unterminated")
	form(strings.Repeat("SHOW DATABASES;", 101)).want(t, 400, "at most 100")
	f.do(t, "POST /query", make([]byte, 2<<20), "Content-Type", "application/x-www-form-urlencoded").want(t, 413)
	f.do(t, "GET /t/seen/query?q=SHOW+MEASUREMENTS", nil).want(t, 200, `[["cpu"],["mem_used"]]`)
	f.do(t, "GET /query?db=seen&q=SHOW+MEASUREMENTS", nil).want(t, 200, `[["cpu"],["mem_used"]]`)
}

// TestTheDefaultRetentionPolicyIsTheRetentionOfATable: clients of Influx 1.x set it so.
func TestTheDefaultRetentionPolicyIsTheRetentionOfATable(t *testing.T) {
	f := start(t, deletes)
	f.do(t, "POST /query?q=CREATE+DATABASE+d", nil).want(t, 200, `{"results":[{"statement_id":0}]}`)
	keeps := func(want string) {
		t.Helper()
		f.do(t, "GET /query?db=d&q=SHOW+RETENTION+POLICIES", nil).want(t, 200, `["autogen","`+want+`","168h0m0s",1,true]`)
	}
	ask := func(q, says, want string) {
		t.Helper()
		f.do(t, "POST /query", []byte(url.Values{"q": {q}}.Encode()), "Content-Type", "application/x-www-form-urlencoded").want(t, 200, says)
		keeps(want)
	}
	const done = `{"results":[{"statement_id":0}]}`
	keeps("0s")
	ask(`ALTER RETENTION POLICY autogen ON d DURATION 7d`, done, "168h0m0s")
	ask(`alter retention policy "autogen" on "d" duration 1d replication 1 shard duration 1h default`, done, "24h0m0s")
	ask(`CREATE RETENTION POLICY "month" ON d DURATION 30d REPLICATION 1 DEFAULT`, done, "720h0m0s")
	ask(`CREATE RETENTION POLICY autogen ON d DURATION INF REPLICATION 1`, done, "0s")
	const one = "a table has one policy, autogen"
	ask(`CREATE RETENTION POLICY month ON d DURATION 30d REPLICATION 1`, one, "0s")
	ask(`ALTER RETENTION POLICY month ON d DURATION 30d`, one, "0s")
	ask(`DROP RETENTION POLICY autogen ON d`, one, "0s")
	ask(`ALTER RETENTION POLICY autogen ON d SHARD DURATION 1d`, "has its DURATION alone", "0s")
	ask(`ALTER RETENTION POLICY autogen ON d DURATION week`, "expected duration", "0s")
	ask(`ALTER RETENTION POLICY autogen ON d DURATION`, "found EOF", "0s")
	ask(`ALTER RETENTION POLICY autogen ON d REPLICATION`, "found EOF", "0s")
	ask(`ALTER RETENTION POLICY autogen ON d FUTURE LIMIT 1h`, "found FUTURE, expected DURATION", "0s")
	ask(`ALTER RETENTION POLICY autogen DURATION 7d`, "expected a name, ON and a database", "0s")
	ask(`ALTER RETENTION POLICY autogen ON nowhere DURATION 7d`, "not found", "0s")
	ask(`ALTER RETENTION POLICY autogen ON d DURATION 3m`, "retention policy duration must be at least 1h0m0s", "0s") // months, perhaps
	ask(`CREATE DATABASE e WITH DURATION 59m`, "retention policy duration must be at least 1h0m0s", "0s")
	f.do(t, "GET /query?q="+url.QueryEscape("ALTER RETENTION POLICY autogen ON d DURATION 7d"), nil).want(t, 200, "must be sent by POST")
	f.do(t, "POST /query?q="+url.QueryEscape("ALTER RETENTION POLICY autogen ON d DURATION 7d"), nil, "Origin", "http://elsewhere.example").want(t, 200, "other origins")
	f.do(t, "POST /t/other/query?q="+url.QueryEscape("ALTER RETENTION POLICY autogen ON d DURATION 7d"), nil).want(t, 200, `the request is for the table \"other\"`)
	keeps("0s")
}

// TestANewRetentionPolicyDeletesNoRows: CREATE RETENTION POLICY … DEFAULT shortened the retention of the table, and older rows were deleted. InfluxDB keeps the rows
// of the earlier policy.
func TestANewRetentionPolicyDeletesNoRows(t *testing.T) {
	f := start(t, deletes)
	ask := func(q, says string) {
		t.Helper()
		f.do(t, "POST /query?q="+url.QueryEscape(q), nil).want(t, 200, says)
	}
	const done = `{"results":[{"statement_id":0}]}`
	ask(`CREATE DATABASE d`, done)
	ask(`CREATE RETENTION POLICY month ON d DURATION 30d REPLICATION 1 DEFAULT`, done) // it has no rows yet
	f.do(t, "POST /write?db=d", []byte("cpu,host=a value=1")).want(t, 204)
	ask(`CREATE RETENTION POLICY week ON d DURATION 7d REPLICATION 1 DEFAULT`, "would delete rows")
	ask(`SHOW RETENTION POLICIES ON d`, `["autogen","720h0m0s"`)
	ask(`CREATE RETENTION POLICY month ON d DURATION 30d REPLICATION 1 DEFAULT`, done) // as set-up scripts do at each start
	ask(`CREATE RETENTION POLICY year ON d DURATION 52w REPLICATION 1 DEFAULT`, done)
	ask(`ALTER RETENTION POLICY autogen ON d DURATION 7d`, done)
	ask(`SHOW RETENTION POLICIES ON d`, `["autogen","168h0m0s"`)
}

// TestAShorterRetentionNeedsWhatADeletionNeeds, since it deletes rows; a longer one does not.
func TestAShorterRetentionNeedsWhatADeletionNeeds(t *testing.T) {
	f := start(t)
	f.do(t, "POST /query?q="+url.QueryEscape("CREATE DATABASE d WITH DURATION 7d"), nil).want(t, 200, `{"results":[{"statement_id":0}]}`)
	alter := func(duration, says string) {
		t.Helper()
		f.do(t, "POST /query?q="+url.QueryEscape("ALTER RETENTION POLICY autogen ON d DURATION "+duration), nil).want(t, 200, says)
	}
	alter("6d", "a shorter retention deletes rows: deleting is switched off here: --enable-delete")
	alter("8d", `{"statement_id":0}]`)
	alter("INF", `{"statement_id":0}]`)
	alter("8d", "--enable-delete")
}

// TestNoDatabasesAreMadeByPagesOfOtherOrigins: a page could have a browser post a form, and so make tables.
func TestNoDatabasesAreMadeByPagesOfOtherOrigins(t *testing.T) {
	f := start(t)
	const form = "application/x-www-form-urlencoded"
	for _, by := range [][]string{{"Origin", "http://elsewhere.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Origin", "null"}} {
		f.do(t, "POST /query", []byte("q=CREATE+DATABASE+made"), append(by, "Content-Type", form)...).want(t, 200, "other origins may not create")
		f.do(t, "POST /query?q=CREATE+DATABASE+made", nil, by...).want(t, 200, "other origins may not create")
		f.do(t, "GET /query?q=CREATE+DATABASE+made", nil, by...).want(t, 200, "other origins may not create")
		f.do(t, "POST /api/v2/buckets", []byte(`{"name":"made"}`), append(by, "Content-Type", "text/plain")...).want(t, 403, "other origins may not create")
	}
	f.do(t, "GET /query?q=SHOW+DATABASES", nil, "Origin", "http://elsewhere.example").want(t, 200, `{"name":"databases","columns":["name"]}`)
	f.do(t, "POST /query", []byte("q=CREATE+DATABASE+made"), "Content-Type", form).want(t, 200, `{"statement_id":0}`)
	f.do(t, "GET /query?q=SHOW+DATABASES", nil).want(t, 200, `"made"`)
}

// TestTelegrafStarts acts as Telegraf's v1 output does with an empty server: write, learn that there is no database, create
// it, write again.
func TestTelegrafStarts(t *testing.T) {
	f := start(t)
	f.memory.createOnWrite = false
	f.do(t, "POST /write?db=telegraf", []byte("m v=1")).want(t, 404, "database not found")
	f.do(t, "POST /query", []byte("q=CREATE+DATABASE+%22telegraf%22"), "Content-Type", "application/x-www-form-urlencoded").want(t, 200)
	f.do(t, "POST /write?db=telegraf", []byte("m v=1")).want(t, 204)
	wantMetric(t, f, "spillway_intake_connections", 1, "server", "fasthttp")
	wantMetric(t, f, "spillway_intake_connections", 0, "server", "nethttp")
}

func TestHealth(t *testing.T) {
	f := start(t, func(s *intake.Settings) { s.Version = "1.2.3" })
	f.do(t, "GET /ping", nil).want(t, 204, "X-Influxdb-Version: 1.8.10", "X-Influxdb-Build: spillway 1.2.3")
	f.do(t, "HEAD /ping", nil).want(t, 204)
	f.do(t, "GET /ping?verbose=true", nil).want(t, 200, `{"version":"1.8.10"}`)
	f.do(t, "GET /health", nil).want(t, 200, `"status":"pass"`, `"name":"influxdb"`)
	f.do(t, "HEAD /health", nil).want(t, 200)
	f.do(t, "GET /ready", nil).want(t, 200, `"status":"ready"`)
	f.do(t, "GET /api/v2/ping", nil).want(t, 204)
	f.do(t, "GET /t/x/ping", nil).want(t, 204)
}

func TestBuckets(t *testing.T) {
	f := start(t)
	f.do(t, "GET /api/v2/buckets?name=b", nil).want(t, 404, `"code":"not found"`)
	f.do(t, "GET /api/v2/buckets", nil).want(t, 200, `"buckets":[]`)
	f.do(t, "POST /api/v2/buckets", []byte(`{"name":"b","orgID":"1","retentionRules":[]}`)).want(t, 201, `"name":"b"`, `"id":"`)
	f.do(t, "POST /api/v2/buckets", []byte(`{"name":"b"}`)).want(t, 422, `"code":"conflict"`)
	f.do(t, "POST /api/v2/buckets", []byte(`{"name":"no name"}`)).want(t, 400, `"code":"invalid"`)
	f.do(t, "POST /api/v2/buckets", []byte(`{`)).want(t, 400, `"code":"invalid"`)
	f.do(t, "POST /api/v2/buckets", []byte(`{"name":"c"}`)).want(t, 201)
	a := f.do(t, "GET /api/v2/buckets?org=o&name=b", nil)
	a.want(t, 200, `"name":"b"`)
	if strings.Contains(a.body, `"name":"c"`) {
		t.Errorf("another bucket in %s", a.body)
	}
	f.do(t, "POST /api/v2/buckets", []byte(`{"name":"week","retentionRules":[{"type":"expire","everySeconds":604800}]}`)).want(t, 201, `"retentionRules":[{"type":"expire","everySeconds":604800}]`)
	f.do(t, "GET /api/v2/buckets?name=week", nil).want(t, 200, `"everySeconds":604800`)
	f.do(t, "POST /api/v2/buckets", []byte(`{"name":"w","retentionRules":[{"type":"expire","everySeconds":-1}]}`)).want(t, 400, `retentionRules`)
	f.do(t, "GET /api/v2/orgs?org=mine", nil).want(t, 200, `"name":"mine"`)
}

// TestABucketIsChangedAndDeletedByItsID, as clients of Influx v2 do.
func TestABucketIsChangedAndDeletedByItsID(t *testing.T) {
	f := start(t, deletes)
	a := f.do(t, "POST /api/v2/buckets", []byte(`{"name":"b","retentionRules":[]}`))
	a.want(t, 201)
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(a.body), &made); err != nil {
		t.Fatal(err)
	}
	at := "/api/v2/buckets/" + made.ID
	f.do(t, "GET "+at, nil).want(t, 200, `"name":"b"`, `"retentionRules":[]`)
	f.do(t, "PATCH "+at, []byte(`{"name":"b","retentionRules":[{"type":"expire","everySeconds":86400}]}`)).want(t, 200, `"everySeconds":86400`)
	for _, body := range []string{`{"description":"of hosts"}`, `{"name":"b","retentionRules":[]}`} {
		f.do(t, "PATCH "+at, []byte(body)).want(t, 200, `"everySeconds":86400`)
	}
	f.do(t, "PATCH "+at, []byte(`{"name":"other","retentionRules":[{"type":"expire","everySeconds":1}]}`)).want(t, 400, `"code":"invalid"`, "cannot be changed")
	f.do(t, "PATCH "+at, []byte(`{"retentionRules":[{"type":"expire","everySeconds":-1}]}`)).want(t, 400, `"code":"invalid"`)
	f.do(t, "PATCH "+at, []byte(`{"retentionRules":[{"everySeconds":3599}]}`)).want(t, 400, `"code":"invalid"`, "at least 1h")
	f.do(t, "POST /api/v2/buckets", []byte(`{"name":"short","retentionRules":[{"everySeconds":3599}]}`)).want(t, 400, `"code":"invalid"`, "at least 1h")
	f.do(t, "PATCH "+at, []byte(`{`)).want(t, 400, `"code":"invalid"`)
	f.do(t, "PATCH "+at, []byte(`{"retentionRules":[{"type":"expire","everySeconds":0}]}`), "Sec-Fetch-Site", "cross-site").want(t, 403, "other origins")
	f.do(t, "PATCH /t/other"+at, []byte(`{"retentionRules":[{"type":"expire","everySeconds":0}]}`)).want(t, 404)
	f.do(t, "PATCH /api/v2/buckets/0000000000000000", []byte(`{}`)).want(t, 404, `"code":"not found"`)
	f.do(t, "PUT "+at, nil).want(t, 405)
	f.do(t, "GET "+at, nil).want(t, 200, `"everySeconds":86400`)
	f.do(t, "PATCH "+at, []byte(`{"retentionRules":[{"everySeconds":0}]}`)).want(t, 200, `"retentionRules":[]`)

	f.do(t, "DELETE "+at, nil, "Origin", "http://elsewhere.example").want(t, 403, "other origins")
	f.do(t, "GET "+at, nil).want(t, 200)
	f.do(t, "DELETE "+at, nil).want(t, 204)
	f.do(t, "DELETE "+at, nil).want(t, 404, `"code":"not found"`)
	f.do(t, "GET /api/v2/buckets", nil).want(t, 200, `"buckets":[]`)
}

// TestABucketIsNotDeletedWhereDeletionsAreSwitchedOff, nor made to keep less.
func TestABucketIsNotDeletedWhereDeletionsAreSwitchedOff(t *testing.T) {
	f := start(t)
	f.do(t, "POST /api/v2/buckets", []byte(`{"name":"b"}`)).want(t, 201)
	var all struct{ Buckets []struct{ ID string } }
	if err := json.Unmarshal([]byte(f.do(t, "GET /api/v2/buckets?name=b", nil).body), &all); err != nil {
		t.Fatal(err)
	}
	at := "/api/v2/buckets/" + all.Buckets[0].ID
	f.do(t, "DELETE "+at, nil).want(t, 403, `"code":"forbidden"`, "--enable-delete")
	f.do(t, "PATCH "+at, []byte(`{"retentionRules":[{"everySeconds":60}]}`)).want(t, 403, `"code":"forbidden"`, "--enable-delete")
	f.do(t, "GET "+at, nil).want(t, 200, `"retentionRules":[]`)
}

// TestAnswersOfManyStatementsAreBookedLikeBodies: a request of a hundred SHOW SERIES made an answer of gigabytes, in no account of memory.
func TestAnswersOfManyStatementsAreBookedLikeBodies(t *testing.T) {
	f := start(t, func(s *intake.Settings) {
		s.BodyBytesMax, s.DecodedBytesMax, s.InFlightBytesMax = 64<<10, 128<<10, 256<<10
	})
	for i := range 50 {
		f.do(t, "POST /write?db=d", fmt.Appendf(nil, "cpu,host=%d%s value=1", i, strings.Repeat("x", 500))).want(t, 204)
	}
	const one = "SHOW SERIES ON d LIMIT 10;"
	f.do(t, "GET /query?q="+url.QueryEscape(one), nil).want(t, 200, `"values":[["cpu,host=0`)
	a := f.do(t, "GET /query?q="+url.QueryEscape(strings.Repeat(one, 100)), nil)
	a.want(t, 200, `"values":[["cpu,host=0`, `bytes of memory`)
	if len(a.body) > 256<<10 {
		t.Errorf("an answer of %d bytes", len(a.body))
	}
	eventually(t, "nothing stays booked", func() bool { return f.InFlightBytes() == 0 })
}
