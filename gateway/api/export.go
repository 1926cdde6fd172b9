package api

import (
	"context"
	"net/http"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/jsonrows"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// export streams the rows of a table as they are stored, as lines of JSON (package jsonrows): all series, or those that one
// match[] selects, with rows from start to end, both included, in milliseconds. Errors before the first byte are answered
// like those of other routes; later ones, and warnings that rows may be missing, are the last line, in place of the end.
func (a *API) export(w http.ResponseWriter, c *call) {
	release, err := a.parse(w, c)
	if err != nil {
		a.fail(w, err)
		return
	}
	defer release()
	mint, maxt, ms, err := a.exported(c)
	if err != nil {
		a.fail(w, err)
		return
	}
	leave, err := a.gates.enter(c.ctx, c.table.Name())
	if err != nil {
		a.fail(w, err)
		return
	}
	defer leave()
	ctx, l, err := a.query.Lookup(c.ctx)
	if err != nil {
		a.fail(w, err)
		return
	}
	defer l.End()
	e := &exporter{w: newBody(w, c.Request), turn: l.Turn()}
	w.Header().Set("Content-Type", "application/x-ndjson")
	err = e.ask(ctx, l, func(ctx context.Context) *query.RowSet { return c.table.Rows(ctx, mint, maxt, ms) })
	if err == nil {
		err = whole(c.warnings)
	}
	switch err = l.Leave(err); {
	case err != nil && !e.w.begun():
		a.fail(w, err)
	case e.gone:
		a.log.Debug("answer not delivered", "path", c.URL.Path, "error", err)
		e.w.abort()
	default:
		if err = e.end(err); err != nil {
			a.log.Debug("answer not delivered", "path", c.URL.Path, "error", err)
			e.w.abort()
		}
	}
}

func (a *API) exported(c *call) (mint, maxt int64, ms []*labels.Matcher, err error) {
	if mint, maxt, err = c.bounds(); err != nil {
		return 0, 0, nil, err
	}
	if mint > maxt {
		return 0, 0, nil, badDataf("start is after end")
	}
	sets, err := a.matchers(c)
	if err != nil {
		return 0, 0, nil, invalidParam("match[]", err)
	}
	switch len(sets) {
	case 0:
		return mint, maxt, nil, nil
	case 1:
		return mint, maxt, sets[0], nil
	}
	return 0, 0, nil, badDataf("%s match[] were given, and one is taken", strconv.Itoa(len(sets)))
}

// exporter writes the lines of one answer.
type exporter struct {
	w    *body
	turn *lane.Turn // ended while a buffer is written: a client may read as slowly as it likes
	buf  []byte
	line jsonrows.Line
	done jsonrows.End
	gone bool // the client left
}

// ask writes the rows of a set, and opens it once more where a server fell silent before anything was written.
func (e *exporter) ask(ctx context.Context, l *query.Lookup, open func(context.Context) *query.RowSet) error {
	return l.AskStream(ctx, e.w.begun, func(ctx context.Context) error {
		e.buf, e.done = e.buf[:0], jsonrows.End{}
		return e.rows(ctx, open(ctx))
	})
}

func (e *exporter) rows(ctx context.Context, set *query.RowSet) error {
	defer set.Close()
	for set.Next() {
		if err := ctx.Err(); err != nil {
			return fault.Wrap(err, fault.Canceled, "the answer took longer than query.timeout, or its reader left")
		}
		if err := e.series(ctx, set.At()); err != nil {
			return err
		}
	}
	return set.Err()
}

// series writes a series in lines of jsonrows.LineRowsMax rows.
func (e *exporter) series(ctx context.Context, s *peer.Series) error {
	e.line.Labels = e.line.Labels[:0]
	s.Labels.Range(func(name, value string) bool {
		e.line.Labels = append(e.line.Labels, jsonrows.Label{Name: name, Value: value})
		return true
	})
	e.done.Series++
	for times, values := s.Times, s.Values; len(times) > 0; {
		n := min(len(times), jsonrows.LineRowsMax)
		e.line.Times, e.line.Values, e.line.Hists = times[:n], values[:n], nil
		if err := e.write(ctx); err != nil {
			return err
		}
		times, values = times[n:], values[n:]
	}
	e.line.Times, e.line.Values = nil, nil
	for hists := s.Hists; len(hists) > 0; {
		n := min(len(hists), histogramLineMax)
		e.line.Hists = e.line.Hists[:0]
		for _, h := range hists[:n] {
			whole, float, err := point.DecodeHistogram(h.H)
			if err != nil {
				return err
			}
			e.line.Hists = append(e.line.Hists, jsonrows.Histogram{Time: h.Time, Int: whole, Float: float})
		}
		if err := e.write(ctx); err != nil {
			return err
		}
		hists = hists[n:]
	}
	return nil
}

// histogramLineMax is how many histograms a line holds: they are large.
const histogramLineMax = 64

func (e *exporter) write(ctx context.Context) (err error) {
	before := len(e.buf)
	if e.buf, err = jsonrows.Append(e.buf, &e.line); err != nil {
		e.buf = e.buf[:before]
		return err
	}
	e.done.Rows += int64(e.line.Rows())
	if len(e.buf) < bufferCap {
		return nil
	}
	e.turn.End()
	_, err = e.w.Write(e.buf)
	e.buf, e.gone = e.buf[:0], err != nil
	if err != nil {
		return fault.Wrap(err, fault.Canceled, "write to stream")
	}
	return e.turn.Next(ctx)
}

// end writes the last line.
func (e *exporter) end(err error) error {
	if err != nil {
		e.buf = jsonrows.AppendError(e.buf, err)
	} else {
		e.buf = jsonrows.AppendEnd(e.buf, e.done)
	}
	return e.w.finish(e.buf)
}
