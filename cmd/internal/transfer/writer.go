package transfer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golang/snappy"
	"github.com/influxdata/line-protocol/v2/lineprotocol"
	"github.com/prometheus/prometheus/prompb"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/jsonrows"
	"github.com/spillwaydb/spillway/protocols/point"
)

// batch is what one sender writes at once.
type batch struct {
	lines     []Line
	raw       []byte // line protocol, as it stands in the file
	precision string
	rows      int64
	next      int64 // the source goes on here when the batch and all before it are acknowledged
	within    string
	sum       string // of the file before next
	anew      bool   // rows of this window that came before come again
	at        string // for messages
	read      int64  // bytes of the source so far
	part      float64
	done      chan error
}

// writer writes batches to a server, and tries again for as long as that can help.
type writer struct {
	server *Server
	losses *Losses
	say    func(string)
	wrote  atomic.Bool // once: then a server that is away is waited for
	unsure atomic.Bool // the server may have rows: a request was not refused as a whole before it kept any
	said   struct {
		sync.Mutex
		text string // the last error that was said
	}
}

// isNews reports whether an error is another than the last one, of all senders: a server that comes back with a full disk is not away any more.
func (w *writer) isNews(err error) bool {
	w.said.Lock()
	defer w.said.Unlock()
	was := w.said.text
	w.said.text = err.Error()
	return was != w.said.text
}

// answered ends an outage: the next one is news, though it has the same words.
func (w *writer) answered() {
	w.said.Lock()
	defer w.said.Unlock()
	w.said.text = ""
}

// Pauses between attempts.
const (
	retryMin = 500 * time.Millisecond
	retryMax = 30 * time.Second

	firstTriesMax = 4 // of a server that has accepted nothing yet
)

// Why rows are refused.
const (
	refusedByServer = "requests had rows that the server refused; their other rows, if any, were taken"
	refusedNanos    = "rows between milliseconds are NaN, infinite, stale markers or native histograms, which cannot be written there: they were written at their millisecond"
)

func (w *writer) write(ctx context.Context, b *batch) error {
	if len(b.raw) > 0 {
		return w.post(ctx, "/api/v2/write", w.bucket(b.precision), http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, b.raw, b.at)
	}
	whole, between, err := w.split(b.lines)
	if err != nil {
		return err
	}
	if len(whole) > 0 {
		header := http.Header{"Content-Type": {"application/x-protobuf"}, "Content-Encoding": {"snappy"}, "X-Prometheus-Remote-Write-Version": {"0.1.0"}}
		if err := w.post(ctx, "/api/v1/write", nil, header, snappy.Encode(nil, whole), b.at); err != nil {
			return err
		}
	}
	if len(between) > 0 {
		return w.post(ctx, "/api/v2/write", w.bucket("ns"), http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, between, b.at)
	}
	return nil
}

// bucket is the query of the line protocol's route. A table stands in the path too, and both agree.
func (w *writer) bucket(precision string) url.Values {
	return url.Values{"precision": {precision}, "bucket": {cmp.Or(w.server.Table, "default")}}
}

// split makes a request of remote write (prometheus.WriteRequest) of the rows that stand on a millisecond, and line protocol
// of those between. The request is written by hand: the library leaves out values that equal 0, and -0 does.
func (w *writer) split(lines []Line) (whole, between []byte, err error) {
	var ts, part []byte
	for i := range lines {
		l := &lines[i]
		ts = ts[:0]
		for _, p := range l.Labels {
			part = protowire.AppendString(protowire.AppendTag(part[:0], 1, protowire.BytesType), p.Name)
			part = protowire.AppendString(protowire.AppendTag(part, 2, protowire.BytesType), p.Value)
			ts = protowire.AppendBytes(protowire.AppendTag(ts, 1, protowire.BytesType), part)
		}
		moved, rows := int64(0), len(l.Hists)
		for j, t := range l.Times {
			if t%nanosPerMilli != 0 {
				if b, ok := appendInfluxLine(between, l, j); ok {
					between = b
					continue
				}
				moved++
			}
			rows++
			part = protowire.AppendFixed64(protowire.AppendTag(part[:0], 1, protowire.Fixed64Type), math.Float64bits(l.Values[j]))
			part = protowire.AppendVarint(protowire.AppendTag(part, 2, protowire.VarintType), uint64(point.MillisOf(t)))
			ts = protowire.AppendBytes(protowire.AppendTag(ts, 2, protowire.BytesType), part)
		}
		for _, h := range l.Hists {
			if h.Time%nanosPerMilli != 0 {
				moved++
			}
			m := message(h)
			b, err := m.Marshal()
			if err != nil {
				return nil, nil, fault.Wrap(err, fault.Invalid, "histogram of %s", appendSeries(nil, l))
			}
			ts = protowire.AppendBytes(protowire.AppendTag(ts, 4, protowire.BytesType), b)
		}
		if moved > 0 {
			w.losses.Add(refusedNanos, moved, string(appendSeries(nil, l)))
		}
		if rows > 0 {
			whole = protowire.AppendBytes(protowire.AppendTag(whole, 1, protowire.BytesType), ts)
		}
	}
	return whole, between, nil
}

