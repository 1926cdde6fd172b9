package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/segment"
)

// byHand is a chain: the test itself carries its frames over.
type byHand struct {
	passed [][]byte
	own    brick.Wait               // of the newest frame
	await  func(point.Serial) error // nil: all other placements have all frames
	away   error                    // of AwaitSoon, while a placement is away
}

func (c *byHand) Pass(_, _ point.Serial, rec []byte, own brick.Wait) {
	c.passed, c.own = append(c.passed, bytes.Clone(rec)), own
}

func (c *byHand) HandOn() {}

func (c *byHand) AwaitSoon(ctx context.Context, s point.Serial) error {
	if c.away != nil {
		return c.away
	}
	return c.Await(ctx, s)
}

func (c *byHand) Await(_ context.Context, s point.Serial) error {
	if c.await == nil {
		return c.own.Wait()
	}
	return c.await(s)
}

// leading opens a placement that leads, with a chain.
func leading(t *testing.T, fs vfs.FS, epoch point.Epoch) (*bench, *byHand) {
	t.Helper()
	return leadingWith(t, fs, epoch, Settings{})
}

func leadingWith(t *testing.T, fs vfs.FS, epoch point.Epoch, set Settings) (*bench, *byHand) {
	t.Helper()
	b, c := openBenchWith(t, fs, 0, set), new(byHand)
	b.stamp = point.Stamp(epoch) << 32
	b.must(b.LeadChain(epoch, c))
	return b, c
}

// following opens a placement that follows.
func following(t *testing.T, fs vfs.FS, epoch point.Epoch) *bench {
	t.Helper()
	return followingWith(t, fs, epoch, Settings{})
}

func followingWith(t *testing.T, fs vfs.FS, epoch point.Epoch, set Settings) *bench {
	t.Helper()
	b := openBenchWith(t, fs, 0, set)
	b.must(b.FollowLeader(0))
	b.must(b.Tidy(true))
	b.must(b.FollowLeader(epoch))
	return b
}

// catchUp carries over the frames that b lacks.
func (b *bench) catchUp(from *bench, epoch point.Epoch) error {
	return from.EachFrame(b.Last(), func(_ point.Serial, rec []byte) error {
		wait, err := b.Follow(epoch, rec)
		if err == nil {
			err = wait.Wait()
		}
		return err
	})
}

// fetch carries over the segments that b lacks.
func (b *bench) fetch(from *bench, epoch point.Epoch) error {
	for _, info := range from.Segments() {
		if slices.ContainsFunc(b.Segments(), func(i segment.Info) bool { return i.ID == info.ID }) || slices.Contains(b.Ahead(), info.ID) {
			continue
		}
		path := copySegment(b.t, from, b, info.ID)
		if err := b.Adopt(epoch, info, path); err != nil {
			return err
		}
	}
	return nil
}

// copySegment leaves a copy of a segment's file on b's disk.
func copySegment(t *testing.T, from, to *bench, id point.SegmentID) string {
	t.Helper()
	in, err := from.brick.FS().Open(from.brick.SegmentPath(ident.Placement, id))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	const path = "incoming"
	out, err := to.brick.FS().Create(path, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = io.Copy(out, in)
	}
	if err == nil {
		err = errors.Join(out.Sync(), out.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// EachFrame is EachFrameUpTo of all frames, also of those that are being applied.
func (p *Partition) EachFrame(after point.Serial, f func(s point.Serial, rec []byte) error) error {
	return p.deps.Brick.Replay(p.ident.Placement, after, f)
}

// same compares rows, lists of segments, ends, and the logs behind the segments of both, byte for byte.
func same(t *testing.T, a, b *bench) {
	t.Helper()
	after := a.Flushed()
	if after.Less(b.Flushed()) {
		after = b.Flushed()
	}
	da, err := a.Digest(after, a.EachFrameUpTo)
	a.must(err)
	db, err := b.Digest(after, b.EachFrameUpTo)
	b.must(err)
	if fmt.Sprint(da) != fmt.Sprint(db) {
		t.Errorf("digests %+v and %+v", da, db)
	}
	va, err := a.View()
	a.must(err)
	defer va.Close()
	vb, err := b.View()
	b.must(err)
	defer vb.Close()
	if ra, rb := text(t, va), text(t, vb); ra != rb {
		t.Errorf("rows %q and %q", ra, rb)
	}
	if x, y := numbersOf(t, a), numbersOf(t, b); x != y {
		t.Errorf("series are numbered %s and %s", x, y)
	}
}

// numbersOf returns the names of all series by their numbers.
func numbersOf(t *testing.T, b *bench) string {
	t.Helper()
	v, err := b.View()
	b.must(err)
	defer v.Close()
	ss, err := v.MatchDefined(nil)
	b.must(err)
	var out []string
	for _, s := range ss {
		out = append(out, fmt.Sprintf("%d=%s", s.ID, s.Labels.Get("i")))
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}
