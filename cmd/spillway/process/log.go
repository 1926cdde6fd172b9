package process

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// newLog makes the process's logger: lines on w in the format, logfmt or json, and a count of every call site by level.
// The message is the call site's name: messages are constants, variable parts are attributes. The level may change later.
func newLog(w io.Writer, format string, level slog.Leveler, r prometheus.Registerer) *slog.Logger {
	count := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_log_messages_total", Help: "Lines logged, by level and message, also those that the level hides.",
	}, []string{"level", "event"})
	r.MustRegister(count)
	var h slog.Handler = slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})
	if format == "json" {
		h = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})
	}
	return slog.New(counting{h, count})
}

// counting counts records on their way to the handler it wraps.
type counting struct {
	slog.Handler
	count *prometheus.CounterVec
}

// Enabled lets everything from Info on through to be counted.
func (c counting) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelInfo || c.Handler.Enabled(ctx, l)
}

// Handle counts the record, and passes it on if the level shows it. Those of Debug are not counted: net/http's have addresses of clients in their messages.
func (c counting) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		c.count.WithLabelValues(strings.ToLower(r.Level.String()), r.Message).Inc()
	}
	if !c.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return c.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (c counting) WithAttrs(attrs []slog.Attr) slog.Handler {
	return counting{c.Handler.WithAttrs(attrs), c.count}
}

// WithGroup implements slog.Handler.
func (c counting) WithGroup(name string) slog.Handler {
	return counting{c.Handler.WithGroup(name), c.count}
}
