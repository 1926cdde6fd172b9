package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// broken is a source on which every look-up ends the same way.
type broken struct {
	*querytest.Store
	end func(ctx context.Context) error
}

func (b broken) Select(ctx context.Context, _ *peer.Select) (peer.SeriesSet, error) {
	return nil, b.end(ctx)
}

func (b broken) LabelNames(ctx context.Context, _ *peer.Select, _ int) ([]string, bool, error) {
	return nil, false, b.end(ctx)
}

func TestEveryKindHasItsAnswer(t *testing.T) {
	want := map[fault.Kind]struct {
		status int
		typ    string
		retry  bool
	}{
		fault.Internal:    {500, "internal", false},
		fault.Invalid:     {400, "bad_data", false},
		fault.TooLarge:    {422, "execution", false},
		fault.Throttled:   {503, "unavailable", true},
		fault.Stale:       {503, "unavailable", true},
		fault.Unavailable: {503, "unavailable", true},
		fault.Corrupt:     {500, "internal", false},
		fault.NotFound:    {404, "not_found", false},
		fault.Canceled:    {499, "canceled", false},
		fault.Denied:      {503, "unavailable", true},
	}
	for _, k := range fault.Kinds() {
		src := broken{querytest.NewStore(), func(context.Context) error { return fault.Errorf(k, "the pier is closed") }}
		h := newAPI(t, src, query.Settings{}, api.Settings{})
		for _, path := range []string{"query?query=wind&time=4", "query_range?query=sum(wind)&start=0&end=9&step=1", "labels", "series?match[]=wind"} {
			resp := get(t, h, "/t/harbour/api/v1/"+path)
			var env struct{ Status, ErrorType, Error string }
			if err := json.NewDecoder(resp.Body).Decode(&env); err != nil {
				t.Fatal(err)
			}
			w := want[k]
			if resp.StatusCode != w.status || env.Status != "error" || env.ErrorType != w.typ ||
				!strings.HasSuffix(env.Error, "the pier is closed") || (resp.Header.Get("Retry-After") != "") != w.retry {
				t.Errorf("%v, %s: status %d, %+v, header %v; want %+v", k, path, resp.StatusCode, env, resp.Header, w)
			}
		}
	}
}

func TestQueryEndsWhenItsClientGoesAway(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	src := broken{querytest.NewStore(), func(ctx context.Context) error {
		close(started)
		<-ctx.Done()
		close(ended)
		return fault.Wrap(ctx.Err(), fault.Canceled, "select")
	}}
	srv := httptest.NewServer(newAPI(t, src, query.Settings{}, api.Settings{}))
	defer srv.Close()
	defer srv.Client().CloseIdleConnections()
	ctx, hangUp := context.WithCancel(context.Background())
	go func() {
		<-started
		hangUp()
	}()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+"/api/v1/query?query=wind", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := srv.Client().Do(r); err == nil {
		resp.Body.Close()
		t.Error("an answer came to a client that hung up")
	}
	<-ended // or the test times out
}

func TestQueriesTimeOut(t *testing.T) {
	src := broken{querytest.NewStore(), func(ctx context.Context) error {
		<-ctx.Done()
		return fault.Wrap(ctx.Err(), fault.Canceled, "select")
	}}
	f := func(h http.Handler, path string) {
		t.Helper()
		resp := get(t, h, path)
		if body := bodyOf(t, resp.Body); resp.StatusCode != 503 || !strings.Contains(body, `"errorType":"timeout"`) {
			t.Errorf("%s: status %d, %s", path, resp.StatusCode, body)
		}
	}
	f(newAPI(t, src, query.Settings{}, api.Settings{}), "/api/v1/query?query=wind&timeout=20ms")
	f(newAPI(t, src, query.Settings{Timeout: setting.Span(20 * time.Millisecond)}, api.Settings{}), "/api/v1/query?query=wind")
}

func TestFullGateRefuses(t *testing.T) {
	inside, leave := make(chan struct{}, 1), make(chan struct{})
	src := broken{querytest.NewStore(), func(context.Context) error {
		inside <- struct{}{}
		<-leave
		return nil
	}}
	q, err := query.New(query.Deps{Source: src}, query.Settings{RunningMax: 1, WaitingMax: 1})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.New(api.Deps{Query: q}, api.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan int, 2)
	ask := func() { answers <- get(t, h, "/api/v1/query?query=wind&timeout=1h").StatusCode }
	go ask()
	<-inside
	go ask()
	for q.Engine().Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	resp := get(t, h, "/api/v1/query?query=wind")
	if body := bodyOf(t, resp.Body); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, "1 queries run and 1 wait already") {
		t.Errorf("status %d, %s", resp.StatusCode, body)
	}
	close(leave)
	for range 2 {
		if code := <-answers; code != 200 {
			t.Errorf("a query that waited got %d", code)
		}
	}
}

func TestLimitsOfOneQuery(t *testing.T) {
	st := harbour(t)
	f := func(qs query.Settings, want string) {
		t.Helper()
		resp := get(t, newAPI(t, st, qs, api.Settings{}), "/api/v1/query?query=sum(boat_miles_total%20or%20wind)&time=95")
		if body := bodyOf(t, resp.Body); resp.StatusCode != 422 || !strings.Contains(body, want) {
			t.Errorf("status %d, %s; want %q", resp.StatusCode, body, want)
		}
	}
	f(query.Settings{SamplesMax: 2}, "too many samples")
	f(query.Settings{SeriesMax: 2}, "more than 2 series")
	f(query.Settings{RowsMax: 25}, "more than 25 rows")
	if n := st.Unclosed(); n != 0 {
		t.Errorf("%d series sets were left open", n)
	}
}

// warner warns that it may lack rows.
type warner struct{ *querytest.Store }

func (w warner) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	query.Warn(ctx, "server b3 did not answer")
	query.Warn(ctx, "server b3 did not answer")
	return w.Store.Select(ctx, q)
}

func TestWarningsOfTheSourceReachTheClient(t *testing.T) {
	h := newAPI(t, warner{harbour(t)}, query.Settings{}, api.Settings{})
	for _, path := range []string{"query?query=wind&time=95", "series?match[]=wind"} {
		body := bodyOf(t, get(t, h, "/api/v1/"+path).Body)
		if !strings.HasSuffix(body, `,"warnings":["server b3 did not answer"]}`) {
			t.Errorf("%s: %s", path, body)
		}
	}
}

func TestTooLongFormIsRefused(t *testing.T) {
	h := newAPI(t, harbour(t), query.Settings{}, api.Settings{FormBytesMax: 100})
	r := httptest.NewRequest(http.MethodPost, "/api/v1/query", strings.NewReader("query="+strings.Repeat("1", 200)))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d, %s", w.Code, w.Body)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	q, err := query.New(query.Deps{Source: querytest.NewStore()}, query.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.New(api.Deps{Query: q}, api.Settings{PointsMax: -1, CORSOrigin: "("})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "points_max") || !strings.Contains(err.Error(), "cors_origin") {
		t.Errorf("error %v", err)
	}
	_, err = query.New(query.Deps{Source: querytest.NewStore()}, query.Settings{Timeout: -1, RowsMax: -1})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "timeout") || !strings.Contains(err.Error(), "rows_max") {
		t.Errorf("error %v", err)
	}
}
