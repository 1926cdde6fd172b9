package api

import (
	"io"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// Internals for tests outside of the package.

func EncodeResult(w io.Writer, v parser.Value) error {
	e := encoders.Get().(*encoder)
	defer putEncoder(e)
	e.w = w
	e.result(v, nil, nil)
	if e.err == nil {
		_, e.err = w.Write(e.buf)
	}
	return e.err
}

func EncodeString(s string) string {
	e := &encoder{}
	e.str(s)
	return string(e.buf)
}

func ParseTime(s string) (time.Time, error) { return parseTime(s) }

func ParseDuration(s string) (time.Duration, error) { return parseDuration(s) }

func Accepted(header string) string { return accepted(header) }
