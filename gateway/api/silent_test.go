package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestAGraphSurvivesAServerThatStoodStill: the connection to it was given up in the midst of the query, which had two minutes. It is evaluated once more, over a new
// connection; and no more than once.
func TestAGraphSurvivesAServerThatStoodStill(t *testing.T) {
	silent := fault.Wrap(peer.ErrSilent, fault.Unavailable, "peer n2 sent nothing for 2.2s")
	for _, at := range []struct {
		what   string
		fails  []error
		status int
		asked  int
	}{
		{"it answers on the next connection", []error{silent}, 200, 2},
		{"it stays silent", []error{silent, silent, silent}, 503, 2},
		{"it refuses", []error{fault.Errorf(fault.Unavailable, "n2 is away"), nil}, 503, 1},
	} {
		for _, path := range []string{"/api/v1/query?query=a&time=1", "/api/v1/query_range?query=sum(a)&start=1&end=10&step=1"} {
			asked := 0
			source := broken{querytest.NewStore(), func(context.Context) error {
				if asked++; asked > len(at.fails) {
					return nil
				}
				return at.fails[asked-1]
			}}
			reader, err := query.New(query.Deps{Source: source}, query.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			h, err := api.New(api.Deps{Query: reader}, api.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if w.Code != at.status || asked != at.asked {
				t.Errorf("%s: %s: %d after %d questions, want %d after %d: %s", at.what, path, w.Code, asked, at.status, at.asked, w.Body)
			}
		}
	}
}
