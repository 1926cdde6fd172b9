package intake_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/intake"
)

func deletes(s *intake.Settings) { s.Delete = true }

const deletable = `cpu,host=a usage=1,load_x=2 1000000000
cpu,host=a usage=3 2000000000
cpu,host=b usage=4 1000000000
cpu_load,host=a x=5 3000000000
mem,host=a value=6 1000000000
disk,host=a value=7,max=8 1000000000
`

// left writes deletable, sends one request, and lists the values that are left.
func left(t *testing.T, f *front, what, body string, status int, pieces ...string) string {
	t.Helper()
	f.do(t, "POST /write?db=d", []byte(deletable)).want(t, 204)
	header := []string{"Content-Type", "application/x-www-form-urlencoded"}
	if strings.HasPrefix(body, "{") {
		header[1] = "application/json"
	}
	f.do(t, what, []byte(body), header...).want(t, status, pieces...)
	var values []string
	for line := range strings.Lines(f.memory.table("d").dump()) {
		words := strings.Fields(line)
		values = append(values, words[len(words)-2])
	}
	slices.Sort(values)
	return strings.Join(values, " ")
}

// TestADeletionOfInfluxV2RemovesWhatItsPredicateNames, and no row of another series or time.
func TestADeletionOfInfluxV2RemovesWhatItsPredicateNames(t *testing.T) {
	f := start(t, deletes)
	for _, c := range []struct{ start, stop, predicate, left string }{
		{"1970-01-01T00:00:00Z", "2100-01-01T00:00:00Z", `_measurement="cpu" AND _field="usage"`, "2 5 6 7 8"},
		{"1970-01-01T00:00:00Z", "2100-01-01T00:00:00Z", `_measurement="cpu" AND _field="usage" AND host="a"`, "2 4 5 6 7 8"},
		{"1970-01-01T00:00:02Z", "1970-01-01T00:00:02Z", `host = 'a' and _field=usage AND _measurement=cpu`, "1 2 4 5 6 7 8"},
		{"1970-01-01T00:00:00Z", "1970-01-01T00:00:00.999999999Z", `host="a"`, "1 2 3 4 5 6 7 8"},
		{"0001-01-01T00:00:00Z", "9999-12-31T00:00:00Z", `host="a"`, "4"},
		{"1970-01-01T00:00:00Z", "1970-01-01T01:00:02+01:00", "", "5"},
		{"1970-01-01T00:00:00Z", "2100-01-01T00:00:00Z", `_measurement="mem"`, "1 2 3 4 5 7 8"},
		{"1970-01-01T00:00:00Z", "2100-01-01T00:00:00Z", `_measurement="disk" AND _field="value"`, "1 2 3 4 5 6 8"},
		{"1970-01-01T00:00:00Z", "2100-01-01T00:00:00Z", `_measurement="nothing"`, "1 2 3 4 5 6 7 8"},
	} {
		body, err := json.Marshal(map[string]string{"start": c.start, "stop": c.stop, "predicate": c.predicate})
		if err != nil {
			t.Fatal(err)
		}
		if got := left(t, f, "POST /api/v2/delete?org=o&bucket=d/autogen", string(body), 204); got != c.left {
			t.Errorf("%s: left %s, want %s", body, got, c.left)
		}
	}
}

