package transfer

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/jsonrows"
)

// Server is a server to read from or write to, over HTTP.
type Server struct {
	URL   string // without the path of a route
	Table string // "": the server's default; else it is a Spillway's
	Do    func(*http.Request) (*http.Response, error)
}

// path is the address of a route.
func (s *Server) path(route string) string {
	base := strings.TrimRight(s.URL, "/")
	if s.Table != "" {
		base += "/t/" + url.PathEscape(s.Table)
	}
	return base + route
}

// errorTextMax bounds the part of an answer that a message repeats.
const errorTextMax = 1 << 10

// failed makes an error of an answer that is no success.
func failed(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, errorTextMax))
	text := strings.TrimSpace(string(b))
	var envelope struct{ Error string }
	if json.Unmarshal(b, &envelope) == nil && envelope.Error != "" {
		text = envelope.Error
	}
	kind := fault.Invalid
	switch {
	case resp.StatusCode == http.StatusRequestEntityTooLarge, resp.StatusCode == http.StatusUnprocessableEntity:
		kind = fault.TooLarge
	case resp.StatusCode == http.StatusNotFound:
		kind = fault.NotFound
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		kind = fault.Denied
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode >= 500:
		kind = fault.Unavailable
	}
	return fault.Errorf(kind, "%s answered %s: %s", resp.Request.URL.Redacted(), resp.Status, text)
}

// get reads the data of an answer in Prometheus' envelope.
func (s *Server) get(ctx context.Context, route string, query url.Values, v any) error {
	rq, err := http.NewRequestWithContext(ctx, http.MethodGet, s.path(route)+"?"+query.Encode(), nil)
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "the address of the server must be as http://HOST:PORT")
	}
	resp, err := s.Do(rq)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return failed(resp)
	}
	var envelope struct{ Data json.RawMessage }
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&envelope); err != nil {
		return fault.Wrap(err, fault.Corrupt, "answer of %s", rq.URL.Redacted())
	}
	return fault.Wrap(json.Unmarshal(envelope.Data, v), fault.Corrupt, "answer of %s", rq.URL.Redacted())
}

// Reader reads the rows of a server that a selector matches.
type Reader struct {
	server *Server
	match  string // "": everything

	// Constant after NewReader; both false: it has the export route of Spillway.
	victoria bool // it has that of VictoriaMetrics, whose answers have no last line that says they are whole
	remote   bool // it has no export route, but remote read
}

// NewReader finds out how a server can be read. match is a selector as in PromQL, or "".
func NewReader(ctx context.Context, s *Server, match string) (*Reader, error) {
	if match != "" {
		if _, err := parser.NewParser(parser.Options{}).ParseMetricSelector(match); err != nil {
			return nil, fault.Errorf(fault.Invalid, "%s is no selector of series: %v", match, err)
		}
	}
	r := &Reader{server: s, match: match}
	err := r.export(ctx, 0, 0, func(*Line) error { return nil })
	switch {
	case err == nil:
		return r, nil
	case !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Invalid): // Invalid: VictoriaMetrics without match[]
		return nil, err
	case s.Table != "":
		return nil, err // the table is not there
	}
	r.victoria = true
	switch verr := r.export(ctx, 1000, 1000, func(*Line) error { return nil }); { // 0 would be no bound to it
	case verr == nil:
		return r, nil
	case !fault.Is(err, fault.NotFound):
		return nil, err
	}
	r.victoria, r.remote = false, true
	if rerr := r.remoteRead(ctx, 0, 0, func(*Line) error { return nil }); rerr != nil {
		return nil, fault.Annotate(rerr, "the server has neither the route /api/v1/export, of Spillway or VictoriaMetrics, nor a remote read")
	}
	return r, nil
}

// Exact reports whether rows come as they are stored; else they come in milliseconds.
func (r *Reader) Exact() bool { return !r.remote && !r.victoria }

// Range is the time that the server has rows of, in milliseconds, as far as it says so. ok is false where nothing is known;
// empty where there is no row.
func (r *Reader) Range(ctx context.Context, now time.Time) (lo, hi int64, empty, ok bool) {
	if r.victoria {
		return 0, 0, false, false
	}
	if !r.remote {
		var status struct {
			HeadStats struct{ MinTime, MaxTime int64 }
		}
		if r.server.get(ctx, "/api/v1/status/tsdb", url.Values{"limit": {"1"}}, &status) != nil {
			return 0, 0, false, false
		}
		lo, hi = status.HeadStats.MinTime, status.HeadStats.MaxTime
		return lo, hi, lo > hi, true
	}
	var info struct{ StorageRetention string } // of Prometheus: "15d", or "15d or 10GiB"
	if r.server.get(ctx, "/api/v1/status/runtimeinfo", nil, &info) != nil {
		return 0, 0, false, false
	}
	text, _, _ := strings.Cut(info.StorageRetention, " ")
	keep, err := model.ParseDuration(text)
	if err != nil || keep == 0 {
		return 0, 0, false, false
	}
	return now.Add(-time.Duration(keep) - 48*time.Hour).UnixMilli(), now.Add(time.Hour).UnixMilli(), false, true
}

