package intake

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/trace"
)

// door is one of our paths.
type door struct {
	protocol protocol
	methods  string // as in the header Allow
	need     access.Need
	words    lineproto.Flavour // of its refusals; 0: the protocol's own
	serve    func(*Front, context.Context, *call) Response
}

// call is a request on its way through a door.
type call struct {
	*Request
	protocol protocol // a door may say it more exactly
	charge   charge
	words    lineproto.Flavour // as its door's
	wishes   wishes            // of a write
	identity *access.Identity
	ticket   limits.Ticket
	heldBy   *brake // counts it; nil: none
	taken    bool   // the store accepted its rows
	rows     int    // of these
	known    int    // series of the batch's Dict before the body was decoded
	// duplicate: none of its rows is stored, since another replica of their pair is elected.
	duplicate bool
	turn      atomic.Bool // uses a processor
	partly    string      // why rows were refused by an answer of success; "": none were

	sender context.Context // without the bound of an answer's time
	until  time.Time       // the answer's bound after a body that was long on its way; zero: that of the request
}

var (
	doorRemoteWrite = &door{protoRW1, "POST", access.NeedWrite, 0, (*Front).remoteWrite}
	doorInflux1     = &door{protoInflux1, "POST", access.NeedWrite, lineproto.V1, (*Front).influx1}
	doorInflux2     = &door{protoInflux2, "POST", access.NeedWrite, lineproto.V2, (*Front).influx2}
	doorInflux3     = &door{protoInflux3, "POST", access.NeedWrite, lineproto.V3, (*Front).influx3}
	doorOTLP        = &door{protoOTLP, "POST", access.NeedWrite, 0, (*Front).otlp}
	doorQuery       = &door{protoOther, "GET, POST", access.NeedIdentity, lineproto.V1, (*Front).query}
	doorPing        = &door{protoOther, "GET, HEAD", access.NeedNothing, lineproto.V1, (*Front).ping}
	doorPing2       = &door{protoOther, "GET, HEAD", access.NeedNothing, lineproto.V2, (*Front).ping2}
	doorHealth      = &door{protoOther, "GET, HEAD", access.NeedNothing, lineproto.V2, (*Front).health}
	doorReady       = &door{protoOther, "GET, HEAD", access.NeedNothing, lineproto.V2, (*Front).ready}
	doorBuckets     = &door{protoOther, "GET, POST", access.NeedIdentity, lineproto.V2, (*Front).buckets}
	doorBucket      = &door{protoOther, "DELETE, GET, PATCH", access.NeedIdentity, lineproto.V2, (*Front).bucket}
	doorOrgs        = &door{protoOther, "GET", access.NeedIdentity, lineproto.V2, (*Front).orgs}
	doorDelete      = &door{protoOther, "POST", access.NeedAdmin, lineproto.V2, (*Front).influxDelete}
)

// bucketPath begins the path of one bucket; its id follows.
const bucketPath = "/api/v2/buckets/"

// doors are all paths of intake but bucketPath; they may begin with /t/<table>.
var doors = map[string]*door{
	"/api/v1/write":      doorRemoteWrite,
	"/api/v1/push":       doorRemoteWrite, // Mimir and VictoriaMetrics
	"/api/v1/prom/write": doorRemoteWrite, // Cortex

	"/write":           doorInflux1,
	"/api/v2/write":    doorInflux2,
	"/api/v3/write_lp": doorInflux3,
	"/query":           doorQuery,
	"/ping":            doorPing,
	"/api/v2/ping":     doorPing2,
	"/health":          doorHealth,
	"/ready":           doorReady,
	"/api/v2/buckets":  doorBuckets,
	"/api/v2/orgs":     doorOrgs,
	"/api/v2/delete":   doorDelete,

	"/v1/metrics":               doorOTLP, // OpenTelemetry
	"/api/v1/otlp/v1/metrics":   doorOTLP, // Prometheus
	"/otlp/v1/metrics":          doorOTLP, // Mimir
	"/opentelemetry/v1/metrics": doorOTLP, // VictoriaMetrics
}

// Routes lists the paths of intake with their methods and the permissions they need, for the test of all routes.
func Routes() map[string]access.Need {
	out := map[string]access.Need{}
	add := func(path string, d *door) {
		for m := range strings.SplitSeq(d.methods, ", ") {
			out[m+" "+path] = d.need
		}
	}
	for path, d := range doors {
		add(path, d)
	}
	add(bucketPath+"{id}", doorBucket)
	return out
}

// doorAt finds the door of a path; nil: the path has no door.
func doorAt(path string) *door {
	_, rest, _ := tablename.Cut(path)
	if id, ok := strings.CutPrefix(rest, bucketPath); ok && id != "" && !strings.Contains(id, "/") {
		return doorBucket
	}
	return doors[rest]
}

