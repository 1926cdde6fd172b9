package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func readRequest(t testing.TB, types []prompb.ReadRequest_ResponseType, queries ...*prompb.Query) *http.Request {
	t.Helper()
	b, err := (&prompb.ReadRequest{Queries: queries, AcceptedResponseTypes: types}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/api/v1/read", bytes.NewReader(snappy.Encode(nil, b)))
	r.Header.Set("Content-Encoding", "snappy")
	r.Header.Set("X-Prometheus-Remote-Read-Version", "0.1.0")
	return r
}

func matching(name string, lo, hi int64) *prompb.Query {
	return &prompb.Query{
		StartTimestampMs: lo, EndTimestampMs: hi,
		Matchers: []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_RE, Name: "__name__", Value: name}},
	}
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// rendering of the samples read, the same for both forms of answer.
type rendering []string

func (r *rendering) float(i int, ls string, t int64, v float64) {
	*r = append(*r, fmt.Sprintf("%d %s %d %x", i, ls, t, math.Float64bits(v)))
}

func (r *rendering) hist(i int, ls string, t int64, h string) {
	*r = append(*r, fmt.Sprintf("%d %s %d %s", i, ls, t, h))
}

func labelText(ls []prompb.Label) string {
	var b labels.ScratchBuilder
	for _, l := range ls {
		b.Add(l.Name, l.Value)
	}
	return b.Labels().String()
}

func decodeSamples(t testing.TB, body []byte) (out rendering) {
	t.Helper()
	b, err := snappy.Decode(nil, body)
	if err != nil {
		t.Fatal(err)
	}
	var resp prompb.ReadResponse
	if err := resp.Unmarshal(b); err != nil {
		t.Fatal(err)
	}
	for i, res := range resp.Results {
		for _, ts := range res.Timeseries {
			for _, s := range ts.Samples {
				out.float(i, labelText(ts.Labels), s.Timestamp, s.Value)
			}
			for _, h := range ts.Histograms {
				out.hist(i, labelText(ts.Labels), h.Timestamp, h.ToIntHistogram().String())
			}
		}
	}
	return out
}

// decodeFrames reads the stream as the format's description defines it: uvarint length, CRC-32C big endian, message.
func decodeFrames(t testing.TB, body []byte) (out rendering, frames int) {
	t.Helper()
	in := bufio.NewReader(bytes.NewReader(body))
	for {
		n, err := binary.ReadUvarint(in)
		if err == io.EOF {
			return out, frames
		}
		var head [4]byte
		msg := make([]byte, n)
		if _, err := io.ReadFull(in, head[:]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(in, msg); err != nil {
			t.Fatal(err)
		}
		if crc32.Checksum(msg, crc32.MakeTable(crc32.Castagnoli)) != binary.BigEndian.Uint32(head[:]) {
			t.Fatal("checksum mismatch")
		}
		var resp prompb.ChunkedReadResponse
		if err := resp.Unmarshal(msg); err != nil {
			t.Fatal(err)
		}
		frames++
		for _, s := range resp.ChunkedSeries {
			for _, c := range s.Chunks {
				decodeChunk(t, &out, int(resp.QueryIndex), labelText(s.Labels), c)
			}
		}
	}
}

func decodeChunk(t testing.TB, out *rendering, i int, ls string, c prompb.Chunk) {
	t.Helper()
	ck, err := chunkenc.FromData(chunkenc.Encoding(c.Type), c.Data)
	if err != nil {
		t.Fatal(err)
	}
	it := ck.Iterator(nil)
	for typ := it.Next(); typ != chunkenc.ValNone; typ = it.Next() {
		if ts := it.AtT(); ts < c.MinTimeMs || ts > c.MaxTimeMs {
			t.Errorf("time %d outside of its chunk's [%d, %d]", ts, c.MinTimeMs, c.MaxTimeMs)
		}
		if typ == chunkenc.ValFloat {
			ts, v := it.At()
			out.float(i, ls, ts, v)
			continue
		}
		ts, h := it.AtHistogram(nil)
		out.hist(i, ls, ts, h.String())
	}
}

func TestReadGivesTheSameInBothForms(t *testing.T) {
	st := harbour(t)
	b := point.GetBatch(point.NewDict(0))
	id := querytest.Intern(b.Dict, point.MakeLabels("__name__", "long"))
	for i := int64(0); i < 5000; i++ {
		b.Append(id, point.NanosOf(i*1000), math.Sqrt(float64(i)))
	}
	insert(t, st, "default", b)
	h := newAPI(t, st, query.Settings{}, api.Settings{ReadFrameBytesMax: 4 << 10})
	queries := []*prompb.Query{matching("boat.*|wind|load", 10_000, 200_000), matching("none", 0, 1), matching("long", 0, math.MaxInt64)}

	w := serve(h, readRequest(t, nil, queries...))
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/x-protobuf" || w.Header().Get("Content-Encoding") != "snappy" {
		t.Fatalf("status %d, header %v, %s", w.Code, w.Header(), w.Body)
	}
	samples := decodeSamples(t, w.Body.Bytes())

	types := []prompb.ReadRequest_ResponseType{7, prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES}
	w = serve(h, readRequest(t, types, queries...))
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse" {
		t.Fatalf("status %d, header %v", w.Code, w.Header())
	}
	chunked, frames := decodeFrames(t, w.Body.Bytes())
	if diff := cmp.Diff(samples, chunked); diff != "" {
		t.Errorf("samples and chunks differ:\n%s", diff)
	}
	if len(samples) != 9+9+10+1+5000 {
		t.Errorf("%d samples", len(samples))
	}
	if frames < 10 {
		t.Errorf("%d frames for 5000 samples of at most 4 KiB each", frames)
	}
	if !strings.HasPrefix(samples[0], `0 {__name__="boat_miles_total", boat="anna", crew="3"} 10000 `) {
		t.Errorf("first is %s", samples[0])
	}
	if n := st.Unclosed(); n != 0 {
		t.Errorf("%d series sets were left open", n)
	}
}

