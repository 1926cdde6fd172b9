package forward_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestABackfillOfManyPartitionsGoesThroughPieceByPiece: a request of thousands of times made a partition for each and used the
// memory of all tables. Now each sending makes a bounded number, stores the rows that have a partition, and brings the rest further.
func TestABackfillOfManyPartitionsGoesThroughPieceByPiece(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{NewPartitionsPerWrite: 10, NewPartitionsPerSecond: 5}, "n1")
		count := func() int {
			m, ok := c.tables.Get("t")
			if !ok {
				t.Fatal("no table")
			}
			return m.Len()
		}
		c.must(c.write(0)) // there already
		const partitions = 100
		times := make([]point.Nanos, partitions)
		for i := range times {
			times[i] = point.Nanos(i) * point.Nanos(time.Hour)
		}
		before, start := count(), time.Now()
		sendings := 0
		for err := c.write(times...); err != nil; err = c.write(times...) {
			if sendings++; !fault.Is(err, fault.Throttled) {
				t.Fatalf("%v (%v), want Throttled", err, fault.KindOf(err))
			}
			now := count()
			if now == before || now > before+10 {
				t.Fatalf("sending %d made %d partitions", sendings, now-before)
			}
			before = now
			c.mu.Lock()
			kept := c.inserts[1]
			c.mu.Unlock()
			if kept != 1+sendings {
				t.Fatalf("after %d sendings %d rows came to the partition that was there", sendings, kept)
			}
			time.Sleep(time.Second)
		}
		if count() != partitions {
			t.Errorf("%d partitions, want %d", count(), partitions)
		}
		if took := time.Since(start); sendings > 30 || took > 30*time.Second {
			t.Errorf("%d sendings in %v for 100 partitions at 5 a second after a burst of 40", sendings, took)
		}
	})
}

// TestTheNewestPartitionsAreMadeFirst: present measurements do not wait for writes of the past.
func TestTheNewestPartitionsAreMadeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{NewPartitionsPerWrite: 1, NewPartitionsPerSecond: 1}, "n1")
		now := time.Now().UnixNano()
		hour := point.Nanos(time.Hour)
		for i := range 10 { // the table's own rate is used up
			_ = c.write(now - point.Nanos(100+i)*hour)
		}
		err := c.write(now-500*hour, now)
		if !fault.Is(err, fault.Throttled) {
			t.Errorf("%v, want Throttled for the old row", err)
		}
		m, _ := c.tables.Get("t")
		if !covers(m, now) || covers(m, now-500*hour) {
			t.Errorf("covered: now %v, the past %v", covers(m, now), covers(m, now-500*hour))
		}
	})
}

func covers(m *topology.Map, at point.Nanos) bool {
	for p := range m.All() {
		if at >= p.TimeLo && at < p.TimeHi {
			return true
		}
	}
	return false
}

// TestARefusedAtomicWriteMakesNoPartition: one over the times of a hundred partitions made as many as a request may before it was refused.
func TestARefusedAtomicWriteMakesNoPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{}, "n1")
		c.must(c.write(0))
		hours := func(from, n int) (times []point.Nanos) {
			for i := range n {
				times = append(times, point.Nanos(from+i)*point.Nanos(time.Hour))
			}
			return times
		}
		for _, w := range []struct {
			why   string
			times []point.Nanos
			made  int // in all
			err   string
		}{
			{"all need new partitions", hours(1, 100), 1, "its first row is in a new one, of the times from 1970-01-01T01:00:00Z"},
			{"one of two does", hours(0, 2), 1, "its first row is in partition 1, of the times from 1970-01-01T00:00:00Z"},
			{"all lie in a new one", []point.Nanos{hours(5, 1)[0], hours(5, 1)[0] + 1}, 2, ""},
		} {
			err := c.writeAtomic(w.times...)
			if m, _ := c.tables.Get("t"); m.Len() != w.made {
				t.Errorf("%s: there are %d partitions, want %d", w.why, m.Len(), w.made)
			}
			if w.err == "" && err != nil || w.err != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), w.err)) {
				t.Errorf("%s: %v, want %q", w.why, err, w.err)
			}
		}
	})
}
