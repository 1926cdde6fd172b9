package intake

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Headers and parameters of the URL that are options of a request of any protocol.
const (
	// AckHeader says when a write is answered.
	AckHeader = "X-Spillway-Ack"
	// AtomicHeader and AtomicParam: all rows of the request are kept, or none (C94).
	AtomicHeader = "X-Spillway-Atomic"
	AtomicParam  = "atomic"
	// SmearHeader and SmearParam, off: rows do not wait on their way to narrow partitions (C41).
	SmearHeader = "X-Spillway-Smear"
	SmearParam  = "smear"
)

// option returns the value of an option that a request sets by a header or a parameter ("" for a way that it does not have); said is false where neither sets
// it. All values must mean the same: a proxy may read another one than we do, and a sender that says yes and no must not get an ack for something it did not
// mean. The error is Invalid and names the header.
func option[T comparable](rq *Request, header, param string, parse func(string) (T, error)) (v T, said bool, err error) {
	var first, at string
	take := func(where, text string) error {
		if text == "" {
			return nil
		}
		next, err := parse(text)
		if err != nil {
			return fault.Annotate(err, "%s", where)
		}
		if said && next != v {
			return fault.Errorf(fault.Invalid, "the request contradicts itself: %s says %.100q, %s says %.100q", at, first, where, text)
		}
		v, said = next, true
		first, at = text, where
		return nil
	}
	if header != "" {
		for _, text := range rq.from.headers(header) {
			if err := take(header, text); err != nil {
				return v, said, err
			}
		}
	}
	if param != "" {
		for _, text := range rq.Query[param] {
			if err := take("the parameter "+param, text); err != nil {
				return v, said, err
			}
		}
	}
	return v, said, nil
}

// asIs is for options whose values are compared as they were sent.
func asIs(text string) (string, error) { return text, nil }

// param gives the one value of a parameter of the URL, "" when it is absent. The error is Invalid: it has several.
func (rq *Request) param(name string) (string, error) {
	v, _, err := option(rq, "", name, asIs)
	return v, err
}

// single gives the one value of a header of HTTP itself, "" when it is absent. The error is Invalid: it has several.
func (rq *Request) single(header string) (string, error) {
	v, _, err := option(rq, header, "", func(text string) (string, error) { return strings.TrimSpace(text), nil })
	return v, err
}

// content gives the type and the encoding of the body. The error is Invalid.
func (rq *Request) content() (media, encoding string, err error) {
	if media, err = rq.single(contentType); err == nil {
		encoding, err = rq.single("Content-Encoding")
	}
	return media, encoding, err
}

// wishes are the options of a write.
type wishes struct {
	level  point.Level
	atomic bool // all rows or none
	smear  point.Smear
}

// wishes reads the options of a write; level is what its protocol asks for where X-Spillway-Ack does not. The error is Invalid.
func (rq *Request) wishes(level point.Level) (w wishes, err error) {
	w.level = level
	if v, said, err := option(rq, AckHeader, "", parseLevel); err != nil {
		return w, err
	} else if said {
		w.level = v
	}
	if w.atomic, _, err = option(rq, AtomicHeader, AtomicParam, parseBool); err != nil {
		return w, err
	}
	w.smear, _, err = option(rq, SmearHeader, SmearParam, point.ParseSmear)
	return w, err
}

func parseLevel(text string) (point.Level, error) {
	switch text {
	case "all":
		return point.All, nil
	case "one":
		return point.One, nil
	case "received":
		return point.Received, nil
	}
	return 0, fault.Errorf(fault.Invalid, "invalid %.100q (use received, one or all)", text)
}

func parseBool(text string) (bool, error) {
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, fault.Errorf(fault.Invalid, "invalid %.100q (use true or false)", text)
	}
	return v, nil
}

// boolParam is a parameter that is true or false; def where it is absent. The error is Invalid.
func boolParam(rq *Request, name string, def bool) (bool, error) {
	v, said, err := option(rq, "", name, parseBool)
	if err != nil || !said {
		return def, err
	}
	return v, nil
}

// rawValues gives all values of a header in its lines as they came.
func rawValues(lines []byte, header string) (out []string) {
	for line := range bytes.Lines(lines) {
		name, value, _ := bytes.Cut(line, []byte{':'})
		if len(name) == len(header) && bytes.EqualFold(name, []byte(header)) {
			out = append(out, string(bytes.TrimSpace(value)))
		}
	}
	return out
}
