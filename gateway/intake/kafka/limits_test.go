package kafka

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/gateway/limits"
)

// TestATableAtItsLimitsIsReadSlowlyAndLosesNothing runs on a virtual network and clock: records of one table come sixty
// times faster than it may write, those of another are within its limits, a third has more series than it may.
func TestATableAtItsLimitsIsReadSlowlyAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(9092), kfake.SeedTopics(2, "noisy", "calm", "strict"), kfake.ListenFn(network.Listen))
		if err != nil {
			t.Fatal(err)
		}
		defer cluster.Close()
		producer, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.Dialer(network.DialContext), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		defer producer.Close()
		var set limits.Settings
		if err := yaml.Unmarshal([]byte("tables: {noisy: {samples_per_second: 10, samples_burst: 10}, strict: {active_series: 3}}"), &set); err != nil {
			t.Fatal(err)
		}
		registry, err := limits.New(limits.Deps{}, set)
		if err != nil {
			t.Fatal(err)
		}
		m, dead := newMemory(), t.TempDir()+"/dead"
		m.table("strict").dict.Guard(func(known int, _ bool) error { return registry.Table("strict").NewSeries(known, 0) })
		c, err := New(Deps{Writer: m, Limits: registry, Dial: network.DialContext}, Settings{WriteBytesMax: 64, Clusters: []Cluster{{
			Name: "main", Brokers: cluster.ListenAddrs(), DeadLetter: DeadLetter{File: dead},
			Topics: []Topic{{Name: "noisy", Table: "noisy"}, {Name: "calm", Table: "calm"}, {Name: "strict", Table: "strict"}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		send := func(topic, line string) {
			t.Helper()
			if err := producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(line)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 600 {
			send("noisy", fmt.Sprintf("m v=%d %d", i, i+1))
			if i%10 == 0 {
				send("calm", fmt.Sprintf("m v=%d %d", i, i+1))
				send("strict", fmt.Sprintf("m,i=%d v=1 %d", i/10, i+1))
			}
		}
		time.Sleep(10 * time.Second)
		// The rows written in 10 s, the burst, and a write of each worker's beyond it.
		if n := m.table("noisy").count(); n < 50 || n > 10*10+10+100 {
			t.Errorf("noisy: %d rows after 10 s", n)
		}
		if n := m.table("calm").count(); n != 60 {
			t.Errorf("calm: %d rows of 60", n)
		}
		time.Sleep(3 * time.Minute)
		if n := m.table("noisy").count(); n != 600 {
			t.Errorf("noisy: %d rows of 600 in the end", n)
		}
		if n := m.table("strict").count(); n != 3 {
			t.Errorf("strict: %d rows of 3 series", n)
		}
		letters, err := os.ReadFile(dead)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(letters), "limit active_series"); n != 57 || strings.Count(string(letters), "\n") != 57 {
			t.Errorf("%d letters name the limit:\n%.500s", n, letters)
		}
		if s := c.Status().Clusters[0]; s.Lag != 0 {
			t.Errorf("%+v", s)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
