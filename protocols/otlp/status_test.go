package otlp_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/protocols/point"
)

// parse reads an answer's body with the official types.
func parse(t *testing.T, a otlp.Answer, f otlp.Format, m proto.Message) {
	t.Helper()
	want, unmarshal := "application/json", protojson.Unmarshal
	if f == otlp.Protobuf {
		want, unmarshal = "application/x-protobuf", proto.Unmarshal
	}
	if a.Header[0] != (otlp.HeaderField{Name: "Content-Type", Value: want}) {
		t.Errorf("header %v", a.Header)
	}
	if err := unmarshal(a.Body, m); err != nil {
		t.Errorf("%q: %v", a.Body, err)
	}
}

func TestEveryKindHasItsAnswer(t *testing.T) {
	// HTTP status and google.rpc.Code of a whole request; of a single data point, 0: it goes into the partial success.
	want := map[fault.Kind][3]int{
		fault.Internal: {503, 13, 503}, fault.Invalid: {400, 3, 0}, fault.TooLarge: {413, 8, 0}, fault.Throttled: {503, 14, 503},
		fault.Stale: {503, 14, 503}, fault.Unavailable: {503, 14, 503}, fault.Corrupt: {503, 13, 503}, fault.NotFound: {404, 5, 0},
		fault.Canceled: {503, 14, 503}, fault.Denied: {503, 14, 503},
	}
	if diff := cmp.Diff(fault.Kinds(), slices.Sorted(maps.Keys(want))); diff != "" {
		t.Fatalf("kinds without an answer:\n%s", diff)
	}
	for kind, w := range want {
		for _, f := range []otlp.Format{0, otlp.Protobuf, otlp.JSON} {
			o := otlp.Outcome{Err: fault.Errorf(kind, "because \xff")}
			a := o.Answer(f)
			var s statuspb.Status
			parse(t, a, f, &s)
			if a.Status != w[0] || int(s.Code) != w[1] || s.Message != "because �" {
				t.Errorf("%v: %d %v, want %v", kind, a.Status, &s, w)
			}
			if retry := len(a.Header) == 2 && a.Header[1].Name == "Retry-After"; retry != (a.Status == 503) {
				t.Errorf("%v: %v", kind, a.Header)
			}
			o = otlp.Outcome{Refused: []point.Refusal{{Item: 2, Text: "up{}", Reason: "because", Kind: kind}}, RefusedRows: 3}
			a = o.Answer(f)
			if w[2] != 0 {
				parse(t, a, f, &s)
				if a.Status != w[2] || s.Message != "data point 2 up{}: because" {
					t.Errorf("%v of a point: %d %v", kind, a.Status, &s)
				}
				continue
			}
			var r collectorpb.ExportMetricsServiceResponse
			parse(t, a, f, &r)
			if a.Status != 200 || r.GetPartialSuccess().GetRejectedDataPoints() != 3 || r.GetPartialSuccess().GetErrorMessage() != "data point 2 up{}: because" {
				t.Errorf("%v of a point: %d %v", kind, a.Status, &r)
			}
		}
	}
}

func TestAnswers(t *testing.T) {
	f := func(format otlp.Format, o otlp.Outcome, want string) {
		t.Helper()
		a := o.Answer(format)
		got := fmt.Sprintln(a.Status)
		for _, h := range a.Header {
			got += fmt.Sprintf("%s: %s\n", h.Name, h.Value)
		}
		if diff := cmp.Diff(strings.TrimLeft(want, "\n"), got+string(a.Body)); diff != "" {
			t.Error(diff)
		}
	}
	f(otlp.JSON, otlp.Outcome{}, "200\nContent-Type: application/json\n{}")
	f(otlp.Protobuf, otlp.Outcome{}, "200\nContent-Type: application/x-protobuf\n")
	warning := []point.Refusal{{Item: 1, Text: "up{}", Reason: "exemplar: no value", Kind: fault.Invalid}}
	f(otlp.JSON, otlp.Outcome{Refused: warning}, `
200
Content-Type: application/json
{"partialSuccess":{"errorMessage":"data point 1 up{}: exemplar: no value","rejectedDataPoints":"0"}}`)
	f(otlp.JSON, otlp.Outcome{RefusedRows: 4}, `
200
Content-Type: application/json
{"partialSuccess":{"errorMessage":"no reason was kept","rejectedDataPoints":"4"}}`)
	f(otlp.JSON, otlp.Outcome{Err: fault.Errorf(fault.Throttled, "full"), TooMany: true, RetryAfter: 1500 * time.Millisecond}, `
429
Content-Type: application/json
Retry-After: 2
{"code":8,"message":"full"}`)
	f(otlp.JSON, otlp.Outcome{Err: fault.Errorf(fault.Invalid, "%w: x", otlp.ErrUnsupported)}, `
415
Content-Type: application/json
{"code":3,"message":"unsupported media type: x"}`)
	// One reason that passes decides, wherever it stands.
	f(otlp.JSON, otlp.Outcome{Refused: append(slices.Clone(warning), point.Refusal{Text: "b", Reason: "full", Kind: fault.Throttled}), RefusedRows: 1, TooMany: true}, `
429
Content-Type: application/json
Retry-After: 5
{"code":8,"message":"data point 1 up{}: exemplar: no value\nb: full"}`)

	many := otlp.Outcome{RefusedRows: 99}
	for range 99 {
		many.Refused = append(many.Refused, point.Refusal{Text: "m", Reason: "bad", Kind: fault.Invalid})
	}
	var r collectorpb.ExportMetricsServiceResponse
	parse(t, many.Answer(otlp.Protobuf), otlp.Protobuf, &r)
	if msg := r.PartialSuccess.ErrorMessage; strings.Count(msg, "m: bad") != 10 || !strings.HasSuffix(msg, "… and 89 reasons more") {
		t.Errorf("%q", msg)
	}
	if a := many.Answer(otlp.JSON); !json.Valid(a.Body) {
		t.Errorf("%s", a.Body)
	}
}

func TestNegotiate(t *testing.T) {
	f := func(contentType, encoding string, format otlp.Format, enc otlp.Encoding, bad bool) {
		t.Helper()
		gotFormat, gotEnc, err := otlp.Negotiate(contentType, encoding)
		if gotFormat != format || gotEnc != enc || (err != nil) != bad {
			t.Errorf("%q %q: %v %v %v", contentType, encoding, gotFormat, gotEnc, err)
		}
		if o := (otlp.Outcome{Err: err}); bad && o.Answer(gotFormat).Status != 415 {
			t.Errorf("%v is answered by %d", err, o.Answer(gotFormat).Status)
		}
	}
	f("application/x-protobuf", "", otlp.Protobuf, otlp.Identity, false)
	f("Application/JSON; charset=utf-8", " GZIP ", otlp.JSON, otlp.Gzip, false)
	f("application/json", "identity", otlp.JSON, otlp.Identity, false)
	f("application/x-protobuf", "zstd", otlp.Protobuf, otlp.Zstd, false)
	f("application/x-protobuf", "deflate", otlp.Protobuf, otlp.Deflate, false)
	f("application/x-protobuf", "br", otlp.Protobuf, 0, true)
	f("text/plain", "gzip", 0, 0, true)
	f("", "", 0, 0, true)
}
