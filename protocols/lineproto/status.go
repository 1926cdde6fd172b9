package lineproto

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Flavour is one of the three Influx write APIs; each has its own answers for the same outcome.
type Flavour uint8

const (
	V1 Flavour = iota + 1 // POST /write
	V2                    // POST /api/v2/write
	V3                    // POST /api/v3/write_lp
)

// Outcome is the result of a write request.
type Outcome struct {
	// Err is the error that stopped the whole request; nil when rows were only refused one by one. It outranks Refused.
	Err error
	// DB is the db or bucket that was named; used where Err is NotFound.
	DB string
	// Stored is the number of rows that were accepted.
	Stored int
	// Refused and RefusedRows are those of the Batch. A Refusal without a Kind counts as Internal: the client is asked to
	// send again, and a forgotten Kind loses no data.
	Refused     []point.Refusal
	RefusedRows int
	// Partial is Settings.Partial as it was when the body was decoded.
	Partial bool
	// RetryAfter is sent, in whole seconds, at least one, with answers that ask for another try. Default 5 s.
	RetryAfter time.Duration
}

// Answer is an HTTP response. Headers are in the order in which they are to be written.
type Answer struct {
	Status int
	Header []Header
	Body   []byte // nil: no body
}

// Header is one line of a response's head.
type Header struct{ Name, Value string }

// Answer makes the response to a write: its status by Kind and flavour, as docs/limits.md lists them.
//
// Rows that were refused for a passing reason, such as a full dictionary, ask for the whole body again: storing a row
// twice has the effect of storing it once.
func (f Flavour) Answer(o Outcome) Answer {
	if o.Err != nil {
		return f.failure(fault.KindOf(o.Err), o.Err.Error(), o)
	}
	for _, r := range o.Refused {
		if retryable(r.Kind) {
			return f.failure(r.Kind, r.Reason, o)
		}
	}
	switch {
	case o.RefusedRows == 0 && len(o.Refused) == 0:
		return Answer{Status: 204}
	case f == V1:
		return answerV1(400, partialV1(o))
	case f == V2:
		return partialV2(o)
	}
	return partialV3(o)
}

// Unauthorized is the answer to a request without good credentials. Telegraf's v1 output then drops the batch, its v2
// output keeps the batch.
func (f Flavour) Unauthorized() Answer {
	var a Answer
	switch f {
	case V1:
		a = answerV1(401, "authorization failed")
		a.Header = append(a.Header, Header{"WWW-Authenticate", `Basic realm="InfluxDB"`})
	case V2:
		a = answerV2(401, "unauthorized", "unauthorized access")
		a.Header = append(a.Header, Header{"WWW-Authenticate", `Token realm="InfluxDB"`})
	default:
		a = answerV3(401, "the request was not authenticated", nil)
		a.Header = append(a.Header, Header{"WWW-Authenticate", `Bearer realm="InfluxDB"`})
	}
	return a
}

// Forbidden is the answer to a request with good credentials that do not cover it.
func (f Flavour) Forbidden(text string) Answer {
	switch f {
	case V1:
		return answerV1(403, text)
	case V2:
		return answerV2(403, "forbidden", text)
	}
	return answerV3(403, text, nil)
}

// reply is a row of the table Kind → answer.
type reply struct {
	v1, v2, v3 int
	code       string // V2's name of the error
	say        string // instead of the error's own text, which is for the log
}

// Telegraf's v1 output drops a batch at any 4xx, so V1 has no 429. Corrupt is our disk's: a client's body that cannot
// be read is Invalid.
var replies = [...]reply{
	fault.Internal:    {500, 500, 500, "internal error", "internal error"},
	fault.Invalid:     {400, 400, 400, "invalid", ""},
	fault.TooLarge:    {413, 413, 413, "request too large", ""},
	fault.Throttled:   {503, 429, 429, "too many requests", ""},
	fault.Stale:       {503, 503, 503, "unavailable", ""},
	fault.Unavailable: {503, 503, 503, "unavailable", ""},
	fault.Corrupt:     {500, 500, 500, "internal error", "internal error: damaged data was found"},
	fault.NotFound:    {404, 404, 404, "not found", ""},
	fault.Canceled:    {503, 503, 503, "unavailable", "timeout"},
	fault.Denied:      {503, 503, 503, "unavailable", ""}, // a gateway, by a storage server: not the sender's fault
}

func replyTo(k fault.Kind) reply {
	if int(k) >= len(replies) {
		return replies[fault.Internal] // a Kind of a newer peer
	}
	return replies[k]
}

// retryable reports whether sending the same bytes again can help.
func retryable(k fault.Kind) bool {
	r := replyTo(k)
	return r.v1 >= 500
}

const retryAfterDefault = 5 * time.Second

