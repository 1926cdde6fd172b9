package api

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// answer is the answer of a handler.
type answer struct {
	data     func(*encoder) // writes the value of "data"; nil: 204 without a body
	warnings []string
	infos    []string
	close    func() // frees the input of data, after it is written; may be nil
}

// constant is a handler that always returns the same answer.
func constant(data string) func(*call) (answer, error) {
	return func(*call) (answer, error) { return answer{data: func(e *encoder) { e.raw(data) }}, nil }
}

// value is an answer that is small enough for reflection.
func value(v any) answer { return answer{data: func(e *encoder) { e.value(v) }} }

// encoders keeps buffers between answers. A buffer that grew past its size is not kept.
var encoders = sync.Pool{New: func() any { return &encoder{buf: make([]byte, 0, bufferCap)} }}

func putEncoder(e *encoder) {
	if cap(e.buf) <= 2*bufferCap {
		*e = encoder{buf: e.buf[:0]}
		encoders.Put(e)
	}
}

// respond writes an answer in its envelope.
func (a *API) respond(w http.ResponseWriter, r *http.Request, ans answer) {
	e := encoders.Get().(*encoder)
	defer putEncoder(e)
	body := newBody(w, r)
	e.w, e.ctx, e.turn = body, r.Context(), a.query.Turn()
	defer e.turn.End()
	e.raw(`{"status":"success","data":`)
	ans.data(e)
	for _, list := range []struct {
		name  string
		texts []string
	}{{`,"warnings":`, ans.warnings}, {`,"infos":`, ans.infos}} {
		if len(list.texts) > 0 {
			e.raw(list.name)
			e.strs(list.texts)
		}
	}
	e.raw(`}`)
	if e.err == nil {
		e.turn.End()
		e.err = body.finish(e.buf)
	}
	if e.err == nil {
		return
	}
	if !body.begun() {
		a.fail(w, e.err)
		return
	}
	a.log.Debug("answer not delivered", "path", r.URL.Path, "error", e.err)
	body.abort()
}

// retryAfterSeconds is when a refused client may retry.
const retryAfterSeconds = 1

// answerTo finds the answer to an error, and logs a failure of ours.
func (a *API) answerTo(err error) *apiError {
	ans := answerTo(err)
	if ans.status == http.StatusInternalServerError && ans.typ != typeUnavailable { // deletions that are switched off are no failure
		a.log.Warn("request failed", "kind", fault.KindOf(err), "error", err)
	}
	return ans
}

// fail answers an error.
func (a *API) fail(w http.ResponseWriter, err error) {
	ans := a.answerTo(err)
	e := encoders.Get().(*encoder)
	defer putEncoder(e)
	e.raw(`{"status":"error","errorType":`)
	e.str(ans.typ)
	e.raw(`,"error":`)
	e.str(ans.err.Error())
	e.raw(`}`)
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(e.buf)))
	if ans.status == http.StatusServiceUnavailable && ans.typ == typeUnavailable {
		h.Set("Retry-After", strconv.Itoa(retryAfterSeconds))
	}
	w.WriteHeader(ans.status)
	w.Write(e.buf) // the client may be gone; nothing is left to do
}
