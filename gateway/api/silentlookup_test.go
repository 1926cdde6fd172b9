package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// standing is a source of other processes that calls ask for each question, whichever it is; a select finds so many series before.
type standing struct {
	*querytest.Store
	series int
	ask    func(context.Context) error
}

func (s standing) Select(ctx context.Context, _ *peer.Select) (peer.SeriesSet, error) {
	return &standingSet{s: s, ctx: ctx}, nil
}

func (s standing) LabelNames(ctx context.Context, _ *peer.Select, _ int) ([]string, bool, error) {
	return nil, false, s.ask(ctx)
}

func (s standing) LabelValues(ctx context.Context, _ *peer.Select, _ string, _ int) ([]string, bool, error) {
	return nil, false, s.ask(ctx)
}

func (s standing) Exemplars(ctx context.Context, _ *peer.Select, _ [][]peer.Matcher) ([]peer.SeriesExemplars, error) {
	return nil, s.ask(ctx)
}

func (s standing) GetMetadata(ctx context.Context, _, _ string) ([]point.MetadataRow, error) {
	return nil, s.ask(ctx)
}

func (s standing) Stats(ctx context.Context, _ string, _ int) (*peer.Stats, error) {
	return nil, s.ask(ctx)
}

type standingSet struct {
	s     standing
	ctx   context.Context
	given int
	err   error
}

func (s *standingSet) Next() bool {
	if s.given == s.s.series {
		s.err = s.s.ask(s.ctx)
		return false
	}
	s.given++
	return true
}

func (s *standingSet) At() *peer.Series {
	return &peer.Series{Labels: point.MakeLabels("__name__", "a", "n", fmt.Sprintf("%06d", s.given)), Times: []point.Nanos{1e9}, Values: []float64{1}}
}

func (s *standingSet) Err() error   { return s.err }
func (s *standingSet) Close() error { return nil }

func standingAPI(t *testing.T, d query.Deps, series int, ask func(context.Context) error) http.Handler {
	t.Helper()
	d.Source = standing{querytest.NewStore(), series, ask}
	reader, err := query.New(d, query.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.New(api.Deps{Query: reader}, api.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// lookUps are requests of each kind that is no query.
func lookUps(t *testing.T) map[string]func() *http.Request {
	all := map[string]func() *http.Request{}
	for _, path := range []string{
		"/api/v1/labels", "/api/v1/label/n/values", "/api/v1/series?match[]=a", "/api/v1/query_exemplars?query=a", "/api/v1/metadata",
		"/api/v1/status/tsdb", "/federate?match[]=a", "/api/v1/export?match[]=a",
	} {
		all[path] = func() *http.Request { return httptest.NewRequest(http.MethodGet, path, nil) }
	}
	for _, typ := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_SAMPLES, prompb.ReadRequest_STREAMED_XOR_CHUNKS} {
		all["remote read of "+typ.String()] = func() *http.Request {
			return readRequest(t, []prompb.ReadRequest_ResponseType{typ}, &prompb.Query{
				EndTimestampMs: 2000, Matchers: []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_EQ, Name: "__name__", Value: "a"}},
			})
		}
	}
	return all
}

func answered(h http.Handler, r *http.Request) (w *httptest.ResponseRecorder, cut bool) {
	w = httptest.NewRecorder()
	defer func() { cut = recover() != nil }()
	h.ServeHTTP(w, r)
	return w, false
}

// TestALookUpSurvivesAServerThatStoodStill: a drop-down of a dashboard stayed empty, and a remote read failed, where a graph was drawn. They are asked for once more, and no more
// than once; what the first time booked and warned of does not count.
func TestALookUpSurvivesAServerThatStoodStill(t *testing.T) {
	for _, at := range silences {
		for what, request := range lookUps(t) {
			asked, memory := 0, budget.New("queries", 1<<30)
			h := standingAPI(t, query.Deps{Memory: memory}, 0, func(ctx context.Context) error {
				if asked++; asked > len(at.fails) {
					return nil
				}
				if err := budget.LoanOf(ctx).Take(16 << 20); err != nil {
					t.Error(err)
				}
				if n := memory.Used(); n >= 32<<20 {
					t.Errorf("%s: %s: %d bytes are booked, those of the first time too", at.what, what, n)
				}
				query.Warn(ctx, "not whole")
				return at.fails[asked-1]
			})
			w, _ := answered(h, request())
			if w.Code != at.status || asked != at.asked || w.Code == 200 && strings.Contains(w.Body.String(), "not whole") {
				t.Errorf("%s: %s: %d after %d questions, want %d after %d: %s", at.what, what, w.Code, asked, at.status, at.asked, w.Body)
			}
			if n := memory.Used(); n != 0 {
				t.Errorf("%s: %s: %d bytes stay booked", at.what, what, n)
			}
		}
	}
}

// TestNoSeriesIsAnsweredTwice: of an answer that is gathered before it is written the series of the first time are dropped; one that is begun is broken off, and not begun again.
func TestNoSeriesIsAnsweredTwice(t *testing.T) {
	const series = 3_000 // too many to be gathered before the first bytes are sent
	streams := map[string]bool{"/api/v1/export?match[]=a": true, "remote read of STREAMED_XOR_CHUNKS": true}
	for what, request := range lookUps(t) {
		asked := 0
		h := standingAPI(t, query.Deps{}, series, func(context.Context) error {
			if asked++; asked == 1 {
				return errSilent
			}
			return nil
		})
		w, cut := answered(h, request())
		text := w.Body.String()
		switch {
		case streams[what]:
			if asked != 1 || !cut && !strings.Contains(text, "sent nothing") {
				t.Errorf("%s: asked %d times, cut off %t", what, asked, cut)
			}
		case asked != 2 || w.Code != 200 || strings.Count(text, "002999") > 1:
			t.Errorf("%s: %d after %d questions, series 2,999 is there %d times", what, w.Code, asked, strings.Count(text, "002999"))
		}
	}
}

// TestLookUpsOfASilentServerDoNotAllRunAgainAtOnce: queries and look-ups share the places for second times.
func TestLookUpsOfASilentServerDoNotAllRunAgainAtOnce(t *testing.T) {
	asked := make(chan chan error)
	h := standingAPI(t, query.Deps{Processors: 1, Lane: lane.New(nil, 4)}, 0, func(context.Context) error {
		reply := make(chan error)
		asked <- reply
		return <-reply
	})
	begin := func() chan int {
		done := make(chan int, 1)
		go func() {
			w, _ := answered(h, httptest.NewRequest(http.MethodGet, "/api/v1/labels", nil))
			done <- w.Code
		}()
		return done
	}
	first := begin()
	firstAsks := <-asked
	other := begin()
	otherAsks := <-asked
	firstAsks <- errSilent
	var again chan error
	select {
	case again = <-asked:
	case code := <-first:
		otherAsks <- nil
		t.Fatalf("the first look-up is not asked again: %d", code)
	}
	otherAsks <- errSilent
	select {
	case code := <-other:
		if code != 503 {
			t.Errorf("the other look-up: %d", code)
		}
	case reply := <-asked:
		t.Error("the other look-up is asked again too")
		reply <- nil
	}
	again <- nil
	if code := <-first; code != 200 {
		t.Errorf("the first look-up: %d", code)
	}
}
