package api

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
)

// read serves Prometheus' remote read: whole samples in one message, or chunks in a stream of frames, by the first type of
// the client's list that we support. Errors before the first byte are plain text with a status; after it the
// connection is cut, so that half an answer cannot be mistaken for a whole one.
func (a *API) read(w http.ResponseWriter, c *call) {
	leave, err := a.gates.enter(c.ctx, c.table.Name())
	if err != nil {
		a.failPlain(w, err)
		return
	}
	defer leave()
	ctx, l, err := a.query.Lookup(c.ctx)
	if err != nil {
		a.failPlain(w, err)
		return
	}
	defer l.End()
	req, err := decodeRead(w, c.Request, int64(a.settings.ReadBytesMax), budget.LoanOf(ctx))
	if err != nil {
		a.failPlain(w, err)
		return
	}
	streamed, err := negotiate(req.AcceptedResponseTypes)
	if err != nil {
		a.failPlain(w, err)
		return
	}
	if streamed {
		a.readChunks(ctx, l, w, c, req)
		return
	}
	a.readSamples(ctx, l, w, c, req)
}

// readCost is the memory of a remote-read request for each byte, beside its fields: unpacked, its strings, lists of numbers.
const readCost = 8

// failPlain answers as remote-read clients expect: a sentence, not an envelope.
func (a *API) failPlain(w http.ResponseWriter, err error) {
	ans := a.answerTo(err)
	if ans.status == http.StatusServiceUnavailable && ans.typ == typeUnavailable {
		w.Header().Set("Retry-After", fmt.Sprint(retryAfterSeconds))
	}
	w.Header().Del("Content-Encoding")
	http.Error(w, err.Error(), ans.status)
}

// decodeRead unpacks a request. Its size and the number of its fields are checked and booked before their memory is allocated.
func decodeRead(w http.ResponseWriter, r *http.Request, bytesMax int64, loan *budget.Loan) (*prompb.ReadRequest, error) {
	size := r.ContentLength
	if size < 0 {
		size = bytesMax
	}
	if err := loan.Take(2 * min(size, bytesMax)); err != nil { // a buffer that grows
		return nil, err
	}
	packed, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bytesMax))
	if err != nil {
		return nil, formError(err)
	}
	n, err := snappy.DecodedLen(packed)
	if err != nil {
		return nil, badData(err)
	}
	if int64(n) > bytesMax {
		return nil, badDataf("snappy: decoded length %d exceeds limit %d", n, bytesMax)
	}
	if err := loan.Take(readCost * int64(n)); err != nil {
		return nil, err
	}
	b, err := snappy.Decode(nil, packed)
	if err != nil {
		return nil, badData(err)
	}
	fields, err := countRead(b)
	if err != nil {
		return nil, err
	}
	if err := loan.Take(readFieldBytes * int64(fields)); err != nil {
		return nil, err
	}
	req := new(prompb.ReadRequest)
	if err := req.Unmarshal(b); err != nil {
		return nil, badData(err)
	}
	return req, nil
}

// negotiate chooses the first type that we support; none named means samples.
func negotiate(types []prompb.ReadRequest_ResponseType) (streamed bool, err error) {
	for _, t := range types {
		switch t {
		case prompb.ReadRequest_SAMPLES:
			return false, nil
		case prompb.ReadRequest_STREAMED_XOR_CHUNKS:
			return true, nil
		}
	}
	if len(types) > 0 {
		return false, badDataf("server does not support any of the requested response types: %v", types)
	}
	return false, nil
}

// readQuery is one query of a read, in Prometheus' terms.
type readQuery struct {
	mint, maxt int64
	hints      *storage.SelectHints
	matchers   []*labels.Matcher
	loan       *budget.Loan
	regexes    int64 // bytes that are booked for regular expressions
}

// done gives back what the matchers used.
func (q *readQuery) done() { q.loan.Give(q.regexes) }

