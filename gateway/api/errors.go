package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/prometheus/prometheus/promql"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Error types of Prometheus' envelope.
const (
	typeBadData     = "bad_data"
	typeExecution   = "execution"
	typeCanceled    = "canceled"
	typeTimeout     = "timeout"
	typeInternal    = "internal"
	typeUnavailable = "unavailable"
	typeNotFound    = "not_found"
)

// statusClientGone is Prometheus' status for a client that closed its connection; no client receives it.
const statusClientGone = 499

// apiError is an error with its answer.
type apiError struct {
	status int
	typ    string
	err    error
}

func (e *apiError) Error() string { return e.err.Error() }

func (e *apiError) Unwrap() error { return e.err }

func badData(err error) error { return &apiError{http.StatusBadRequest, typeBadData, err} }

func badDataf(format string, args ...any) error { return badData(fmt.Errorf(format, args...)) }

func invalidParam(name string, err error) error {
	return badDataf("invalid parameter %q: %w", name, err)
}

func formError(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &apiError{http.StatusRequestEntityTooLarge, typeBadData, err}
	}
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		return &apiError{http.StatusRequestTimeout, typeTimeout, errors.New("the body did not arrive in time")}
	}
	return badDataf("error parsing form values: %w", err)
}

// answerTo finds the answer to an error: one set by a handler, one of the engine's errors, or one by the Kind of the source's error.
// An error of the engine of another kind is the expression's: 422 execution.
func answerTo(err error) *apiError {
	var (
		decided  *apiError
		canceled promql.ErrQueryCanceled
		timeout  promql.ErrQueryTimeout
		samples  promql.ErrTooManySamples
		store    promql.ErrStorage
		refused  *access.Refusal
	)
	switch {
	case errors.As(err, &refused):
		return &apiError{refused.Status, refused.Type(), err}
	case errors.As(err, &decided):
		return decided
	case errors.As(err, &canceled):
		return &apiError{statusClientGone, typeCanceled, err}
	case errors.As(err, &timeout):
		return &apiError{http.StatusServiceUnavailable, typeTimeout, err}
	case errors.As(err, &samples):
		return &apiError{http.StatusUnprocessableEntity, typeExecution, err}
	case errors.As(err, &store):
		if errors.As(store.Err, &refused) {
			return &apiError{refused.Status, refused.Type(), err}
		}
		return byKind(store.Err, err)
	}
	return byKind(err, err)
}

// execution marks an error of the engine without a Kind as the expression's.
func execution(err error) error {
	var store promql.ErrStorage
	if fault.KindOf(err) == fault.Internal && !errors.As(err, &store) {
		if ans := answerTo(err); ans.typ == typeInternal {
			return &apiError{http.StatusUnprocessableEntity, typeExecution, err}
		}
	}
	return err
}

// byKind is this protocol's table Kind → status and type. inner carries the Kind, err the whole message.
func byKind(inner, err error) *apiError {
	switch fault.KindOf(inner) {
	case fault.Invalid:
		return &apiError{http.StatusBadRequest, typeBadData, err}
	case fault.TooLarge:
		return &apiError{http.StatusUnprocessableEntity, typeExecution, err}
	case fault.Throttled, fault.Stale, fault.Unavailable, fault.Denied: // Denied: this gateway, by a storage server
		return &apiError{http.StatusServiceUnavailable, typeUnavailable, err}
	case fault.NotFound:
		return &apiError{http.StatusNotFound, typeNotFound, err}
	case fault.Canceled:
		if errors.Is(inner, context.DeadlineExceeded) {
			return &apiError{http.StatusServiceUnavailable, typeTimeout, err}
		}
		return &apiError{statusClientGone, typeCanceled, err}
	}
	return &apiError{http.StatusInternalServerError, typeInternal, err} // Internal, Corrupt
}
