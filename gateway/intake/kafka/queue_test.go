package kafka

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

var zero = time.Unix(0, 0)

func (q *queue) fill(p partition, n int, bytes int64, from uint64) {
	for i := range n {
		q.push(&batch{ticket: ticket{p, 1, from + uint64(i)}, records: []*kgo.Record{{}}, bytes: bytes, fates: []fate{pending}})
	}
}

func names(w *work) (out []string) {
	for _, b := range w.batches {
		out = append(out, fmt.Sprintf("%s/%d:%d", b.ticket.partition.topic, b.ticket.partition.id, b.ticket.span))
	}
	return out
}

func (q *queue) end(w *work, ok bool, retryAt time.Time) {
	for _, b := range w.batches {
		if ok {
			b.fates[0] = settled
		}
	}
	q.giveBack(w, retryAt, func(*batch) {}, func(*batch) {})
}

func TestTopicsTakeTurnsAndPartitionsShareWork(t *testing.T) {
	q := newQueue(1 << 20)
	for _, p := range []partition{{0, "a", 0}, {0, "a", 1}, {0, "b", 0}} {
		q.assign(p)
		q.fill(p, 3, 10, 0)
	}
	take := func(most int64, want string) *work {
		t.Helper()
		w, _ := q.take(zero, most)
		if got := fmt.Sprint(names(w)); got != want {
			t.Fatalf("took %s, want %s", got, want)
		}
		return w
	}
	w1 := take(40, "[a/0:0 a/0:1 a/0:2 a/1:0]")
	w2 := take(40, "[b/0:0 b/0:1 b/0:2]")
	if w, next := q.take(zero, 40); w != nil || !next.IsZero() {
		t.Fatalf("took %v of busy partitions", names(w))
	}
	q.end(w1, true, zero)
	q.fill(partition{0, "a", 0}, 1, 10, 3)
	w3 := take(10, "[a/0:3]")
	w4 := take(100, "[a/1:1 a/1:2]")
	q.end(w3, true, zero)
	q.end(w4, true, zero)
	q.end(w2, true, zero)
	if w, _ := q.take(zero, 40); w != nil {
		t.Fatalf("took %v of an empty queue", names(w))
	}
}

func TestFailedWorkComesBackInOrderAndWaits(t *testing.T) {
	q := newQueue(1 << 20)
	p := partition{0, "a", 0}
	q.assign(p)
	q.fill(p, 2, 10, 0)
	w, _ := q.take(zero, 10)
	q.end(w, false, zero.Add(time.Second))
	if w, next := q.take(zero, 100); w != nil || !next.Equal(zero.Add(time.Second)) {
		t.Fatalf("took %v, next at %v", w, next)
	}
	w, _ = q.take(zero.Add(time.Second), 100)
	if got := fmt.Sprint(names(w)); got != "[a/0:0 a/0:1]" || w.attempts != 1 {
		t.Fatalf("%s, %d attempts", got, w.attempts)
	}
}