func message(h jsonrows.Histogram) prompb.Histogram {
	if h.Int != nil {
		return prompb.FromIntHistogram(point.MillisOf(h.Time), h.Int)
	}
	return prompb.FromFloatHistogram(point.MillisOf(h.Time), h.Float)
}

// appendInfluxLine appends a float row; false if line protocol cannot write it.
func appendInfluxLine(dst []byte, l *Line, row int) ([]byte, bool) {
	v := l.Values[row]
	if v != v || math.IsInf(v, 0) || name(l) == "" {
		return dst, false
	}
	var e lineprotocol.Encoder
	e.SetPrecision(lineprotocol.Nanosecond)
	e.StartLine(name(l))
	for _, p := range l.Labels {
		if p.Name != point.MetricName {
			e.AddTag(p.Name, p.Value)
		}
	}
	f, _ := lineprotocol.FloatValue(v)
	e.AddField("value", f)
	e.EndLine(time.Unix(0, int64(l.Times[row])))
	if e.Err() != nil {
		return dst, false
	}
	return append(dst, e.Bytes()...), true
}

// post sends a body until the server accepts it, refuses it for good, or ctx ends. Rows that were refused are counted.
func (w *writer) post(ctx context.Context, route string, query url.Values, header http.Header, body []byte, at string) error {
	for pause, tries := retryMin, 1; ; tries++ {
		after, err := w.attempt(ctx, route, query, header, body, at)
		if err == nil {
			w.wrote.Store(true)
			if tries > 1 {
				w.answered()
			}
		} else if tries >= firstTriesMax && !w.wrote.Load() {
			return err
		}
		if err == nil || ctx.Err() != nil || !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Throttled) {
			return err
		}
		wait := max(pause, after)
		if w.isNews(err) || tries%10 == 0 {
			w.say(fmt.Sprintf("%v; again in %s", err, wait.Round(100*time.Millisecond)))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		pause = min(2*pause, retryMax)
	}
}

func (w *writer) attempt(ctx context.Context, route string, query url.Values, header http.Header, body []byte, at string) (after time.Duration, err error) {
	path := w.server.path(route)
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	rq, err := http.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(body))
	if err != nil {
		return 0, fault.Wrap(err, fault.Invalid, "the address of the server must be as http://HOST:PORT")
	}
	rq.Header = header.Clone()
	resp, err := w.server.Do(rq)
	if err != nil {
		var dial *net.OpError
		if !errors.As(err, &dial) || dial.Op != "dial" {
			w.unsure.Store(true)
		}
		return 0, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
	default: // also where some rows were refused, and the others were kept
		w.unsure.Store(true)
	}
	if resp.StatusCode/100 == 2 {
		return 0, nil
	}
	if s, err := strconv.ParseFloat(resp.Header.Get("Retry-After"), 64); err == nil && s > 0 {
		after = min(time.Duration(s*float64(time.Second)), retryMax)
	}
	err = failed(resp)
	if resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusUnprocessableEntity {
		w.losses.Add(refusedByServer, 1, fmt.Sprintf("%s: %s", at, strings.TrimSpace(err.Error())))
		return 0, nil
	}
	return after, err
}
