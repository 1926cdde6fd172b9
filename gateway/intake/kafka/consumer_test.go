package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/prompb"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/record"
)

func TestRowsArriveAndOffsetsAreCommitted(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	for p := range int32(4) {
		for i := range 10 {
			w.produce("metrics", p, line(fmt.Sprint(p), i))
		}
	}
	r := w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": 10, "metrics/1": 10, "metrics/2": 10, "metrics/3": 10})
	if n := m.table("default").count(); n != 40 {
		t.Errorf("%d rows, want 40", n)
	}
	eventually(t, "no lag", func() (bool, any) {
		s := r.Status()
		return s.Clusters[0].Lag == 0 && s.InFlightBytes == 0 && len(s.Clusters[0].Partitions) == 4, s
	})
	if problems, err := testutil.CollectAndLint(r.metrics); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
	r.stop()
	again := newMemory()
	r = w.start(again)
	w.produce("metrics", 0, line("after", 1))
	w.waitCommitted("g", map[string]int64{"metrics/0": 11, "metrics/1": 10, "metrics/2": 10, "metrics/3": 10})
	if got := again.table("default").dump(); strings.Count(got, "\n") != 1 {
		t.Errorf("a clean restart repeated:\n%s", got)
	}
}

func TestTheConsumerProtocolOfKIP848(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	w.produce("metrics", 2, line("a", 1), line("a", 2))
	w.start(m, func(s *Settings) { s.Clusters[0].Protocol = "consumer" })
	w.waitCommitted("g", map[string]int64{"metrics/2": 2})
	if n := m.table("default").count(); n != 2 {
		t.Errorf("%d rows", n)
	}
}

func TestSmallRecordsShareAWrite(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	for p := range int32(4) {
		var all []string
		for i := range 500 {
			all = append(all, line(fmt.Sprint(p), i))
		}
		w.produce("metrics", p, all...)
	}
	w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": 500, "metrics/1": 500, "metrics/2": 500, "metrics/3": 500})
	tab := m.table("default")
	if tab.count() != 2000 || tab.writes > 40 || tab.most < 500 {
		t.Errorf("%d rows in %d writes, the largest of %d", tab.count(), tab.writes, tab.most)
	}
}

func TestHeadersAndTopicsSayHowToRead(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t, kfake.SeedTopics(1, "rw-a", "tele")), newMemory()
	req := prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{Labels: []prompb.Label{{Name: "__name__", Value: "up"}}, Samples: []prompb.Sample{{Value: 1, Timestamp: 5}}}}}
	raw, _ := req.Marshal()
	records := []*kgo.Record{
		{Topic: "metrics", Value: []byte("m v=1 7"), Headers: []kgo.RecordHeader{{Key: "db", Value: []byte("web")}, {Key: "Precision", Value: []byte("s")}}},
		{Topic: "metrics", Value: snappy.Encode(nil, raw), Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/x-protobuf")}, {Key: "table", Value: []byte("web")}}},
		{Topic: "rw-a", Value: snappy.Encode(nil, raw)},
		{Topic: "tele", Value: []byte(`{"fields":{"a":1},"name":"m","timestamp":1000}`)},
		{Topic: "metrics", Value: nil}, // a tombstone
	}
	if err := w.producer.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r := w.start(m, func(s *Settings) {
		s.Clusters[0].Topics = []Topic{
			{Name: "metrics", Ack: "one"},
			{Regex: "rw-.*", Format: record.RemoteWrite, Table: "prom"},
			{Name: "tele", Format: record.TelegrafJSON, Precision: record.Millisecond, Table: "tele"},
		}
	})
	w.waitCommitted("g", map[string]int64{"metrics/0": 3, "rw-a/0": 1, "tele/0": 1})
	for table, want := range map[string]string{
		"web":  "{__name__=\"m_v\"} 1 @7000000000\n{__name__=\"up\"} 1 @5000000\n",
		"prom": "{__name__=\"up\"} 1 @5000000\n", "tele": "{__name__=\"m_a\"} 1 @1000000000\n",
	} {
		if got := m.table(table).dump(); got != want {
			t.Errorf("%s:\n%swant:\n%s", table, got, want)
		}
	}
	if l := m.table("web").levels; len(l) == 0 || l[0] != point.One {
		t.Errorf("levels %v", l)
	}
	r.stop()
}

