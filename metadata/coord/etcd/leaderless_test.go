package etcd

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/spillwaydb/spillway/metadata/coord"
)

// leaderless answers watches as an etcd without a leader does, and counts them.
type leaderless struct {
	pb.UnimplementedWatchServer
	pb.UnimplementedKVServer
	asked atomic.Int64
}

func (l *leaderless) Watch(pb.Watch_WatchServer) error {
	l.asked.Add(1)
	return rpctypes.ErrGRPCNoLeader
}

// Range answers the look at a start.
func (l *leaderless) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: 1}}, nil
}

// TestAWatchOfALeaderlessEtcdWaits: most members of an etcd were away, and each watch of each process asked the others thousands of times a second until they were back.
func TestAWatchOfALeaderlessEtcdWaits(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var e leaderless
	server := grpc.NewServer()
	pb.RegisterWatchServer(server, &e)
	pb.RegisterKVServer(server, &e)
	go func() { _ = server.Serve(l) }() // until it is stopped
	defer server.Stop()
	st := open(t, Settings{Endpoints: []string{"http://" + l.Addr().String()}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- st.Watch(ctx, "rows/", 1, func([]coord.Event) error { return nil }) }()
	for e.asked.Load() < 2 || time.Since(began) < time.Second { // it asks again; how soon depends on the machine
		time.Sleep(10 * time.Millisecond)
	}
	n, took := e.asked.Load(), time.Since(began)
	select {
	case err := <-ended:
		t.Fatalf("the watch ended: %v", err)
	default:
	}
	cancel()
	<-ended
	if n > 2+int64(20*took.Seconds()) {
		t.Errorf("%d watches in %v", n, took)
	}
}