// answer serves a request at a door, and counts it.
func (f *Front) answer(ctx context.Context, d *door, method, path, rawQuery string, from source) Response {
	start := time.Now()
	c := &call{protocol: d.protocol, words: d.words, charge: charge{of: &f.inFlight}}
	defer f.leave(c)
	ctx, span := f.trace(ctx, method, path, from)
	resp := f.enter(ctx, d, c, method, path, rawQuery, from)
	if c.Request != nil {
		span.Text("spillway.table", c.Table)
	}
	span.Answered(resp.Status)
	f.metrics.answered(c.protocol, resp.Status, time.Since(start))
	if resp.Status >= http.StatusBadRequest || c.partly != "" {
		f.noteRefusal(c, &resp)
	}
	return resp
}

// trace begins the span of a request, if there are any.
func (f *Front) trace(ctx context.Context, method, path string, from source) (context.Context, trace.Span) {
	if f.tracer == nil {
		return ctx, trace.Span{}
	}
	_, rest, _ := tablename.Cut(path)
	return f.tracer.Server(ctx, method+" "+rest, from.header(trace.ParentHeader))
}

// noteRefusal lists a refusal for the status page. Table names are listed only from senders with good credentials.
func (f *Front) noteRefusal(c *call, r *Response) {
	table := ""
	if c.Request != nil && c.identity != nil {
		table = c.Table
	}
	reason := c.partly
	if reason == "" {
		reason = reasonIn(r.Body)
	}
	f.recent.Note(table, protocolNames[c.protocol], r.Status, reason, time.Now())
}

// reasonIn finds the sentence in the body of a refusal, whatever the protocol wraps it in.
func reasonIn(body []byte) string {
	var fields struct{ Error, Message string }
	if len(body) > 0 && body[0] == '{' && json.Unmarshal(body, &fields) == nil {
		if fields.Error != "" {
			return fields.Error
		}
		return fields.Message
	}
	return string(body)
}

// leave releases all that a call holds, even after a panic: net/http goes on after one, and anything not released would
// block the table until a restart.
func (f *Front) leave(c *call) {
	c.ticket.End()
	f.endTurn(c)
	if c.heldBy != nil {
		f.brakes.done(c.Table, c.heldBy, c.taken)
	}
	c.charge.release()
}

func (f *Front) enter(ctx context.Context, d *door, c *call, method, path, rawQuery string, from source) Response {
	if !allows(d.methods, method) {
		r := textResponse(http.StatusMethodNotAllowed, "method not allowed here: "+method)
		r.set("Allow", d.methods)
		return r
	}
	rq, err := newRequest(method, path, rawQuery, from)
	if err != nil {
		return textResponse(http.StatusBadRequest, err.Error())
	}
	c.Request = rq
	c.charge.table = rq.Table
	if err := f.identify(d, c); err != nil {
		return f.refuse(c, err)
	}
	c.sender = ctx
	ctx, cancel := context.WithTimeout(access.With(ctx, c.identity), f.settings.AnswerTimeMax) // look-ups of names check the identity once more
	defer cancel()
	var until time.Time // of all waits together
	c.charge.await = func(come <-chan struct{}) error {
		if until.IsZero() {
			until = time.Now().Add(min(f.settings.AnswerTimeMax/2, memoryWaitMax))
		}
		return f.awaitMemory(ctx, c, come, until)
	}
	return d.serve(f, ctx, c)
}

// memoryWaitMax is how long a large request waits for its memory in all: Telegraf and OpenTelemetry's collector give up after five seconds, and send it again.
const memoryWaitMax = 4 * time.Second

// awaitMemory waits until a large request has its memory, or until the given time. It gives up its turn of the processors meanwhile: the requests that hold the memory need it.
func (f *Front) awaitMemory(ctx context.Context, c *call, come <-chan struct{}, until time.Time) error {
	ctx, cancel := c.answering(ctx)
	defer cancel()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	decoding := c.turn.Load()
	f.endTurn(c)
	select {
	case <-come:
	case <-timer.C:
		return errNoMemory
	case <-ctx.Done():
		return ctx.Err()
	}
	if decoding {
		return f.beginTurn(ctx, c)
	}
	return nil
}

var errNoMemory = fault.Errorf(fault.Throttled, "the memory did not become free")

// arrived notes when a request's body was complete. The time for an answer counts from the request's beginning, which suits a body that is there at once. A
// body that came over a slow link has that time from now on: else it would be read and decoded whole, refused, and sent again, for ever.
func (f *Front) arrived(c *call, began, now time.Time) {
	if now.Sub(began) >= f.settings.AnswerTimeMax/10 {
		c.until = now.Add(f.settings.AnswerTimeMax)
	}
}

// answering returns the context for the work after the body: with the deadline that arrived set, else ctx.
func (c *call) answering(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.until.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(c.sender, c.until)
}

func allows(methods, method string) bool {
	for m := range strings.SplitSeq(methods, ", ") {
		if m == method {
			return true
		}
	}
	return false
}

// guard runs the decoding of bytes from outside. A defect that a sender found must not end the process, since the sender
// would send the same bytes again; the body is refused and the defect is logged.
func (f *Front) guard(decode func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			f.metrics.panics.Inc()
			f.log.Error("a body could not be decoded because of a defect; please report it", "panic", p, "stack", stack())
			err = fault.Errorf(fault.Internal, "decoding failed by a defect of ours")
		}
	}()
	return decode()
}
