package kafka

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/record"
)

// bench is a worker without a cluster: tests hand it work, as the queue would.
type bench struct {
	*worker
	t *testing.T
	*work
}

func newBench(t *testing.T, m *memory, change func(*Settings)) *bench {
	t.Helper()
	s := Settings{Clusters: []Cluster{{Brokers: []string{"none:1"}, Topics: []Topic{{Name: "metrics"}}}}}
	change(&s)
	c, err := New(Deps{Writer: m}, s)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorker(c)
	t.Cleanup(w.decoder.Close)
	return &bench{worker: w, t: t, work: &work{topic: topicKey{0, "metrics"}}}
}

// from adds a batch of a partition; headers alternate key and value, for all its records.
func (b *bench) from(id int32, headers []string, values ...string) {
	all := &batch{ticket: ticket{partition: partition{0, "metrics", id}}}
	for _, v := range values {
		r := &kgo.Record{Topic: "metrics", Partition: id, Value: []byte(v), Timestamp: time.Now()}
		for h := range slices.Chunk(headers, 2) {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
		}
		all.records = append(all.records, r)
	}
	b.batches = append(b.batches, all)
}

func (b *bench) run() error { return b.process(context.Background(), b.c.members[0], b.work) }

func TestTheWishNotToBeSmearedReachesTheTable(t *testing.T) {
	t.Parallel()
	f := func(topic record.Smear, want map[float64]point.Smear, batches ...func(*bench)) {
		t.Helper()
		m := newMemory()
		b := newBench(t, m, func(s *Settings) { s.Clusters[0].Topics[0].Smear = topic })
		for _, add := range batches {
			add(b)
		}
		if err := b.run(); err != nil {
			t.Fatal(err)
		}
		if got := m.table("default").smears; !maps.Equal(got, want) {
			t.Errorf("the table saw %v, want %v", got, want)
		}
	}
	wish := func(id int32, header, value string) func(*bench) {
		return func(b *bench) { b.from(id, []string{"smear", header}, value) }
	}
	plain := func(id int32, value string) func(*bench) { return func(b *bench) { b.from(id, nil, value) } }

	f(record.SmearByTable, map[float64]point.Smear{1: point.SmearByTable}, plain(0, "m v=1 1"))
	f(record.SmearOn, map[float64]point.Smear{1: point.SmearOn}, plain(0, "m v=1 1"))
	f(record.SmearOff, map[float64]point.Smear{1: point.SmearOff}, plain(0, "m v=1 1"))
	f(record.SmearOff, map[float64]point.Smear{1: point.SmearOff}, wish(0, "on", "m v=1 1"))
	f(record.SmearOn, map[float64]point.Smear{1: point.SmearOff}, wish(0, "off", "m v=1 1"))
	// Written together, the strictest wish holds for all, whichever came first.
	f(record.SmearOn, map[float64]point.Smear{1: point.SmearOff, 2: point.SmearOff}, plain(0, "m v=1 1"), wish(1, "off", "m v=2 2"))
	f(record.SmearOn, map[float64]point.Smear{1: point.SmearOff, 2: point.SmearOff}, wish(1, "off", "m v=1 1"), plain(0, "m v=2 2"))
	f(record.SmearByTable, map[float64]point.Smear{1: point.SmearByTable, 2: point.SmearByTable}, wish(1, "on", "m v=1 1"), plain(0, "m v=2 2"))
}

// Of two values at one timestamp the later record's wins, also where the earlier record had to be tried again.
func TestNoRecordIsWrittenBeforeOneThatHasToBeTriedAgain(t *testing.T) {
	t.Parallel()
	m := newMemory()
	tab := m.table("default")
	away := true
	tab.fail = func(b *point.Batch) error {
		if away && slices.Contains(b.Values, 1) {
			return fault.Errorf(fault.Unavailable, "the storage is away for a moment")
		}
		return nil
	}
	// Each record is a write: the first fails, the one behind it would succeed.
	b := newBench(t, m, func(s *Settings) { s.WriteRowsMax = 1 })
	b.from(0, nil, "m v=1 7", "m v=2 7")
	b.from(1, nil, "n v=3 7")
	if err := b.run(); fault.KindOf(err) != fault.Unavailable {
		t.Fatal(err)
	}
	if !slices.Equal(tab.order, []float64{3}) {
		t.Errorf("written %v; the other partition's record alone may be", tab.order)
	}
	away = false
	if err := b.run(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(tab.order, []float64{3, 1, 2}) {
		t.Errorf("written in the order %v", tab.order)
	}
	for _, batch := range b.batches {
		if !batch.done() {
			t.Error("something is left to do")
		}
	}
}

// TestTopicsAreListedAsSenders: of each topic its own rows and new series, where one write has records of two.
func TestTopicsAreListedAsSenders(t *testing.T) {
	t.Parallel()
	b := newBench(t, newMemory(), func(s *Settings) { s.Clusters[0].Topics = append(s.Clusters[0].Topics, Topic{Name: "others"}) })
	b.c.deps.Senders = recent.NewSenders()
	b.from(0, nil, "cpu,host=a v=1 1", "cpu,host=b v=1 1\ncpu,host=a v=2 2")
	b.from(1, nil, "mem v=1 1")
	all := &batch{ticket: ticket{partition: partition{0, "others", 0}}, records: []*kgo.Record{{Topic: "others", Value: []byte("cpu,host=a v=3 3\ndisk v=1 1"), Timestamp: time.Now()}}}
	b.batches = append(b.batches, all)
	if err := b.run(); err != nil {
		t.Fatal(err)
	}
	l := b.c.deps.Senders.Lists(time.Now(), func(string) bool { return true }, true)
	if len(l.Tables) != 1 || len(l.Tables[0].Senders) != 2 {
		t.Fatalf("%+v", l)
	}
	got := map[string][2]int64{}
	for _, u := range l.Tables[0].Senders {
		got[u.Protocol+" "+u.Agent] = [2]int64{u.Rows, u.NewSeries}
	}
	if want := map[string][2]int64{"kafka metrics": {4, 3}, "kafka others": {2, 2}}; !maps.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}
