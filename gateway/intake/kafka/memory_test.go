package kafka

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/spillwaydb/spillway/protocols/budget"
)

// process is the memory of a process of which Kafka may always hold floor, and others the rest.
func process(t *testing.T, bytes, floor int64) (kafka, others *budget.Account) {
	t.Helper()
	all := budget.New("process", bytes)
	kafka, err := all.Child("kafka", budget.Share{Floor: floor})
	if err != nil {
		t.Fatal(err)
	}
	if others, err = all.Child("others", budget.Share{}); err != nil {
		t.Fatal(err)
	}
	return kafka, others
}

// padded produces so many records of 10 kB, from a number on, a request for each.
func (w *world) padded(from, n int) {
	w.t.Helper()
	w.producer = w.client(kgo.ProducerBatchCompression(kgo.NoCompression()))
	pad := strings.Repeat("#", 10_000)
	for i := from; i < from+n; i++ {
		w.produce("metrics", int32(i%4), line("a", i)+"\n"+pad)
	}
}

// TestNoQueryGetsTheMemoryOfRecordsFromKafka: records that waited for a table that stood still were in no account of the process' memory, so queries got it a second time.
func TestNoQueryGetsTheMemoryOfRecordsFromKafka(t *testing.T) {
	t.Parallel()
	const most = 300_000
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	stall := make(chan struct{})
	tab.stall = stall
	w.padded(0, 100)
	memory, _ := process(t, 64<<20, 0)
	r := w.startWith(Deps{Writer: m, Memory: memory}, func(s *Settings) {
		s.InFlightBytesMax, s.WriteBytesMax, s.Clusters[0].FetchBytesMax = most, 50_000, 100_000
	})
	eventually(t, "as many are in flight as may", func() (bool, any) { s := r.Status(); return s.InFlightBytes >= most, s.InFlightBytes })
	if n := memory.Used(); n < most {
		t.Errorf("%d bytes are booked, of %d that are held", n, r.Status().InFlightBytes)
	}
	close(stall)
	eventually(t, "nothing is held and booked", func() (bool, any) { return tab.count() == 100 && memory.Used() == 0, memory.Used() })
}

// TestRecordsStayInKafkaWhereThereIsNoMemory: others hold all but a floor, and more than there is. As many records are read as the floor holds, and all are written in the end, also
// where there is no floor at all. Where there is memory again, as many are read as before.
func TestRecordsStayInKafkaWhereThereIsNoMemory(t *testing.T) {
	t.Parallel()
	for _, floor := range []int64{100_000, 0} {
		t.Run(fmt.Sprint("floor ", floor), func(t *testing.T) {
			t.Parallel()
			const all, most, fetch, n = 2 << 20, 600_000, 100_000, 200
			w, m := newWorld(t), newMemory()
			tab := m.table("default")
			stall := make(chan struct{})
			tab.stall = stall
			memory, others := process(t, all, floor)
			others.Force(2 * all)
			w.padded(0, n)
			r := w.startWith(Deps{Writer: m, Memory: memory}, func(s *Settings) {
				s.InFlightBytesMax, s.WriteBytesMax, s.Clusters[0].FetchBytesMax = most, 20_000, fetch
			})
			eventually(t, "the partitions that hold records are paused", func() (bool, any) {
				s := r.Status()
				parts := s.Clusters[0].Partitions
				return s.InFlightBytes > floor && len(parts) == 4 && !slices.ContainsFunc(parts, func(p PartitionStatus) bool { return !p.Paused }), s
			})
			if s := r.Status(); s.InFlightBytes > floor+2*fetch || s.InFlightBytesMax > max(floor, 1) {
				t.Errorf("%d bytes are in flight, %d may be and %d are left", s.InFlightBytes, s.InFlightBytesMax, floor)
			}
			tab.set(func(t *memoryTable) { t.stall = nil })
			close(stall)
			w.waitCommitted("g", map[string]int64{"metrics/0": n / 4, "metrics/1": n / 4, "metrics/2": n / 4, "metrics/3": n / 4})
			if tab.count() != n {
				t.Errorf("%d of %d rows are written", tab.count(), n)
			}
			stall = make(chan struct{})
			tab.set(func(t *memoryTable) { t.stall = stall })
			w.padded(n, n)
			eventually(t, "some are read", func() (bool, any) { s := r.Status(); return s.InFlightBytes > 0, s })
			others.Release(2 * all)
			eventually(t, "as many are read as before", func() (bool, any) { s := r.Status(); return s.InFlightBytes >= most, s })
			close(stall)
			eventually(t, "all are written", func() (bool, any) { return tab.count() == 2*n, tab.count() })
		})
	}
}