// TestADeletionThatIsNotUnderstoodRemovesNothing: an ambiguous or unknown predicate is refused with the reason.
func TestADeletionThatIsNotUnderstoodRemovesNothing(t *testing.T) {
	f := start(t, deletes)
	const all = "1 2 3 4 5 6 7 8"
	v2 := func(status int, predicate, says string) {
		t.Helper()
		body, err := json.Marshal(map[string]string{"start": "1970-01-01T00:00:00Z", "stop": "2100-01-01T00:00:00Z", "predicate": predicate})
		if err != nil {
			t.Fatal(err)
		}
		if got := left(t, f, "POST /api/v2/delete?bucket=d", string(body), status, `"code":"invalid"`, says); got != all {
			t.Errorf("%s: left %s", predicate, got)
		}
	}
	v2(400, `_measurement="cpu"`, `alone is ambiguous`)
	v2(400, `_measurement="cpu" AND host="a"`, `_field=\"load_x\", _field=\"usage\"`)
	v2(400, `_measurement="disk"`, `_field=\"value\", _field=\"max\"`)
	v2(400, `_field="usage"`, "_field needs _measurement")
	v2(400, `host!="a"`, "only = is supported")
	v2(400, `host=~"a"`, "only = is supported")
	v2(400, `host=~/a/`, "expected a condition")
	v2(400, `host="a" OR host="b"`, "joined by AND")
	v2(400, `(host="a")`, "expected a condition")
	v2(400, `host=""`, "empty value")
	v2(400, `host="a" AND`, "expected a condition")
	v2(400, `host`, "expected a condition")
	v2(400, `host="a`, "unterminated")
	v2(400, `host="a"; host="b"`, "expected the end")
	v2(400, `host=a.b`, "stands in quotes")
	v2(400, `_measurement="cpu" AND _measurement="mem"`, "which no series is")
	v2(400, `_time="x"`, "not supported")
	v2(400, `__name__="cpu_usage"`, "use _measurement")
	for _, c := range []struct {
		target, body, says string
		status             int
	}{
		{"?bucket=d", `{"stop":"2100-01-01T00:00:00Z"}`, "start is required", 400},
		{"?bucket=d", `{"start":"1970-01-01T00:00:00Z"}`, "stop is required", 400},
		{"?bucket=d", `{"start":"yesterday","stop":"2100-01-01T00:00:00Z"}`, "invalid start", 400},
		{"?bucket=d", `{"start":"2100-01-01T00:00:00Z","stop":"1970-01-01T00:00:00Z"}`, "is after stop", 400},
		{"?bucket=d", `{"start":`, "not the JSON", 400},
		{"?bucket=d", `{"start":"1970-01-01T00:00:00Z","stop":"2100-01-01T00:00:00Z","predicat":"host=\"a\""}`, `unknown field \"predicat\"`, 400},
		{"?bucket=d", `{"start":"1970-01-01T00:00:00Z","stop":"2100-01-01T00:00:00Z"} {"predicate":"host=\"a\""}`, "something follows the object", 400},
		{"", `{"start":"1970-01-01T00:00:00Z","stop":"2100-01-01T00:00:00Z"}`, "bucket is required", 400},
		{"?bucket=nowhere", `{"start":"1970-01-01T00:00:00Z","stop":"2100-01-01T00:00:00Z"}`, `bucket \"nowhere\" not found`, 404},
	} {
		if got := left(t, f, "POST /api/v2/delete"+c.target, c.body, c.status, `"code":`, c.says); got != all {
			t.Errorf("%s: left %s", c.body, got)
		}
	}
	if names := f.do(t, "GET /query?q=SHOW+DATABASES", nil).body; strings.Contains(names, "nowhere") {
		t.Errorf("a deletion made a table: %s", names)
	}
}