func TestPoisonIsPutAsideAndThePartitionGoesOn(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	m.fixed = true
	m.table("default")
	w.produce("metrics", 0, line("a", 1), "not a line", line("a", 2)+"\nbad\n"+line("a", 3), line("a", 4))
	send := func(key, value string) {
		if err := w.producer.ProduceSync(context.Background(), &kgo.Record{Topic: "metrics", Key: []byte("k"), Value: []byte(line("a", 9)),
			Headers: []kgo.RecordHeader{{Key: key, Value: []byte(value)}}}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	send("table", "no such table")
	send("table", "absent")
	send("precision", "fortnight")
	send("format", "telegraf-json")
	w.produce("metrics", 0, "m,s=future v=1 9000000000000000000", line("a", 5))
	r := w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": 10})
	if n := m.table("default").count(); n != 5 {
		t.Errorf("kept:\n%s", m.table("default").dump())
	}
	var got strings.Builder
	for _, l := range w.letters(7) {
		fmt.Fprintf(&got, "%s/%s@%s %s rows=%s: %s\n", header(l, headerTopic), header(l, headerPartition), header(l, headerOffset), header(l, headerKind), header(l, headerRows), header(l, headerReason))
		if header(l, headerOffset) == "5" && (string(l.Key) != "k" || header(l, "table") != "absent" || string(l.Value) != line("a", 9)) {
			t.Errorf("the record itself is not kept: %v", l)
		}
	}
	for _, want := range []string{
		"metrics/0@1 invalid rows=1: 1 refused, 0 rows kept; item 1: no '='",
		"metrics/0@2 invalid rows=1: 1 refused, 2 rows kept; item 2: no fields",
		"metrics/0@4 invalid rows=0: table name", "metrics/0@5 not_found rows=0: no table",
		"metrics/0@6 invalid rows=0: precision", "metrics/0@7 invalid rows=0: not the JSON", "metrics/0@8 invalid rows=1: 1 refused, 0 rows kept; item 1: time 2255",
	} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("no letter %q in\n%s", want, got.String())
		}
	}
	if p := r.Status().Clusters[0].Partitions[0]; p.Poison != 7 || p.LastPoison == "" {
		t.Errorf("status %+v", p)
	}
}

// A consumer that comes late must get past a bad record, and its letter is as old as the record.
func TestABadRecordOfLongAgoIsPutAside(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	at := time.Now().Add(-24 * time.Hour).Truncate(time.Millisecond)
	bad := &kgo.Record{Topic: "metrics", Value: []byte("no line"), Timestamp: at}
	if err := w.producer.ProduceSync(context.Background(), bad).FirstErr(); err != nil {
		t.Fatal(err)
	}
	w.produce("metrics", 0, line("a", 1))
	w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": 2})
	if l := w.letters(1)[0]; string(l.Value) != "no line" || !l.Timestamp.Equal(at) {
		t.Errorf("letter %q of %v, want one of %v", l.Value, l.Timestamp, at)
	}
}

func TestAtomicRecordsAreKeptWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	w.produce("metrics", 0, line("a", 1)+"\nbad", line("a", 2)+"\n"+line("a", 3))
	w.start(m, func(s *Settings) { s.Clusters[0].Topics[0].Atomic = true })
	w.waitCommitted("g", map[string]int64{"metrics/0": 2})
	if n := m.table("default").count(); n != 2 {
		t.Errorf("kept:\n%s", m.table("default").dump())
	}
	w.letters(1)
}

func TestARecordThatCanNeverBeWrittenIsFoundAmongOthers(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	tab.fail = func(b *point.Batch) error {
		for _, v := range b.Values {
			if v == 5 {
				return fault.Errorf(fault.TooLarge, "five is too much")
			}
		}
		return nil
	}
	tab.refuse = func(b *point.Batch, i int) bool { return b.Values[i] == 7 }
	var all []string
	for i := range 10 {
		all = append(all, line("a", i))
	}
	w.produce("metrics", 0, all...)
	w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": 10})
	if n := tab.count(); n != 8 {
		t.Errorf("kept:\n%s", tab.dump())
	}
	got := map[string]string{}
	for _, l := range w.letters(2) {
		got[header(l, headerOffset)] = header(l, headerKind) + " " + header(l, headerReason)
	}
	if got["5"] != "too_large five is too much" || got["7"] != "invalid refused by the table" {
		t.Errorf("letters %v", got)
	}
}

