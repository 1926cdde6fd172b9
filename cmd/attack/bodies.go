package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

// bodyWorkers send hostile bodies at once.
const bodyWorkers = 8

func bodyAttacks() []attack {
	return []attack{
		{name: "bodies/bombs", does: "small bodies that expand to gigabytes, in every encoding", run: bombs},
		{name: "bodies/lengths", does: "snappy headers and symbol tables that announce gigabytes", run: announcements},
		{name: "bodies/mutations", does: "valid bodies of every protocol with bytes changed, cut and repeated", run: mutations},
		{name: "bodies/many-small-fields", does: "30 MB of empty series, lines, symbols", run: emptyFields},
		{name: "bodies/metadata", does: "megabytes of help texts and a million metric families", run: metadataFlood},
		{name: "large/requests", does: "honest: bodies of 31 MiB, 62 MiB packed and a million series, twelve at once, beside queries and exports", run: largeRequests, check: checkLarge},
	}
}

// bombs repeats every packed form of the same zeros.
func bombs(ctx context.Context, a *attacker) {
	zeros := make([]byte, 64<<20)
	line := bytes.Repeat([]byte("m f=0\n"), 8<<20)
	type bomb struct {
		path, encoding, kind string
		body                 []byte
	}
	var all []bomb
	for _, plain := range [][]byte{zeros, line} {
		for _, path := range []string{"/write?db=default", "/api/v2/write?bucket=default", "/api/v3/write_lp?db=default"} {
			all = append(all, bomb{path, "gzip", "text/plain", gzipped(plain)})
		}
		for _, encoding := range []string{"gzip", "zstd"} {
			packed := gzipped(plain)
			if encoding == "zstd" {
				packed = zstded(plain)
			}
			all = append(all,
				bomb{"/v1/metrics", encoding, "application/x-protobuf", packed},
				bomb{"/api/v1/write", encoding, "application/x-protobuf", packed})
		}
		all = append(all, bomb{"/api/v1/write", "snappy", "application/x-protobuf", snappy.Encode(nil, plain)})
	}
	many := bytes.Repeat(gzipped(line), 16) // one stream of many members
	all = append(all, bomb{"/write?db=default", "gzip", "text/plain", many})
	a.workers(ctx, bodyWorkers, func(ctx context.Context, w, turn int) bool {
		b := all[(w+turn)%len(all)]
		a.post(ctx, b.path, http.Header{"Content-Encoding": {b.encoding}, "Content-Type": {b.kind}}, b.body)
		return true
	})
}

// announcements declare more than they bring.
func announcements(ctx context.Context, a *attacker) {
	a.workers(ctx, 64, func(ctx context.Context, w, turn int) bool {
		size := uint64(1) << (10 + (turn % 54))
		body := binary.AppendUvarint(nil, size)
		switch turn % 3 {
		case 1: // a field of that length in a plain message
			inner := append([]byte{1<<3 | 2}, body...)
			body = snappy.Encode(nil, append(inner, 'x'))
		case 2: // a symbol of that length
			inner := append([]byte{4<<3 | 2}, body...)
			body = snappy.Encode(nil, append(inner, 'x'))
		}
		header := rw1Header()
		if w%2 == 1 {
			header = rw2Header()
		}
		a.post(ctx, "/api/v1/write", header, body)
		return true
	})
}

// sample bodies of every protocol, to be mutated.
func wellFormed(now int64) []struct {
	path   string
	header http.Header
	body   []byte
} {
	type request = struct {
		path   string
		header http.Header
		body   []byte
	}
	h1 := prompb.Histogram{
		Count: &prompb.Histogram_CountInt{CountInt: 6}, Sum: 3, Schema: 1, ZeroCount: &prompb.Histogram_ZeroCountInt{ZeroCountInt: 1},
		PositiveSpans: []prompb.BucketSpan{{Offset: 0, Length: 2}}, PositiveDeltas: []int64{2, 1}, Timestamp: now,
	}
	one := &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{
		{Labels: labelsOf([]string{"__name__", "mutated", "a", "b"}), Samples: []prompb.Sample{{Value: 1, Timestamp: now}},
			Exemplars: []prompb.Exemplar{{Labels: labelsOf([]string{"trace", "x"}), Value: 1, Timestamp: now}}},
		{Labels: labelsOf([]string{"__name__", "mutated_h"}), Histograms: []prompb.Histogram{h1}},
	}, Metadata: []prompb.MetricMetadata{{MetricFamilyName: "mutated", Help: "help", Unit: "s"}}}
	two := &writev2.Request{Symbols: []string{"", "__name__", "mutated", "a", "b"}, Timeseries: []writev2.TimeSeries{
		{LabelsRefs: []uint32{1, 2, 3, 4}, Samples: []writev2.Sample{{Value: 1, Timestamp: now}}},
	}}
	json := `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"mutated","gauge":{"dataPoints":[{"asDouble":1,"timeUnixNano":"` +
		fmt.Sprint(now*1e6) + `"}]}}]}]}]}`
	line := fmt.Sprintf("mutated,a=b,c=d\\ e f=1,g=2i,h=\"s\\\"x\",i=true %d\n", now*1e6)
	lineHeader := http.Header{"Content-Type": {"text/plain"}}
	return []request{
		{"/api/v1/write", rw1Header(), packRW1(one)},
		{"/api/v1/write", rw2Header(), packRW2(two)},
		{"/v1/metrics", http.Header{"Content-Type": {"application/json"}}, []byte(json)},
		{"/write?db=default", lineHeader, []byte(line)},
		{"/api/v2/write?bucket=default", lineHeader, []byte(line)},
		{"/api/v3/write_lp?db=default", lineHeader, []byte(line)},
		{"/api/v1/read", http.Header{"Content-Encoding": {"snappy"}, "Content-Type": {"application/x-protobuf"}}, snappy.Encode(nil, []byte{1<<3 | 2, 0})},
	}
}

