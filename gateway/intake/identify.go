package intake

import (
	"errors"
	"net/http"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

// identify finds the sender of a request before its body is read, and checks its permissions against the door's need. A
// request with a wrong table name goes on: the door reports that. The error is an *access.Refusal.
func (f *Front) identify(d *door, c *call) error {
	if d.need == access.NeedNothing || f.access.Open() {
		c.identity = f.everyone
		return nil
	}
	shown := access.Credentials{Authorization: c.from.headers("Authorization"), Remote: c.from.remote}
	if d.words == lineproto.V1 {
		shown.Users, shown.Passwords = c.Query["u"], c.Query["p"]
	}
	identity, err := f.access.Identify(shown)
	if err != nil {
		return err
	}
	c.identity = identity
	if c.TableErr != nil && d.need == access.NeedWrite {
		return nil
	}
	return f.access.Forbidden(d.need.Check(identity, c.Table))
}

// refuse answers, in the door's format, a request that access refused.
func (f *Front) refuse(c *call, err error) Response {
	var why *access.Refusal
	if !errors.As(err, &why) {
		fault.Bug("a refusal without a reason: %v", err)
	}
	if why.Status == http.StatusTooManyRequests {
		return f.overloaded(c, err)
	}
	r := Response{Status: why.Status}
	switch {
	case c.words != 0:
		a := c.words.Forbidden(why.Text)
		if why.Status == http.StatusUnauthorized {
			a = c.words.Unauthorized()
		}
		r.takeInflux(a)
		f.signInflux(c, &r)
		return r
	case c.protocol == protoOTLP:
		format, _, _ := otlp.Negotiate(c.Header("Content-Type"), c.Header("Content-Encoding"))
		a := otlp.Refused(format, why.Status, why.Text)
		r.Body = a.Body
		for _, h := range a.Header {
			r.set(h.Name, h.Value)
		}
	default:
		v, _, _ := remotewrite.Negotiate(c.Header("Content-Type"), c.Header("Content-Encoding"))
		a := remotewrite.Refused(v, why.Status, why.Text)
		r.Body = []byte(a.Body)
		for _, h := range a.Header {
			r.set(h.Name, h.Value)
		}
	}
	if why.Status == http.StatusUnauthorized {
		r.set("WWW-Authenticate", access.Challenge)
	}
	return r
}

// overloaded is a refusal for now only, in the door's words for Throttled.
func (f *Front) overloaded(c *call, err error) Response {
	var r Response
	switch {
	case c.words != 0:
		r.takeInflux(c.words.Answer(lineproto.Outcome{Err: err, RetryAfter: access.RetryAfter}))
		f.signInflux(c, &r)
	case c.protocol == protoOTLP:
		format, _, _ := otlp.Negotiate(c.Header("Content-Type"), c.Header("Content-Encoding"))
		o := otlp.Outcome{Err: err, RetryAfter: access.RetryAfter}
		a := o.Answer(format)
		r = Response{Status: a.Status, Body: a.Body}
		for _, h := range a.Header {
			r.set(h.Name, h.Value)
		}
	default:
		v, _, _ := remotewrite.Negotiate(c.Header("Content-Type"), c.Header("Content-Encoding"))
		o := remotewrite.Outcome{Err: err, RetryAfter: access.RetryAfter}
		a := o.Answer(v)
		r = Response{Status: a.Status, Body: []byte(a.Body)}
		for _, h := range a.Header {
			r.set(h.Name, h.Value)
		}
	}
	return r
}

// takeInflux makes the response an answer of Influx.
func (r *Response) takeInflux(a lineproto.Answer) {
	r.Status, r.Body = a.Status, a.Body
	for _, h := range a.Header {
		r.set(h.Name, h.Value)
	}
}
