package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
)

// asker asks one server over one connection.
type asker struct {
	url    string
	end    time.Time
	client http.Client
}

// median asks a query once for nothing, then as often as told.
func (a *asker) median(q fleet.Query, repeat int) (answer, error) {
	var out answer
	var took []time.Duration
	for i := range repeat + 1 {
		begin := time.Now()
		body, err := a.ask(q)
		if err != nil {
			return out, err
		}
		if i > 0 {
			took = append(took, time.Since(begin))
		}
		out.series = bytes.Count(body, []byte(`"metric":`))
	}
	slices.Sort(took)
	out.p50 = took[len(took)/2]
	return out, nil
}

func (a *asker) ask(q fleet.Query) ([]byte, error) {
	v := url.Values{"query": {q.Expr}, "nocache": {"1"}}
	path := "/api/v1/query"
	if q.Span == 0 {
		v.Set("time", seconds(a.end))
	} else {
		path = "/api/v1/query_range"
		v.Set("start", seconds(a.end.Add(-q.Span)))
		v.Set("end", seconds(a.end))
		v.Set("step", strconv.Itoa(int(q.Step.Seconds())))
	}
	resp, err := a.client.PostForm(a.url+path, v)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %.300s", resp.StatusCode, body)
	}
	return body, err
}

func seconds(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
