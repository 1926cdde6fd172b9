package runner

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	chains "github.com/spillwaydb/spillway/storage/chain/runner"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/replica"
	"github.com/spillwaydb/spillway/storage/segment"
)

// slowSync is a file system in which the fsync of an unfinished file waits.
type slowSync struct {
	vfs.FS
	proceed chan struct{}
}

type slowFile struct {
	vfs.File
	proceed chan struct{}
}

func (s slowSync) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := s.FS.OpenReadWrite(name, category, opts...)
	if err == nil && strings.HasSuffix(name, unfinishedSuffix) {
		f = slowFile{f, s.proceed}
	}
	return f, err
}

func (f slowFile) Sync() error {
	<-f.proceed
	return f.File.Sync()
}

// text is a piece of a segment that arrived.
type text string

func (b text) Bytes() []byte { return []byte(b) }
func (b text) Done()         {}

// noChains has no placements.
type noChains struct{}

func (noChains) Leading() []chains.Copy { return nil }

func (noChains) Copy(lease.Partition, point.PlacementID) (chains.Copy, bool) {
	return chains.Copy{}, false
}

func (noChains) Adopt(context.Context, lease.Partition, point.PlacementID, point.Epoch, segment.Info, string) error {
	return nil
}

func (noChains) ReadFrames(context.Context, *partition.Partition, point.Serial, point.Serial, func(point.Serial, []byte) error) error {
	return nil
}

// TestASlotIsGivenBackWhenItsLeaderBeginsAnEpochDuringTheFsync: the leader of a new epoch numbers its offers from 1 again, so that the end of the earlier transfer
// was counted as the end of the new one. The placement waited for its file for ever, accepted no segment any more, and kept one of the server's slots.
func TestASlotIsGivenBackWhenItsLeaderBeginsAnEpochDuringTheFsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := slowSync{vfs.NewMem(), make(chan struct{})}
		log := slog.New(slog.DiscardHandler)
		b, err := brick.Open(brick.Deps{FS: fs, Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c := New(Deps{Brick: b, Chains: noChains{}, Clock: func() replica.Time { return time.Since(began) }, Log: log}, Settings{})
		defer func() {
			c.cancel()
			c.work.Wait()
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}()
		loop := func() {
			for synctest.Wait(); ; synctest.Wait() {
				all := c.take()
				if len(all) == 0 {
					return
				}
				for _, f := range all {
					f()
				}
			}
		}
		at, from := replica.Key{Table: "t", Partition: 1, Placement: 2}, lease.Member{Placement: 1, Server: "n1"}
		offer := func(epoch point.Epoch) {
			c.receive(replica.Offered{From: from, To: at, Epoch: epoch, Slot: 1, Has: replica.Holding{Epoch: epoch}, Free: 1 << 30,
				Segment: replica.Segment{ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true, Size: 4}})
			loop()
		}
		arrives := func(offset uint64, b text) {
			f := c.mu.incoming[slotOf{at, from, 1}]
			if f == nil {
				t.Fatal("the bytes that arrive belong to no transfer")
			}
			f.push(offset, b)
			loop()
		}

		offer(epoch)
		arrives(0, "ab") // the machine sees these
		arrives(2, "cd")
		c.committed(slotOf{at, from, 1})
		loop() // now the disk is slow
		offer(epoch + 1)
		close(fs.proceed)
		loop()
		arrives(2, "cd")
		c.committed(slotOf{at, from, 1})
		loop()
		if _, waits := c.receiver.Next(); waits || len(c.files) > 0 || len(c.mu.incoming) > 0 {
			t.Errorf("%d files and %d transfers are left", len(c.files), len(c.mu.incoming))
		}
	})
}

// slowRemoval is a file system in which the removal of an unfinished file waits.
type slowRemoval struct {
	vfs.FS
	proceed chan struct{}
}

func (s slowRemoval) Remove(name string) error {
	if strings.HasSuffix(name, unfinishedSuffix) {
		<-s.proceed
	}
	return s.FS.Remove(name)
}

// A segment is offered again while the file of its earlier transfer, which ran out of time, is still being removed: both have the same path.
func TestASegmentThatIsOfferedAgainIsNotRemovedWithItsEarlierTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := slowRemoval{vfs.NewMem(), make(chan struct{})}
		log := slog.New(slog.DiscardHandler)
		b, err := brick.Open(brick.Deps{FS: fs, Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c := New(Deps{Brick: b, Clock: func() replica.Time { return time.Since(began) }, Log: log}, Settings{})
		at := replica.Key{Table: "t", Partition: 1, Placement: 2}
		id := fileOf{at, point.SegmentID{Epoch: epoch, Seq: 1}}
		transfer := func(slot, offset uint64) {
			c.accept(replica.Accept{To: lease.Member{Placement: 1, Server: "n1"}, At: at, Epoch: epoch, Slot: slot, Offset: offset,
				Segment: replica.Segment{ID: id.id, Size: 1 << 20}})
		}

		transfer(1, 1) // an offset: no removal before it is opened
		synctest.Wait()
		c.discard(id)
		synctest.Wait()
		transfer(2, 1)
		synctest.Wait()
		close(fs.proceed)
		synctest.Wait()

		if _, err := fs.Stat(c.files[id].path); err != nil {
			t.Errorf("the bytes that arrive have no file: %v", err)
		}
		c.cancel()
		c.work.Wait()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
