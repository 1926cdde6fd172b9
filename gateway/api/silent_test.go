package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// errSilent is the error of a call to a server that stood still.
var errSilent = fault.Wrap(peer.ErrSilent, fault.Unavailable, "peer n2 sent nothing for 2.2s")

// asking returns the API of an engine whose source calls ask for each selector, in place of a server.
func asking(t *testing.T, d query.Deps, s query.Settings, ask func(context.Context) error) (http.Handler, *query.Engine) {
	t.Helper()
	d.Source = broken{querytest.NewStore(), ask}
	reader, err := query.New(d, s)
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.New(api.Deps{Query: reader}, api.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	return h, reader.Engine()
}

func instantQuery(h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/query?query=a&time=1&explain=1", nil))
	return w
}

// silences are the ways in which a server that stood still goes on, with the errors of each time that it is asked, the status of the answer, and how often it is asked.
var silences = []struct {
	what   string
	fails  []error
	status int
	asked  int
}{
	{"it answers on the next connection", []error{errSilent}, 200, 2},
	{"it stays silent", []error{errSilent, errSilent, errSilent}, 503, 2},
	{"it refuses", []error{fault.Errorf(fault.Unavailable, "n2 is away"), nil}, 503, 1},
}

// TestAGraphSurvivesAServerThatStoodStill: the connection to it was given up in the midst of the query, which had two minutes. It is evaluated once more, over a new
// connection; and no more than once.
func TestAGraphSurvivesAServerThatStoodStill(t *testing.T) {
	for _, at := range silences {
		for i, path := range []string{"/api/v1/query?query=a&time=1", "/api/v1/query_range?query=sum(a)&start=1&end=10&step=1", "/api/v1/query_range?query=sum(a)&start=1&end=10&step=1"} {
			asked, memory := 0, budget.New("queries", 1<<30)
			h, _ := asking(t, query.Deps{Memory: memory}, query.Settings{PlainEngine: i == 2}, func(context.Context) error {
				if asked++; asked > len(at.fails) {
					return nil
				}
				return at.fails[asked-1]
			})
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if w.Code != at.status || asked != at.asked {
				t.Errorf("%s: %s: %d after %d questions, want %d after %d: %s", at.what, path, w.Code, asked, at.status, at.asked, w.Body)
			}
			if n := memory.Used(); n != 0 {
				t.Errorf("%s: %s: %d bytes stay booked", at.what, path, n)
			}
		}
	}
}

// TestASecondEvaluationHasNoTimeOfItsOwn: a query could run for twice its time-out.
func TestASecondEvaluationHasNoTimeOfItsOwn(t *testing.T) {
	var ends []time.Time
	h, _ := asking(t, query.Deps{}, query.Settings{}, func(ctx context.Context) error {
		end, _ := ctx.Deadline()
		if ends = append(ends, end); len(ends) == 1 {
			return errSilent
		}
		return nil
	})
	if w := instantQuery(h); w.Code != 200 || len(ends) != 2 || !ends[1].Equal(ends[0]) {
		t.Errorf("%d, evaluations end at %v: %s", w.Code, ends, w.Body)
	}
}

// TestASecondEvaluationLeavesOneQueryInAnswerMetricsAndLists: the answer of the second evaluation had the warning of the first, that it is not whole, and metrics and lists had two queries.
func TestASecondEvaluationLeavesOneQueryInAnswerMetricsAndLists(t *testing.T) {
	reg, shown, asked := prometheus.NewRegistry(), recent.NewQueries(), 0
	h, _ := asking(t, query.Deps{Registerer: reg, Recent: shown}, query.Settings{}, func(ctx context.Context) error {
		if asked++; asked == 1 {
			query.Warn(ctx, "not whole")
			query.Explain(ctx, query.ExplainedPart{What: "evaluated", Server: "n2"})
			return errSilent
		}
		query.Warn(ctx, "staged rows are left out")
		query.Explain(ctx, query.ExplainedPart{What: "evaluated", Server: "n3"})
		return nil
	})
	w := instantQuery(h)
	body := w.Body.String()
	if w.Code != 200 || strings.Contains(body, "not whole") || strings.Contains(body, "n2") || !strings.Contains(body, "staged rows") || !strings.Contains(body, "n3") {
		t.Errorf("%d: %s", w.Code, body)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	queries, durations := 0.0, uint64(0)
	for _, f := range families {
		for _, m := range f.Metric {
			switch f.GetName() {
			case "spillway_query_queries_total":
				queries += m.GetCounter().GetValue()
			case "spillway_query_duration_seconds":
				durations += m.GetHistogram().GetSampleCount()
			}
		}
	}
	lists := shown.Lists(time.Now(), func(string) bool { return true })
	if queries != 1 || durations != 1 || len(lists.Ended) != 0 {
		t.Errorf("one query counted as %v, with %d durations, listed as failed: %v", queries, durations, lists.Ended)
	}
}

// TestTheReasonIsNotLostWhereASecondEvaluationIsRefused: the answer was that too many queries run, and not which server is silent.
func TestTheReasonIsNotLostWhereASecondEvaluationIsRefused(t *testing.T) {
	asked := 0
	h, _ := asking(t, query.Deps{}, query.Settings{}, func(context.Context) error {
		if asked++; asked == 1 {
			return errSilent
		}
		return fault.Errorf(fault.Throttled, "no memory is free")
	})
	if w := instantQuery(h); asked != 2 || w.Code != 503 || !strings.Contains(w.Body.String(), "peer n2 sent nothing") {
		t.Errorf("%d after %d questions: %s", w.Code, asked, w.Body)
	}
}

// TestQueriesOfASilentServerDoNotAllRunAgainAtOnce: all that had waited for it failed at the same moment, and were evaluated again beside each other, before those that had not run yet.
func TestQueriesOfASilentServerDoNotAllRunAgainAtOnce(t *testing.T) {
	asked := make(chan chan error)
	ask := func(context.Context) error {
		reply := make(chan error)
		asked <- reply
		return <-reply
	}
	begin := func(h http.Handler) chan *httptest.ResponseRecorder {
		done := make(chan *httptest.ResponseRecorder, 1)
		go func() { done <- instantQuery(h) }()
		return done
	}
	want := func(what string, status int, done chan *httptest.ResponseRecorder) {
		t.Helper()
		select {
		case w := <-done:
			if w.Code != status {
				t.Errorf("%s: %d, want %d: %s", what, w.Code, status, w.Body)
			}
		case reply := <-asked:
			t.Errorf("%s is evaluated again", what)
			reply <- nil
			<-done
		}
	}

	// One processor: one second evaluation at a time.
	h, _ := asking(t, query.Deps{Processors: 1, Lane: lane.New(nil, 4)}, query.Settings{}, ask)
	first := begin(h)
	firstAsks := <-asked
	other := begin(h)
	otherAsks := <-asked
	firstAsks <- errSilent
	again := <-asked
	otherAsks <- errSilent
	want("the other query", 503, other)
	again <- nil
	want("the first query", 200, first)
	third := begin(h)
	(<-asked) <- errSilent
	(<-asked) <- nil
	want("a later query", 200, third)

	// Another query waits for its place.
	h, engine := asking(t, query.Deps{}, query.Settings{RunningMax: 1}, ask)
	first = begin(h)
	firstAsks = <-asked
	other = begin(h)
	for engine.Waiting() == 0 {
		runtime.Gosched()
	}
	firstAsks <- errSilent
	reply := <-asked
	for len(first) == 0 && engine.Waiting() == 0 {
		runtime.Gosched()
	}
	reply <- nil
	want("the query before one that waits", 503, first)
	want("the query that waited", 200, other)
}
