package remotewrite_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

func TestEveryKindHasItsStatus(t *testing.T) {
	want := map[fault.Kind]int{
		fault.Internal: 500, fault.Invalid: 400, fault.TooLarge: 413, fault.Throttled: 503, fault.Stale: 503,
		fault.Unavailable: 503, fault.Corrupt: 500, fault.NotFound: 404, fault.Canceled: 503,
		fault.Denied: 503,
	}
	if diff := cmp.Diff(fault.Kinds(), slices.Sorted(maps.Keys(want))); diff != "" {
		t.Fatalf("kinds without a status:\n%s", diff)
	}
	for kind, status := range want {
		for _, v := range []remotewrite.Version{0, remotewrite.V1, remotewrite.V2} {
			whole := remotewrite.Outcome{Err: fault.Errorf(kind, "because")}
			part := remotewrite.Outcome{Refused: []point.Refusal{{Item: 1, Reason: "because", Kind: kind}}, RefusedRows: 1}
			for _, o := range []remotewrite.Outcome{whole, part} {
				a := o.Answer(v)
				if a.Status != status || !strings.Contains(a.Body, "because") {
					t.Errorf("%v to %v: %d %q, want %d", kind, v, a.Status, a.Body, status)
				}
			}
		}
	}
}

// TestRefusedExemplarsDoNotMakeSamplesLost: for 1.0 the request is accepted, and for 2.0 its headers say that it was exemplars alone.
func TestRefusedExemplarsDoNotMakeSamplesLost(t *testing.T) {
	exemplar := point.Refusal{Reason: "exemplar: time 1970-01-01T00:00:05Z is older", Kind: fault.Invalid, Exemplar: true}
	for name, c := range map[string]struct {
		o      remotewrite.Outcome
		v1, v2 int
	}{
		"exemplars alone":         {remotewrite.Outcome{Refused: []point.Refusal{exemplar}}, 204, 400},
		"and samples":             {remotewrite.Outcome{Refused: []point.Refusal{exemplar, {Kind: fault.Invalid}}, RefusedRows: 1}, 400, 400},
		"the samples' reason":     {remotewrite.Outcome{Refused: []point.Refusal{exemplar}, RefusedRows: 1}, 400, 400},
		"samples for the moment":  {remotewrite.Outcome{Refused: []point.Refusal{exemplar, {Kind: fault.Throttled}}, RefusedRows: 1}, 503, 503},
		"an error of the whole":   {remotewrite.Outcome{Refused: []point.Refusal{exemplar}, Err: fault.Errorf(fault.Unavailable, "no leader")}, 503, 503},
		"all rows are duplicates": {remotewrite.Outcome{Refused: []point.Refusal{exemplar}, Duplicate: true}, 202, 400},
	} {
		if got := c.o.Answer(remotewrite.V1).Status; got != c.v1 {
			t.Errorf("%s: 1.0 gets %d, want %d", name, got, c.v1)
		}
		if got := c.o.Answer(remotewrite.V2).Status; got != c.v2 {
			t.Errorf("%s: 2.0 gets %d, want %d", name, got, c.v2)
		}
	}
}

// show draws an answer as it goes over the wire, without the lines every answer has.
func show(a remotewrite.Answer) string {
	s := fmt.Sprintln(a.Status)
	for _, h := range a.Header {
		s += fmt.Sprintf("%s: %s\n", h.Name, h.Value)
	}
	return s + a.Body
}

