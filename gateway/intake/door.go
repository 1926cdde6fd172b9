package intake

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// door is one of our paths.
type door struct {
	protocol protocol
	methods  string // as in the header Allow
	serve    func(*Front, context.Context, *call) Response
}

// call is a request on its way through a door.
type call struct {
	*Request
	protocol protocol // a door may say it more exactly
	charge   charge
}

var (
	doorRemoteWrite = &door{protoRW1, "POST", (*Front).remoteWrite}
	doorInflux1     = &door{protoInflux1, "POST", (*Front).influx1}
	doorInflux2     = &door{protoInflux2, "POST", (*Front).influx2}
	doorInflux3     = &door{protoInflux3, "POST", (*Front).influx3}
	doorOTLP        = &door{protoOTLP, "POST", (*Front).otlp}
	doorQuery       = &door{protoOther, "GET, POST", (*Front).query}
	doorPing        = &door{protoOther, "GET, HEAD", (*Front).ping}
	doorPing2       = &door{protoOther, "GET, HEAD", (*Front).ping2}
	doorHealth      = &door{protoOther, "GET, HEAD", (*Front).health}
	doorReady       = &door{protoOther, "GET, HEAD", (*Front).ready}
	doorBuckets     = &door{protoOther, "GET, POST", (*Front).buckets}
	doorOrgs        = &door{protoOther, "GET", (*Front).orgs}
)

// doorAt finds the door of a path, which may begin with /t/<table>; nil: it is none of ours.
func doorAt(path string) *door {
	_, rest, _ := tablename.Cut(path)
	switch rest {
	case "/api/v1/write", "/api/v1/push", "/api/v1/prom/write": // Prometheus; Mimir and VictoriaMetrics; Cortex
		return doorRemoteWrite
	case "/write":
		return doorInflux1
	case "/api/v2/write":
		return doorInflux2
	case "/api/v3/write_lp":
		return doorInflux3
	case "/v1/metrics", "/api/v1/otlp/v1/metrics", "/otlp/v1/metrics", "/opentelemetry/v1/metrics": // OpenTelemetry; Prometheus; Mimir; VictoriaMetrics
		return doorOTLP
	case "/query":
		return doorQuery
	case "/ping":
		return doorPing
	case "/api/v2/ping":
		return doorPing2
	case "/health":
		return doorHealth
	case "/ready":
		return doorReady
	case "/api/v2/buckets":
		return doorBuckets
	case "/api/v2/orgs":
		return doorOrgs
	}
	return nil
}

// answer serves a request at a door, and counts it.
func (f *Front) answer(ctx context.Context, d *door, method, path, rawQuery string, from source) Response {
	start := time.Now()
	c := &call{protocol: d.protocol, charge: charge{of: &f.inFlight}}
	resp := f.enter(ctx, d, c, method, path, rawQuery, from)
	c.charge.release()
	f.metrics.answered(c.protocol, resp.Status, time.Since(start))
	return resp
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
	ctx, cancel := context.WithTimeout(ctx, f.settings.AnswerTimeMax)
	defer cancel()
	return d.serve(f, ctx, c)
}

func allows(methods, method string) bool {
	for m := range strings.SplitSeq(methods, ", ") {
		if m == method {
			return true
		}
	}
	return false
}

// guard runs the decoding of bytes from outside. A defect that a sender found must not end the process, since it would
// send the same bytes again; the body is refused and the defect is told.
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