func (f Flavour) failure(k fault.Kind, text string, o Outcome) Answer {
	r := replyTo(k)
	if r.say != "" {
		text = r.say
	}
	if r.v1 >= 500 {
		text = harmless(text)
	}
	var a Answer
	switch f {
	case V1:
		if k == fault.NotFound {
			text = fmt.Sprintf("database not found: %q", o.DB)
		}
		a = answerV1(r.v1, text)
	case V2:
		if k == fault.NotFound {
			text = fmt.Sprintf("bucket %q not found", o.DB)
		}
		a = answerV2(r.v2, r.code, text)
	default:
		if k == fault.NotFound {
			text = fmt.Sprintf("database not found: %q", o.DB)
		}
		a = answerV3(r.v3, text, nil)
	}
	if a.Status == 503 || a.Status == 429 {
		a.Header = append(a.Header, Header{"Retry-After", retryAfter(o.RetryAfter)})
	}
	return a
}

// retryAfter is in whole seconds: Telegraf does not read dates.
func retryAfter(d time.Duration) string {
	if d <= 0 {
		d = retryAfterDefault
	}
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// deadly are the texts at which Telegraf's v1 output drops a batch silently, whatever the status, unless it is a 4xx.
var deadly = [...]string{
	"retention policy not found", "hinted handoff queue not empty", "points beyond retention policy", "partial write",
	"unable to parse",
}

// harmless is the text of a failure that must be retried. Such a text may quote a client's own words, and so contain
// deadly ones; then it is not sent.
func harmless(text string) string {
	low := strings.ToLower(text)
	for _, words := range deadly {
		if strings.Contains(low, words) {
			return "temporarily unavailable"
		}
	}
	return text
}

// reasons joins the refusals, a line each, without repeating one with the same text as the one before.
func reasons(refused []point.Refusal) string {
	var b strings.Builder
	last := ""
	for _, r := range refused {
		text := r.Reason
		if r.Text != "" {
			text = "unable to parse '" + r.Text + "': " + r.Reason
		}
		if text == last {
			continue
		}
		if last != "" {
			b.WriteByte('\n')
		}
		b.WriteString(text)
		last = text
	}
	return b.String()
}

// unparsed reports whether nothing was stored because no line could be read.
func unparsed(o Outcome) bool {
	for _, r := range o.Refused {
		if r.Text == "" {
			return false
		}
	}
	return o.Stored == 0
}

func partialWrite(o Outcome) string {
	return fmt.Sprintf("partial write: %s dropped=%d", reasons(o.Refused), o.RefusedRows)
}

func partialV1(o Outcome) string {
	if unparsed(o) {
		return reasons(o.Refused)
	}
	return partialWrite(o)
}

func partialV2(o Outcome) Answer {
	if unparsed(o) {
		return answerV2(400, "invalid", reasons(o.Refused))
	}
	return answerV2(422, "unprocessable entity", "failure writing points to database: "+partialWrite(o))
}

// lineV3 is how V3 reports one line.
type lineV3 struct {
	OriginalLine string `json:"original_line"`
	LineNumber   int    `json:"line_number"`
	ErrorMessage string `json:"error_message"`
}

func partialV3(o Outcome) Answer {
	lines := make([]lineV3, 0, len(o.Refused))
	for _, r := range o.Refused {
		lines = append(lines, lineV3{r.Text, r.Item, r.Reason})
	}
	if !o.Partial && len(lines) > 0 {
		return answerV3(400, "parsing failed for write_lp endpoint", lines[0])
	}
	return answerV3(400, "partial write of line protocol occurred", lines)
}

// errorHeaderMax bounds X-Influxdb-Error, in bytes, as the original does.
const errorHeaderMax = 1024

func answerV1(status int, text string) Answer {
	a := answerJSON(status, struct {
		Error string `json:"error"`
	}{text})
	a.Header = append(a.Header, Header{"X-Influxdb-Error", headerText(text)})
	return a
}

// headerText makes text fit for a header: one line of printable ASCII, cut.
func headerText(text string) string {
	b := []byte(text[:min(len(text), errorHeaderMax)])
	for i, c := range b {
		switch {
		case c < ' ':
			b[i] = ' '
		case c >= 0x7f:
			b[i] = '?'
		}
	}
	return string(bytes.TrimSpace(b))
}

func answerV2(status int, code, message string) Answer {
	a := answerJSON(status, struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{code, message})
	a.Header = append(a.Header, Header{"X-Platform-Error-Code", code})
	return a
}

func answerV3(status int, text string, data any) Answer {
	return answerJSON(status, struct {
		Error string `json:"error"`
		Data  any    `json:"data,omitempty"`
	}{text, data})
}

func answerJSON(status int, v any) Answer {
	var body bytes.Buffer
	enc := json.NewEncoder(&body) // ends with a newline, as the original's bodies do
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		fault.Bug("an answer of strings and numbers does not encode: %v", err)
	}
	return Answer{Status: status, Header: []Header{{"Content-Type", "application/json"}}, Body: body.Bytes()}
}