// Empty reports whether the server has nothing in a range; false where that is not known.
func (r *Reader) Empty(ctx context.Context, lo, hi int64) bool {
	if r.victoria {
		return false
	}
	q := url.Values{"start": {seconds(lo)}, "end": {seconds(hi)}, "limit": {"1"}}
	if r.match != "" {
		q.Set("match[]", r.match)
	}
	var names []string
	return r.server.get(ctx, "/api/v1/labels", q, &names) == nil && len(names) == 0
}

// seconds writes milliseconds as the API reads them.
func seconds(ms int64) string {
	return strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64)
}

// Read calls give with all rows from lo to hi, both included, in milliseconds; a line is good until give returns. When it
// returns an error that is not give's, the rows so far are not all: TooLarge or Unavailable may go away with a shorter range.
func (r *Reader) Read(ctx context.Context, lo, hi int64, give func(*Line) error) error {
	if r.remote {
		return r.remoteRead(ctx, lo, hi, give)
	}
	return r.export(ctx, lo, hi, give)
}

// export reads the export route.
func (r *Reader) export(ctx context.Context, lo, hi int64, give func(*Line) error) error {
	q := url.Values{"start": {seconds(lo)}, "end": {seconds(hi)}}
	if r.match != "" {
		q.Set("match[]", r.match)
	}
	if r.victoria {
		q.Set("match[]", cmp.Or(r.match, `{__name__!=""}`))
		q.Set("max_rows_per_line", strconv.Itoa(victoriaLineRows))
		q.Set("reduce_mem_usage", "1") // it sends blocks as they come off its disk, and gathers no series
	}
	rq, err := http.NewRequestWithContext(ctx, http.MethodGet, r.server.path("/api/v1/export")+"?"+q.Encode(), nil)
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "the address of the server must be as http://HOST:PORT")
	}
	resp, err := r.server.Do(rq)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return failed(resp)
	}
	kind := "ndjson"
	if r.victoria {
		kind = "stream+json"
	}
	if t := resp.Header.Get("Content-Type"); !strings.Contains(t, kind) {
		return fault.Errorf(fault.NotFound, "%s answers with %q", rq.URL.Redacted(), t)
	}
	return readAnswer(resp.Body, !r.victoria, give)
}

// victoriaLineRows bounds the rows of a line of VictoriaMetrics, so that a line is far below LineBytesMax.
const victoriaLineRows = 10_000

// readAnswer reads the lines of an answer of an export route to its end. ends says that its last line is one: without it the answer is not
// whole. An answer of VictoriaMetrics has none; where it could not go on, it leaves out the last chunk, which is an error of the body.
func readAnswer(body io.Reader, ends bool, give func(*Line) error) error {
	var p jsonrows.Parser
	var rows int64
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 64<<10), jsonrows.LineBytesMax)
	for lines.Scan() {
		l, end, err := p.ParseAnswer(lines.Bytes())
		switch {
		case err != nil:
			return err
		case end != nil && end.Rows != rows:
			return fault.Errorf(fault.Corrupt, "the answer should have %d rows and has %d", end.Rows, rows)
		case end != nil:
			return nil
		}
		rows += int64(l.Rows())
		if err := give(l); err != nil {
			return given{err}
		}
	}
	if err := lines.Err(); err != nil {
		return fault.Wrap(err, fault.Unavailable, "the answer broke off")
	}
	if !ends {
		return nil
	}
	return fault.Errorf(fault.Unavailable, "the answer broke off")
}

// given marks an error of the function that received a line: the server is not to blame.
type given struct{ error }

// Unwrap gives the error itself.
func (g given) Unwrap() error { return g.error }

// inRange reports whether milliseconds can be nanoseconds.
func inRange(ms int64) bool {
	return ms <= math.MaxInt64/nanosPerMilli && ms >= math.MinInt64/nanosPerMilli
}

func outOfRange(ms int64) error {
	return fault.Errorf(fault.Invalid, "the time %d ms is out of range", ms)
}

// timeText writes milliseconds for people.
func timeText(ms int64) string { return fmt.Sprint(time.UnixMilli(ms).UTC().Format(time.RFC3339)) }
