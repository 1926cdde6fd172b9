package recent_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/recent"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func all(string) bool { return true }

func only(table string) func(string) bool { return func(t string) bool { return t == table } }

func TestQueriesAreShownWhileTheyRunAndKeptWhenSlow(t *testing.T) {
	q := recent.NewQueries()
	quick, slow, failed, left := q.Begin("a", "instant", "up", noon), q.Begin("a", "range", "rate(x[5m])", noon.Add(time.Second)), q.Begin("b", "range", "bad", noon), q.Begin("b", "range", "left", noon)
	slow.Runs(func() int64 { return 4096 })
	l := q.Lists(noon.Add(3*time.Second), all)
	if len(l.Running) != 4 || !l.Running[0].Waits || len(l.Ended) != 0 {
		t.Fatalf("%+v", l)
	}
	if s := l.Running[3]; s.Text != "rate(x[5m])" || s.Waits || s.Seconds != 2 || s.Bytes != 4096 {
		t.Errorf("%+v", s)
	}
	quick.End(noon.Add(999*time.Millisecond), nil, false)
	left.End(noon.Add(time.Millisecond), errors.New("canceled"), true)
	failed.End(noon.Add(time.Millisecond), errors.New("too many series"), false)
	slow.End(noon.Add(4*time.Second), nil, false)
	l = q.Lists(noon, all)
	if len(l.Running) != 0 || len(l.Ended) != 2 || l.Ended[0].Text != "rate(x[5m])" || l.Ended[0].Seconds != 3 || l.Ended[1].Error != "too many series" {
		t.Errorf("%+v", l)
	}
	if l = q.Lists(noon, only("b")); len(l.Ended) != 1 || l.Ended[0].Text != "bad" {
		t.Errorf("of table b: %+v", l)
	}
}

// TestOneTableDoesNotDriveOutAnother: a table with only slow queries fills the list, and the one slow query of another
// stays.
func TestOneTableDoesNotDriveOutAnother(t *testing.T) {
	q, r := recent.NewQueries(), recent.NewRefusals()
	q.Begin("calm", "instant", "calm", noon).End(noon.Add(2*time.Second), nil, false)
	r.Note("calm", "rw1", 400, "calm", noon)
	for i := range 5000 {
		q.Begin("noisy", "instant", fmt.Sprint(i), noon).End(noon.Add(2*time.Second), nil, false)
		r.Note("noisy", "rw1", 400, strings.Repeat("x", i%500), noon)
	}
	if l := q.Lists(noon, only("calm")); len(l.Ended) != 1 {
		t.Errorf("the calm table's query is gone: %+v", l)
	}
	if l := q.Lists(noon, all); len(l.Ended) != 200 || l.Ended[0].Text != "4999" {
		t.Errorf("%d queries, the newest %q", len(l.Ended), l.Ended[0].Text)
	}
	if l := r.List(only("calm")); len(l) != 1 {
		t.Errorf("the calm table's refusal is gone: %+v", l)
	}
	if n := len(r.List(all)); n > 200 {
		t.Errorf("%d refusals", n)
	}
}

func TestRefusalsOfOneCauseAreOneEntry(t *testing.T) {
	r := recent.NewRefusals()
	r.Note("a", "influx1", 400, `unable to parse 'cpu v=': missing value`, noon)
	r.Note("b", "influx1", 400, `unable to parse 'of b'`, noon)
	r.Note("a", "rw1", 429, `it may send 100 samples a second`, noon)
	r.Note("a", "influx1", 400, `unable to parse 'mem v=': missing value`, noon.Add(time.Second))
	l := r.List(only("a"))
	if len(l) != 2 || l[0].Requests != 2 || !strings.Contains(l[0].Reason, "mem") || l[0].Last != noon.Add(time.Second) || l[0].First != noon || l[1].Status != 429 {
		t.Errorf("%+v", l)
	}
	r.Note("a", "otlp", 400, "\x08\x03\x12\x05bad\xff\x00thing"+strings.Repeat("é", 1000), noon)
	if got := r.List(only("a"))[0].Reason; !strings.HasPrefix(got, "badthing") || len(got) > 500 {
		t.Errorf("%q", got)
	}
}

func TestNilKeepsNothing(t *testing.T) {
	var q *recent.Queries
	var r *recent.Refusals
	run := q.Begin("a", "instant", "up", noon)
	run.Runs(nil)
	run.End(noon, nil, false)
	r.Note("a", "rw1", 400, "x", noon)
	if l := q.Lists(noon, all); l.Running == nil || l.Ended == nil || r.List(all) == nil {
		t.Error("lists must be empty, not null")
	}
}