func TestAFailingStorageIsWaitedForAndNothingIsCommitted(t *testing.T) {
	t.Parallel()
	for _, kind := range []fault.Kind{fault.Unavailable, fault.Throttled, fault.Stale, fault.Corrupt, fault.Canceled} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			w, m := newWorld(t), newMemory()
			tab := m.table("default")
			var tries atomic.Int64
			var healed atomic.Bool
			tab.fail = func(*point.Batch) error {
				tries.Add(1)
				if healed.Load() {
					return nil
				}
				return fault.Errorf(kind, "not now")
			}
			w.produce("metrics", 0, line("a", 1))
			r := w.start(m)
			eventually(t, "several tries", func() (bool, any) { return tries.Load() > 7, tries.Load() })
			if c := w.committed("g"); len(c) > 0 {
				t.Errorf("committed %v", c)
			}
			s := r.Status().Clusters[0]
			if s.Member == "" || len(s.Partitions) != 4 || s.LastError == "" || s.Partitions[0].Attempts == 0 {
				t.Errorf("status %+v", s)
			}
			healed.Store(true)
			w.waitCommitted("g", map[string]int64{"metrics/0": 1})
			if tab.count() != 1 {
				t.Error("lost")
			}
		})
	}
}

func TestADefectOfOursIsTriedAgainAndThenPutAside(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	var tries atomic.Int64
	m.table("default").fail = func(b *point.Batch) error {
		if b.Values[0] == 1 {
			tries.Add(1)
			return errors.New("nobody knows why")
		}
		return nil
	}
	w.produce("metrics", 0, line("a", 1))
	w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": 1})
	if n := tries.Load(); n != internalTries+1 {
		t.Errorf("%d tries", n)
	}
	if l := w.letters(1)[0]; header(l, headerKind) != "internal" {
		t.Errorf("kind %s", header(l, headerKind))
	}
}

// TestOneStuckTableStopsNobodyElse: a topic with a failing table leaves workers and memory to others.
func TestOneStuckTableStopsNobodyElse(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t, kfake.SeedTopics(1, "stuck")), newMemory()
	m.table("stuck").fail = func(*point.Batch) error { return fault.Errorf(fault.Unavailable, "away") }
	big := strings.Repeat(" ", 20_000)
	w.producer = w.client(kgo.ProducerBatchCompression(kgo.NoCompression()))
	for i := range 40 {
		w.produce("stuck", 0, line("a", i)+"\n"+big)
		w.produce("metrics", int32(i%4), line("a", i)+"\n"+big)
	}
	r := w.start(m, func(s *Settings) {
		s.InFlightBytesMax, s.Workers, s.WriteBytesMax = 200_000, 1, 50_000
		s.Clusters[0].FetchBytesMax = 50_000
		s.Clusters[0].Topics = append(s.Clusters[0].Topics, Topic{Name: "stuck", Table: "stuck"})
	})
	w.waitCommitted("g", map[string]int64{"metrics/0": 10, "metrics/1": 10, "metrics/2": 10, "metrics/3": 10})
	eventually(t, "a pause", func() (bool, any) {
		s := r.Status()
		p := s.Clusters[0].Partitions[4]
		return p.Topic == "stuck" && p.Paused && s.InFlightBytes <= 200_000+2*60_000, s
	})
	m.table("stuck").set(func(t *memoryTable) { t.fail = nil })
	eventually(t, "all of stuck", func() (bool, any) { return m.table("stuck").count() == 40, r.Status() })
}

