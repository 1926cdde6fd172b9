package fanout

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// An answer without staged rows has a watermark: the rows that came before the oldest staged one are in partitions, for every staged one has
// left. Servers are asked for the watermark before any partition is read, so that what leaves meanwhile is in the answer and makes the watermark only earlier than it has to be.

// markPatience is how long an answer waits for the watermark, of which nothing but a warning's words depends: a frozen server holds each answer up for so long.
const markPatience = spareAfter

// stagedFor lists the servers that are asked for staged rows of a table for an answer about q: none, with a warning, if the request skips them.
func (s *Source) stagedFor(ctx context.Context, q *peer.Select) []topology.ServerID {
	s.warnKafka(ctx, q)
	at := s.stagedAt(q.Table)
	skips := query.SkipStaged(ctx)
	if skips == nil {
		return at
	}
	warnSkipped(ctx, q, skips.Mark(q.Table, func() query.StagedMark { return s.mark(ctx, q.Table, at) }))
	return nil
}

// warnKafka warns where rows for an answer about q may wait in Kafka (smear.KafkaWait), where no server can be asked for them. Whether any gateway reads rows of the table from
// Kafka is not known here.
func (s *Source) warnKafka(ctx context.Context, q *peer.Select) {
	m, ok := s.deps.Tables.Get(q.Table)
	if !ok || s.deps.Takers == nil || m.Config.Smear.Mode == smear.Off || m.Config.Smear.Kafka != smear.KafkaWait {
		return
	}
	rule, now := m.Config.Smear.WithDefaults(), s.deps.Clock.Nanos()
	window, _ := rule.Wanted(m.LoadAt(now, s.deps.Takers()))
	if window > 0 && q.Hi > now-window-rule.Near {
		query.Warn(ctx, fmt.Sprintf("rows of table %q that come by Kafka wait there up to %v (smear_kafka is wait), and are not in the answer before: those of the last %v may be missing",
			q.Table, time.Duration(window), time.Duration(window+rule.Near)))
	}
}

// withoutStaged warns where an answer about q, for which no server is asked for staged rows, may lack some.
func (s *Source) withoutStaged(ctx context.Context, q *peer.Select) {
	if at := s.stagedFor(ctx, q); len(at) > 0 {
		warnSkipped(ctx, q, s.mark(ctx, q.Table, at))
	}
}

func warnSkipped(ctx context.Context, q *peer.Select, m query.StagedMark) {
	if m.Text != "" && m.Lo <= q.Hi && m.Hi >= q.Lo {
		query.Warn(ctx, m.Text)
	}
}

// mark asks the servers on which rows of a table may be staged for the frames they hold. Those of a server that does not answer in time are unknown.
func (s *Source) mark(ctx context.Context, table string, at []topology.ServerID) query.StagedMark {
	if len(at) == 0 {
		return query.StagedMark{}
	}
	ctx, stop := context.WithTimeout(ctx, markPatience)
	defer stop()
	all, errs := eachStaged(ctx, s, at, func(ctx context.Context, _ topology.ServerID, st peer.Storage) (*peer.Stats, error) {
		counter, ok := st.(peer.StagedCounter)
		if !ok {
			return nil, fault.Errorf(fault.Unavailable, "it does not count staged rows")
		}
		return counter.StagedStats(ctx, table)
	})
	var silent []topology.ServerID
	for i, err := range errs {
		if err != nil {
			silent = append(silent, at[i])
		}
	}
	return markOf(table, slices.DeleteFunc(all, func(st *peer.Stats) bool { return st == nil || len(st.Staged) == 0 }), silent)
}

// markOf describes what servers have staged of a table, where some did not answer.
func markOf(table string, all []*peer.Stats, silent []topology.ServerID) query.StagedMark {
	m := query.StagedMark{Lo: math.MaxInt64, Hi: math.MinInt64}
	rows, oldest := 0, point.Nanos(math.MaxInt64)
	for _, st := range all {
		m.Lo, m.Hi = min(m.Lo, st.MinTime), max(m.Hi, st.MaxTime)
		for _, x := range st.Staged {
			rows, oldest = rows+x.Rows, min(oldest, x.Oldest)
		}
	}
	if len(silent) > 0 {
		m.Lo, m.Hi = math.MinInt64, math.MaxInt64
		names := make([]string, len(silent))
		for i, id := range silent {
			names[i] = string(id)
		}
		m.Text = fmt.Sprintf("staged rows of table %q are left out, and since when is unknown: no answer of %s", table, strings.Join(names, ", "))
		return m
	}
	if rows == 0 {
		return query.StagedMark{}
	}
	m.Text = fmt.Sprintf("staged rows of table %q are left out: %d on %d servers, copies counted; rows that came before %s, and those of times before %s, are in the answer",
		table, rows, len(all), instant(oldest), instant(m.Lo))
	return m
}

func instant(t point.Nanos) string {
	return time.Unix(0, t).UTC().Format("2006-01-02T15:04:05.000Z")
}
