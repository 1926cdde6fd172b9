package api_test

import (
	"bytes"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
)

// TestProcessSurvivesSmallReadsOfAMillionFields: 16 requests of 200 kB used 3 GB of a process with a budget of 512 MiB, which then did
// nothing but collect garbage for a minute.
func TestProcessSurvivesSmallReadsOfAMillionFields(t *testing.T) {
	h := newAPI(t, harbour(t), query.Settings{}, api.Settings{})
	const many = 2_000_000
	message := func(field byte, inner []byte) []byte {
		return append(binary.AppendUvarint([]byte{field<<3 | 2}, uint64(len(inner))), inner...)
	}
	for _, c := range []struct {
		what string
		body []byte
		want string
	}{
		{"queries", bytes.Repeat([]byte{1<<3 | 2, 0}, many), "more than 1000 queries"},
		{"types of answers", bytes.Repeat([]byte{2 << 3, 0}, many), "more than 65536 fields"},
		{"unknown fields", bytes.Repeat([]byte{9 << 3, 0}, many), "more than 65536 fields"},
		{"matchers", message(1, bytes.Repeat([]byte{3<<3 | 2, 0}, many)), "more than 65536 fields"},
		{"groupings", message(1, message(4, bytes.Repeat([]byte{5<<3 | 2, 0}, many))), "more than 65536 fields"},
		{"a field that is cut off", []byte{1<<3 | 2, 9}, "EOF"},
		{"a tag that is cut off", []byte{0x80}, "EOF"},
	} {
		r := httptest.NewRequest(http.MethodPost, "/api/v1/read", bytes.NewReader(snappy.Encode(nil, c.body)))
		r.Header.Set("Content-Encoding", "snappy")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := serve(h, r)
		runtime.ReadMemStats(&after)
		if w.Code/100 != 4 || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %.200s, want %q", c.what, w.Code, w.Body, c.want)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 4*uint64(len(c.body))+1<<20 {
			t.Errorf("%s: %d bytes were allocated for a message of %d", c.what, n, len(c.body))
		}
	}
	var honest []*prompb.Query
	for range 200 {
		honest = append(honest, matching("wind", 0, 1<<60))
	}
	if w := serve(h, readRequest(t, nil, honest...)); w.Code != http.StatusOK {
		t.Errorf("200 queries: %d %.200s", w.Code, w.Body)
	}
}
