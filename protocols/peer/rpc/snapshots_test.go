package rpc

import (
	"bytes"
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// snapping is a Storage with snapshots of one partition, and staged frames.
type snapping struct {
	*memory
	files  map[point.SegmentID][]byte
	frames [][]byte
	open   atomic.Int32
}

func (s *snapping) OpenSnapshot(_ context.Context, table string, id point.PartitionID) (peer.Snapshot, error) {
	if table != "t" || id != 7 {
		return nil, fault.Errorf(fault.Stale, "another server leads partition %d of table %q", id, table)
	}
	s.open.Add(1)
	return snapped{s}, nil
}

func (s *snapping) StagedFrames(_ context.Context, _ string, give func([]byte) error) error {
	for _, f := range s.frames {
		if err := give(f); err != nil {
			return err
		}
	}
	return nil
}

type snapped struct{ of *snapping }

func (s snapped) Entry() []byte { return []byte("the entry") }

func (s snapped) Open(id point.SegmentID) (io.ReadCloser, error) {
	b, ok := s.of.files[id]
	if !ok {
		return nil, fault.Errorf(fault.NotFound, "segment %v is not in the snapshot", id)
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

func (s snapped) Close() error {
	s.of.open.Add(-1)
	return nil
}

// TestASnapshotTravels: files of sizes about that of a piece, one that is left early, one that is not there; the server's is closed with the asker's.
func TestASnapshotTravels(t *testing.T) {
	s := &snapping{memory: newMemory(), files: map[point.SegmentID][]byte{}, frames: [][]byte{[]byte("one"), bytes.Repeat([]byte("two"), 200_000)}}
	sizes := []int{0, 1, chunkBytesMax - 1, chunkBytesMax, chunkBytesMax + 1, 3 * chunkBytesMax}
	for i, n := range sizes {
		s.files[point.SegmentID{Epoch: 2, Seq: uint64(i)}] = bytes.Repeat([]byte{byte(i + 1)}, n)
	}
	p := serveEvaluator(t, s)
	snap, err := p.OpenSnapshot(t.Context(), "t", 7)
	if err != nil || string(snap.Entry()) != "the entry" {
		t.Fatalf("%v", err)
	}
	for id, want := range s.files {
		f, err := snap.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		if len(want) > chunkBytesMax+1 { // left early
			if _, err := f.Read(make([]byte, 10)); err != nil {
				t.Error(err)
			}
		} else if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: %d bytes of %d, %v", id, len(got), len(want), err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	f, err := snap.Open(point.SegmentID{Epoch: 9})
	if err == nil {
		_, err = io.ReadAll(f)
	}
	wantKind(t, "a segment that is not there", err, fault.NotFound)
	if err := snap.Close(); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(time.Minute); s.open.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server's snapshot is not closed")
		}
	}
	var got [][]byte
	if err := p.StagedFrames(t.Context(), "t", func(b []byte) error { got = append(got, bytes.Clone(b)); return nil }); err != nil || len(got) != 2 || !bytes.Equal(got[0], s.frames[0]) || !bytes.Equal(got[1], s.frames[1]) {
		t.Errorf("%d staged frames, %v", len(got), err)
	}
	_, err = p.OpenSnapshot(t.Context(), "t", 8)
	wantKind(t, "a partition that another server leads", err, fault.Stale)
	_, err = serveEvaluator(t, newMemory()).OpenSnapshot(t.Context(), "t", 7)
	wantKind(t, "a storage without snapshots", err, fault.Invalid)
}
