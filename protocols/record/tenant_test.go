package record_test

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/record"
)

func TestHeadersThatNameTwoTablesAreRefused(t *testing.T) {
	f := func(want string, headers ...string) {
		t.Helper()
		o := record.Options{Table: "of-the-topic"}
		var err error
		for i := 0; i < len(headers) && err == nil; i += 2 {
			err = o.Header(headers[i], []byte(headers[i+1]))
		}
		if want == "" && !fault.Is(err, fault.Invalid) || want != "" && (err != nil || o.Table != want) {
			t.Errorf("%q: table %q, error %v; want %q", headers, o.Table, err, want)
		}
	}
	f("a", "table", "a")
	f("a", "table", "a", "DB", "a", "X-Scope-OrgID", "a")
	f("of-the-topic")
	f("", "table", "a", "db", "b")
	f("", "table", "a", "table", "b")
	f("", "table", "", "x-scope-orgid", "b")
}
