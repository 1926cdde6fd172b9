package kafkatest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Cluster is a Kafka cluster that lives as long as its test.
type Cluster struct {
	Addrs []string // of brokers

	t      testing.TB
	client *kgo.Client
	failed struct {
		sync.Mutex
		err error
	}
}

// Fake starts a cluster within the process.
func Fake(t testing.TB) *Cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return connect(t, c.ListenAddrs()...)
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func connect(t testing.TB, addrs ...string) *Cluster {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	var last error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if last = client.Ping(context.Background()); last == nil {
			return &Cluster{Addrs: addrs, t: t, client: client}
		}
	}
	t.Fatalf("Kafka does not answer: %v", last)
	return nil
}

// Create makes topics.
func (c *Cluster) Create(partitions int32, topics ...string) {
	c.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	for _, name := range topics {
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, partitions, 1
		req.Topics = append(req.Topics, rt)
	}
	resp, err := req.RequestWith(context.Background(), c.client)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, rt := range resp.Topics {
		if err := kerr.ErrorForCode(rt.ErrorCode); err != nil {
			c.t.Fatalf("%s: %v", rt.Topic, err)
		}
	}
}

// Produce sends a record and does not wait; partitions alternate.
func (c *Cluster) Produce(topic, value string) { c.ProduceTo(topic, value, func(int32, int64) {}) }

// ProduceTo is Produce, and reports the record's place when the broker has acked it; it does not call acked concurrently.
func (c *Cluster) ProduceTo(topic, value string, acked func(partition int32, offset int64)) {
	c.client.Produce(context.Background(), &kgo.Record{Topic: topic, Value: []byte(value)}, func(r *kgo.Record, err error) {
		if err != nil {
			c.failed.Lock()
			defer c.failed.Unlock()
			c.failed.err = err
			return
		}
		acked(r.Partition, r.Offset)
	})
}

// Flush waits until all that was sent is acked.
func (c *Cluster) Flush() error {
	if err := c.client.Flush(context.Background()); err != nil {
		return err
	}
	c.failed.Lock()
	defer c.failed.Unlock()
	return c.failed.err
}

// Lag is the part of a topic that a group has not committed, counted from offset 0: a partition without a commit lags by
// all it has.
func (c *Cluster) Lag(group, topic string, partitions int32) (lag int64) {
	c.t.Helper()
	ends := kmsg.NewPtrListOffsetsRequest()
	ends.ReplicaID = -1
	et := kmsg.NewListOffsetsRequestTopic()
	et.Topic = topic
	for id := range partitions {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = id, -1
		et.Partitions = append(et.Partitions, p)
	}
	ends.Topics = append(ends.Topics, et)
	er, err := ends.RequestWith(context.Background(), c.client)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, et := range er.Topics {
		for _, p := range et.Partitions {
			lag += p.Offset
		}
	}
	for _, offset := range c.Committed(group, topic, partitions) {
		lag -= offset
	}
	return lag
}

// Committed are the offsets that a group has committed, by partition; 0 where it has none.
func (c *Cluster) Committed(group, topic string, partitions int32) []int64 {
	c.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group, req.Group = group, group
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(context.Background(), c.client)
	if err != nil {
		c.t.Fatal(err)
	}
	out := make([]int64, partitions)
	for _, g := range resp.Groups {
		for _, rt := range g.Topics {
			for _, p := range rt.Partitions {
				if (rt.Topic == topic || rt.Topic == "") && p.Partition < partitions {
					out[p.Partition] = max(0, p.Offset)
				}
			}
		}
	}
	return out
}

// Read gives each value of a topic to f, from its beginning, until f returns false; it fails after a minute.
func (c *Cluster) Read(topic string, f func(value string) bool) {
	c.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Addrs...), kgo.ConsumeTopics(topic))
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for more := true; more; {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			c.t.Fatalf("topic %s ends too early", topic)
		}
		fetches.EachRecord(func(r *kgo.Record) { more = more && f(string(r.Value)) })
	}
}
