package kafka

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/model"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAnHourWithoutStorageCostsNoMembership runs on a virtual network and clock: the storage refuses for an hour, while
// records go on coming. The group never misses us, nothing is committed, and all is written in the end.
func TestAnHourWithoutStorageCostsNoMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(9092), kfake.SeedTopics(2, "metrics"), kfake.ListenFn(network.Listen))
		if err != nil {
			t.Fatal(err)
		}
		defer cluster.Close()
		producer, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.Dialer(network.DialContext), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		defer producer.Close()
		m := newMemory()
		var away atomic.Bool
		var tries atomic.Int64
		away.Store(true)
		m.table("default").fail = func(*point.Batch) error {
			if tries.Add(1); away.Load() {
				return fault.Errorf(fault.Unavailable, "away")
			}
			return nil
		}
		c, err := New(Deps{Writer: m, Dial: network.DialContext}, Settings{Clusters: []Cluster{{
			Name: "main", Brokers: cluster.ListenAddrs(), Topics: []Topic{{Name: "metrics"}}, SessionTimeout: model.Duration(10 * time.Second),
			DeadLetter: DeadLetter{File: t.TempDir() + "/dead"},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		for i := range 60 {
			if err := producer.ProduceSync(ctx, &kgo.Record{Topic: "metrics", Value: fmt.Appendf(nil, "m v=%d", i)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		s := c.Status().Clusters[0]
		if s.Member == "" || s.Generation != 1 || len(s.Partitions) != 2 || s.Partitions[0].Done != -1 || s.Lag != 60 {
			t.Errorf("after an hour: %+v", s)
		}
		if n := tries.Load(); n < 300 || n > 3000 {
			t.Errorf("%d tries in an hour", n)
		}
		away.Store(false)
		time.Sleep(time.Minute)
		s = c.Status().Clusters[0]
		if n := m.table("default").count(); n != 60 || s.Lag != 0 || s.Generation != 1 {
			t.Errorf("%d rows of 60, %+v", n, s)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// cable is a way to brokers that can be cut.
type cable struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	mu   sync.Mutex
	cut  bool
	live []net.Conn
}

func (c *cable) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	conn, err := c.dial(ctx, network, address)
	if err == nil {
		c.live = append(c.live, conn)
	}
	return conn, err
}

// set cuts the cable, or mends it.
func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	for _, conn := range c.live {
		conn.Close()
	}
	c.live = nil
}

// TestAMemberWhoseBrokersAreAwayIsInNoGroup: the client keeps its name in the group, so that the status, the metric and the alert said that all was well while
// nothing was read. Nothing waits for a commit then, whose age another alert looks at.
func TestAMemberWhoseBrokersAreAwayIsInNoGroup(t *testing.T) {
	for _, protocol := range []string{"classic", "consumer"} { // the client says nothing of the second while it tries again
		t.Run(protocol, func(t *testing.T) { brokersAway(t, protocol) })
	}
}

func brokersAway(t *testing.T, protocol string) {
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(9092), kfake.SeedTopics(1, "metrics"), kfake.ListenFn(network.Listen))
		if err != nil {
			t.Fatal(err)
		}
		defer cluster.Close()
		way := &cable{dial: network.DialContext}
		c, err := New(Deps{Writer: newMemory(), Dial: way.DialContext}, Settings{Clusters: []Cluster{{
			Name: "main", Brokers: cluster.ListenAddrs(), Topics: []Topic{{Name: "metrics"}}, SessionTimeout: model.Duration(10 * time.Second),
			Protocol: protocol, DeadLetter: DeadLetter{File: t.TempDir() + "/dead"},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		f := func(when string, want bool) {
			t.Helper()
			time.Sleep(2 * time.Minute) // on the clock of the test
			if s := c.Status().Clusters[0]; (s.Member != "") != want || s.CommitAge > 60 {
				t.Errorf("%s: a member: %v, want %v: %+v", when, s.Member != "", want, s)
			}
		}
		f("at first", true)
		way.set(true)
		f("without brokers", false)
		way.set(false)
		f("with them again", true)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
