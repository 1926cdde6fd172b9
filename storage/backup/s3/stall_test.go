package s3

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestBackupsAreMadeAgainAfterABucketStalled: a store, or a proxy before it, that answers no more and keeps its connections stopped a backup or a restore for ever. No other
// one began, and no segment of the store could be deleted.
func TestBackupsAreMadeAgainAfterABucketStalled(t *testing.T) {
	const size = 1 << 20
	over := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"e"`)
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		w.Header().Set("Content-Length", strconv.Itoa(size))
		switch r.Method {
		case http.MethodHead:
		case http.MethodGet:
			_ = http.NewResponseController(w).Flush()
			<-over
		default: // an upload is not read
			<-over
		}
	}))
	defer srv.Close()
	defer close(over)
	b, err := open("s3://bkt", Settings{Endpoint: srv.URL, Region: "us-east-1", AccessKey: "AK", SecretKey: "SK"}, 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	r, n, err := b.Read(t.Context(), "segments/a")
	if err != nil || n != size {
		t.Fatal(n, err)
	}
	if _, err := r.Read(make([]byte, 10)); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a download that stalls: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), "segments/b", 8<<20, zeros{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("an upload that stalls: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