func TestBytesInFlightAreBounded(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	tab.stall = make(chan struct{})
	w.producer = w.client(kgo.ProducerBatchCompression(kgo.NoCompression()))
	pad := strings.Repeat("#", 10_000)
	for i := range 400 { // 4 MB
		w.produce("metrics", int32(i%4), line("a", i)+"\n"+pad)
	}
	const inFlight, fetch = 300_000, 100_000
	r := w.start(m, func(s *Settings) {
		s.InFlightBytesMax, s.WriteBytesMax, s.Clusters[0].FetchBytesMax = inFlight, 50_000, fetch
	})
	eventually(t, "a full budget", func() (bool, any) { s := r.Status(); return s.InFlightBytes >= inFlight, s.InFlightBytes })
	time.Sleep(300 * time.Millisecond) // time for more to come in, if anything let it
	if s := r.Status(); s.InFlightBytes > inFlight+4*fetch || s.Clusters[0].Member == "" {
		t.Errorf("in flight %d, bound %d", s.InFlightBytes, inFlight+4*fetch)
	}
	close(tab.stall)
	w.waitCommitted("g", map[string]int64{"metrics/0": 100, "metrics/1": 100, "metrics/2": 100, "metrics/3": 100})
	if tab.count() != 400 {
		t.Errorf("%d rows", tab.count())
	}
}

// TestFetchesShrinkWhereRecordsCompressWell: brokers count compressed bytes, memory holds the others.
func TestFetchesShrinkWhereRecordsCompressWell(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	pad := strings.Repeat("#", 10_000)
	for i := range 100 {
		w.produce("metrics", int32(i%4), line("a", i)+"\n"+pad)
	}
	const inFlight, fetch = 300_000, 100_000
	r := w.start(m, func(s *Settings) {
		s.InFlightBytesMax, s.WriteBytesMax, s.Clusters[0].FetchBytesMax = inFlight, 50_000, fetch
	})
	eventually(t, "all rows", func() (bool, any) { return tab.count() == 100, tab.count() })
	tab.set(func(t *memoryTable) { t.stall = make(chan struct{}) })
	stall := tab.stall
	for i := range 400 {
		w.produce("metrics", int32(i%4), line("a", 1000+i)+"\n"+pad)
	}
	eventually(t, "a full budget", func() (bool, any) { s := r.Status(); return s.InFlightBytes >= inFlight, s.InFlightBytes })
	time.Sleep(300 * time.Millisecond) // time for more to come in, if anything let it
	if s := r.Status(); s.InFlightBytes > inFlight+8*fetch {
		t.Errorf("in flight %d of %d", s.InFlightBytes, inFlight)
	}
	close(stall)
	eventually(t, "all rows", func() (bool, any) { return tab.count() == 500, tab.count() })
}

func TestRecordsOfAPartitionAreWrittenInTheirOrder(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	var n atomic.Int64
	tab.fail = func(*point.Batch) error {
		if n.Add(1)%3 == 0 {
			return fault.Errorf(fault.Throttled, "every third write")
		}
		return nil
	}
	r := w.start(m, func(s *Settings) { s.WriteBytesMax, s.Clusters[0].RetryMax = 600, model.Duration(time.Millisecond) })
	for i := range 50 {
		w.produce("metrics", 1, fmt.Sprintf("m v=%d 1", 2*i), fmt.Sprintf("m v=%d 1", 2*i+1))
	}
	w.waitCommitted("g", map[string]int64{"metrics/1": 100})
	r.stop()
	if got := tab.dump(); got != "{__name__=\"m_v\"} 99 @1\n" {
		t.Errorf("the last record does not win: %s", got)
	}
	for i, v := range tab.order[1:] {
		if v < tab.order[i] {
			t.Fatalf("written out of order: %v", tab.order)
		}
	}
}

// TestNothingIsLostWhenMembersComeAndGo: consumers of one group start and stop while a producer goes on.
func TestNothingIsLostWhenMembersComeAndGo(t *testing.T) {
	for _, protocol := range []string{"classic", "consumer"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel() // members wait for each other
			w, m := newWorld(t), newMemory()
			var n atomic.Int64
			m.table("default").fail = func(*point.Batch) error {
				if n.Add(1)%5 == 0 {
					return fault.Errorf(fault.Unavailable, "every fifth write")
				}
				return nil
			}
			const rows = 3000
			produced := make(chan struct{})
			go func() {
				defer close(produced)
				for i := range rows / 10 {
					var all []string
					for j := range 10 {
						all = append(all, line(fmt.Sprint(i%4), i*10+j))
					}
					w.produce("metrics", int32(i%4), all...)
					time.Sleep(2 * time.Millisecond)
				}
			}()
			change := func(s *Settings) {
				s.Clusters[0].Protocol = protocol
				s.Clusters[0].RetryMax = model.Duration(5 * time.Millisecond)
			}
			steady := w.start(m, change)
			for range 4 {
				r := w.start(m, change)
				eventually(t, "both to have partitions", func() (bool, any) {
					a, b := len(steady.Status().Clusters[0].Partitions), len(r.Status().Clusters[0].Partitions)
					return a > 0 && b > 0, [2]int{a, b}
				})
				steady.stop()
				steady = r
			}
			<-produced
			eventually(t, "all rows", func() (bool, any) { return m.table("default").count() == rows, m.table("default").count() })
			w.waitCommitted("g", map[string]int64{"metrics/0": rows / 4, "metrics/1": rows / 4, "metrics/2": rows / 4, "metrics/3": rows / 4})
		})
	}
}

