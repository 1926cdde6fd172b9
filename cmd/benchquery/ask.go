package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
)

// asker asks one server over one connection.
type asker struct {
	url    string
	client http.Client
}

// ask returns the answer, read to its end.
func (a *asker) ask(q fleet.Query, end time.Time) ([]byte, error) {
	v := url.Values{"query": {q.Expr}, "nocache": {"1"}}
	path := "/api/v1/query"
	if q.Span == 0 {
		v.Set("time", seconds(end))
	} else {
		path = "/api/v1/query_range"
		v.Set("start", seconds(end.Add(-q.Span)))
		v.Set("end", seconds(end))
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