func TestAnswers(t *testing.T) {
	f := func(v remotewrite.Version, o remotewrite.Outcome, want string) {
		t.Helper()
		if diff := cmp.Diff(strings.TrimLeft(want, "\n"), show(o.Answer(v))); diff != "" {
			t.Error(diff)
		}
	}
	some := remotewrite.Written{Samples: 1998, Histograms: 3, Exemplars: 1}
	f(remotewrite.V1, remotewrite.Outcome{Written: some}, "204\n")
	f(remotewrite.V2, remotewrite.Outcome{Written: some}, `
204
X-Prometheus-Remote-Write-Samples-Written: 1998
X-Prometheus-Remote-Write-Histograms-Written: 3
X-Prometheus-Remote-Write-Exemplars-Written: 1
`)
	refused := []point.Refusal{
		{Item: 17, Text: `{__name__="up"}`, Reason: "sample: timestamp is out of range", Kind: fault.Invalid},
		{Text: `{help}`, Reason: "metadata that is not UTF-8", Kind: fault.Invalid},
	}
	f(remotewrite.V1, remotewrite.Outcome{Written: some, Refused: refused, RefusedRows: 2}, `
400
Content-Type: text/plain; charset=utf-8
rows not taken: 2; time series 17 {__name__="up"}: sample: timestamp is out of range
{help}: metadata that is not UTF-8
`)
	f(remotewrite.V2, remotewrite.Outcome{Written: some, Refused: refused, RefusedRows: 2}, `
400
X-Prometheus-Remote-Write-Samples-Written: 1998
X-Prometheus-Remote-Write-Histograms-Written: 3
X-Prometheus-Remote-Write-Exemplars-Written: 1
Content-Type: text/plain; charset=utf-8
rows not taken: 2; time series 17 {__name__="up"}: sample: timestamp is out of range
{help}: metadata that is not UTF-8
`)
	f(remotewrite.V2, remotewrite.Outcome{Err: fault.Errorf(fault.Unavailable, "no leader"), RetryAfter: 1200 * time.Millisecond}, `
503
X-Prometheus-Remote-Write-Samples-Written: 0
X-Prometheus-Remote-Write-Histograms-Written: 0
X-Prometheus-Remote-Write-Exemplars-Written: 0
Content-Type: text/plain; charset=utf-8
Retry-After: 2
no leader
`)
	f(remotewrite.V1, remotewrite.Outcome{Err: fault.Errorf(fault.Throttled, "spool is full")}, `
503
Content-Type: text/plain; charset=utf-8
Retry-After: 5
spool is full
`)
	f(remotewrite.V1, remotewrite.Outcome{Err: fault.Errorf(fault.Throttled, "budget is spent"), TooMany: true}, `
429
Content-Type: text/plain; charset=utf-8
Retry-After: 5
budget is spent
`)
	_, _, err := remotewrite.Negotiate("text/plain", "")
	f(0, remotewrite.Outcome{Err: fault.Annotate(err, "write")}, `
415
Content-Type: text/plain; charset=utf-8
write: unsupported media type: content type "text/plain"; send application/x-protobuf
`)
}

func TestRetriedReasonsOutweighFinalOnes(t *testing.T) {
	refused := []point.Refusal{{Kind: fault.Invalid}, {Kind: fault.Throttled}, {Kind: fault.TooLarge}}
	f := func(o remotewrite.Outcome, want int) {
		t.Helper()
		if got := o.Answer(remotewrite.V2).Status; got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
	f(remotewrite.Outcome{Refused: refused}, 503)
	f(remotewrite.Outcome{Refused: refused, TooMany: true}, 429)
	f(remotewrite.Outcome{Refused: refused[:1], Err: fault.Errorf(fault.Unavailable, "away")}, 503)
	f(remotewrite.Outcome{RefusedRows: 3}, 400)
}

func TestLongListsOfReasonsAreCut(t *testing.T) {
	o := remotewrite.Outcome{RefusedRows: 5000}
	for i := range point.RefusalsMax {
		o.Refused = append(o.Refused, point.Refusal{Item: i + 1, Text: "{…}", Reason: "no", Kind: fault.Invalid})
	}
	a := o.Answer(remotewrite.V1)
	if n := strings.Count(a.Body, "\n"); n != 11 || !strings.HasSuffix(a.Body, "… and 90 reasons more\n") {
		t.Errorf("%d lines:\n%s", n, a.Body)
	}
}

func TestNegotiate(t *testing.T) {
	ok := func(contentType, encoding string, v remotewrite.Version, e remotewrite.Encoding) {
		t.Helper()
		gv, ge, err := remotewrite.Negotiate(contentType, encoding)
		if gv != v || ge != e || err != nil {
			t.Errorf("%q, %q: %v %v %v", contentType, encoding, gv, ge, err)
		}
	}
	no := func(contentType, encoding string) {
		t.Helper()
		_, _, err := remotewrite.Negotiate(contentType, encoding)
		o := remotewrite.Outcome{Err: err}
		if !fault.Is(err, fault.Invalid) || o.Answer(0).Status != 415 {
			t.Errorf("%q, %q: %v", contentType, encoding, err)
		}
	}
	ok("", "", remotewrite.V1, remotewrite.Snappy)
	ok("application/x-protobuf", "snappy", remotewrite.V1, remotewrite.Snappy)
	ok("application/x-protobuf;proto=prometheus.WriteRequest", "snappy", remotewrite.V1, remotewrite.Snappy)
	ok("application/x-protobuf;proto=io.prometheus.write.v2.Request", "snappy", remotewrite.V2, remotewrite.Snappy)
	ok(`Application/X-Protobuf; charset=utf-8; Proto="io.prometheus.write.v2.Request"`, "SNAPPY", remotewrite.V2, remotewrite.Snappy)
	ok("application/x-protobuf", "zstd", remotewrite.V1, remotewrite.Zstd)
	ok("application/x-protobuf;proto=io.prometheus.write.v2.Request", "", remotewrite.V2, remotewrite.Snappy)
	no("application/json", "snappy")
	no(";proto=prometheus.WriteRequest", "snappy")
	no("application/x-protobuf;proto=io.prometheus.write.v3.Request", "snappy")
	no("application/x-protobuf;proto=", "snappy")
	no("application/x-protobuf", "gzip")
	no("application/x-protobuf", "identity")
}
