package intake

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// brokenStore ends in a panic wherever a table is looked for.
type brokenStore struct{ Writer }

func (brokenStore) Table(context.Context, string) (Table, error) { panic("a defect") }

// TestADefectHoldsNoTableBackForEver: net/http goes on after a panic, so a request that ended in one must hold neither the
// place that its table's brake lets through, nor memory.
func TestADefectHoldsNoTableBackForEver(t *testing.T) {
	f, err := New(Deps{Writer: brokenStore{}, Limits: (*limits.Registry)(nil)}, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	b := &brake{most: 1, why: fault.Errorf(fault.Throttled, "no room")}
	f.brakes.tables = map[string]*brake{"hosts": b}
	for range 3 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			rq := httptest.NewRequest(http.MethodPost, "/write?db=hosts", strings.NewReader("cpu v=1 1"))
			f.ServeHTTP(httptest.NewRecorder(), rq)
		}()
		if b.under != 0 {
			t.Fatalf("the brake of the table counts %d requests under way", b.under)
		}
		if n := f.InFlightBytes(); n != 0 {
			t.Fatalf("%d bytes are in flight", n)
		}
	}
}