// TestCommitsNeverPassWhatIsNotAcked watches every commit that reaches the broker.
func TestCommitsNeverPassWhatIsNotAcked(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	var bad atomic.Pointer[string]
	var commits atomic.Int64
	w.cluster.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		for _, t := range req.(*kmsg.OffsetCommitRequest).Topics {
			for _, p := range t.Partitions {
				commits.Add(1)
				tab.mu.Lock()
				have := len(tab.rows[fmt.Sprintf("{__name__=%q, s=%q}", "m_v", fmt.Sprint(p.Partition))])
				tab.mu.Unlock()
				if int64(have) < p.Offset {
					text := fmt.Sprintf("partition %d committed at %d with %d rows acked", p.Partition, p.Offset, have)
					bad.Store(&text)
				}
			}
		}
		return nil, nil, false
	})
	var n atomic.Int64
	tab.fail = func(b *point.Batch) error {
		switch n.Add(1) % 4 {
		case 0:
			return fault.Errorf(fault.Unavailable, "every fourth write")
		case 1:
			time.Sleep(3 * time.Millisecond) // a slow write
		}
		return nil
	}
	w.start(m, func(s *Settings) {
		s.WriteBytesMax, s.Clusters[0].CommitInterval, s.Clusters[0].RetryMax = 2000, model.Duration(time.Millisecond), model.Duration(2*time.Millisecond)
	})
	for i := range 200 {
		w.produce("metrics", int32(i%4), line(fmt.Sprint(i%4), i))
	}
	w.waitCommitted("g", map[string]int64{"metrics/0": 50, "metrics/1": 50, "metrics/2": 50, "metrics/3": 50})
	if text := bad.Load(); text != nil {
		t.Error(*text)
	}
	if commits.Load() < 10 {
		t.Errorf("only %d commits: nothing was shown", commits.Load())
	}
}

func TestWorkIsFinishedBeforeAPartitionMoves(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	tab.stall = make(chan struct{})
	w.produce("metrics", 0, line("a", 1))
	r := w.start(m)
	eventually(t, "work", func() (bool, any) { r.mu.Lock(); defer r.mu.Unlock(); return len(r.running) == 1, nil })
	if !r.Writing() {
		t.Error("queries beside it are not held to half of the processors")
	}
	go func() {
		time.Sleep(50 * time.Millisecond) // the write goes on while stop waits; nothing depends on it
		close(tab.stall)
	}()
	r.stop()
	if r.Writing() {
		t.Error("it has ended, and still counts as writing")
	}
	if c := w.committed("g"); c["metrics/0"] != 1 {
		t.Errorf("committed %v: the work under way was not finished", c)
	}
}

func TestWorkThatDoesNotEndIsAbandonedUncommitted(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	tab.stall = make(chan struct{})
	w.produce("metrics", 0, line("a", 1))
	r := w.start(m, func(s *Settings) { s.Clusters[0].RevokeWait = model.Duration(50 * time.Millisecond) })
	eventually(t, "work", func() (bool, any) { r.mu.Lock(); defer r.mu.Unlock(); return len(r.running) == 1, nil })
	r.stop()
	if c := w.committed("g"); len(c) > 0 {
		t.Errorf("committed %v", c)
	}
	tab.set(func(t *memoryTable) { t.stall = nil })
	w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": 1})
}