// newReadQuery compiles a query's matchers. Their memory stays booked until done is called.
func newReadQuery(q *prompb.Query, loan *budget.Loan) (out readQuery, err error) {
	out = readQuery{loan: loan, mint: q.StartTimestampMs, maxt: q.EndTimestampMs}
	if h := q.Hints; h != nil {
		out.hints = &storage.SelectHints{
			Start: h.StartMs, End: h.EndMs, Step: h.StepMs, Func: h.Func, Grouping: h.Grouping, Range: h.RangeMs, By: h.By,
		}
	}
	var patterns []string
	for _, m := range q.Matchers {
		if m.Type == prompb.LabelMatcher_RE || m.Type == prompb.LabelMatcher_NRE {
			patterns = append(patterns, m.Value)
		}
	}
	need, err := query.BoundRegexes(patterns...)
	if err != nil {
		return out, badData(err)
	}
	if err := loan.Take(need); err != nil {
		return out, err
	}
	out.regexes = need
	defer func() {
		if err != nil {
			out.done()
		}
	}()
	for _, m := range q.Matchers {
		if m.Type < prompb.LabelMatcher_EQ || m.Type > prompb.LabelMatcher_NRE {
			return out, badDataf("invalid matcher type %d", m.Type)
		}
		// The two enumerations have the same order: EQ, NEQ, RE, NRE.
		lm, err := labels.NewMatcher(labels.MatchType(m.Type), m.Name, m.Value)
		if err != nil {
			return out, badData(err)
		}
		out.matchers = append(out.matchers, lm)
	}
	return out, nil
}

// whole refuses an answer that may lack rows: remote read has no place for a warning.
func whole(w *query.Warnings) error {
	if texts := w.Texts(); len(texts) > 0 {
		return fault.Errorf(fault.Unavailable, "the answer would not be whole: %s", texts[0])
	}
	return nil
}

func (a *API) readSamples(ctx context.Context, l *query.Lookup, w http.ResponseWriter, c *call, req *prompb.ReadRequest) {
	resp := prompb.ReadResponse{Results: make([]*prompb.QueryResult, len(req.Queries))}
	for i, pq := range req.Queries {
		var res *prompb.QueryResult
		err := l.Ask(ctx, func(ctx context.Context) (err error) {
			res, err = a.samplesOf(ctx, c.table, pq)
			return err
		})
		if err == nil {
			err = whole(c.warnings)
		}
		if err != nil {
			a.failPlain(w, err)
			return
		}
		resp.Results[i] = res
	}
	b, err := resp.Marshal()
	if err != nil {
		a.failPlain(w, err)
		return
	}
	b = snappy.Encode(nil, b)
	lane.Of(ctx).End()
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.Header().Set("Content-Encoding", "snappy")
	w.Write(b) // if the client is gone, nothing is left to do
}

func (a *API) samplesOf(ctx context.Context, table *query.Table, pq *prompb.Query) (*prompb.QueryResult, error) {
	loan := budget.LoanOf(ctx)
	q, err := newReadQuery(pq, loan)
	if err != nil {
		return nil, err
	}
	defer q.done()
	querier, err := table.Querier(q.mint, q.maxt)
	if err != nil {
		return nil, err
	}
	defer querier.Close()
	out := &prompb.QueryResult{}
	left := a.settings.ReadSamplesMax
	if len(q.matchers) == 0 {
		return out, nil // as in Prometheus: it selects nothing
	}
	var it chunkenc.Iterator
	set := querier.Select(ctx, true, q.hints, q.matchers...)
	for set.Next() {
		s := set.At()
		it = s.Iterator(it)
		ts := &prompb.TimeSeries{Labels: prompb.FromLabels(s.Labels(), nil)}
		if floats, ok := s.(interface{ Floats() int }); ok {
			ts.Samples = make([]prompb.Sample, 0, min(floats.Floats(), left))
		}
		before := left
		if left = appendSamples(ts, it, left); left < 0 {
			return nil, badDataf("exceeded sample limit (%d)", a.settings.ReadSamplesMax)
		}
		if err := loan.Take(int64(before-left)*readSampleBytes + int64(ts.Size())); err != nil {
			return nil, err
		}
		if err := it.Err(); err != nil {
			return nil, err
		}
		out.Timeseries = append(out.Timeseries, ts)
	}
	return out, set.Err()
}

// readSampleBytes is the memory of a sample besides its encoding, until the answer is written.
const readSampleBytes = 48

// appendSamples returns the rest of the limit, below 0 when there were more.
func appendSamples(ts *prompb.TimeSeries, it chunkenc.Iterator, left int) int {
	for {
		typ := it.Next()
		if typ == chunkenc.ValNone {
			return left
		}
		if left--; left < 0 {
			return left
		}
		switch typ {
		case chunkenc.ValFloat:
			t, v := it.At()
			ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: t, Value: v})
		case chunkenc.ValHistogram:
			t, h := it.AtHistogram(nil)
			ts.Histograms = append(ts.Histograms, prompb.FromIntHistogram(t, h))
		case chunkenc.ValFloatHistogram:
			t, h := it.AtFloatHistogram(nil)
			ts.Histograms = append(ts.Histograms, prompb.FromFloatHistogram(t, h))
		}
	}
}

