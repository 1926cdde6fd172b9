package intake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

// decoders keeps the scratch memory of decoders between requests. The zero value is ready.
type decoders struct{ line, rw1, rw2, otlp sync.Pool }

func take[T any](p *sync.Pool) *T {
	if d, _ := p.Get().(*T); d != nil {
		return d
	}
	return new(T)
}

// load reads the whole body and unpacks it. The caller frees the buffer. Errors: TooLarge, Throttled, Invalid, Unavailable
// (it did not come in time), Canceled (its sender went away).
func (f *Front) load(ctx context.Context, c *call, enc encoding) (buffer, error) {
	if c.from.declared() > f.settings.BodyBytesMax {
		return buffer{}, tooLarge(f.settings.BodyBytesMax)
	}
	if err := f.askLimits(ctx, c); err != nil {
		return buffer{}, err
	}
	f.inFlight.begin(ctx, c.Table)
	began := time.Now()
	packed, err := f.buffers.readAll(c.from.body(), f.settings.BodyBytesMax, &c.charge, nil)
	if err != nil {
		return buffer{}, bodyError(err)
	}
	f.arrived(c, began, time.Now())
	ctx, cancel := c.answering(ctx)
	defer cancel()
	m := &f.metrics.per[c.protocol]
	m.packed.Add(float64(len(packed.b)))
	if err := c.ticket.Read(c.Table, len(packed.b)); err != nil {
		f.buffers.free(&packed)
		return buffer{}, err
	}
	if err := f.beginTurn(ctx, c); err != nil {
		f.buffers.free(&packed)
		return buffer{}, err
	}
	if enc == encIdentity || len(packed.b) == 0 && enc != encSnappy {
		m.unpacked.Add(float64(len(packed.b)))
		return packed, nil
	}
	var body buffer
	err = f.guard(func() (err error) {
		body, err = f.unpacker.unpack(enc, packed, &c.charge)
		return err
	})
	f.buffers.free(&packed)
	if err == nil {
		m.unpacked.Add(float64(len(body.b)))
	}
	return body, err
}

// beginTurn waits until the body of a request may be decoded. endTurn lets the next one begin; it may be called from any
// goroutine, more than once.
func (f *Front) beginTurn(ctx context.Context, c *call) error {
	err := f.turns.enter(ctx, c.Table)
	c.turn.Store(err == nil)
	return err
}

func (f *Front) endTurn(c *call) {
	if c.turn.CompareAndSwap(true, false) {
		f.turns.leave(c.Table)
	}
}

// bodyError gives a connection's error its Kind.
func bodyError(err error) error {
	var network net.Error
	switch {
	case fault.Is(err, fault.TooLarge), fault.Is(err, fault.Throttled):
		return err
	case errors.Is(err, errChunkOverhead):
		return errChunkOverhead
	case isSmallBuffer(err):
		return fault.Errorf(fault.Invalid, "the trailer of the body's chunks is longer than a header may be")
	case strings.Contains(err.Error(), "forbidden trailer"): // of fasthttp, which has no type for it
		return fault.Errorf(fault.Invalid, "the trailer of the body's chunks has a header that is not allowed there, as Content-Length is not")
	case errors.As(err, &network) && network.Timeout():
		return fault.Wrap(err, fault.Unavailable, "the body did not arrive in time")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network), errors.Is(err, net.ErrClosed):
		return fault.Wrap(err, fault.Canceled, "the body ended early")
	}
	return fault.Wrap(err, fault.Invalid, "the body cannot be read")
}

// kept counts the accepted parts of a batch.
type kept struct{ floats, hists, exemplars int }

func (k kept) rows() int { return k.floats + k.hists }

// and adds rows of dropped series: their sender has nothing to send again.
func (k kept) and(d point.Dropped) kept {
	return kept{k.floats + d.Floats, k.hists + d.Hists, k.exemplars + d.Exemplars}
}

func keptOf(b *point.Batch) kept { return kept{len(b.IDs), len(b.Hists), len(b.Exemplars)} }

