package otlp

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

// Outcome is the result of a request, for the answer.
type Outcome struct {
	Err         error           // why nothing of the request could be accepted; nil if Refused says it all
	Refused     []point.Refusal // pieces that were refused, as Batch.Refused
	RefusedRows int             // as Batch.RefusedRows
	RetryAfter  time.Duration   // when to come back, sent with 429 and 503; 0: RetryAfterDefault

	// TooMany answers Throttled with 429 instead of 503. Senders retry after both.
	TooMany bool
}

// RetryAfterDefault is the time after which a sender retries if the error gives none.
const RetryAfterDefault = 5 * time.Second

// Answer is an HTTP response without its transport.
type Answer struct {
	Status int
	Header []HeaderField
	Body   []byte // ExportMetricsServiceResponse at 200, else google.rpc.Status; empty protobuf is zero bytes
}

// HeaderField is a line of an answer's header.
type HeaderField struct{ Name, Value string }

// Codes of google.rpc.Code.
const (
	codeInvalidArgument   = 3
	codeNotFound          = 5
	codePermissionDenied  = 7
	codeResourceExhausted = 8
	codeInternal          = 13
	codeUnavailable       = 14
	codeUnauthenticated   = 16
)

// verdict is an HTTP status and the code that says the same in a google.rpc.Status.
type verdict struct {
	status int
	code   int
}

// verdictOf is the table Kind → answer (I8). Senders retry after 429, 502, 503 and 504 alone and drop at everything else:
// a body that may be accepted later gets 503, even if the reason is our defect.
func verdictOf(k fault.Kind) verdict {
	switch k {
	case fault.Invalid:
		return verdict{http.StatusBadRequest, codeInvalidArgument}
	case fault.TooLarge:
		return verdict{http.StatusRequestEntityTooLarge, codeResourceExhausted}
	case fault.NotFound:
		return verdict{http.StatusNotFound, codeNotFound}
	case fault.Throttled, fault.Stale, fault.Unavailable, fault.Canceled, fault.Denied: // Denied: a gateway, by a storage server
		return verdict{http.StatusServiceUnavailable, codeUnavailable}
	case fault.Internal, fault.Corrupt:
		return verdict{http.StatusServiceUnavailable, codeInternal}
	}
	return verdict{http.StatusServiceUnavailable, codeInternal} // a Kind younger than this table is not the sender's fault
}

// Answer gives the response to a request of format f; 0 when Negotiate found none. Data points that can never be accepted
// are reported in a partial success, which no sender retries. A piece refused for a passing reason makes the whole
// answer one that is retried: accepted rows may come again, they replace themselves.
//
// Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp-response.
func (o *Outcome) Answer(f Format) Answer {
	v, why := o.verdict()
	a := Answer{Status: v.status}
	if f == Protobuf {
		a.Header = []HeaderField{{"Content-Type", typeProtobuf}}
	} else {
		a.Header = []HeaderField{{"Content-Type", typeJSON}}
	}
	if v.status == http.StatusOK {
		a.Body = o.success(f)
		return a
	}
	a.Body = status(f, v.code, why)
	if v.status == http.StatusServiceUnavailable || v.status == http.StatusTooManyRequests {
		a.Header = append(a.Header, HeaderField{"Retry-After", o.retryAfter()})
	}
	return a
}

// Refused is the answer to a request that is refused because of its sender; code is 401 or 403 of HTTP. Senders drop the data.
func Refused(f Format, code int, text string) Answer {
	a := Answer{Status: code, Header: []HeaderField{{"Content-Type", typeJSON}}}
	if f == Protobuf {
		a.Header[0].Value = typeProtobuf
	}
	grpc := codePermissionDenied
	if code == http.StatusUnauthorized {
		grpc = codeUnauthenticated
	}
	a.Body = status(f, grpc, text)
	return a
}

// verdict chooses the answer and its sentence.
func (o *Outcome) verdict() (verdict, string) {
	if o.Err != nil {
		v := o.verdictOf(fault.KindOf(o.Err))
		if errors.Is(o.Err, ErrUnsupported) {
			v.status = http.StatusUnsupportedMediaType
		}
		return v, o.Err.Error()
	}
	for i := range o.Refused {
		if v := o.verdictOf(o.Refused[i].Kind); v.status == http.StatusServiceUnavailable || v.status == http.StatusTooManyRequests {
			return v, o.reasons()
		}
	}
	return verdict{status: http.StatusOK}, ""
}

func (o *Outcome) verdictOf(k fault.Kind) verdict {
	if k == fault.Throttled && o.TooMany {
		return verdict{http.StatusTooManyRequests, codeResourceExhausted}
	}
	return verdictOf(k)
}

// success writes an ExportMetricsServiceResponse: empty, or with a partial success. Reasons without rejected points, such
// as those of exemplars, are a warning by the specification.
func (o *Outcome) success(f Format) []byte {
	reasons := o.reasons()
	if o.RefusedRows == 0 && reasons == "" {
		if f == Protobuf {
			return nil
		}
		return []byte("{}")
	}
	if f != Protobuf {
		return mustJSON(map[string]any{"partialSuccess": map[string]any{
			"rejectedDataPoints": strconv.Itoa(o.RefusedRows), "errorMessage": reasons,
		}})
	}
	var partial []byte
	if o.RefusedRows > 0 {
		partial = binary.AppendUvarint(append(partial, 1<<3|wire.Varint), uint64(o.RefusedRows))
	}
	partial = appendBytes(partial, 2, reasons)
	return appendBytes(nil, 1, string(partial))
}

// status writes a google.rpc.Status.
func status(f Format, code int, message string) []byte {
	if f != Protobuf {
		return mustJSON(map[string]any{"code": code, "message": message})
	}
	b := binary.AppendUvarint([]byte{1<<3 | wire.Varint}, uint64(code))
	return appendBytes(b, 2, strings.ToValidUTF8(message, "�"))
}

// appendBytes writes a field of bytes, unless it is empty.
func appendBytes(b []byte, num byte, s string) []byte {
	if s == "" {
		return b
	}
	b = binary.AppendUvarint(append(b, num<<3|wire.Bytes), uint64(len(s)))
	return append(b, s...)
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		fault.Bug("answer of strings and numbers: %v", err)
	}
	return b
}

// retryAfter gives whole seconds, at least one.
func (o *Outcome) retryAfter() string {
	d := o.RetryAfter
	if d <= 0 {
		d = RetryAfterDefault
	}
	return strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))
}

// reasonsMax bounds the reasons in an answer; they go into the sender's log.
const reasonsMax = 10

// reasons is the text that the sender's log shows of single refusals; valid UTF-8.
func (o *Outcome) reasons() string {
	if o.RefusedRows > 0 && len(o.Refused) == 0 {
		return "no reason was kept"
	}
	var b strings.Builder
	sep := ""
	for i := range o.Refused[:min(len(o.Refused), reasonsMax)] {
		r := &o.Refused[i]
		b.WriteString(sep)
		if r.Item > 0 {
			fmt.Fprintf(&b, "data point %d ", r.Item)
		}
		fmt.Fprintf(&b, "%s: %s", r.Text, r.Reason)
		sep = "\n"
	}
	if more := len(o.Refused) - reasonsMax; more > 0 {
		fmt.Fprintf(&b, "\n… and %d reasons more", more)
	}
	return strings.ToValidUTF8(b.String(), "�")
}
