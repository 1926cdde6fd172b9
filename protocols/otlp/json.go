package otlp

import (
	"encoding/base64"
	"encoding/hex"
	"strings"

	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// JSONObjectsMax bounds the objects of a JSON body, about jsonObjectBytes of memory each while it is read. A data
// point is one, each of its attributes two; senders of JSON write a few thousand.
const JSONObjectsMax = 1 << 20

// jsonDepthMax bounds how deep messages are nested: 12 in an ordinary data point, plus two for each array within an array
// of an attribute.
const jsonDepthMax = 100

// jsonObjectBytes is the memory of an object while it is read: the largest of the official types, and its pointers.
const jsonObjectBytes = 200

// Memory is the temporary memory of decoding a body, beside the body itself, in bytes, so that a caller can charge for
// it before it calls Decode. Protobuf needs almost none.
func Memory(body []byte, f Format) int64 {
	if f != JSON {
		return 0
	}
	return int64(min(objectsIn(body), JSONObjectsMax))*jsonObjectBytes + 4*int64(len(body))
}

// fromJSON turns a body of JSON into one of protobuf. There is one decoder behind it; JSON is for browsers and shell
// scripts, not for throughput. Errors are Invalid and TooLarge.
//
// OTLP's exceptions to protobuf's JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): unknown fields
// are ignored; enums are numbers, which protojson accepts as well as names; trace and span ids are hexadecimal.
func fromJSON(body []byte) ([]byte, error) {
	if n := objectsIn(body); n > JSONObjectsMax {
		return nil, fault.Errorf(fault.TooLarge, "OTLP: %d objects in JSON, at most %d are taken", n, JSONObjectsMax)
	}
	var m metricspb.MetricsData // as ExportMetricsServiceRequest on the wire and in JSON
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: jsonDepthMax}).Unmarshal(body, &m); err != nil {
		return nil, fault.Errorf(fault.Invalid, "OTLP: JSON: %s", cut(err.Error()))
	}
	if err := restoreIDs(&m); err != nil {
		return nil, err
	}
	wire, err := proto.Marshal(&m)
	return wire, fault.Wrap(err, fault.Invalid, "OTLP: JSON")
}

// mistakeMax bounds the text of a mistake, in bytes: a number of a megabyte would come back as a whole.
const mistakeMax = 300

func cut(text string) string {
	if len(text) <= mistakeMax {
		return text
	}
	return strings.ToValidUTF8(text[:mistakeMax], "") + "…"
}

// objectsIn counts braces outside strings.
func objectsIn(body []byte) (n int) {
	inString := false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case c == '{' && !inString:
			n++
		}
	}
	return n
}

// restoreIDs undoes protojson's change to the ids of exemplars: it reads their hexadecimal digits as base64, which loses
// nothing, as each hexadecimal digit is a digit of base64 and both ids have a multiple of four of them.
func restoreIDs(m *metricspb.MetricsData) error {
	for _, rm := range m.ResourceMetrics {
		for _, sm := range rm.ScopeMetrics {
			for _, metric := range sm.Metrics {
				for _, e := range exemplarsOf(metric) {
					var err error
					if e.TraceId, err = restoreID(e.TraceId, "traceId"); err != nil {
						return err
					}
					if e.SpanId, err = restoreID(e.SpanId, "spanId"); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func restoreID(b []byte, name string) ([]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	digits := base64.StdEncoding.EncodeToString(b)
	id, err := hex.DecodeString(digits)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "OTLP: JSON: %s is not hexadecimal", name)
	}
	return id, nil
}

func exemplarsOf(m *metricspb.Metric) (all []*metricspb.Exemplar) {
	for _, p := range m.GetGauge().GetDataPoints() {
		all = append(all, p.Exemplars...)
	}
	for _, p := range m.GetSum().GetDataPoints() {
		all = append(all, p.Exemplars...)
	}
	for _, p := range m.GetHistogram().GetDataPoints() {
		all = append(all, p.Exemplars...)
	}
	for _, p := range m.GetExponentialHistogram().GetDataPoints() {
		all = append(all, p.Exemplars...)
	}
	return all
}