// store checks a decoded batch against the limits and writes the accepted rows. Without partial, nothing is written if
// anything was refused. The error is for the whole batch; single refusals are in b.
func (f *Front) store(ctx context.Context, c *call, t Table, b *point.Batch, now clock.Reading, partial bool) (kept, error) {
	ctx, cancel := c.answering(ctx)
	defer cancel()
	c.charge.noteRows(int64(b.Bytes()))
	received := b.Rows()
	var twice point.Dropped
	var senders []point.Sender // replicas of HA pairs whose rows are not duplicates
	if f.replicas != nil {
		twice, senders = f.replicas.Resolve(c.Table, b)
	}
	c.duplicate = received > 0 && twice.Floats+twice.Hists == received
	f.refusedSince(c, b, 0, 0)
	f.metrics.per[c.protocol].strings.Add(float64(b.StringFields))
	lo, hi := t.Bounds(now.Earliest)
	f.clock.Note(b.Times, now)
	b.Smear = c.wishes.smear
	c.ticket.Samples(b.Rows())
	dropped := b.RemoveDropped()
	defer f.noteSender(c, b)()
	dropped.Floats, dropped.Hists, dropped.Exemplars = dropped.Floats+twice.Floats, dropped.Hists+twice.Hists, dropped.Exemplars+twice.Exemplars
	n, err := c.ticket.Table().Admit(f.settings.Admit, b, now, admit.Bounds{Lo: lo, Hi: hi})
	if err != nil {
		return kept{}, err
	}
	f.metrics.rowsRefused(c.protocol, "old", n.Old)
	f.metrics.rowsRefused(c.protocol, "ahead", n.Ahead)
	f.metrics.per[c.protocol].exemplars.Add(float64(b.RefusedExemplars))
	if b.Atomic = c.wishes.atomic; b.Atomic && b.RefusedRows > 0 {
		return kept{}, notWhole(b)
	}
	if !partial && b.RefusedRows > 0 {
		return kept{}, nil
	}
	k := keptOf(b)
	if k == (kept{}) && len(b.Metadata) == 0 {
		return k.and(dropped), nil
	}
	if left := b.SendersLeft(senders); len(left) > 0 {
		f.replicas.Accepted(c.Table, left)
	}
	reasons, rows := len(b.Refused), b.RefusedRows
	if err := t.Write(peer.WithWaiting(ctx, func() { f.endTurn(c) }), b, c.wishes.level); err != nil {
		if fault.Is(err, fault.Throttled) {
			f.brakes.refused(c.Table, err)
		}
		return kept{}, err
	}
	c.taken = true
	hists := len(b.Unkept.Hists)
	k.hists -= hists
	k.floats -= min(k.floats, f.refusedSince(c, b, reasons, rows)-hists)
	c.rows = k.rows()
	f.metrics.per[c.protocol].accepted.Add(float64(k.rows()))
	c.ticket.Accepted(k.rows())
	return k.and(dropped), nil
}

// notWholeMax bounds the refused rows that the error of an atomic request names.
const notWholeMax = 5

// notWhole is the error of an atomic request with rows that cannot be kept. It is Invalid, unless a limit refused them.
func notWhole(b *point.Batch) error {
	kind := fault.Invalid
	if r, ok := b.FirstRefusedRow(); ok {
		kind = r.Kind
	}
	var text strings.Builder
	for i, r := range b.Refused {
		if i == notWholeMax {
			break
		}
		text.WriteString("; ")
		if r.Item > 0 {
			fmt.Fprintf(&text, "number %d, ", r.Item)
		}
		if r.Text != "" {
			fmt.Fprintf(&text, "%s: ", r.Text)
		}
		text.WriteString(r.Reason)
	}
	return fault.Errorf(kind, "an atomic request is kept whole or not at all: %d of its rows are refused, and nothing of it is kept%s", b.RefusedRows, text.String())
}

// refusedSince counts the rows refused since b had the given reasons and rows, by the Kind of the first new reason.
func (f *Front) refusedSince(c *call, b *point.Batch, reasons, rows int) int {
	kind := fault.Invalid
	if len(b.Refused) > reasons {
		kind = b.Refused[reasons].Kind
	}
	f.metrics.rowsRefused(c.protocol, kind.String(), b.RefusedRows-rows)
	return b.RefusedRows - rows
}

// table finds the table of a request.
func (f *Front) table(ctx context.Context, c *call) (Table, error) {
	if c.TableErr != nil {
		return nil, c.TableErr
	}
	ctx, cancel := c.answering(ctx)
	defer cancel()
	t, err := f.writer.Table(ctx, c.Table)
	if err == nil {
		c.ticket.Found(c.Table)
	}
	return t, err
}

