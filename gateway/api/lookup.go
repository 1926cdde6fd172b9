package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/protocols/point"
)

// lookup holds the common parameters of labels, label values and series: limit, range, matchers.
func (a *API) lookup(c *call, list func(mint, maxt int64, limit int) (data func(*encoder), more bool, err error)) (answer, error) {
	limit, err := c.limit()
	if err != nil {
		return answer{}, err
	}
	mint, maxt, err := c.bounds()
	if err != nil {
		return answer{}, err
	}
	data, more, err := list(mint, maxt, limit)
	if err != nil {
		return answer{}, err
	}
	ans := answer{data: data}
	if more {
		ans.warnings = append(ans.warnings, truncated)
	}
	return ans, nil
}

func (a *API) labelNames(c *call) (answer, error) {
	return a.lookup(c, func(mint, maxt int64, limit int) (func(*encoder), bool, error) {
		sets, err := a.matchers(c)
		if err != nil {
			return nil, false, badData(err)
		}
		names, more, err := c.table.LabelNames(c.ctx, mint, maxt, sets, limit)
		return func(e *encoder) { e.strs(names) }, more, err
	})
}

// labelValues reads a name percent-encoded, or spelled U__… where the client cannot send it otherwise.
func (a *API) labelValues(c *call) (answer, error) {
	name, err := url.PathUnescape(c.param)
	if err != nil {
		return answer{}, badDataf("invalid label name: %q", c.param)
	}
	if strings.HasPrefix(name, "U__") {
		name = model.UnescapeName(name, model.ValueEncodingEscaping)
	}
	if !model.UTF8Validation.IsValidLabelName(name) {
		return answer{}, badDataf("invalid label name: %q", name)
	}
	return a.lookup(c, func(mint, maxt int64, limit int) (func(*encoder), bool, error) {
		sets, err := a.matchers(c)
		if err != nil {
			return nil, false, badData(err)
		}
		values, more, err := c.table.LabelValues(c.ctx, mint, maxt, name, sets, limit)
		return func(e *encoder) { e.strs(values) }, more, err
	})
}

func (a *API) series(c *call) (answer, error) {
	if len(c.Form["match[]"]) == 0 {
		return answer{}, badDataf("no match[] parameter provided")
	}
	return a.lookup(c, func(mint, maxt int64, limit int) (func(*encoder), bool, error) {
		sets, err := a.matchers(c)
		if err != nil {
			return nil, false, invalidParam("match[]", err)
		}
		found, more, err := c.table.Series(c.ctx, mint, maxt, sets, limit)
		return func(e *encoder) { e.labelSets(found) }, more, err
	})
}

// labelSets writes label sets straight from their stored form.
func (e *encoder) labelSets(list []point.Labels) {
	e.buf = append(e.buf, '[')
	for i, l := range list {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.buf = append(e.buf, '{')
		for n := 0; ; n++ {
			name, value, rest, ok := l.Next()
			if !ok {
				break
			}
			e.pair(n, name, value)
			l = rest
		}
		e.buf = append(e.buf, '}')
		if !e.spill() {
			return
		}
	}
	e.buf = append(e.buf, ']')
}

func (a *API) exemplars(c *call) (answer, error) {
	mint, maxt, err := c.bounds()
	if err != nil {
		return answer{}, err
	}
	if maxt < mint {
		return answer{}, badDataf("end timestamp must not be before start timestamp")
	}
	expr, err := a.parser.ParseExpr(c.Form.Get("query"))
	if err != nil {
		return answer{}, badData(err)
	}
	selectors := parser.ExtractSelectors(expr)
	if len(selectors) == 0 {
		return answer{data: func(e *encoder) { e.raw(`[]`) }}, nil
	}
	found, err := c.table.Exemplars(c.ctx, mint, maxt, selectors)
	if err != nil {
		return answer{}, err
	}
	return answer{data: func(e *encoder) { e.exemplars(found) }}, nil
}

func (a *API) formatQuery(c *call) (answer, error) {
	expr, err := a.parser.ParseExpr(c.Form.Get("query"))
	if err != nil {
		return answer{}, invalidParam("query", err)
	}
	return answer{data: func(e *encoder) { e.str(printed(expr)) }}, nil
}

// printedDepthMax is how deep an expression may be to be laid out in lines. Each level is indented further, so the time
// is the cube of the depth: 250 levels need some 30 ms, 3,000 need 46 s (2026-11-21).
const printedDepthMax = 250

// printed lays an expression out, or puts it on one line when it nests too deep to be readable.
func printed(expr parser.Expr) string {
	if deeper(expr, printedDepthMax) {
		return expr.String()
	}
	return expr.Pretty(0)
}

func deeper(n parser.Node, levels int) bool {
	if levels == 0 {
		return true
	}
	for child := range parser.ChildrenIter(n) {
		if deeper(child, levels-1) {
			return true
		}
	}
	return false
}

func (a *API) parseQuery(c *call) (answer, error) {
	expr, err := a.parser.ParseExpr(c.Form.Get("query"))
	if err != nil {
		return answer{}, invalidParam("query", err)
	}
	return value(tree(expr)), nil
}

// by names the sender of a request.
func by(ctx context.Context) string {
	if id := access.From(ctx); id != nil {
		return id.Name
	}
	return access.Everyone().Name
}

// mayAdminister refuses where admin APIs are off, and requests that a form on a foreign page makes a browser send.
func (a *API) mayAdminister(c *call) error {
	if !a.settings.Admin {
		return &apiError{500, typeUnavailable, fmt.Errorf("admin APIs disabled: start the process with --enable-delete (api.admin)")}
	}
	if err := http.NewCrossOriginProtection().Check(c.Request); err != nil {
		return &apiError{http.StatusForbidden, "forbidden", errors.New("pages of other origins may not delete series")}
	}
	return nil
}

// cleanTombstones answers when every server has accepted the request. Until it is done, deleted rows use space, and no reader sees them.
func (a *API) cleanTombstones(c *call) (answer, error) {
	if err := a.mayAdminister(c); err != nil {
		return answer{}, err
	}
	if err := c.table.CleanTombstones(c.ctx); err != nil {
		return answer{}, err
	}
	a.log.Info("deleted rows are being cleaned up", "table", c.table.Name(), "by", by(c.ctx))
	return answer{}, nil
}

// deleteSeries removes rows for good; only where the settings open it.
func (a *API) deleteSeries(c *call) (answer, error) {
	if err := a.mayAdminister(c); err != nil {
		return answer{}, err
	}
	if len(c.Form["match[]"]) == 0 {
		return answer{}, badDataf("no match[] parameter provided")
	}
	mint, maxt, err := c.bounds()
	if err != nil {
		return answer{}, err
	}
	if mint > maxt { // nothing would be deleted, and the answer would say that it was
		return answer{}, badDataf("start is after end")
	}
	// All are parsed before the first is deleted. Prometheus accepts {} here, and deletes everything: we ask for {__name__=~".+"}.
	sets, err := a.matchers(c)
	if err != nil {
		return answer{}, invalidParam("match[]", err)
	}
	for i, ms := range sets {
		if err := c.table.Delete(c.ctx, mint, maxt, ms); err != nil {
			return answer{}, err
		}
		a.log.Info("series deleted", "table", c.table.Name(), "match", c.Form["match[]"][i], "from_ms", mint, "to_ms", maxt, "by", by(c.ctx))
	}
	return answer{}, nil
}
