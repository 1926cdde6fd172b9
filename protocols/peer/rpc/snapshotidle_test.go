package rpc

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// slowAsker is the stream of a backup: requests come by in, and out acknowledges pieces. It ends with its context.
type slowAsker struct {
	grpc.ServerStream
	ctx context.Context
	in  chan []byte
	out chan struct{}
}

func (a *slowAsker) Context() context.Context { return a.ctx }

func (a *slowAsker) RecvMsg(m any) error {
	select {
	case b, ok := <-a.in:
		if !ok {
			return io.EOF
		}
		m.(*message).data = mem.BufferSlice{mem.SliceBuffer(b)}
		return nil
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
}

func (a *slowAsker) SendMsg(m any) error {
	data, err := codec{}.Marshal(m)
	if err != nil {
		return err
	}
	data.Free()
	select {
	case a.out <- struct{}{}:
		return nil
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
}

// TestABackupThatHangsKeepsNoSegments: the place of a backup hung, the snapshot stayed open as long as the connection, and no segment of the partition was deleted: merged
// ones filled the disk. One that is slow goes on.
func TestABackupThatHangsKeepsNoSegments(t *testing.T) {
	for name, takes := range map[string]bool{"it asks for nothing": true, "it takes nothing": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				id := point.SegmentID{Epoch: 2, Seq: 1}
				storage := &snapping{memory: newMemory(), files: map[point.SegmentID][]byte{id: make([]byte, 4*chunkBytesMax)}}
				srv := &Server{deps: Deps{Storage: storage}}
				srv.metrics = newServerMetrics(nil, srv)
				a := &slowAsker{in: make(chan []byte), out: make(chan struct{})}
				var end context.CancelFunc
				a.ctx, end = context.WithCancel(t.Context())
				defer end()
				answered := make(chan error, 1)
				go func() {
					err := srv.snapshots(a)
					end() // as gRPC does when a handler returns
					answered <- err
				}()
				a.in <- appendSnapshotRequest(ofPartition, "t", 7)
				pieces := 1 // of the entry
				for range 5 {
					for range pieces {
						time.Sleep(snapshotIdleMax - time.Second)
						<-a.out
					}
					time.Sleep(snapshotIdleMax - time.Second)
					var request [snapshotSegmentBytes]byte
					request[0], request[8] = 2, 1
					a.in <- request[:]
					pieces = 5
				}
				for range pieces {
					if takes {
						<-a.out
					}
				}
				synctest.Wait()
				if storage.open.Load() != 1 {
					t.Fatal("a slow backup has no snapshot any more")
				}
				began := time.Now()
				err := <-answered
				wantKind(t, "an idle snapshot", err, fault.Unavailable)
				if took := time.Since(began); took > snapshotIdleMax || err == nil || !strings.Contains(err.Error(), "back up again") {
					t.Errorf("after %v: %v", took, err)
				}
				srv.running.Wait()
				if storage.open.Load() != 0 {
					t.Error("its segments stay")
				}
			})
		})
	}
}
