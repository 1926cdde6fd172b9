package transfer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net/http"
	"strings"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/jsonrows"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Bounds on an answer of remote read: one frame of a stream, and one that comes whole.
const (
	frameBytesMax   = 64 << 20
	samplesBytesMax = 256 << 20
)

// remoteRead reads by Prometheus' remote read, in chunks where the server has them.
func (r *Reader) remoteRead(ctx context.Context, lo, hi int64, give func(*Line) error) error {
	ms, err := r.matchers()
	if err != nil {
		return err
	}
	ask := &prompb.ReadRequest{
		Queries:               []*prompb.Query{{StartTimestampMs: lo, EndTimestampMs: hi, Matchers: ms}},
		AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES},
	}
	b, err := ask.Marshal()
	if err != nil {
		return err
	}
	rq, err := http.NewRequestWithContext(ctx, http.MethodPost, r.server.path("/api/v1/read"), bytes.NewReader(snappy.Encode(nil, b)))
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "the address of the server must be as http://HOST:PORT")
	}
	rq.Header.Set("Content-Type", "application/x-protobuf")
	rq.Header.Set("Content-Encoding", "snappy")
	rq.Header.Set("X-Prometheus-Remote-Read-Version", "0.1.0")
	resp, err := r.server.Do(rq)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return failed(resp)
	}
	d := &remoteDecoder{lo: lo, hi: hi, give: give}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-streamed-protobuf") {
		return d.frames(bufio.NewReaderSize(resp.Body, 64<<10))
	}
	return d.samples(resp.Body)
}

func (r *Reader) matchers() ([]*prompb.LabelMatcher, error) {
	if r.match == "" {
		return []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_NEQ, Name: point.MetricName}}, nil
	}
	ms, err := parser.NewParser(parser.Options{}).ParseMetricSelector(r.match)
	out := make([]*prompb.LabelMatcher, len(ms))
	for i, m := range ms { // the enumerations have the same order
		out[i] = &prompb.LabelMatcher{Type: prompb.LabelMatcher_Type(m.Type), Name: m.Name, Value: m.Value}
	}
	return out, err
}

// remoteDecoder makes lines of answers.
type remoteDecoder struct {
	lo, hi int64
	give   func(*Line) error
	line   Line
}

// frames reads a stream of ChunkedReadResponse messages, each behind its length and CRC-32C.
func (d *remoteDecoder) frames(r *bufio.Reader) error {
	var buf []byte
	for {
		n, err := binary.ReadUvarint(r)
		if err == io.EOF {
			return nil
		}
		if err == nil && n > frameBytesMax {
			return fault.Errorf(fault.Corrupt, "a frame of %d bytes", n)
		}
		var sum [4]byte
		if err == nil {
			_, err = io.ReadFull(r, sum[:])
		}
		if err == nil {
			buf = append(buf[:0], make([]byte, n)...)
			_, err = io.ReadFull(r, buf)
		}
		if err != nil {
			return fault.Wrap(err, fault.Unavailable, "the answer broke off")
		}
		if crc32.Checksum(buf, crc32.MakeTable(crc32.Castagnoli)) != binary.BigEndian.Uint32(sum[:]) {
			return fault.Errorf(fault.Corrupt, "a frame with a wrong checksum")
		}
		var frame prompb.ChunkedReadResponse
		if err := frame.Unmarshal(buf); err != nil {
			return fault.Wrap(err, fault.Corrupt, "a frame")
		}
		for _, s := range frame.ChunkedSeries {
			if err := d.series(s); err != nil {
				return err
			}
		}
	}
}

func (d *remoteDecoder) series(s *prompb.ChunkedSeries) error {
	d.begin(s.Labels)
	var it chunkenc.Iterator
	for _, c := range s.Chunks {
		chunk, err := chunkenc.FromData(chunkenc.Encoding(c.Type), c.Data)
		if err != nil {
			return fault.Wrap(err, fault.Corrupt, "a chunk")
		}
		it = chunk.Iterator(it)
		if err := iterate(it, &d.line, d.lo, d.hi, d.give); err != nil {
			return err
		}
	}
	return flush(&d.line, d.give)
}