func TestStatementsThatDelete(t *testing.T) {
	f := start(t, deletes)
	const all = "1 2 3 4 5 6 7 8"
	for _, c := range []struct{ q, says, left string }{
		{`DROP MEASUREMENT mem`, `{"statement_id":0}`, "1 2 3 4 5 7 8"},
		{`DROP MEASUREMENT "cpu_usage"`, `{"statement_id":0}`, "2 5 6 7 8"},
		{`DROP SERIES FROM cpu_usage WHERE host='b'`, `{"statement_id":0}`, "1 2 3 5 6 7 8"},
		{`DROP SERIES WHERE "host" = 'a'`, `{"statement_id":0}`, "4"},
		{`DELETE FROM cpu_usage`, `{"statement_id":0}`, "2 5 6 7 8"},
		{`DELETE FROM cpu_usage WHERE time < '1970-01-01T00:00:02Z' AND host='a'`, `{"statement_id":0}`, "2 3 4 5 6 7 8"},
		{`DELETE WHERE time > 1000000000 AND time <= '1970-01-01 00:00:03'`, `{"statement_id":0}`, "1 2 4 6 7 8"},
		{`DELETE WHERE time >= '1970-01-02'`, `{"statement_id":0}`, all},

		{`DROP MEASUREMENT cpu`, "measurement not found: cpu; each of its fields is one, as SHOW MEASUREMENTS lists them: cpu_load_x, cpu_usage", all},
		{`DROP MEASUREMENT nothing`, "measurement not found: nothing", all},
		{`DROP MEASUREMENT`, "expected one name", all},
		{`DROP SERIES`, "expected FROM, WHERE", all},
		{`DROP SERIES FROM cpu_usage WHERE time > 1`, "support time", all},
		{`DROP SERIES FROM /.*/`, "others are not supported", all},
		{`DROP SERIES FROM cpu_usage, mem`, "no more is supported", all},
		{`DROP SERIES FROM cpu_usage WHERE host =~ /a/`, "expected a condition", all},
		{`DROP SERIES FROM cpu_usage WHERE host != 'a'`, "only = is supported", all},
		{`DROP SERIES FROM cpu_usage WHERE host = 'a' OR host = 'b'`, "joined by AND", all},
		{`DELETE`, "expected FROM, WHERE", all},
		{`DELETE FROM cpu_usage WHERE`, "expected a condition", all},
		{`DELETE FROM cpu_usage WHERE host ` + strings.Repeat("=", 200) + ` a`, "host ==: expected a condition", all}, // quadratic: it took hours
		{`DELETE WHERE time < now() - 1d`, `{"statement_id":0}`, ""},
		{`DELETE WHERE time > 2 AND time < 2`, "leave nothing", all},
	} {
		if got := left(t, f, "POST /query?db=d", url.Values{"q": {c.q}}.Encode(), 200, c.says); got != c.left {
			t.Errorf("%s: left %s, want %s", c.q, got, c.left)
		}
		f.do(t, "GET /query?db=d&q="+url.QueryEscape(c.q), nil).want(t, 200) // below: by GET nothing is deleted
	}
	left(t, f, "GET /query?db=d&q="+url.QueryEscape("DROP MEASUREMENT mem"), "", 200, "must be sent by POST")
	left(t, f, "GET /query?q="+url.QueryEscape("DROP DATABASE d"), "", 200, "must be sent by POST")
	left(t, f, "POST /query", url.Values{"q": {"DROP MEASUREMENT mem"}}.Encode(), 200, "database name required")
	f.do(t, "POST /query", []byte("q=DROP+DATABASE+d"), "Content-Type", "application/x-www-form-urlencoded", "Origin", "http://elsewhere.example").want(t, 200, "other origins")
	f.do(t, "POST /api/v2/delete?bucket=d", []byte(`{"start":"1970-01-01T00:00:00Z","stop":"2100-01-01T00:00:00Z"}`), "Sec-Fetch-Site", "cross-site").want(t, 403, "other origins")
	f.do(t, "POST /t/other/query?q=DROP+DATABASE+d", nil).want(t, 200, `the request is for the table \"other\"`)
	if n := metric(t, f, "spillway_intake_deletions_total"); n < 5 {
		t.Errorf("%v deletions are counted, want those that were carried out", n)
	}
	if n := f.memory.table("d").count(); n != 8 {
		t.Errorf("%d rows are left of 8", n)
	}
	f.do(t, "POST /query?q=DROP+DATABASE+d,e", nil).want(t, 200, "expected EOF")
	for range 2 { // the second time there is none
		f.do(t, "POST /query?q=DROP+DATABASE+%22d%22", nil).want(t, 200, `{"results":[{"statement_id":0}]}`)
	}
	f.do(t, "GET /query?q=SHOW+DATABASES", nil).want(t, 200, `[{"name":"databases","columns":["name"]}]`)
}