// What the regular expressions of a remote read need was booked nowhere, beside the queries of all others.
func TestMemoryOfOthersSurvivesPatternsOfAReadQuery(t *testing.T) {
	memory := budget.New("queries", 32<<20)
	q, err := query.New(query.Deps{Source: harbour(t), Memory: memory}, query.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.New(api.Deps{Query: q}, api.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	costly := func(n int) *prompb.Query {
		pq := matching("wind", 0, 1)
		for range n {
			pq.Matchers = append(pq.Matchers, &prompb.LabelMatcher{Type: prompb.LabelMatcher_NRE, Name: "boat", Value: `\pL{950}`}) // 8 MB
		}
		return pq
	}
	for _, types := range [][]prompb.ReadRequest_ResponseType{nil, {prompb.ReadRequest_STREAMED_XOR_CHUNKS}} {
		if w := serve(h, readRequest(t, types, costly(10))); w.Code != http.StatusServiceUnavailable && w.Code != http.StatusUnprocessableEntity {
			t.Errorf("%v, ten patterns of 8 MB: status %d, %s; want that there is no memory", types, w.Code, w.Body)
		}
		var one []*prompb.Query
		for range 20 {
			one = append(one, costly(1))
		}
		if w := serve(h, readRequest(t, types, one...)); w.Code != http.StatusOK {
			t.Errorf("%v, a pattern of 8 MB in each of 20 queries: status %d, %s", types, w.Code, w.Body)
		}
		invalid := costly(1)
		invalid.Matchers = append(invalid.Matchers, &prompb.LabelMatcher{Type: prompb.LabelMatcher_RE, Name: "boat", Value: "("})
		if w := serve(h, readRequest(t, types, invalid)); w.Code != http.StatusBadRequest {
			t.Errorf("%v, a pattern that is none: status %d, %s", types, w.Code, w.Body)
		}
		if used := memory.Used(); used != 0 {
			t.Errorf("%v: %d bytes stay booked", types, used)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	h := newAPI(t, harbour(t), query.Settings{}, api.Settings{ReadBytesMax: 1000, ReadSamplesMax: 5})
	f := func(r *http.Request, status int, want string) {
		t.Helper()
		w := serve(h, r)
		if w.Code != status || !strings.Contains(w.Body.String(), want) {
			t.Errorf("status %d, %s; want %d, %q", w.Code, w.Body, status, want)
		}
	}
	post := func(body string) *http.Request {
		return httptest.NewRequest(http.MethodPost, "/api/v1/read", strings.NewReader(body))
	}
	f(httptest.NewRequest(http.MethodGet, "/api/v1/read", nil), 405, "")
	f(post("no snappy"), 400, "snappy")
	f(post(strings.Repeat("x", 2000)), 413, "too large")
	f(post("\xff\xff\xff\x7f"), 400, "exceeds limit") // 256 MiB are announced, none are allocated
	f(post(string(snappy.Encode(nil, []byte("\xff")))), 400, "")
	f(readRequest(t, []prompb.ReadRequest_ResponseType{9}, matching("wind", 0, 1)), 400, "does not support")
	f(readRequest(t, nil, matching("(", 0, 1)), 400, "missing closing )")
	f(readRequest(t, nil, &prompb.Query{Matchers: []*prompb.LabelMatcher{{Type: 9}}}), 400, "matcher type")
	f(readRequest(t, nil, matching("wind", 0, 200_000)), 400, "exceeded sample limit (5)")
	r := readRequest(t, nil, matching("wind", 0, 200_000))
	r.URL.Path = "/t/nowhere/api/v1/read"
	f(r, 404, "no table")
}

func TestReadRefusesWhatWouldNotBeWhole(t *testing.T) {
	h := newAPI(t, warner{harbour(t)}, query.Settings{}, api.Settings{})
	for _, types := range [][]prompb.ReadRequest_ResponseType{nil, {prompb.ReadRequest_STREAMED_XOR_CHUNKS}} {
		w := serve(h, readRequest(t, types, matching("nothing", 0, 1)))
		if w.Code != 503 || !strings.Contains(w.Body.String(), "server b3") {
			t.Errorf("%v: status %d, %s", types, w.Code, w.Body)
		}
	}
}

// TestReadIsCutWhenItFailsHalfWay: a reader must not believe the first query's rows complete.
func TestReadIsCutWhenItFailsHalfWay(t *testing.T) {
	st := harbour(t)
	calls := 0
	src := broken{st, func(context.Context) error { return fault.Errorf(fault.Unavailable, "gone") }}
	srv := httptest.NewServer(newAPI(t, second{src, &calls}, query.Settings{}, api.Settings{}))
	defer srv.Close()
	defer srv.Client().CloseIdleConnections()
	r := readRequest(t, []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS},
		matching("wind", 0, 200_000), matching("wind", 0, 200_000))
	resp, err := srv.Client().Post(srv.URL+"/api/v1/read", "application/x-protobuf", r.Body)
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if err == nil {
		t.Error("half an answer looked whole")
	}
}

// A remote read without matchers returned every series of the table; Prometheus returns none.
func TestARemoteReadThatNamesNoSeriesGetsNone(t *testing.T) {
	a := newAPI(t, harbour(t), query.Settings{}, api.Settings{})
	for _, typ := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_SAMPLES, prompb.ReadRequest_STREAMED_XOR_CHUNKS} {
		w := serve(a, readRequest(t, []prompb.ReadRequest_ResponseType{typ}, &prompb.Query{StartTimestampMs: 0, EndTimestampMs: math.MaxInt64}))
		if w.Code != http.StatusOK {
			t.Errorf("%v: %d %s", typ, w.Code, w.Body)
		}
		b := w.Body.Bytes()
		if typ == prompb.ReadRequest_SAMPLES {
			b, _ = snappy.Decode(nil, b)
			var resp prompb.ReadResponse
			if err := resp.Unmarshal(b); err != nil || len(resp.Results) != 1 || len(resp.Results[0].Timeseries) != 0 {
				t.Errorf("%v: %v %v", typ, resp, err)
			}
		} else if len(b) != 0 {
			t.Errorf("%v: %d bytes", typ, len(b))
		}
	}
}