// TestALostPartitionCommitsNothing: the group forgets us while work is under way.
func TestALostPartitionCommitsNothing(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	tab := m.table("default")
	stall := make(chan struct{})
	tab.stall = stall
	w.produce("metrics", 0, line("a", 1))
	var forgotten atomic.Bool
	w.cluster.ControlKey(int16(kmsg.Heartbeat), func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		if !forgotten.CompareAndSwap(false, true) {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.UnknownMemberID.Code
		return resp, nil, true
	})
	var commits atomic.Int64
	w.cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		commits.Add(1)
		return nil, nil, false
	})
	r := w.start(m, func(s *Settings) { s.Clusters[0].SessionTimeout = model.Duration(600 * time.Millisecond) })
	eventually(t, "loss", func() (bool, any) {
		return testutil.ToFloat64(r.metrics.rebalances.WithLabelValues("main", "lost")) > 0, nil
	})
	if n := commits.Load(); n != 0 {
		t.Errorf("%d commits", n)
	}
	close(stall)
	w.waitCommitted("g", map[string]int64{"metrics/0": 1})
	if tab.count() != 1 {
		t.Errorf("rows:\n%s", tab.dump())
	}
}

func TestBrokerErrorsAreLivedThrough(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	var n atomic.Int64
	w.cluster.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		switch k := n.Add(1); {
		case k == 2:
			return nil, errors.New("connection cut"), true
		case k <= 5:
			resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
			for _, t := range req.(*kmsg.OffsetCommitRequest).Topics {
				rt := kmsg.NewOffsetCommitResponseTopic()
				rt.Topic, rt.TopicID = t.Topic, t.TopicID
				for _, p := range t.Partitions {
					rp := kmsg.NewOffsetCommitResponseTopicPartition()
					rp.Partition, rp.ErrorCode = p.Partition, kerr.CoordinatorLoadInProgress.Code
					rt.Partitions = append(rt.Partitions, rp)
				}
				resp.Topics = append(resp.Topics, rt)
			}
			return resp, nil, true
		}
		return nil, nil, false
	})
	r := w.start(m)
	for i := range 30 {
		w.produce("metrics", int32(i%4), line("a", i))
		if i%10 == 5 {
			w.cluster.ShufflePartitionLeaders()
			w.cluster.RehashCoordinators()
		}
	}
	eventually(t, "all rows", func() (bool, any) { return m.table("default").count() == 30, r.Status() })
	w.waitCommitted("g", map[string]int64{"metrics/0": 8, "metrics/1": 8, "metrics/2": 7, "metrics/3": 7})
}

// TestNothingIsCommittedBeforeItsLetterIsSafe: the dead-letter topic refuses for a while.
func TestNothingIsCommittedBeforeItsLetterIsSafe(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	var away atomic.Bool
	away.Store(true)
	var refused atomic.Int64
	w.cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		pr := req.(*kmsg.ProduceRequest)
		dead := false
		for _, t := range pr.Topics {
			dead = dead || len(t.Partitions) == 1 && t.Topic != "metrics"
		}
		if !dead || !away.Load() {
			return nil, nil, false
		}
		if pr.Acks != -1 {
			t.Errorf("acks %d", pr.Acks)
		}
		refused.Add(1)
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range pr.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, kerr.TopicAuthorizationFailed.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	away.Store(false)
	w.produce("metrics", 0, line("a", 1), "bad", line("a", 2))
	w.produce("metrics", 1, line("b", 1))
	away.Store(true)
	w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/1": 1})
	eventually(t, "refusals", func() (bool, any) { return refused.Load() > 2, refused.Load() })
	if c := w.committed("g"); c["metrics/0"] != 0 {
		t.Errorf("committed %v while its letter is nowhere", c)
	}
	if writes := m.table("default").writes; writes > 2 {
		t.Errorf("%d writes: rows were written again for the sake of a letter", writes)
	}
	away.Store(false)
	w.waitCommitted("g", map[string]int64{"metrics/0": 3, "metrics/1": 1})
	if l := w.letters(1); header(l[0], headerOffset) != "1" {
		t.Errorf("letter %v", l[0])
	}
}