func (d *remoteDecoder) begin(ls []prompb.Label) {
	d.line = Line{Labels: d.line.Labels[:0], Times: d.line.Times[:0], Values: d.line.Values[:0], Hists: d.line.Hists[:0]}
	for _, p := range ls {
		if p.Value != "" {
			d.line.Labels = append(d.line.Labels, jsonrows.Label{Name: p.Name, Value: p.Value})
		}
	}
}

// iterate adds the samples of an iterator in [lo, hi] to a line, and flushes it whenever it is full.
func iterate(it chunkenc.Iterator, l *Line, lo, hi int64, give func(*Line) error) error {
	for {
		var t int64
		switch it.Next() {
		case chunkenc.ValNone:
			return fault.Wrap(it.Err(), fault.Corrupt, "a chunk")
		case chunkenc.ValFloat:
			var v float64
			if t, v = it.At(); t < lo || t > hi {
				continue
			}
			l.Times, l.Values = append(l.Times, point.Nanos(t*nanosPerMilli)), append(l.Values, v)
		case chunkenc.ValHistogram:
			var h *histogram.Histogram
			if t, h = it.AtHistogram(nil); t < lo || t > hi {
				continue
			}
			l.Hists = append(l.Hists, jsonrows.Histogram{Time: point.Nanos(t * nanosPerMilli), Int: h})
		case chunkenc.ValFloatHistogram:
			var h *histogram.FloatHistogram
			if t, h = it.AtFloatHistogram(nil); t < lo || t > hi {
				continue
			}
			l.Hists = append(l.Hists, jsonrows.Histogram{Time: point.Nanos(t * nanosPerMilli), Float: h})
		}
		if !inRange(t) {
			return outOfRange(t)
		}
		if l.Rows() >= jsonrows.LineRowsMax {
			if err := flush(l, give); err != nil {
				return err
			}
		}
	}
}

// flush passes a line's rows on, if there are any.
func flush(l *Line, give func(*Line) error) error {
	if l.Rows() == 0 {
		return nil
	}
	if err := give(l); err != nil {
		return given{err}
	}
	l.Times, l.Values, l.Hists = l.Times[:0], l.Values[:0], l.Hists[:0]
	return nil
}

// samples reads an answer that comes whole.
func (d *remoteDecoder) samples(r io.Reader) error {
	packed, err := io.ReadAll(io.LimitReader(r, samplesBytesMax+1))
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "the answer broke off")
	}
	if n, err := snappy.DecodedLen(packed); err != nil || n > samplesBytesMax || len(packed) > samplesBytesMax {
		return fault.Errorf(fault.TooLarge, "an answer of more than %d bytes (%v)", samplesBytesMax, err)
	}
	b, err := snappy.Decode(nil, packed)
	var resp prompb.ReadResponse
	if err == nil {
		err = resp.Unmarshal(b)
	}
	if err != nil {
		return fault.Wrap(err, fault.Corrupt, "the answer")
	}
	var scratch labels.ScratchBuilder
	for _, res := range resp.Results {
		for _, ts := range res.Timeseries {
			setLabels(&d.line, ts.ToLabels(&scratch, nil))
			d.line.Times, d.line.Values, d.line.Hists = d.line.Times[:0], d.line.Values[:0], d.line.Hists[:0]
			for _, s := range ts.Samples {
				if !inRange(s.Timestamp) {
					return outOfRange(s.Timestamp)
				}
				d.line.Times, d.line.Values = append(d.line.Times, point.Nanos(s.Timestamp*nanosPerMilli)), append(d.line.Values, s.Value)
			}
			for i := range ts.Histograms {
				h := &ts.Histograms[i]
				row := jsonrows.Histogram{Time: point.Nanos(h.Timestamp * nanosPerMilli)}
				if h.IsFloatHistogram() {
					row.Float = h.ToFloatHistogram()
				} else {
					row.Int = h.ToIntHistogram()
				}
				d.line.Hists = append(d.line.Hists, row)
			}
			if err := flush(&d.line, d.give); err != nil {
				return err
			}
		}
	}
	return nil
}