// TestDeletionsByTimesOfInfluxQL: DELETE … WHERE time < now() - 30d, which jobs for Influx send, was refused as a value that is not one word.
func TestDeletionsByTimesOfInfluxQL(t *testing.T) {
	f := start(t, deletes)
	const done, all = `{"results":[{"statement_id":0}]}`, "1 2 3 4"
	rows := map[string]time.Duration{"1": -31 * 24 * time.Hour, "2": -29 * 24 * time.Hour, "3": -2 * time.Hour, "4": 5 * time.Minute}
	for _, c := range []struct{ q, says, left string }{
		{`DELETE FROM m WHERE time < now() - 30d`, done, "2 3 4"},
		{`delete from m where TIME <= NOW() - 30d and "time" > now()-32d;`, done, "2 3 4"},
		{`DELETE FROM m WHERE time < now() AND time > now() - 4w - 2d AND i='a'`, done, "1 4"},
		{`DELETE FROM m WHERE i='b' AND time < now()`, done, all},
		{`DELETE WHERE time >= now() - 1h`, done, "1 2 3"},
		{`DELETE WHERE time < '2026-01-01' + 1d`, done, all},

		{`DELETE WHERE now() - 30d > time`, "the name comes first", all},
		{`DELETE WHERE (time < now() - 30d)`, "parentheses around conditions are not supported", all},
		{`DELETE WHERE time < now() - 30d OR i = 'a'`, "found OR, expected AND", all},
		{`DELETE WHERE time < now() - 30d tz('Europe/Berlin')`, "found tz, expected AND", all},
		{`DELETE WHERE time < now() - 30d LIMIT 5`, `30d LIMIT 5`, all},
		{`DELETE WHERE time != now()`, "time != is not supported", all},
		{`DELETE WHERE time <`, "found no time", all},
		{`DELETE WHERE time < AND i='a'`, "found no time", all},
		{`DELETE WHERE i =~ /a/`, "regular expressions are not supported", all},
		{`DELETE FROM /m/ WHERE time < now() - 30d`, "regular expressions are not supported", all},
		{`DELETE FROM "autogen"."m" WHERE time < now() - 30d`, "retention policy before the measurement is not supported", all},
		{`DROP SERIES WHERE time < now() - 30d`, "DELETE deletes rows by their time", all},
	} {
		for value, ago := range rows {
			f.do(t, "POST /write?db=d", fmt.Appendf(nil, "m,i=a value=%s %d\n", value, time.Now().Add(ago).UnixNano())).want(t, 204)
		}
		f.do(t, "POST /query?db=d", []byte(url.Values{"q": {c.q}}.Encode()), "Content-Type", "application/x-www-form-urlencoded").want(t, 200, c.says)
		var values []string
		for line := range strings.Lines(f.memory.table("d").dump()) {
			words := strings.Fields(line)
			values = append(values, words[len(words)-2])
		}
		slices.Sort(values)
		if got := strings.Join(values, " "); got != c.left {
			t.Errorf("%s: left %s, want %s", c.q, got, c.left)
		}
		f.do(t, "POST /query?q=DROP+DATABASE+d", nil).want(t, 200, done)
	}
}

// TestNothingIsDeletedWhereDeletionsAreSwitchedOff, which is the default.
func TestNothingIsDeletedWhereDeletionsAreSwitchedOff(t *testing.T) {
	f := start(t)
	const all = "1 2 3 4 5 6 7 8"
	if got := left(t, f, "POST /api/v2/delete?bucket=d", `{"start":"1970-01-01T00:00:00Z","stop":"2100-01-01T00:00:00Z"}`, 403, `"code":"forbidden"`, "--enable-delete"); got != all {
		t.Errorf("left %s", got)
	}
	for q, says := range map[string]string{
		"DROP MEASUREMENT mem": "--enable-delete", "DELETE FROM mem": "--enable-delete", "DROP SERIES FROM mem": "--enable-delete", "DROP DATABASE d": "spillway table drop",
	} {
		if got := left(t, f, "POST /query?db=d", url.Values{"q": {q}}.Encode(), 200, says); got != all {
			t.Errorf("%s: left %s", q, got)
		}
	}
}

// TestDeletionsOverBothServersAreAlike: a request may reach net/http too, which keeps the Host apart.
func TestDeletionsOverBothServersAreAlike(t *testing.T) {
	f := start(t, deletes)
	f.do(t, "POST /write?db=d", []byte(deletable)).want(t, 204)
	for _, origin := range []string{"", "http://elsewhere.example"} {
		rq := httptest.NewRequest("POST", "/query?db=d&q=DROP+MEASUREMENT+mem", nil)
		if origin != "" {
			rq.Header.Set("Origin", origin)
		}
		rec := httptest.NewRecorder()
		f.ServeHTTP(rec, rq)
		if strings.Contains(rec.Body.String(), "other origins") != (origin != "") {
			t.Errorf("origin %q: %s", origin, rec.Body)
		}
	}
}

func FuzzPredicate(f *testing.F) {
	f.Add(`_measurement="cpu" AND _field='usage'`)
	f.Add(`host!="a" OR x=~/y/;`)
	front := start(f, deletes)
	front.memory.table("d")
	f.Fuzz(func(t *testing.T, predicate string) {
		body, err := json.Marshal(map[string]string{"start": "1970-01-01T00:00:00Z", "stop": "2100-01-01T00:00:00Z", "predicate": predicate})
		if err != nil {
			t.Skip()
		}
		rec := httptest.NewRecorder()
		front.ServeHTTP(rec, httptest.NewRequest("POST", "/api/v2/delete?bucket=d", strings.NewReader(string(body))))
		if rec.Code != 204 && rec.Code != 400 {
			t.Errorf("%q: %d %s", predicate, rec.Code, rec.Body)
		}
	})
}
