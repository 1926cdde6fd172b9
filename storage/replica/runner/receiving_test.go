package runner

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/replica"
)

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