// lineWrite holds the common parameters of the three Influx doors.
type lineWrite struct {
	flavour   lineproto.Flavour
	precision lineproto.Precision
	level     point.Level // where X-Spillway-Ack does not say it
	partial   bool
}

// writeLines serves a body of line protocol.
func (f *Front) writeLines(ctx context.Context, c *call, w lineWrite, enc encoding) lineproto.Answer {
	o := lineproto.Outcome{DB: c.Table, Partial: w.partial, RetryAfter: f.settings.RetryAfter}
	body, err := f.load(ctx, c, enc)
	if err != nil {
		o.Err, o.RetryAfter = err, limits.RetryAfter(err, o.RetryAfter)
		return w.flavour.Answer(o)
	}
	defer f.buffers.free(&body)
	t, err := f.table(ctx, c)
	if err != nil {
		o.Err = err
		return w.flavour.Answer(o)
	}
	b := c.batch(t)
	defer b.Put()
	now := f.clock.Read()
	now.Now = w.precision.Floor(now.Now) // as rows without a time get it: Note knows them by that
	err = f.guard(func() error {
		d := take[lineproto.Decoder](&f.decoders.line)
		d.Settings = lineproto.Settings{
			Precision: w.precision, Partial: w.partial, DB: c.Table,
			Separator: f.settings.Influx.Separator, DBLabel: f.settings.Influx.DBLabel, Strings: f.settings.Influx.Strings,
			RowsMax: f.settings.Admit.RowsMax, Memory: &c.charge,
		}
		err := d.Decode(body.b, now.Now, b)
		f.decoders.line.Put(d) // not after a panic
		return err
	})
	f.buffers.free(&body) // its content was copied: its memory serves others while we wait for the ack
	var k kept
	if err == nil {
		unread := len(b.Refused)
		k, err = f.store(ctx, c, t, b, now, w.partial)
		explain(b.Refused[unread:])
	}
	o.Err, o.Stored, o.Refused, o.RefusedRows = err, k.rows(), b.Refused, b.RefusedRows
	return w.flavour.Answer(o)
}

// explain makes refusals of well-formed rows look different from unreadable lines: without the line's text, and with the
// series in the reason.
func explain(refused []point.Refusal) {
	for i := range refused {
		if r := &refused[i]; r.Text != "" {
			r.Reason, r.Text = r.Text+": "+r.Reason, ""
		}
	}
}

// writeRemote serves a remote-write body.
func (f *Front) writeRemote(ctx context.Context, c *call, v remotewrite.Version, enc encoding) (o remotewrite.Outcome) {
	defer func() {
		limited := false
		o.RetryAfter, limited = f.limited(c, o.Err, o.Refused)
		o.TooMany = limited && f.limits.TooMany()
	}()
	body, err := f.load(ctx, c, enc)
	if err != nil {
		o.Err = err
		return o
	}
	defer f.buffers.free(&body)
	t, err := f.table(ctx, c)
	if err != nil {
		o.Err = err
		return o
	}
	b := c.batch(t)
	defer b.Put()
	var taken remotewrite.Written
	err = f.guard(func() (err error) {
		if v == remotewrite.V2 {
			d := take[remotewrite.DecoderV2](&f.decoders.rw2)
			err, taken = d.Decode(body.b, b), d.Taken()
			f.decoders.rw2.Put(d)
			return err
		}
		d := take[remotewrite.DecoderV1](&f.decoders.rw1)
		err, taken = d.Decode(body.b, b), d.Taken()
		f.decoders.rw1.Put(d)
		return err
	})
	f.buffers.free(&body)
	if err == nil {
		read := keptOf(b)
		var k kept
		k, err = f.store(ctx, c, t, b, f.clock.Read(), true)
		if err == nil {
			// Taken leaves out rows that the sender did not write, so we subtract instead of counting again.
			o.Written = remotewrite.Written{
				Samples:    max(0, taken.Samples-(read.floats-k.floats)),
				Histograms: taken.Histograms - (read.hists - k.hists),
				Exemplars:  taken.Exemplars - (read.exemplars - k.exemplars),
			}
		}
	}
	o.Err, o.Duplicate = err, c.duplicate
	o.Refused, o.RefusedRows = append([]point.Refusal(nil), b.Refused...), b.RefusedRows // b is put back before the answer is written
	return o
}
