package remotewrite

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Outcome is the result of a request, for the answer.
type Outcome struct {
	Err         error           // why nothing of the request, or not all of it, could be accepted; nil if Refused says it all
	Refused     []point.Refusal // pieces that were refused, as Batch.Refused
	RefusedRows int             // as Batch.RefusedRows
	Written     Written         // rows accepted: Taken, less those refused later
	RetryAfter  time.Duration   // when to come back, sent with 429 and 503; 0: RetryAfterDefault

	// TooMany answers Throttled with 429 instead of 503. Default false: Prometheus drops the data at 429 unless
	// configured otherwise (retry_on_http_429), and keeps it at 503.
	TooMany bool

	// Duplicate: all rows are those of a replica that is not elected, so that none is stored. The answer is 202, as Mimir's.
	Duplicate bool
}

// RetryAfterDefault is the time after which a sender retries if the error gives none.
const RetryAfterDefault = 5 * time.Second

// Answer is an HTTP response without its transport.
type Answer struct {
	Status int
	Header []HeaderField
	Body   string // text for the sender's log; empty at 204
}

// HeaderField is a line of an answer's header.
type HeaderField struct{ Name, Value string }

// Names of the headers in answers. The first three belong to 2.0 alone: in an answer to 1.0 they make Prometheus
// report data as lost (prometheus#17683).
const (
	HeaderSamplesWritten    = "X-Prometheus-Remote-Write-Samples-Written"
	HeaderHistogramsWritten = "X-Prometheus-Remote-Write-Histograms-Written"
	HeaderExemplarsWritten  = "X-Prometheus-Remote-Write-Exemplars-Written"
	headerRetryAfter        = "Retry-After"
	headerContentType       = "Content-Type"
)

// statusOf is the table Kind → status (I8). Senders retry 5xx for ever and drop at 4xx: data that can never be accepted
// must get 4xx, data that may be accepted later 5xx.
func statusOf(k fault.Kind) int {
	switch k {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.TooLarge:
		return http.StatusRequestEntityTooLarge
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Throttled, fault.Stale, fault.Unavailable, fault.Canceled, fault.Denied: // Denied: a gateway, by a storage server
		return http.StatusServiceUnavailable
	case fault.Internal, fault.Corrupt:
		return http.StatusInternalServerError
	}
	return http.StatusInternalServerError // a Kind younger than this table is not the sender's fault
}

// Answer gives the response to a request of version v; 0 when Negotiate found none. A piece refused for a passing
// reason makes the whole answer one that is retried: accepted rows may come again, they replace themselves.
//
// Sources: remote write 1.0 and 2.0, "Required status codes", "Partial write", "Retries & backoff".
func (o *Outcome) Answer(v Version) Answer {
	a := Answer{Status: o.status(v), Header: o.written(v)}
	if a.Status == http.StatusNoContent || a.Status == http.StatusAccepted {
		return a
	}
	a.Body = o.text()
	a.Header = append(a.Header, HeaderField{headerContentType, "text/plain; charset=utf-8"})
	if a.Status == http.StatusServiceUnavailable || a.Status == http.StatusTooManyRequests {
		a.Header = append(a.Header, HeaderField{headerRetryAfter, o.retryAfter()})
	}
	return a
}

// Refused is the answer to a request that is refused because of its sender; status is 401 or 403. Senders drop the data.
func Refused(v Version, status int, text string) Answer {
	o := Outcome{}
	return Answer{Status: status, Header: append(o.written(v), HeaderField{headerContentType, "text/plain; charset=utf-8"}), Body: text + "\n"}
}

// status is that of the whole. Exemplars alone refuse nothing of 1.0: 400 means lost samples there, and senders count the whole request as lost. The
// answer of 2.0 must not be 2xx where a part was not written; its headers say that it was exemplars alone.
func (o *Outcome) status(v Version) int {
	status := http.StatusNoContent
	if o.Duplicate {
		status = http.StatusAccepted
	}
	if o.Err != nil {
		status = o.statusOf(fault.KindOf(o.Err))
		if errors.Is(o.Err, ErrUnsupported) {
			status = http.StatusUnsupportedMediaType
		}
	}
	reasons := 0
	for i := range o.Refused {
		r := &o.Refused[i]
		if !r.Exemplar {
			reasons++
		}
		if !r.Exemplar || v == V2 {
			status = graver(status, o.statusOf(r.Kind))
		}
	}
	if o.RefusedRows > 0 && reasons == 0 { // none of theirs was kept
		status = graver(status, http.StatusBadRequest)
	}
	return status
}

func (o *Outcome) statusOf(k fault.Kind) int {
	if k == fault.Throttled && o.TooMany {
		return http.StatusTooManyRequests
	}
	return statusOf(k)
}

// graver gives the status that loses less data: one that is retried before one that is not, the first of equals.
func graver(a, b int) int {
	if gravity(b) > gravity(a) {
		return b
	}
	return a
}

func gravity(status int) int {
	switch {
	case status >= 500:
		return 3
	case status == http.StatusTooManyRequests:
		return 2
	case status >= 400:
		return 1
	}
	return 0
}

func (o *Outcome) written(v Version) []HeaderField {
	if v != V2 {
		return nil
	}
	// Room for the two that a failure adds.
	return append(make([]HeaderField, 0, 5),
		HeaderField{HeaderSamplesWritten, strconv.Itoa(o.Written.Samples)},
		HeaderField{HeaderHistogramsWritten, strconv.Itoa(o.Written.Histograms)},
		HeaderField{HeaderExemplarsWritten, strconv.Itoa(o.Written.Exemplars)})
}

// retryAfter gives whole seconds, at least one.
func (o *Outcome) retryAfter() string {
	d := o.RetryAfter
	if d <= 0 {
		d = RetryAfterDefault
	}
	return strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))
}

// reasonsMax bounds the reasons in an answer's body. Prometheus logs the first 1,024 bytes.
const reasonsMax = 10

// text is the text for the sender's log.
func (o *Outcome) text() string {
	var b strings.Builder
	if o.Err != nil {
		b.WriteString(o.Err.Error())
		b.WriteByte('\n')
	}
	if len(o.Refused) == 0 && o.RefusedRows == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, "rows not taken: %d", o.RefusedRows)
	sep := "; "
	for i := range o.Refused[:min(len(o.Refused), reasonsMax)] {
		r := &o.Refused[i]
		b.WriteString(sep)
		if r.Item > 0 {
			fmt.Fprintf(&b, "time series %d ", r.Item)
		}
		fmt.Fprintf(&b, "%s: %s", r.Text, r.Reason)
		sep = "\n"
	}
	if more := len(o.Refused) - reasonsMax; more > 0 {
		fmt.Fprintf(&b, "\n… and %d reasons more", more)
	}
	b.WriteByte('\n')
	return b.String()
}
