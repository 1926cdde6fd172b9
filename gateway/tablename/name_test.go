package tablename_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
)

type request struct {
	path, query     string
	spillway, scope []string
}

func (r request) header(name string) []string {
	return map[string][]string{tablename.Header: r.spillway, tablename.HeaderScope: r.scope}[name]
}

func of(r request) (name tablename.Name, rest string, err error) {
	params, _ := url.ParseQuery(r.query)
	return tablename.Of(r.path, r.header, func(name string) []string { return params[name] })
}

func one(v ...string) []string { return v }

func TestOf(t *testing.T) {
	f := func(r request, table, rest string, by tablename.By) {
		t.Helper()
		name, gotRest, err := of(r)
		if err != nil || name.Table != table || gotRest != rest || name.By != by {
			t.Errorf("%+v: table %q by %d, rest %q, error %v; want %q by %d, %q", r, name.Table, name.By, gotRest, err, table, by, rest)
		}
	}
	f(request{path: "/api/v1/query"}, "default", "/api/v1/query", tablename.ByDefault)
	f(request{path: "/t/metrics/api/v1/query"}, "metrics", "/api/v1/query", tablename.ByPath)
	f(request{path: "/t/a%2Db/api/v1/label/U__a_2e_b/values"}, "a-b", "/api/v1/label/U__a_2e_b/values", tablename.ByPath)
	f(request{path: "/t/x/api/v1/label/a%2Fb/values"}, "x", "/api/v1/label/a%2Fb/values", tablename.ByPath)
	f(request{path: "/t/x"}, "x", "/", tablename.ByPath)
	f(request{path: "/t/x/"}, "x", "/", tablename.ByPath)
	f(request{path: "/telegraf"}, "default", "/telegraf", tablename.ByDefault)
	f(request{path: "/t"}, "default", "/t", tablename.ByDefault)
	f(request{path: "/write", query: "db=telegraf"}, "telegraf", "/write", tablename.ByParam)
	f(request{path: "/write", query: "bucket=b&org=o"}, "b", "/write", tablename.ByParam)
	f(request{path: "/write", query: "db=&bucket=b"}, "b", "/write", tablename.ByParam)
	f(request{path: "/write", scope: one("tenant")}, "tenant", "/write", tablename.ByHeader)
	f(request{path: "/write", spillway: one("s")}, "s", "/write", tablename.ByHeader)
	f(request{path: "/write", spillway: one(""), scope: one("tenant", "")}, "tenant", "/write", tablename.ByHeader)
	f(request{path: "/t/" + strings.Repeat("n", 128) + "/w"}, strings.Repeat("n", 128), "/w", tablename.ByPath)
}

func TestEqualNamesAreOneName(t *testing.T) {
	f := func(r request, by tablename.By) {
		t.Helper()
		if name, _, err := of(r); err != nil || name.Table != "a-b" || name.By != by {
			t.Errorf("%+v: %+v, %v", r, name, err)
		}
	}
	f(request{path: "/t/a%2Db/write", spillway: one("a-b"), scope: one("a-b", "a-b"), query: "db=a-b&bucket=a-b&db=a-b"}, tablename.ByPath)
	f(request{path: "/write", scope: one("a-b"), query: "db=a-b"}, tablename.ByHeader)
	f(request{path: "/write", query: "db=a-b&d%62=a-b"}, tablename.ByParam)
}

// TestAProxysTenantIsNotOverridden: a proxy checks or sets one of the places that name a table; a client must reach no
// other table through the places that the proxy does not look at.
func TestAProxysTenantIsNotOverridden(t *testing.T) {
	f := func(r request) {
		t.Helper()
		name, _, err := of(r)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "two tables") || name.Table != "" {
			t.Errorf("%+v: %+v, %v; want a refusal that says why", r, name, err)
		}
	}
	f(request{path: "/t/other/write", scope: one("mine")})
	f(request{path: "/t/other/write", spillway: one("mine")})
	f(request{path: "/t/Mine/write", scope: one("mine")})
	f(request{path: "/t/mine./write", scope: one("mine")})
	f(request{path: "/t/default/write", scope: one("mine")})
	f(request{path: "/t/other/write", query: "db=mine"})
	f(request{path: "/write", scope: one("mine", "other")})
	f(request{path: "/write", scope: one("", "mine", "other")})
	f(request{path: "/write", spillway: one("other"), scope: one("mine")})
	f(request{path: "/write", scope: one("mine"), query: "db=other"})
	f(request{path: "/write", scope: one("mine"), query: "bucket=other"})
	f(request{path: "/write", query: "db=mine&bucket=other"})
	f(request{path: "/write", query: "db=mine&db=other"})
	f(request{path: "/write", query: "db=mine&d%62=other"})
}

func TestOfRefusesWhatCannotBeATable(t *testing.T) {
	f := func(r request) {
		t.Helper()
		name, rest, err := of(r)
		if !fault.Is(err, fault.Invalid) || !strings.HasPrefix(rest, "/") {
			t.Errorf("%+v: table %+v, rest %q, error %v; want an error of kind invalid", r, name, rest, err)
		}
	}
	f(request{path: "/t//write"})
	f(request{path: "/t/"})
	f(request{path: "/t/a%2Fb/write"})
	f(request{path: "/t/a%zz/write"})
	f(request{path: "/t/%2E%2E/write"})
	f(request{path: "/t/./write"})
	f(request{path: "/t/größe/write"})
	f(request{path: "/t/" + strings.Repeat("n", 129) + "/w"})
	f(request{path: "/t/mine\x00/write"})
	f(request{path: "/write", query: "db=my%20db"})
	f(request{path: "/write", scope: one("a|b")})
	f(request{path: "/write", scope: one("a,b")})
	f(request{path: "/write", scope: one("a, a")})
	f(request{path: "/write", scope: one("a b")})
}

func TestOfTakesNoMemory(t *testing.T) {
	none := func(string) []string { return nil }
	allocs := testing.AllocsPerRun(100, func() {
		if _, _, err := tablename.Of("/t/metrics/api/v1/write", none, none); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}

func FuzzOf(f *testing.F) {
	f.Add("/t/a%2Fb/write", "x")
	f.Add("/api/v1/query", "")
	f.Add("/t/%", "..")
	f.Fuzz(func(t *testing.T, path, header string) {
		give := func(string) []string { return []string{header} }
		name, rest, err := tablename.Of(path, give, give)
		if !strings.HasSuffix(path, rest) && rest != "/" {
			t.Fatalf("rest %q is not the end of %q", rest, path)
		}
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("kind %v", fault.KindOf(err))
			}
			return
		}
		if tablename.Check(name.Table) != nil {
			t.Fatalf("table %q was let through", name.Table)
		}
		if header != "" && name.Table != header {
			t.Fatalf("table %q, though a header says %q", name.Table, header)
		}
	})
}
