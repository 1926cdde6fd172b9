package intake_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/intake"
)

// droppedMeanwhile is a writer that drops the table x right after listing it.
type droppedMeanwhile struct{ *memory }

func (w droppedMeanwhile) List(ctx context.Context) ([]string, error) {
	w.table("x")
	names, err := w.memory.List(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.tables, "x")
	return names, err
}

// TestAReadMakesNoTable: one that was dropped between the list and the look-up was there again, empty.
func TestAReadMakesNoTable(t *testing.T) {
	m := newMemory()
	f := &front{memory: m, metrics: prometheus.NewRegistry(), client: &http.Client{Transport: &http.Transport{}}}
	var err error
	f.Front, err = intake.New(intake.Deps{Writer: droppedMeanwhile{m}, Tables: memoryTables{m}, Fallback: http.HandlerFunc(f.serve), Registerer: f.metrics}, intake.Settings{Delete: true})
	if err != nil {
		t.Fatal(err)
	}
	f.listen(t, false)
	for _, ask := range []struct {
		what, body, want string
		status           int
	}{
		{`GET /query?db=x&q=SHOW+MEASUREMENTS`, "", "database not found: x", 200},
		{`GET /query?db=x&q=SHOW+SERIES`, "", "database not found: x", 200},
		{`GET /query?db=x&q=SHOW+RETENTION+POLICIES`, "", "database not found: x", 200},
		{`GET /api/v2/buckets`, "", `"buckets":[]`, 200},
		{`GET /api/v2/buckets?name=x`, "", "not found", 404},
		{`POST /query?db=x&q=DELETE+FROM+m`, "", "database not found: x", 200},
		{`POST /api/v2/delete?bucket=x`, `{"start":"2020-01-01T00:00:00Z","stop":"2030-01-01T00:00:00Z","predicate":"host=\"a\""}`, "not found", 404},
	} {
		f.do(t, ask.what, []byte(ask.body)).want(t, ask.status, ask.want)
		m.mu.Lock()
		if m.tables["x"] != nil {
			t.Errorf("%s made the table again", ask.what)
		}
		m.mu.Unlock()
	}
}