// TestRowsThatWaitLeaveWhereOthersNeedTheMemory: rows that would wait for an hour in memory are written at once, when the process has none left.
func TestRowsThatWaitLeaveWhereOthersNeedTheMemory(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	m.table("default").set(slowly(hour))
	memory, others := process(t, 64<<20, 0)
	r := w.startWith(Deps{Writer: m, Memory: memory})
	w.produce("metrics", 0, at("slow", 1), at("slow", 2))
	w.produce("metrics", 1, at("slow", 3))
	waitLater(t, r, 3)
	eventually(t, "they are booked", func() (bool, any) { s := r.Status(); return memory.Used() >= s.LaterBytes, memory.Used() })
	others.Force(64 << 20)
	w.waitCommitted("g", map[string]int64{"metrics/0": 2, "metrics/1": 1})
	if s, n := r.Status(), len(m.table("default").written()); s.early[forRoom] != 3 || n != 3 {
		t.Errorf("%d rows are written, and %d left before they were due", n, s.early[forRoom])
	}
	eventually(t, "nothing is booked", func() (bool, any) { return memory.Used() == 0, memory.Used() })
}

// TestInFlightAndWaitingRecordsShareTheMemory: each may have what the other leaves, and half of it at least.
func TestInFlightAndWaitingRecordsShareTheMemory(t *testing.T) {
	f := func(limit, used, later, inFlight, waiting int64) {
		t.Helper()
		if a, b := bounds(100, limit, used, later); a != inFlight || b != waiting {
			t.Errorf("of %d bytes with %d and %d held: %d and %d, want %d and %d", limit, used, later, a, b, inFlight, waiting)
		}
	}
	f(1000, 0, 0, 100, 100)
	f(200, 100, 100, 100, 100)
	f(150, 0, 0, 100, 100)
	f(150, 100, 0, 100, 75)
	f(150, 0, 100, 75, 100)
	f(80, 60, 0, 80, 40)
	f(80, 60, 60, 40, 40)
	f(0, 60, 60, 1, 1)
}

// TestFetchesAskForTheLastSize: the loop that follows the memory and a poll adapt the size of fetches at once. The client must not be left with an older one than the next is compared with.
func TestFetchesAskForTheLastSize(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start(newMemory())
	m := r.members[0]
	eventually(t, "there is a client", func() (bool, any) { s := r.Status(); return len(s.Clusters[0].Partitions) == 4, s })
	for i := range 10_000 {
		var both sync.WaitGroup
		for k := range 4 {
			both.Go(func() {
				r.mu.Lock()
				r.shares.max = 1 << (17 + (i+k)%9)
				r.mu.Unlock()
				m.adapt()
			})
		}
		both.Wait()
		r.turning.Lock() // a poll may end meanwhile
		asked, got := m.fetch.asked, m.client.OptValue(kgo.FetchMaxBytes)
		r.turning.Unlock()
		if got != asked {
			t.Fatalf("round %d: fetches ask for %v bytes, not %d", i, got, asked)
		}
	}
}

// TestNothingIsBookedAfterTheEnd: a consumer that ends with records in flight and rows that wait leaves nothing booked to the process.
func TestNothingIsBookedAfterTheEnd(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	m.table("default").set(slowly(hour))
	memory, _ := process(t, 64<<20, 0)
	r := w.startWith(Deps{Writer: m, Memory: memory})
	w.produce("metrics", 0, at("slow", 1), at("slow", 2))
	waitLater(t, r, 2)
	eventually(t, "they are booked", func() (bool, any) { return memory.Used() > 0, memory.Used() })
	r.stop()
	if n := memory.Used(); n != 0 {
		t.Errorf("%d bytes are booked after the end", n)
	}
}

// TestQueriesFindRoomBesideABacklog: records of a table that stood still filled all free memory, and more as soon as there was more, so queries had no more
// than their floor.
func TestQueriesFindRoomBesideABacklog(t *testing.T) {
	t.Parallel()
	const all, floor = 2 << 20, 100_000
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	stall := make(chan struct{})
	tab.stall = stall
	w.padded(0, 400)
	memory, queries := process(t, all, floor)
	r := w.startWith(Deps{Writer: m, Memory: memory}, func(s *Settings) {
		s.InFlightBytesMax, s.WriteBytesMax, s.Clusters[0].FetchBytesMax = all, 20_000, 100_000
	})
	eventually(t, "the topic is paused", func() (bool, any) {
		s := r.Status()
		parts := s.Clusters[0].Partitions
		return len(parts) == 4 && !slices.ContainsFunc(parts, func(p PartitionStatus) bool { return !p.Paused }), s
	})
	if err := queries.Reserve(all / 4); err != nil {
		t.Errorf("%d of %d bytes are booked: %v", memory.Used(), all, err)
	} else {
		queries.Release(all / 4)
	}
	close(stall)
	eventually(t, "all are written", func() (bool, any) { return tab.count() == 400, tab.count() })
}
