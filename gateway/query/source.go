package query

import (
	"context"
	"sync"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Source is the source of rows. A peer.Storage implements it as it stands; a cluster's is a fan-out that asks one placement
// of every partition, hedged, and merges by labels. It chooses the partitions itself: requests from here
// never name any. All methods may be called from many goroutines; errors carry their Kind, and a Stale that reaches
// this package counts as Unavailable, because refreshing the map is the source's own work.
//
// A source with an answer that may lack rows reports that through Warn and answers all the same; if it cannot answer, it
// returns an error.
type Source interface {
	Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error)
	LabelNames(ctx context.Context, q *peer.Select, limit int) (names []string, truncated bool, err error)
	LabelValues(ctx context.Context, q *peer.Select, name string, limit int) (values []string, truncated bool, err error)
	Exemplars(ctx context.Context, q *peer.Select, sets [][]peer.Matcher) ([]peer.SeriesExemplars, error)
	GetMetadata(ctx context.Context, table, metric string) ([]point.MetadataRow, error)
	DeleteSeries(ctx context.Context, q *peer.Select) error
	CleanTombstones(ctx context.Context, q *peer.Select) error
	Stats(ctx context.Context, table string, topN int) (*peer.Stats, error)
}

type partialKey struct{}

// WithPartial returns a context under which an answer may lack rows that are unavailable now, with a Warn. Without it that is
// an error.
func WithPartial(ctx context.Context) context.Context {
	return context.WithValue(ctx, partialKey{}, true)
}

// WithWhole returns a context under which an answer that may lack rows is refused as Unavailable, even if it would otherwise be returned with
// a warning: because of an old partition map.
func WithWhole(ctx context.Context) context.Context {
	return context.WithValue(ctx, partialKey{}, false)
}

// Partial reports whether an answer may lack rows.
func Partial(ctx context.Context) bool {
	allowed, _ := ctx.Value(partialKey{}).(bool)
	return allowed
}

// Whole reports whether the asker prefers no answer to one that may lack rows; said is false if the asker did not choose.
func Whole(ctx context.Context) (whole, said bool) {
	allowed, said := ctx.Value(partialKey{}).(bool)
	return said && !allowed, said
}

type leaderKey struct{}

// WithLeaderOnly returns a context under which rows are read from the leaders of partitions alone, or from any copy that surely has all rows.
func WithLeaderOnly(ctx context.Context, leaders bool) context.Context {
	return context.WithValue(ctx, leaderKey{}, leaders)
}

// LeaderOnly reports whether rows are read from leaders alone; said is false if the asker did not choose.
func LeaderOnly(ctx context.Context) (leaders, said bool) {
	leaders, said = ctx.Value(leaderKey{}).(bool)
	return leaders, said
}

type skipStagedKey struct{}

// SkipsStaged is the wish of a request for answers without staged rows, and the source's findings about these: once for each table, before
// it read any partition.
type SkipsStaged struct {
	mu     sync.Mutex
	tables map[string]StagedMark
}

// StagedMark describes the rows of a table that an answer leaves out.
type StagedMark struct {
	// Text is the warning for answers about times from Lo to Hi; empty: nothing is left out.
	Text   string
	Lo, Hi point.Nanos
}

// WithoutStaged returns a context under which staged rows are left out of answers, with a Warn that has the watermark.
func WithoutStaged(ctx context.Context) context.Context {
	return context.WithValue(ctx, skipStagedKey{}, &SkipsStaged{tables: map[string]StagedMark{}})
}

// SkipStaged reports whether a request leaves staged rows out; nil: it reads them.
func SkipStaged(ctx context.Context) *SkipsStaged {
	s, _ := ctx.Value(skipStagedKey{}).(*SkipsStaged)
	return s
}

// Mark returns the mark of a table, which the first caller looks for; the others wait for it.
func (s *SkipsStaged) Mark(table string, look func() StagedMark) StagedMark {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.tables[table]
	if !ok {
		m = look()
		s.tables[table] = m
	}
	return m
}

// Warnings collects the warnings that a request's answer may lack rows. Safe for concurrent use: a fan-out warns from many goroutines.
type Warnings struct {
	mu struct {
		sync.Mutex
		texts []string
	}
}

// warningsMax bounds the warnings of one answer; a fan-out that fails at a hundred servers need not repeat it so often.
const warningsMax = 10

type warningsKey struct{}

// WithWarnings returns a context that collects the texts of Warn, and their collection.
func WithWarnings(ctx context.Context) (context.Context, *Warnings) {
	w := new(Warnings)
	return context.WithValue(ctx, warningsKey{}, w), w
}

// Warn warns the asker of ctx that the answer may lack rows. The same text counts once.
func Warn(ctx context.Context, text string) {
	w, ok := ctx.Value(warningsKey{}).(*Warnings)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, have := range w.mu.texts {
		if have == text {
			return
		}
	}
	if len(w.mu.texts) < warningsMax {
		w.mu.texts = append(w.mu.texts, text)
	}
}

// Texts returns the warnings so far, in the order of their first occurrence.
func (w *Warnings) Texts() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.mu.texts...)
}