// mutations damages valid bodies; those that are packed are damaged before and after packing.
func mutations(ctx context.Context, a *attacker) {
	now := time.Now().UnixMilli()
	all := wellFormed(now)
	a.workers(ctx, bodyWorkers, func(ctx context.Context, w, turn int) bool {
		r := a.rand(w*1_000_003 + turn)
		b := all[r.IntN(len(all))]
		body := bytes.Clone(b.body)
		inner, err := snappy.Decode(nil, body)
		unpacked := err == nil && r.IntN(2) == 0
		if unpacked {
			body = inner
		}
		for range 1 + r.IntN(4) {
			if len(body) == 0 {
				break
			}
			i := r.IntN(len(body))
			switch r.IntN(5) {
			case 0:
				body[i] ^= 1 << r.IntN(8)
			case 1:
				body[i] = byte(r.Uint32())
			case 2:
				body = body[:i]
			case 3:
				body = append(body[:i:i], append(bytes.Repeat([]byte{body[i]}, r.IntN(64)), body[i:]...)...)
			case 4:
				j := r.IntN(len(body))
				body = append(body, body[min(i, j):max(i, j)]...)
			}
		}
		if unpacked {
			body = snappy.Encode(nil, body)
		}
		a.post(ctx, b.path, b.header, body)
		return true
	})
}

// emptyFields sends bodies of the largest size in the smallest pieces.
func emptyFields(ctx context.Context, a *attacker) {
	const size = 30 << 20
	series := snappy.Encode(nil, bytes.Repeat([]byte{1<<3 | 2, 0}, size/2))
	symbols := snappy.Encode(nil, bytes.Repeat([]byte{4<<3 | 2, 0}, size/2))
	lines := bytes.Repeat([]byte("\n"), size)
	comma := bytes.Repeat([]byte("a,"), size/2)
	fields := append([]byte("m "), bytes.Repeat([]byte("a=1,"), size/4)...)
	otlp := bytes.Repeat([]byte{1<<3 | 2, 0}, size/2)
	text := http.Header{"Content-Type": {"text/plain"}}
	a.workers(ctx, bodyWorkers, func(ctx context.Context, w, turn int) bool {
		switch (w + turn) % 6 {
		case 0:
			a.post(ctx, "/api/v1/write", rw1Header(), series)
		case 1:
			a.post(ctx, "/api/v1/write", rw2Header(), symbols)
		case 2:
			a.post(ctx, "/write?db=default", text, lines)
		case 3:
			a.post(ctx, "/write?db=default", text, comma)
		case 4:
			a.post(ctx, "/api/v3/write_lp?db=default", text, fields)
		case 5:
			a.post(ctx, "/v1/metrics", http.Header{"Content-Type": {"application/x-protobuf"}}, otlp)
		}
		return true
	})
}

// metadataFlood announces families without a sample.
func metadataFlood(ctx context.Context, a *attacker) {
	help := strings.Repeat("h", 1<<20)
	a.workers(ctx, bodyWorkers, func(ctx context.Context, w, turn int) bool {
		var r prompb.WriteRequest
		for i := range 20_000 {
			m := prompb.MetricMetadata{MetricFamilyName: fmt.Sprintf("family_%d_%d_%d", w, turn, i), Help: "some help"}
			r.Metadata = append(r.Metadata, m)
		}
		for range 8 {
			r.Metadata = append(r.Metadata, prompb.MetricMetadata{MetricFamilyName: "long", Help: help, Unit: help})
		}
		a.post(ctx, "/api/v1/write", rw1Header(), packRW1(&r))
		return true
	})
}
