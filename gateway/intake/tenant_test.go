package intake_test

import (
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestATenantBehindAProxyReachesNoOtherTable: a proxy sets or checks one of the places that name a table, and a client
// tries all the others. Both servers must refuse, whatever the protocol, and write nothing.
func TestATenantBehindAProxyReachesNoOtherTable(t *testing.T) {
	f := start(t)
	line := "m v=1 1"
	samples := string(rw1(t, series("m", time.UnixMilli(1), 1)))
	otlpBody := otlpJSONBody(time.Now(), 1)
	for _, c := range []struct {
		what, body string
		header     []string
		says       string
	}{
		{"POST /t/other/write", line, []string{"X-Scope-OrgID", "mine"}, `"error":`},
		{"POST /write?db=other", line, []string{"X-Scope-OrgID", "mine"}, `"error":`},
		{"POST /write?db=mine&db=other", line, nil, `"error":`},
		{"POST /write?db=mine&d%62=other", line, nil, `"error":`},
		{"POST /write?db=mine&bucket=other", line, nil, `"error":`},
		{"POST /api/v2/write?bucket=other/autogen", line, []string{"X-Spillway-Table", "mine"}, `"code":"invalid"`},
		{"POST /api/v2/write?bucket=mine", line, []string{"x-scope-orgid", "mine", "X-SCOPE-ORGID", "other"}, `"code":"invalid"`},
		{"POST /api/v3/write_lp?db=other", line, []string{"X-Scope-OrgID", "mine"}, `"error":`},
		{"POST /t/other/api/v1/write", samples, append([]string{"X-Scope-OrgID", "mine"}, rw1Header...), "two tables"},
		{"POST /api/v1/write", samples, append([]string{"X-Scope-OrgID", "mine", "X-Scope-OrgID", "other"}, rw1Header...), "two tables"},
		{"POST /api/v1/write", samples, append([]string{"X-Scope-OrgID", "mine, other"}, rw1Header...), "table name"},
		{"POST /t/other/v1/metrics", otlpBody, []string{"X-Scope-OrgID", "mine", "Content-Type", "application/json"}, `"code":3`},
		{"POST /query?db=mine", "q=SHOW+MEASUREMENTS&db=other", []string{"Content-Type", "application/x-www-form-urlencoded"}, `"error":`},
		{"POST /query", "q=SHOW+MEASUREMENTS&db=other", []string{"X-Scope-OrgID", "mine", "Content-Type", "application/x-www-form-urlencoded"}, `"error":`},
		{"GET /t/other/query?q=SHOW+DATABASES", "", []string{"X-Scope-OrgID", "mine"}, `"error":`},
		{"GET /t/other/api/v2/buckets", "", []string{"X-Scope-OrgID", "mine"}, `"code":"invalid"`},
		{"POST /api/v2/buckets", `{"name":"other"}`, []string{"X-Scope-OrgID", "mine"}, `"code":"invalid"`},
	} {
		a := f.do(t, c.what, []byte(c.body), c.header...)
		a.want(t, 400, c.says)
		method, target, _ := strings.Cut(c.what, " ")
		rq := httptest.NewRequest(method, target, strings.NewReader(c.body))
		for i := 0; i < len(c.header); i += 2 {
			rq.Header.Add(c.header[i], c.header[i+1])
		}
		rec := httptest.NewRecorder()
		f.ServeHTTP(rec, rq)
		if rec.Code != a.status || rec.Body.String() != a.body {
			t.Errorf("%s: fasthttp %d %q, net/http %d %q", c.what, a.status, a.body, rec.Code, rec.Body.String())
		}
	}
	for _, table := range []string{"mine", "other", "default"} {
		if n := f.memory.table(table).count(); n != 0 {
			t.Errorf("table %s got %d rows", table, n)
		}
	}
}

// TestStatementsStayInTheTenantsTable: a statement names tables itself; a path or a header that names one bounds them.
func TestStatementsStayInTheTenantsTable(t *testing.T) {
	f := start(t)
	for _, table := range []string{"mine", "other"} {
		f.do(t, "POST /write?db="+table, []byte("of_"+table+" v=1 1")).want(t, 204)
	}
	q := func(q string) string { return "POST /query?q=" + url.QueryEscape(q) }
	mine := []string{"X-Scope-OrgID", "mine"}
	f.do(t, q("SHOW MEASUREMENTS"), nil, mine...).want(t, 200, "of_mine_v")
	f.do(t, q(`SHOW DATABASES`), nil, mine...).want(t, 200, `"values":[["mine"]]`)
	for _, statement := range []string{
		"SHOW MEASUREMENTS ON other", "SHOW SERIES ON other", "SHOW TAG KEYS ON other", "SHOW FIELD KEYS ON other",
		"SHOW RETENTION POLICIES ON other", "CREATE DATABASE new",
	} {
		a := f.do(t, q(statement), nil, mine...)
		a.want(t, 200, `the request is for the table \"mine\"`)
		if strings.Contains(a.body, "of_other") {
			t.Errorf("%s: %s", statement, a.body)
		}
	}
	f.do(t, "GET /api/v2/buckets", nil).want(t, 200, `"name":"other"`)
	if a := f.do(t, "GET /api/v2/buckets", nil, mine...); strings.Contains(a.body, "other") || !strings.Contains(a.body, `"name":"mine"`) {
		t.Errorf("buckets of a tenant: %s", a.body)
	}
	f.do(t, "GET /api/v2/buckets?name=other", nil, mine...).want(t, 404)
	// A parameter chooses a database, as for Influx; it does not bound statements.
	f.do(t, "GET /query?db=mine&q=SHOW+MEASUREMENTS+ON+other", nil).want(t, 200, "of_other_v")
}

// TestHeadersThatServersReadDifferently: a header that one server treats as the tenant's and another does not, such as a
// name with a space behind it or a folded line, is refused or names no other table.
func TestHeadersThatServersReadDifferently(t *testing.T) {
	f := start(t)
	for name, header := range map[string]string{
		"space before the colon": "X-Scope-OrgID : other\r\n",
		"tab before the colon":   "X-Scope-OrgID\t: other\r\n",
		"space before the name":  "X-Mine: 1\r\n X-Scope-OrgID: other\r\n",
		"folded value":           "X-Scope-OrgID: mine\r\n other\r\n",
		"bare line feed":         "X-Mine: 1\nX-Scope-OrgID: other\r\n",
		"bare carriage return":   "X-Mine: 1\rX-Scope-OrgID: other\r\n",
		"no colon":               "X-Scope-OrgID other\r\n",
		"null byte":              "X-Scope-OrgID: other\x00\r\n",
		"two, other case":        "X-Scope-OrgID: mine\r\nx-scope-orgid: other\r\n",
		"two, of both kinds":     "X-Spillway-Table: other\r\n",
	} {
		for _, by := range []string{"fasthttp", "net/http"} {
			w := f.dial(t)
			if by == "net/http" {
				w.say(get("/other"))
				w.hear().want(t, 200)
			}
			w.say("POST /api/v2/write HTTP/1.1\r\nHost: x\r\n"+header+"X-Scope-OrgID: mine\r\nContent-Length: 7\r\n\r\n", "m v=1 1")
			a := w.hear()
			t.Logf("%s by %s: %d", name, by, a.status)
			if n := f.memory.table("other").count(); n > 0 {
				t.Fatalf("%s by %s: %d rows of another table", name, by, n)
			}
		}
	}
}
