// Package kafkatest runs Kafka for tests: a fake cluster in the process, or one node of Apache Kafka. Tests of other
// packages speak to it in strings, so that franz-go stays where it is.
package kafkatest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

// Real starts one node of Apache Kafka in KRaft mode, whose jars are in the folder libs. It needs java.
func Real(t testing.TB, libs string) *Cluster {
	t.Helper()
	dir := t.TempDir()
	addr, controller := freeAddr(t), freeAddr(t)
	conf := filepath.Join(dir, "server.properties")
	text := fmt.Sprintf(`process.roles=broker,controller
node.id=1
controller.quorum.voters=1@%[2]s
listeners=PLAINTEXT://%[1]s,CONTROLLER://%[2]s
advertised.listeners=PLAINTEXT://%[1]s
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=%[3]s
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=1000
`, addr, controller, filepath.Join(dir, "log"))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	java := func(class string, args ...string) *exec.Cmd {
		return exec.Command("java", append([]string{"-Xmx512m", "-XX:+UseSerialGC", "-cp", filepath.Join(libs, "*"), class}, args...)...)
	}
	if out, err := java("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", conf).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := java("kafka.Kafka", conf)
	var log bytes.Buffer
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Logf("Kafka said:\n%s", log.Bytes()[max(0, log.Len()-4000):])
		}
	})
	return connect(t, addr)
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

// Produce sends a record and does not wait; partitions take turns.
func (c *Cluster) Produce(topic, value string) {
	c.client.Produce(context.Background(), &kgo.Record{Topic: topic, Value: []byte(value)}, func(_ *kgo.Record, err error) {
		if err != nil {
			c.failed.Lock()
			defer c.failed.Unlock()
			c.failed.err = err
		}
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

// Lag is what a group has not committed of a topic, counted from offset 0: a partition without a commit lags by all it has.
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
	req := kmsg.NewPtrOffsetFetchRequest()
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group, req.Group = group, group
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(context.Background(), c.client)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, g := range resp.Groups {
		for _, rt := range g.Topics {
			for _, p := range rt.Partitions {
				if rt.Topic == topic || rt.Topic == "" {
					lag -= max(0, p.Offset)
				}
			}
		}
	}
	return lag
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
