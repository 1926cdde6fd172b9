package intake

import (
	"context"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

// remoteWrite serves POST /api/v1/write and its aliases.
func (f *Front) remoteWrite(ctx context.Context, c *call) Response {
	v, packed, err := remotewrite.Negotiate(c.Header("Content-Type"), c.Header("Content-Encoding"))
	if v == remotewrite.V2 {
		c.protocol = protoRW2
	}
	if _, _, twice := c.content(); err == nil {
		err = twice
	}
	if err == nil {
		c.wishes, err = c.Request.wishes(point.All)
	}
	var o remotewrite.Outcome
	if err != nil {
		o.Err = err
	} else {
		enc := encSnappy
		if packed == remotewrite.Zstd {
			enc = encZstd
		}
		o = f.writeRemote(ctx, c, v, enc)
	}
	a := o.Answer(v)
	r := Response{Status: a.Status, Body: []byte(a.Body)}
	for _, h := range a.Header {
		r.set(h.Name, h.Value)
	}
	return r
}