// TestOrderAndOwnership checks the queue's promises: batches of a partition are given out in order, to one worker at a
// time, each until it is settled, and none after its partition has gone.
func TestOrderAndOwnership(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue(1 << 20)
		parts := []partition{{0, "a", 0}, {0, "a", 1}, {1, "a", 0}, {0, "b", 0}}
		part := rapid.SampledFrom(parts)
		open := map[partition]uint64{}   // assignment
		next := map[partition]uint64{}   // span to be pushed
		wanted := map[partition]uint64{} // span to be given out
		var held, pushed int64
		var flying []*work
		assignment := uint64(0)
		now := zero
		t.Repeat(map[string]func(*rapid.T){
			"assign": func(t *rapid.T) {
				p := part.Draw(t, "p")
				if open[p] != 0 {
					t.Skip()
				}
				assignment++
				q.assign(p)
				open[p], next[p], wanted[p] = assignment, 0, 0
			},
			"push": func(t *rapid.T) {
				p := part.Draw(t, "p")
				if open[p] == 0 {
					t.Skip()
				}
				n := rapid.Int64Range(1, 20).Draw(t, "bytes")
				q.push(&batch{ticket: ticket{p, open[p], next[p]}, records: []*kgo.Record{{}}, bytes: n, fates: []fate{pending}})
				next[p]++
				held, pushed = held+n, pushed+n
			},
			"drop": func(t *rapid.T) {
				p := part.Draw(t, "p")
				held -= q.drop(p)
				open[p] = 0
			},
			"take": func(t *rapid.T) {
				w, _ := q.take(now, rapid.Int64Range(1, 50).Draw(t, "room"))
				if w == nil {
					return
				}
				for _, b := range w.batches {
					p := b.ticket.partition
					for _, f := range flying {
						for _, l := range f.lanes {
							if l.partition == p && !l.gone {
								t.Fatalf("%v is at two workers", p)
							}
						}
					}
					if open[p] != b.ticket.assignment || b.ticket.span != wanted[p] {
						t.Fatalf("%v: span %d of assignment %d, want %d of %d", p, b.ticket.span, b.ticket.assignment, wanted[p], open[p])
					}
					wanted[p]++
				}
				flying = append(flying, w)
			},
			"end": func(t *rapid.T) {
				if len(flying) == 0 {
					t.Skip()
				}
				w := flying[0]
				flying = flying[1:]
				for _, b := range w.batches {
					if rapid.Bool().Draw(t, "settled") {
						b.fates[0] = settled
					}
				}
				back := map[partition]uint64{}
				for _, b := range w.batches { // the first that is not settled comes again, and is followed only by such
					if p := b.ticket.partition; b.fates[0] != settled && open[p] == b.ticket.assignment {
						if _, ok := back[p]; !ok {
							back[p] = b.ticket.span
						}
					}
				}
				q.giveBack(w, now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "pause"))), func(*batch) {}, func(b *batch) { held -= b.bytes })
				for p, span := range back {
					// Settled ones in between do not come again: renumber the model's wanted spans.
					l := q.parts[p]
					for i, b := range l.batches {
						b.ticket.span = span + uint64(i)
					}
					wanted[p], next[p] = span, span+uint64(len(l.batches))
				}
			},
			"wait": func(*rapid.T) { now = now.Add(2) },
			"": func(t *rapid.T) {
				have := int64(0)
				for _, l := range q.parts {
					for _, b := range l.batches {
						have += b.bytes
					}
				}
				for _, w := range flying {
					for _, b := range w.batches {
						have += b.bytes
					}
				}
				if have != held {
					t.Fatalf("%d bytes are in the queue and at workers, %d are accounted for", have, held)
				}
			},
		})
	})
}

func TestSharesPauseWhoeverHasTheirPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 1 << 20
		s := newShares(most)
		parts := []partition{{0, "a", 0}, {0, "a", 1}, {0, "b", 0}, {1, "a", 0}}
		part := rapid.SampledFrom(parts)
		bytes := map[partition]int64{}
		paused := map[string]bool{} // as reported to the client
		t.Repeat(map[string]func(*rapid.T){
			"assign": func(t *rapid.T) { s.assign(part.Draw(t, "p")) },
			"take": func(t *rapid.T) {
				p := part.Draw(t, "p")
				s.assign(p)
				n := rapid.Int64Range(1, most/4).Draw(t, "n")
				bytes[p] += n
				s.add(p, n)
			},
			"give": func(t *rapid.T) {
				p := part.Draw(t, "p")
				if bytes[p] == 0 {
					t.Skip()
				}
				n := rapid.Int64Range(1, bytes[p]).Draw(t, "n")
				bytes[p] -= n
				s.add(p, -n)
			},
			"": func(t *rapid.T) {
				for member := range 2 {
					turn := s.turn(member)
					for _, n := range turn.pauseTopics {
						paused[fmt.Sprint(member, n)] = true
					}
					for _, n := range turn.resumeTopics {
						paused[fmt.Sprint(member, n)] = false
					}
				}
				used := int64(0)
				for _, n := range bytes {
					used += n
				}
				if used != s.used {
					t.Fatalf("%d bytes used, %d counted", used, s.used)
				}
				for k, x := range s.topics {
					share := most / int64(len(s.topics))
					isPaused := paused[fmt.Sprint(k.member, k.topic)]
					if x.bytes >= share && !isPaused {
						t.Fatalf("%v holds %d of %d and goes on", k, x.bytes, share)
					}
					if x.bytes == 0 && isPaused {
						t.Fatalf("%v holds nothing and is paused for ever", k)
					}
				}
			},
		})
	})
}
