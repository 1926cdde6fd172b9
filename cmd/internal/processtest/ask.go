package processtest

import (
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// AskAt is an instant query of a table through a gateway: its status and body.
func AskAt(door *Process, table, query string, at time.Time) (int, string) {
	q := url.Values{"query": {query}, "time": {strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64)}}
	status, text, err := door.Get("/t/" + table + "/api/v1/query?" + q.Encode())
	if err != nil {
		return 0, err.Error()
	}
	return status, string(text)
}

// Ask is AskAt, tried again for two minutes while the answer is 503: a query fails where a server that it needs stands still for some
// seconds, or longer on a busy machine, and clients try again.
func Ask(door *Process, table, query string, at time.Time) (status int, text string) {
	for end := time.Now().Add(askPatience); ; time.Sleep(100 * time.Millisecond) {
		if status, text = AskAt(door, table, query, at); status != http.StatusServiceUnavailable || time.Now().After(end) {
			return status, text
		}
	}
}

// askPatience is how long an answer of 503 is no answer yet.
const askPatience = 2 * time.Minute

// PutLine writes line protocol with milliseconds.
func PutLine(d *Process, table, lines string) (int, []byte, error) {
	return d.Do(http.MethodPost, "/write?precision=ms&db="+table, http.Header{"Content-Type": {"text/plain"}}, []byte(lines))
}

// Metric sums a metric of a process' page, over all labels.
func Metric(t *testing.T, addr, name string) float64 {
	t.Helper()
	return MetricWhere(t, addr, name, "", "")
}

// MetricWhere sums those with a value of a label; "" is any label.
func MetricWhere(t *testing.T, addr, name, label, value string) float64 {
	t.Helper()
	answer, err := client().Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return sumOf(t, answer.Body, name, label, value)
}

func sumOf(t *testing.T, page io.Reader, name, label, value string) (sum float64) {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		t.Fatal(err)
	}
	f, ok := families[name]
	if !ok {
		return 0
	}
	for _, m := range f.Metric {
		if label == "" || slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == label && l.GetValue() == value }) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// BucketAt is the path of a table as a bucket of Influx v2: its id is a hash of the name.
func BucketAt(table string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte("bucket/" + table))
	return fmt.Sprintf("/api/v2/buckets/%016x", h.Sum64())
}

// Packed is the body of a remote write request, as senders compress it.
func Packed(t *testing.T, marshal func() ([]byte, error)) []byte {
	b, err := marshal()
	if err != nil {
		t.Error(err)
	}
	return snappy.Encode(nil, b)
}
