package kafka

import (
	"time"

	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/point"
)

// fresh counts the new series of a write by topic, before writing may remove rows from the batch. Records of one topic mostly lie side by side.
func (w *worker) fresh(t *tableWrite) []recent.Fresh {
	if w.c.deps.Senders == nil {
		return nil
	}
	var out []recent.Fresh
	for from, to := range t.topics() {
		var f recent.Fresh
		some := point.Batch{Dict: t.batch.Dict, IDs: t.batch.IDs[from.rows:to.rows], Hists: t.batch.Hists[from.hists:to.hists]}
		for l := range some.NewSeries(t.known) {
			f.Add(l.Get(point.MetricName))
		}
		out = append(out, f)
	}
	return out
}

// noteFresh counts the new series of a record whose rows wait, for its topic.
func (w *worker) noteFresh(t *tableWrite, b *batch, s *point.Batch) {
	if w.c.deps.Senders != nil {
		var f recent.Fresh
		for l := range s.NewSeries(t.known) {
			f.Add(l.Get(point.MetricName))
		}
		w.c.deps.Senders.Note(t.name, recent.Sender{Protocol: "kafka", Agent: b.ticket.partition.topic}, 0, &f, time.Now())
	}
	t.known = t.batch.Dict.Len()
}

// noteSenders lists the topics of a write that is stored.
func (w *worker) noteSenders(t *tableWrite, fresh []recent.Fresh) {
	if w.c.deps.Senders == nil {
		return
	}
	i, now := 0, time.Now()
	for from, to := range t.topics() {
		by := recent.Sender{Protocol: "kafka", Agent: to.b.ticket.partition.topic}
		w.c.deps.Senders.Note(t.name, by, to.rows-from.rows+to.hists-from.hists, &fresh[i], now)
		i++
	}
}

// topics gives the runs of records of one topic: the last part before each, and its own last part.
func (t *tableWrite) topics() func(yield func(from, to part) bool) {
	return func(yield func(from, to part) bool) {
		from := part{}
		for i, p := range t.parts {
			if i+1 < len(t.parts) && t.parts[i+1].b.ticket.partition.topic == p.b.ticket.partition.topic {
				continue
			}
			if !yield(from, p) {
				return
			}
			from = p
		}
	}
}
