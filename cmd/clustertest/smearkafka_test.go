package clustertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/intake/kafka/kafkatest"
)

// TestClusterRowsThatWaitInKafkaOutliveTheirGateway kills a gateway with rows that it keeps until they are due. None is staged, none of them was committed, queries say that some
// may be missing, and in the end all are there: they are delivered again.
func TestClusterRowsThatWaitInKafkaOutliveTheirGateway(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	const (
		topic      = "narrow"
		partitions = 4
		series, of = 60, 50
	)
	kafka := kafkatest.Fake(t)
	kafka.Create(partitions, topic)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, GatewayArgs: []string{"--kafka.brokers=" + kafka.Addrs[0], "--kafka.topics=" + topic, "--kafka.group=g"}})
	c.table("default", 10*time.Second, 1)
	c.command("table", "set", "default", "--smear=60s", "--smear-kafka=wait")
	if shown := c.command("table", "show", "default"); !strings.Contains(shown, "wait: rows that gateways read from Kafka wait in their topic") {
		t.Errorf("table show:\n%s", shown)
	}
	later := func(addr string) float64 { return processtest.Metric(t, addr, "spillway_kafka_later_rows") }
	c.within(processtest.Patience, "gateways answer with a warning that rows may wait in Kafka", func() bool {
		return !slices.ContainsFunc(c.doors, func(d *processtest.Process) bool {
			_, body, err := d.Get("/t/default/api/v1/query?query=m_v")
			return err != nil || !slices.ContainsFunc(warningsOf(body), func(w string) bool { return strings.Contains(w, "come by Kafka wait there up to 1m0s") })
		})
	})
	from := time.Now()
	for i := range of {
		for s := range series {
			kafka.Produce(topic, fmt.Sprintf("m,i=%d v=%d %d", s, i, from.Add(time.Duration(i)*time.Millisecond).UnixNano()))
		}
	}
	c.must(kafka.Flush())
	victim := -1
	c.within(processtest.Patience, "rows wait in a gateway", func() bool {
		victim = slices.IndexFunc(c.HTTP, func(addr string) bool { return later(addr) > series*of/8 })
		return victim >= 0
	})
	waiting := later(c.HTTP[victim])
	c.Gateways[victim].Kill()
	lag := kafka.Lag("g", topic, partitions)
	staged := c.staged().rows // for their time: those that are due may be staged until they are with their leader
	t.Logf("%s is killed with %v rows that wait; %d records are not committed, %v rows are staged for their time", c.Gateways[victim].Name, waiting, lag, staged)
	if lag == 0 {
		t.Error("records were committed with rows that wait")
	}
	if staged > 0 {
		t.Errorf("%v rows are staged for their time", staged)
	}
	c.start(c.Gateways[victim])
	c.within(3*processtest.Patience, "all records are committed", func() bool { return kafka.Lag("g", topic, partitions) == 0 })
	for _, d := range c.doors {
		rows := 0
		for _, all := range d.RowsOf("default", "m_v", "1h", time.Now().Add(time.Minute)) {
			rows += len(all)
			if len(all) > 0 && all[len(all)-1].Value != of-1 {
				t.Errorf("the last value is %v", all[len(all)-1])
			}
		}
		if rows != series*of {
			t.Errorf("%s has %d rows of %d", d.Addr, rows, series*of)
		}
	}
}
