package tablename_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
)

type request struct{ path, spillway, scope, query string }

func (r request) header(name string) string {
	return map[string]string{tablename.Header: r.spillway, tablename.HeaderScope: r.scope}[name]
}

func of(r request) (table, rest string, err error) {
	params, _ := url.ParseQuery(r.query)
	return tablename.Of(r.path, r.header, params.Get)
}

func TestOf(t *testing.T) {
	f := func(r request, table, rest string) {
		t.Helper()
		gotTable, gotRest, err := of(r)
		if err != nil || gotTable != table || gotRest != rest {
			t.Errorf("%+v: table %q, rest %q, error %v; want %q, %q", r, gotTable, gotRest, err, table, rest)
		}
	}
	f(request{path: "/api/v1/query"}, "default", "/api/v1/query")
	f(request{path: "/t/metrics/api/v1/query"}, "metrics", "/api/v1/query")
	f(request{path: "/t/a%2Db/api/v1/label/U__a_2e_b/values"}, "a-b", "/api/v1/label/U__a_2e_b/values")
	f(request{path: "/t/x/api/v1/label/a%2Fb/values"}, "x", "/api/v1/label/a%2Fb/values")
	f(request{path: "/t/x"}, "x", "/")
	f(request{path: "/t/x/"}, "x", "/")
	f(request{path: "/telegraf"}, "default", "/telegraf")
	f(request{path: "/t"}, "default", "/t")
	f(request{path: "/write", query: "db=telegraf"}, "telegraf", "/write")
	f(request{path: "/write", query: "bucket=b&org=o"}, "b", "/write")
	f(request{path: "/write", query: "db=&bucket=b"}, "b", "/write")
	f(request{path: "/write", query: "db=d&bucket=b"}, "d", "/write")
	f(request{path: "/write", scope: "tenant", query: "db=d"}, "tenant", "/write")
	f(request{path: "/write", spillway: "s", scope: "tenant"}, "s", "/write")
	f(request{path: "/t/p/write", spillway: "s", scope: "tenant", query: "db=d"}, "p", "/write")
	f(request{path: "/t/" + strings.Repeat("n", 128) + "/w"}, strings.Repeat("n", 128), "/w")
}

func TestOfRefusesWhatCannotBeATable(t *testing.T) {
	f := func(r request) {
		t.Helper()
		table, _, err := of(r)
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: table %q, error %v; want an error of kind invalid", r, table, err)
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
	f(request{path: "/write", query: "db=my%20db"})
	f(request{path: "/write", scope: "a|b"})
}

func TestOfTakesNoMemory(t *testing.T) {
	none := func(string) string { return "" }
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
		give := func(string) string { return header }
		table, rest, err := tablename.Of(path, give, give)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("kind %v", fault.KindOf(err))
			}
			return
		}
		if tablename.Check(table) != nil {
			t.Fatalf("table %q was let through", table)
		}
		if !strings.HasSuffix(path, rest) && rest != "/" {
			t.Fatalf("rest %q is not the end of %q", rest, path)
		}
	})
}
