package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

// row is one sample of one series; labels are names and values in turn.
type row struct {
	labels []string
	ms     int64
	value  float64
}

func labelsOf(pairs []string) []prompb.Label {
	out := make([]prompb.Label, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, prompb.Label{Name: pairs[i], Value: pairs[i+1]})
	}
	return out
}

// rw1 encodes rows as a remote-write 1.0 body.
func rw1(rows []row) []byte {
	var r prompb.WriteRequest
	for _, one := range rows {
		r.Timeseries = append(r.Timeseries, prompb.TimeSeries{
			Labels:  labelsOf(one.labels),
			Samples: []prompb.Sample{{Timestamp: one.ms, Value: one.value}},
		})
	}
	return packRW1(&r)
}

func packRW1(r *prompb.WriteRequest) []byte {
	b, err := r.Marshal()
	if err != nil {
		panic(fmt.Sprintf("a request that this program made does not encode: %v", err))
	}
	return snappy.Encode(nil, b)
}

func packRW2(r *writev2.Request) []byte {
	b, err := r.Marshal()
	if err != nil {
		panic(fmt.Sprintf("a request that this program made does not encode: %v", err))
	}
	return snappy.Encode(nil, b)
}

func rw1Header() http.Header {
	return http.Header{
		"Content-Type": {"application/x-protobuf"}, "Content-Encoding": {"snappy"},
		"X-Prometheus-Remote-Write-Version": {"0.1.0"},
	}
}

func rw2Header() http.Header {
	return http.Header{
		"Content-Type": {"application/x-protobuf;proto=io.prometheus.write.v2.Request"}, "Content-Encoding": {"snappy"},
		"X-Prometheus-Remote-Write-Version": {"2.0.0"},
	}
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b) // to memory: no error
	_ = w.Close()
	return out.Bytes()
}

func zstded(b []byte) []byte {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		panic(fmt.Sprintf("zstd: %v", err))
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}
