package intake

import (
	"context"
	"net/http"
	"strconv"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/point"
)

// influx1 serves POST /write?db=&rp=&precision=&consistency=. A table has one retention policy, so that of the request names nothing: clients send the one that
// they made as the default of their database, or found in SHOW RETENTION POLICIES. docs/influx.md lists the parameters of all three flavours.
func (f *Front) influx1(ctx context.Context, c *call) Response {
	w := lineWrite{flavour: lineproto.V1, partial: true}
	err := missing(c, "database is required")
	if err == nil {
		w.level, err = consistency(c)
	}
	return f.influx(ctx, c, w, err)
}

// consistency maps the original's levels on ours.
func consistency(c *call) (point.Level, error) {
	s, err := c.param("consistency")
	if err != nil {
		return 0, err
	}
	switch s {
	case "any":
		return point.Received, nil
	case "one":
		return point.One, nil
	case "", "quorum", "all":
		return point.All, nil
	}
	return 0, fault.Errorf(fault.Invalid, "invalid consistency level %q (use any, one, quorum or all)", s)
}

// influx2 serves POST /api/v2/write?org=&bucket=&precision=. The organisation is ignored; a bucket "db/rp" is db.
func (f *Front) influx2(ctx context.Context, c *call) Response {
	w := lineWrite{flavour: lineproto.V2, partial: true}
	return f.influx(ctx, c, w, missing(c, "bucket is required"))
}

// influx3 serves POST /api/v3/write_lp?db=&precision=&accept_partial=&no_sync=.
func (f *Front) influx3(ctx context.Context, c *call) Response {
	w := lineWrite{flavour: lineproto.V3}
	err := missing(c, "db is required")
	if err == nil {
		w.partial, err = boolParam(c.Request, "accept_partial", true)
	}
	noSync := false
	if err == nil {
		noSync, err = boolParam(c.Request, "no_sync", false)
	}
	if noSync {
		w.level = point.Received
	}
	r := f.influx(ctx, c, w, err)
	if f.settings.ClusterUUID != "" {
		r.set("cluster-uuid", f.settings.ClusterUUID)
	}
	return r
}

// missing asks for a table's name: an Influx client that names none is misconfigured, and "default" would hide it.
func missing(c *call, text string) error {
	if c.named() {
		return nil
	}
	return fault.Errorf(fault.Invalid, "%s", text)
}

func precision(c *call, flavour lineproto.Flavour) (lineproto.Precision, error) {
	text, err := c.param("precision")
	if err != nil {
		return 0, err
	}
	return flavour.Precision(text)
}

// influx reads the parameters that all three flavours share, and writes. err is an error that the flavour found before.
func (f *Front) influx(ctx context.Context, c *call, w lineWrite, err error) Response {
	if err == nil {
		w.precision, err = precision(c, w.flavour)
	}
	if err == nil {
		c.wishes, err = c.Request.wishes(w.level)
	}
	packed := ""
	if err == nil {
		packed, err = c.single("Content-Encoding")
	}
	enc := encodingOf(packed)
	status := 0
	if err == nil && enc == encUnknown {
		err = fault.Errorf(fault.Invalid, "unsupported content encoding %.100q (use gzip, deflate, snappy, zstd or none)", packed)
		if w.flavour == lineproto.V2 {
			status = http.StatusUnsupportedMediaType
		}
	}
	var a lineproto.Answer
	if err != nil {
		a = w.flavour.Answer(lineproto.Outcome{Err: err})
	} else {
		a = f.writeLines(ctx, c, w, enc)
	}
	if status != 0 {
		a.Status = status
	}
	var r Response
	r.takeInflux(a)
	f.signInflux(c, &r)
	return r
}

// influxVersion is the API level we speak; some clients parse a number here.
const influxVersion = "1.8.10"

// signInflux adds the headers that every answer of the original has.
func (f *Front) signInflux(c *call, r *Response) {
	id := c.Header("X-Request-Id")
	if id == "" {
		id = c.Header("Request-Id")
	}
	if id == "" || len(id) > 128 {
		id = f.idPrefix + strconv.FormatUint(f.requests.Add(1), 36)
	}
	r.set("Request-Id", id)
	r.set("X-Request-Id", id)
	r.set("X-Influxdb-Version", influxVersion)
	r.set("X-Influxdb-Build", "spillway "+f.settings.Version)
}
