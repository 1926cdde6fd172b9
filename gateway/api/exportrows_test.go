package api_test

import (
	"bufio"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/jsonrows"
	"github.com/spillwaydb/spillway/protocols/point"
)

func export(a http.Handler, target string) *httptest.ResponseRecorder {
	return serve(a, httptest.NewRequest(http.MethodGet, target, nil))
}

// exported reads an answer of the export route to its end.
func exported(t testing.TB, w *httptest.ResponseRecorder) (rows []string, end jsonrows.End, err error) {
	t.Helper()
	var p jsonrows.Parser
	ended := false
	for lines := bufio.NewScanner(w.Body); lines.Scan(); {
		l, e, err := p.ParseAnswer(lines.Bytes())
		if err != nil {
			return rows, end, err
		}
		if ended {
			t.Fatal("a line behind the end")
		}
		if e != nil {
			end, ended = *e, true
			continue
		}
		for i := range l.Times {
			rows = append(rows, fmt.Sprintf("%v %d %x", l.Labels, l.Times[i], math.Float64bits(l.Values[i])))
		}
		for _, h := range l.Hists {
			rows = append(rows, fmt.Sprintf("%v %d %v%v", l.Labels, h.Time, h.Int, h.Float))
		}
	}
	if !ended {
		t.Fatal("no end")
	}
	return rows, end, nil
}

func TestExportKeepsNanosecondsAndBits(t *testing.T) {
	st := querytest.NewStore()
	b := point.GetBatch(point.NewDict(0))
	id := querytest.Intern(b.Dict, point.MakeLabels("__name__", "a", "host", "x\n"))
	h := tsdbutil.GenerateTestHistogram(2)
	b.Append(id, 1_000_000, 1)
	b.Append(id, 1_000_001, stale()) // in the same millisecond
	b.Append(id, 1_000_002, math.Float64frombits(0x7ff8000000000123))
	for i := range point.Nanos(5000) { // more than a line holds
		b.Append(id, 10_000_000+i, float64(i))
	}
	b.Hists = append(b.Hists, point.HistRow{ID: id, Time: 2_000_003, H: point.AppendHistogram(nil, h)})
	insert(t, st, "default", b)
	a := newAPI(t, st, query.Settings{}, api.Settings{})
	rows, end, err := exported(t, export(a, "/api/v1/export"))
	if err != nil || end.Series != 1 || end.Rows != 5004 || len(rows) != 5004 {
		t.Fatal(len(rows), end, err)
	}
	name := "[{__name__ a} {host x\n}]"
	want := []string{name + " 1000000 3ff0000000000000", name + " 1000001 7ff0000000000002", name + " 1000002 7ff8000000000123"}
	for i, w := range want {
		if rows[i] != w {
			t.Errorf("%q, want %q", rows[i], w)
		}
	}
	if last := rows[5003]; last != fmt.Sprintf("%s 2000003 %v%v", name, h, (*int)(nil)) {
		t.Error(last)
	}
	rows, _, err = exported(t, export(a, "/api/v1/export?start=0.001&end=0.001&match[]=a"))
	if err != nil || len(rows) != 3 {
		t.Errorf("%d rows of the first millisecond: %v", len(rows), err)
	}
	rows, _, err = exported(t, export(a, `/api/v1/export?match[]={host="y"}`))
	if err != nil || len(rows) != 0 {
		t.Errorf("%q %v", rows, err)
	}
	for _, bad := range []string{"match[]=a&match[]=b", "match[]={}", "start=x", "start=2&end=1"} {
		if w := export(a, "/api/v1/export?"+bad); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", bad, w.Code, w.Body)
		}
	}
}

func TestExportThatMayLackRowsSaysSo(t *testing.T) {
	w := export(newAPI(t, warner{today(t, time.Now())}, query.Settings{}, api.Settings{}), "/api/v1/export")
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "not be whole") {
		t.Error(w.Code, w.Body)
	}
}