func (a *API) readChunks(ctx context.Context, l *query.Lookup, w http.ResponseWriter, c *call, req *prompb.ReadRequest) {
	turn := lane.Of(ctx)
	defer turn.End()
	f := &frames{w: w, out: paced{ctx: ctx, w: w, turn: turn}, bytesMax: int(a.settings.ReadFrameBytesMax)}
	for i, pq := range req.Queries {
		err := f.ask(ctx, l, c.table, int64(i), pq)
		if err == nil {
			err = whole(c.warnings)
		}
		switch {
		case err == nil:
		case !f.begun:
			a.failPlain(w, err)
			return
		default:
			a.log.Warn("remote read broken off", "kind", fault.KindOf(err), "error", err)
			panic(http.ErrAbortHandler)
		}
	}
	f.begin() // an empty answer has its header too
	turn.End()
	w.Write(f.out.buf) // if the client is gone, nothing is left to do
}

// frames writes a stream of ChunkedReadResponse messages. Each is preceded by its length as a uvarint and by the
// CRC-32C of its bytes, big endian.
type frames struct {
	w        http.ResponseWriter
	out      paced
	bytesMax int
	begun    bool
	count    int // of frames
	head     [binary.MaxVarintLen64 + 4]byte
	buf      []byte
	labels   []prompb.Label
	chunks   []prompb.Chunk
}

func (f *frames) begin() {
	if f.begun {
		return
	}
	f.begun = true
	f.w.Header().Set("Content-Type", "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse")
}

// ask streams one query's series, and asks for them once more where a server fell silent before the first of them.
func (f *frames) ask(ctx context.Context, l *query.Lookup, table *query.Table, index int64, pq *prompb.Query) error {
	before := f.count
	return l.AskStream(ctx, func() bool { return f.count > before }, func(ctx context.Context) error { return f.query(ctx, table, index, pq) })
}

// query streams one query's series, in label order, each in separate frames.
func (f *frames) query(ctx context.Context, table *query.Table, index int64, pq *prompb.Query) error {
	q, err := newReadQuery(pq, budget.LoanOf(ctx))
	if err != nil {
		return err
	}
	defer q.done()
	if len(q.matchers) == 0 {
		return nil // as in Prometheus: it selects nothing
	}
	querier, err := table.ChunkQuerier(q.mint, q.maxt)
	if err != nil {
		return err
	}
	defer querier.Close()
	var it chunks.Iterator
	set := querier.Select(ctx, true, q.hints, q.matchers...)
	for set.Next() {
		s := set.At()
		it = s.Iterator(it)
		if err := f.series(index, s.Labels(), it); err != nil {
			return err
		}
	}
	return set.Err()
}

// series cuts a series into frames of about bytesMax; one chunk more is let through, as in Prometheus.
func (f *frames) series(index int64, ls labels.Labels, it chunks.Iterator) error {
	f.labels = prompb.FromLabels(ls, f.labels)
	room := f.bytesMax
	for i := range f.labels {
		room -= f.labels[i].Size()
	}
	left := room
	f.chunks = f.chunks[:0]
	for it.Next() {
		m := it.At()
		if m.Chunk == nil {
			return errors.New("a chunk without its bytes")
		}
		ck := prompb.Chunk{
			MinTimeMs: m.MinTime, MaxTimeMs: m.MaxTime, Type: prompb.Chunk_Encoding(m.Chunk.Encoding()), Data: m.Chunk.Bytes(),
		}
		f.chunks = append(f.chunks, ck)
		if left -= ck.Size(); left <= 0 {
			if err := f.flush(index); err != nil {
				return err
			}
			left = room
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	return f.flush(index)
}

// flush writes the chunks gathered as one frame; none, no frame.
func (f *frames) flush(index int64) error {
	if len(f.chunks) == 0 {
		return nil
	}
	resp := prompb.ChunkedReadResponse{
		ChunkedSeries: []*prompb.ChunkedSeries{{Labels: f.labels, Chunks: f.chunks}}, QueryIndex: index,
	}
	n := resp.Size()
	if cap(f.buf) < n {
		f.buf = make([]byte, n)
	}
	b := f.buf[:n]
	if _, err := resp.MarshalToSizedBuffer(b); err != nil {
		return err
	}
	f.chunks = f.chunks[:0]
	f.count++
	f.begin()
	head := binary.AppendUvarint(f.head[:0], uint64(n))
	head = binary.BigEndian.AppendUint32(head, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	if _, err := f.out.Write(head); err != nil {
		return fault.Wrap(err, fault.Canceled, "write to stream")
	}
	if _, err := f.out.Write(b); err != nil {
		return fault.Wrap(err, fault.Canceled, "write to stream")
	}
	return nil
}