func TestALetterThatIsTooLargeForItsTopicIsCut(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t, kfake.BrokerConfigs(map[string]string{"message.max.bytes": "300000"})), newMemory()
	w.producer = w.client(kgo.ProducerBatchCompression(kgo.GzipCompression()))
	w.produce("metrics", 0, strings.Repeat("x", 400_000), line("a", 1))
	var cutting atomic.Bool
	w.cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		if !cutting.CompareAndSwap(false, true) {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range req.(*kmsg.ProduceRequest).Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode = t.Partitions[0].Partition, kerr.MessageTooLarge.Code
			rt.Partitions = append(rt.Partitions, rp)
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": 2})
	l := w.letters(1)[0]
	if header(l, headerCut) != "400000" || len(l.Value) != valueKept || header(l, headerOffset) != "0" {
		t.Errorf("letter of %d bytes, headers %v", len(l.Value), l.Headers)
	}
}

func TestABatchTooLargeToDecompressIsSkipped(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	w.producer = w.client(kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.ProducerBatchMaxBytes(8<<20))
	w.produce("metrics", 0, line("a", 1))
	w.produce("metrics", 0, "m v=2 2\n"+strings.Repeat("#", 4<<20))
	w.produce("metrics", 0, line("a", 3))
	w.start(m, func(s *Settings) { s.Clusters[0].BatchBytesMax = 1 << 20 })
	w.waitCommitted("g", map[string]int64{"metrics/0": 3})
	if n := m.table("default").count(); n != 2 {
		t.Errorf("kept:\n%s", m.table("default").dump())
	}
	if l := w.letters(1)[0]; header(l, headerKind) != "too_large" || header(l, headerOffset) != "1" {
		t.Errorf("letter %v", l.Headers)
	}
}

func TestEveryCodecIsRead(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), newMemory()
	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	for i, c := range codecs {
		w.producer = w.client(kgo.ProducerBatchCompression(c))
		w.produce("metrics", 0, line("a", i)+strings.Repeat("\n# a comment that can be compressed", 100))
	}
	w.start(m)
	w.waitCommitted("g", map[string]int64{"metrics/0": int64(len(codecs))})
	if n := m.table("default").count(); n != len(codecs) {
		t.Errorf("%d rows of %d codecs", n, len(codecs))
	}
}

func TestWhoWeAre(t *testing.T) {
	for mechanism, method := range map[string]string{"plain": "PLAIN", "scram-sha-256": "SCRAM-SHA-256", "scram-sha-512": "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "metrics"), kfake.EnableSASL(), kfake.Superuser(method, "spill", "way"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			w := &world{t: t, cluster: c}
			s := SASL{Mechanism: mechanism, Username: "spill", Password: "way"}
			mech, err := s.mechanism()
			if err != nil {
				t.Fatal(err)
			}
			w.producer = w.client(kgo.SASL(mech))
			w.produce("metrics", 0, line("a", 1))
			m := newMemory()
			w.start(m, func(set *Settings) { set.Clusters[0].SASL = s })
			w.waitCommitted("g", map[string]int64{"metrics/0": 1})
		})
	}
}

// TestTopicGoesOnWhenItsFullPartitionMoves: a topic stayed paused for ever in the partitions that were left, when that which held its whole share moved while no worker had a part of it.
func TestTopicGoesOnWhenItsFullPartitionMoves(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"revoked", "lost"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w, m := newWorld(t), newMemory()
			m.table("default").fail = func(*point.Batch) error { return fault.Errorf(fault.Unavailable, "away") }
			r := w.start(m, func(s *Settings) {
				s.InFlightBytesMax, s.Clusters[0].RetryMax = 50_000, model.Duration(time.Hour)
			})
			eventually(t, "all partitions are ours", func() (bool, any) { s := r.Status(); return len(s.Clusters[0].Partitions) == 4, s })
			w.produce("metrics", 0, line("a", 1)+"\n"+strings.Repeat("#", 60_000))
			eventually(t, "the topic is paused, and waits for the next try", func() (bool, any) {
				r.mu.Lock()
				defer r.mu.Unlock()
				l := r.queue.parts[partition{0, "metrics", 0}]
				return l.attempts >= 3 && !l.busy && r.shares.paused(partition{0, "metrics", 1}), *l
			})
			m.table("default").set(func(t *memoryTable) { t.fail = nil })
			leave := r.members[0].revoked
			if how == "lost" {
				leave = r.members[0].lost
			}
			leave(t.Context(), r.members[0].client, map[string][]int32{"metrics": {0}})
			w.produce("metrics", 1, line("a", 2))
			eventually(t, "the partitions that are left go on", func() (bool, any) { return m.table("default").count() == 1, r.Status() })
		})
	}
}
