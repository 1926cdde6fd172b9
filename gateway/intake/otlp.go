package intake

import (
	"context"
	"strings"

	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/protocols/point"
)

// otlp serves POST /v1/metrics and its aliases.
func (f *Front) otlp(ctx context.Context, c *call) Response {
	format, packed, err := otlp.Negotiate(c.Header("Content-Type"), c.Header("Content-Encoding"))
	if _, _, twice := c.content(); err == nil {
		err = twice
	}
	if err == nil {
		c.wishes, err = c.Request.wishes(point.All)
	}
	o := otlp.Outcome{RetryAfter: f.settings.RetryAfter}
	if err != nil {
		o.Err = err
	} else {
		enc := encIdentity
		switch packed {
		case otlp.Gzip:
			enc = encGzip
		case otlp.Zstd:
			enc = encZstd
		case otlp.Deflate:
			enc = encDeflate
		}
		f.writeOTLP(ctx, c, format, enc, &o)
		o.RetryAfter, o.TooMany = f.limited(c, o.Err, o.Refused)
	}
	a := o.Answer(format)
	r := Response{Status: a.Status, Body: a.Body}
	for _, h := range a.Header {
		r.set(h.Name, h.Value)
	}
	return r
}

// writeOTLP serves a body of OTLP and records the outcome in o.
func (f *Front) writeOTLP(ctx context.Context, c *call, format otlp.Format, enc encoding, o *otlp.Outcome) {
	body, err := f.load(ctx, c, enc)
	if err != nil {
		o.Err = err
		return
	}
	defer f.buffers.free(&body)
	t, err := f.table(ctx, c)
	if err != nil {
		o.Err = err
		return
	}
	b := c.batch(t)
	defer b.Put()
	o.Err = f.decodeOTLP(c, format, body.b, b)
	f.buffers.free(&body)
	points := b.RefusedRows // a decoder refuses data points
	if o.Err == nil {
		rows, reasons, hists := b.RefusedRows, len(b.Refused), len(b.Hists)
		_, o.Err = f.store(ctx, c, t, b, f.clock.Read(), true)
		points += pointsOf(b, reasons, b.RefusedRows-rows, hists-len(b.Hists)+len(b.Unkept.Hists))
	}
	if o.Err == nil && len(b.Refused) > 0 {
		c.partly = b.Refused[0].Reason
	}
	o.Refused, o.RefusedRows = append([]point.Refusal(nil), b.Refused...), points // b is put back before the answer is written
}

// pointsOf counts the data points behind the rows that were refused for reasons from the given number on. The rows of a
// classic histogram share one point, each native histogram is one, and target_info, which no sender sent, is no point and
// has no reason. Points with more reasons than are kept are counted as rows, of which there are no fewer.
func pointsOf(b *point.Batch, reasons, rows, hists int) int {
	if len(b.Refused) == point.RefusalsMax {
		return rows
	}
	points, last := hists, 0
	kept := b.Refused[:reasons]
	for _, r := range b.Refused[reasons:] {
		if strings.Contains(r.Text, `__name__="target_info"`) {
			continue
		}
		kept = append(kept, r)
		if r.Item > 0 && r.Item != last {
			points++
			last = r.Item
		}
	}
	b.Refused = kept
	if points == 0 && len(kept) > reasons {
		return rows
	}
	return points
}

// decodeOTLP charges for the memory that JSON needs while it is read, and decodes.
func (f *Front) decodeOTLP(c *call, format otlp.Format, body []byte, b *point.Batch) error {
	extra := otlp.Memory(body, format)
	if err := c.charge.take(extra); err != nil {
		return err
	}
	defer c.charge.give(extra)
	return f.guard(func() error {
		d, _ := f.decoders.otlp.Get().(*otlp.Decoder)
		if d == nil {
			d = otlp.NewDecoder(f.otel)
			d.Deltas = &f.deltas
		}
		d.Table = c.Table
		err := d.Decode(body, format, b)
		f.decoders.otlp.Put(d) // not after a panic
		return err
	})
}
