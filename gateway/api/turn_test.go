package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/point"
)

// narrow is an API with one processor, on which rows are being written: queries and look-ups have one turn among them.
func narrow(t *testing.T) (http.Handler, *lane.Lane) {
	t.Helper()
	st := querytest.NewStore()
	b := point.GetBatch(point.NewDict(0))
	now := time.Now().UnixMilli()
	for i := range 3000 {
		b.Append(querytest.Intern(b.Dict, point.MakeLabels("__name__", "wave", "n", fmt.Sprint(i))), point.NanosOf(now), float64(i))
	}
	if err := querytest.Inserter(st, "default", 1)(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	turns := lane.New(func() bool { return true }, 1)
	q, err := query.New(query.Deps{Source: st, Processors: 1, Lane: turns}, query.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.New(api.Deps{Query: q}, api.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	return h, turns
}

// meanwhile is a client that reads so slowly that another request is served at each write of its answer.
type meanwhile struct {
	*httptest.ResponseRecorder
	h      http.Handler
	turns  *lane.Lane
	t      *testing.T
	served *atomic.Int32
}

func (m meanwhile) Write(b []byte) (int, error) {
	// A turn that lasts long lets one other query pass, so that those below are served beside one slow reader that keeps its turn, and not beside two.
	if taken, _ := m.turns.InUse(); taken != 0 {
		m.t.Errorf("%d turns are kept while the answer is written", taken)
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	for _, path := range []string{"/api/v1/labels", "/api/v1/query?query=count(wave)"} {
		w := httptest.NewRecorder()
		m.h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil).WithContext(ctx))
		if w.Code != http.StatusOK {
			m.t.Errorf("%s beside a slow reader: %d %.200s", path, w.Code, w.Body)
		}
	}
	m.served.Add(1)
	return m.ResponseRecorder.Write(b)
}

// TestQueriesAreAnsweredBesideASlowReader: an answer that its client does not read would keep the turn in which it is
// encoded, and there is one for every query of the process here.
func TestQueriesAreAnsweredBesideASlowReader(t *testing.T) {
	h, turns := narrow(t)
	get := func(path string) *http.Request { return httptest.NewRequest(http.MethodGet, path, nil) }
	chunks := []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS}
	all := matching("wave", 0, 1<<60)
	for name, r := range map[string]*http.Request{
		"query":        get("/api/v1/query?query=wave"),
		"series":       get("/api/v1/series?match[]=wave"),
		"label values": get("/api/v1/label/n/values"),
		"exemplars":    get("/api/v1/query_exemplars?query=wave&start=0&end=99999999999"),
		"statistics":   get("/api/v1/status/tsdb"),
		"federation":   get("/federate?match[]=wave"),
		"export":       get("/api/v1/export"),
		"samples":      readRequest(t, nil, all, all),
		"chunks":       readRequest(t, chunks, all, all),
	} {
		t.Run(name, func(t *testing.T) {
			w := meanwhile{httptest.NewRecorder(), h, turns, t, new(atomic.Int32)}
			h.ServeHTTP(w, r)
			if w.Code != http.StatusOK || w.served.Load() == 0 {
				t.Errorf("%d after %d writes: %.200s", w.Code, w.served.Load(), w.Body)
			}
		})
	}
}
