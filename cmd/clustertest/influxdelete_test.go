package clustertest

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/access"
)

// TestInfluxClientsDelete rows by predicates and statements, and a database, of a real process, and only with the right admin.
// Deleted rows stay deleted after a kill.
func TestInfluxClientsDelete(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.yml")
	tokens, text := map[string]string{}, "tokens:\n"
	for _, may := range []string{"read", "write", "admin"} {
		tokens[may] = access.NewToken()
		entry, err := access.Entry(tokens[may], access.Token{Name: may, Scopes: []access.Scope{{Tables: []string{"hosts"}, May: []string{may}}}})
		if err != nil {
			t.Fatal(err)
		}
		text += entry
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := processtest.New(t, "SPILLWAY_HTTP_TOKENS_FILE="+file, "SPILLWAY_API_ADMIN=true")
	p.Start()
	ask := func(as, method, path, body string, status int, says string) {
		t.Helper()
		code, answer, err := p.Do(method, path, http.Header{"Authorization": {"Token " + tokens[as]}, "Content-Type": {"application/x-www-form-urlencoded"}}, []byte(body))
		if err != nil || code != status || !strings.Contains(string(answer), says) {
			t.Errorf("%s %s %s as %s: %d %s %v, want %d %s", method, path, body, as, code, answer, err, status, says)
		}
	}
	count := func(want string) {
		t.Helper()
		ask("admin", "GET", "/t/hosts/api/v1/query?time=1790000100&query=sum(%7B__name__%3D~%22.%2B%22%7D)", "", 200, `"result":[`+want)
	}
	write := func() {
		t.Helper()
		ask("admin", "POST", "/write?db=hosts", "cpu,host=a usage=1,idle=2 1790000000000000000\ncpu,host=b usage=4 1790000000000000000\nmem,host=a value=8 1790000000000000000\n", 204, "")
	}
	const when = `"start":"2026-09-01T00:00:00Z","stop":"2026-10-01T00:00:00Z"`
	write()
	for _, may := range []string{"read", "write"} {
		ask(may, "POST", "/api/v2/delete?bucket=hosts", `{`+when+`}`, 403, `"code":"forbidden"`)
		ask(may, "POST", "/query?db=hosts", "q=DROP+MEASUREMENT+mem", 200, `"error":"`)
		ask(may, "POST", "/query", "q=DROP+DATABASE+hosts", 200, `"error":"`)
	}
	ask("admin", "POST", "/api/v2/delete?bucket=other", `{`+when+`}`, 403, `"code":"forbidden"`)
	ask("admin", "POST", "/query", "q=DROP+DATABASE+other", 200, `"error":"`)
	ask("admin", "POST", "/api/v2/delete?bucket=hosts", `{`+when+`,"predicate":"_measurement=\"cpu\""}`, 400, "ambiguous")
	count(`{"metric":{},"value":[1790000100,"15"]}`)
	ask("admin", "POST", "/api/v2/delete?org=any&bucket=hosts", `{`+when+`,"predicate":"_measurement=\"cpu\" AND _field=\"usage\" AND host=\"b\""}`, 204, "")
	count(`{"metric":{},"value":[1790000100,"11"]}`)
	ask("admin", "POST", "/query?db=hosts", "q=DELETE+FROM+cpu_idle+WHERE+time+%3E+1", 200, `{"results":[{"statement_id":0}]}`)
	count(`{"metric":{},"value":[1790000100,"9"]}`)
	p.Kill()
	p.Start()
	count(`{"metric":{},"value":[1790000100,"9"]}`)
	const shorter = "q=ALTER+RETENTION+POLICY+autogen+ON+hosts+DURATION+10000d"
	for _, may := range []string{"read", "write"} {
		ask(may, "POST", "/query", shorter, 200, `"error":"`)
		ask(may, "PATCH", processtest.BucketAt("hosts"), `{"retentionRules":[{"everySeconds":86400}]}`, 403, `"code":"forbidden"`)
		ask(may, "DELETE", processtest.BucketAt("hosts"), "", 403, `"code":"forbidden"`)
	}
	ask("admin", "POST", "/query", shorter, 200, `{"results":[{"statement_id":0}]}`)
	ask("admin", "GET", "/query?db=hosts&q=SHOW+RETENTION+POLICIES", "", 200, `"240000h0m0s"`)
	ask("admin", "PATCH", processtest.BucketAt("hosts"), `{"retentionRules":[{"everySeconds":0}]}`, 200, `"retentionRules":[]`)
	ask("admin", "GET", "/query?db=hosts&q=SHOW+RETENTION+POLICIES", "", 200, `"0s"`)
	ask("admin", "POST", "/query", "q=DROP+DATABASE+hosts", 200, `{"results":[{"statement_id":0}]}`)
	ask("admin", "GET", "/query?q=SHOW+DATABASES", "", 200, `{"results":[{"statement_id":0,"series":[{"name":"databases","columns":["name"]}]}]}`)
	p.Kill()
	p.Start()
	write()
	count(`{"metric":{},"value":[1790000100,"15"]}`)
}

// TestClusterInfluxClientsChangeTables by a gateway, which answered that this is not done from there.
func TestClusterInfluxClientsChangeTables(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 2, Gateways: 1, GatewayArgs: []string{"--enable-delete"}})
	ask := func(method, path, body string, status int, says string) {
		t.Helper()
		code, answer, err := c.doors[0].Do(method, path, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, []byte(body))
		if err != nil || code != status || !strings.Contains(string(answer), says) {
			t.Errorf("%s %s %s: %d %s %v, want %d %s", method, path, body, code, answer, err, status, says)
		}
	}
	const done = `{"results":[{"statement_id":0}]}`
	for _, table := range []string{"hosts", "web"} {
		c.acks(table, "m v=1")
	}
	ask("POST", "/query", "q=ALTER+RETENTION+POLICY+autogen+ON+hosts+DURATION+30d", 200, done)
	ask("GET", "/query?db=hosts&q=SHOW+RETENTION+POLICIES", "", 200, `"720h0m0s"`)
	ask("PATCH", processtest.BucketAt("web"), `{"retentionRules":[{"everySeconds":86400}]}`, 200, `"everySeconds":86400`)
	ask("DELETE", processtest.BucketAt("web"), "", 204, "")
	ask("POST", "/query", "q=DROP+DATABASE+hosts", 200, done)
	ask("GET", "/query?q=SHOW+DATABASES", "", 200, `{"results":[{"statement_id":0,"series":[{"name":"databases","columns":["name"]}]}]}`)
	if audit := c.command("audit"); strings.Count(audit, "drop table") != 2 || !strings.Contains(audit, "retention for ever → 30d") {
		t.Errorf("the audit has\n%s", audit)
	}
	c.acks("hosts", "m v=2")
}
