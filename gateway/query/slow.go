package query

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// slowLog logs queries that lasted long, with their explanation.
type slowLog struct {
	log   *slog.Logger
	after time.Duration
}

// slowTextMax bounds the text of a query in the log.
const slowTextMax = 1 << 10

// begin has the explanation of a query collected and returns what logs it at its end.
func (s *slowLog) begin(ctx context.Context, q *query) (context.Context, func(took time.Duration, err error)) {
	how := explained(ctx)
	if how == nil {
		ctx, how = WithExplained(ctx)
	}
	var from, to time.Time
	var step time.Duration
	if stmt, ok := q.Statement().(*parser.EvalStmt); ok { // read now: an evaluation may outlive the answer
		from, to, step = stmt.Start, stmt.End, stmt.Interval
	}
	return ctx, func(took time.Duration, err error) {
		if took < s.after {
			return
		}
		attrs := []slog.Attr{
			slog.String("table", q.table), slog.String("kind", q.kind), slog.String("query", strings.ToValidUTF8(q.expr[:min(len(q.expr), slowTextMax)], "")),
			slog.Time("from", from.UTC()), slog.Time("to", to.UTC()), slog.Duration("step", step), slog.Duration("took", took),
		}
		if err != nil {
			attrs = append(attrs, slog.String("error", err.Error()))
		}
		s.log.LogAttrs(ctx, slog.LevelInfo, "slow query", append(attrs, how.summary()...)...)
	}
}

// summary is an explanation in a line: how many parts servers evaluated and the gateway read as rows, with their sums, and the longest part.
func (e *Explained) summary() []slog.Attr {
	shown := e.Show()
	count, rows, bytes := map[string]int{}, 0, int64(0)
	var longest ExplainedPart
	for _, p := range shown.Parts {
		count[p.What]++
		rows, bytes = rows+p.Rows, bytes+p.Bytes
		if p.Seconds > longest.Seconds {
			longest = p
		}
	}
	attrs := []slog.Attr{
		slog.String("columns", shown.Columns), slog.Int("evaluated", count["evaluated"]), slog.Int("read_as_rows", count["rows"]), slog.Int("rows", rows), slog.Int64("bytes", bytes),
	}
	if longest.What == "" {
		return attrs
	}
	return append(attrs, slog.Group("longest", "what", longest.What, "server", longest.Server, "seconds", longest.Seconds))
}
