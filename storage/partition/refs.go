package partition

import (
	"slices"
	"sync/atomic"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/head"
	"github.com/spillwaydb/spillway/storage/segment"
)

// segmentRef is a segment that views may be reading. Its owner, the partition's list, holds one reference; at the last
// release the reader is closed and, if the segment was replaced, its file deleted.
type segmentRef struct {
	reader *segment.Reader
	info   segment.Info
	path   string
	fs     vfs.FS
	read   *atomic.Int64 // the partition's segmentRefs that are not released

	refs       atomic.Int32
	gone       atomic.Bool // replaced or dropped: the catalogue no longer lists it
	tombstones atomic.Pointer[[]Tombstone]

	rowless atomic.Pointer[roaring.Bitmap] // see rowlessSeries; nil: not read yet
}

func (p *Partition) newSegmentRef(r *segment.Reader, st SegmentState, path string) *segmentRef {
	g := &segmentRef{reader: r, info: st.Info, path: path, fs: p.deps.Brick.FS(), read: &p.read}
	g.read.Add(1)
	g.refs.Store(1)
	g.tombstones.Store(&st.Tombstones)
	return g
}

func (g *segmentRef) retain() *segmentRef { g.refs.Add(1); return g }

func (g *segmentRef) release() {
	if g.refs.Add(-1) > 0 {
		return
	}
	// Errors here have no receiver: the bytes are no longer needed, and an orphan file is removed at the next start.
	_ = g.reader.Close()
	if g.gone.Load() {
		_ = g.fs.Remove(g.path)
	}
	g.read.Add(-1)
}

// headRef is a head that views may be reading; its memory is freed at the last release.
type headRef struct {
	head *head.Head
	refs atomic.Int32
	// tombstones hide rows of a frozen head of a placement that follows: at its leader the rows were in a segment when it accepted the
	// deletions. Nil: there are none.
	tombstones atomic.Pointer[[]Tombstone]
}

func (p *Partition) newHeadRef() *headRef {
	h := &headRef{head: head.New(head.Settings{FewRows: p.ident.narrow()})}
	h.refs.Store(1)
	return h
}

func (h *headRef) retain() *headRef { h.refs.Add(1); return h }

// hidden returns the deletions that hide rows of the head.
func (h *headRef) hidden() []Tombstone {
	if ts := h.tombstones.Load(); ts != nil {
		return *ts
	}
	return nil
}

// hide adds a deletion; the partition's lock is held.
func (h *headRef) hide(t Tombstone) {
	if ts := h.hidden(); !slices.ContainsFunc(ts, t.equal) {
		ts = append(slices.Clone(ts), t)
		h.tombstones.Store(&ts)
	}
}

// cuts returns the deletions ready for use; mostly none.
func (h *headRef) cuts() (cuts, error) { return compileTombstones(h.hidden()) }

func (h *headRef) release() {
	if h.refs.Add(-1) == 0 {
		h.head.Free()
	}
}

// SegmentFile is a segment's file that is read to copy it. Its bytes stay there until Close, also if the segment is replaced meanwhile.
type SegmentFile struct {
	vfs.File
	g *segmentRef
}

// OpenSegment opens the file of a segment. Errors: NotFound (there is no such segment any more), Unavailable.
func (p *Partition) OpenSegment(id point.SegmentID) (*SegmentFile, error) {
	g := p.retainSegment(id)
	if g == nil {
		return nil, fault.Errorf(fault.NotFound, "partition %s/%d has no segment %v", p.ident.Table, p.ident.Partition, id)
	}
	f, err := g.fs.Open(g.path, vfs.SequentialReadsOption)
	if err != nil {
		g.release()
		return nil, fault.Wrap(err, fault.Unavailable, "open %s", g.path)
	}
	return &SegmentFile{f, g}, nil
}

// Close closes the file.
func (f *SegmentFile) Close() error {
	err := f.File.Close()
	f.g.release()
	return err
}
