package partition

import (
	"context"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Check is the result of checking a segment.
type Check int

const (
	NotChecked   Check = iota // there is no such segment any more, or it could not be read now
	FoundWhole                // size and checksum are those of the catalogue
	FoundDamaged              // they are not, and reads of the partition are refused from now on
)

// CheckSegment reads a segment's file from the disk and compares it with the size and the checksum in the catalogue. pace is
// called after each piece that is read, with its bytes; its error ends the check. A mismatch is read a second time, since memory
// and cables flip bits, too; then the partition is damaged. Errors are those of pace, and Unavailable: the file could not be read
// now.
func (p *Partition) CheckSegment(ctx context.Context, id point.SegmentID, pace func(bytes int) error) (Check, error) {
	g := p.retainSegment(id)
	if g == nil {
		return NotChecked, nil
	}
	defer g.release()
	if g.info.Checksum == 0 { // written before there were checksums
		return NotChecked, nil
	}
	for try := 0; ; try++ {
		err := g.check(pace)
		switch {
		case err == nil:
			return FoundWhole, nil
		case ctx.Err() != nil:
			return NotChecked, ctx.Err()
		case g.gone.Load() || p.closed():
			return NotChecked, nil
		case !isDamage(err):
			return NotChecked, err
		case try > 0:
			p.harm(id, err)
			return FoundDamaged, nil
		}
	}
}

// doubt notes that a read met damage in segments: they are checked soon, and not only by the next pass of the scrub.
func (p *Partition) doubt(gs []*segmentRef) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range gs {
		if !slices.Contains(p.mu.doubted, g.info.ID) {
			p.mu.doubted = append(p.mu.doubted, g.info.ID)
		}
		p.doubts.Store(true)
	}
}

// Doubted returns the segments in which reads met damage since the last call. It costs nothing while there are none.
func (p *Partition) Doubted() (ids []point.SegmentID) {
	if !p.doubts.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doubts.Store(false)
	ids, p.mu.doubted = p.mu.doubted, nil
	return slices.DeleteFunc(ids, func(id point.SegmentID) bool {
		return baseOf(p.mu.state.Segments, id) < 0 || slices.Contains(p.mu.broken, id)
	})
}

// closed reports whether the partition was closed or dropped: then its files may be gone.
func (p *Partition) closed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.dropped
}

// retainSegment finds a segment and keeps it; nil: there is none.
func (p *Partition) retainSegment(id point.SegmentID) *segmentRef {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.mu.segments {
		if g.info.ID == id {
			return g.retain()
		}
	}
	return nil
}

func (g *segmentRef) check(pace func(bytes int) error) error {
	sum, size, err := segment.ChecksumPaced(g.fs, g.path, pace)
	if err != nil {
		return err
	}
	if size != g.info.Size || sum != g.info.Checksum {
		return fault.Errorf(fault.Corrupt, "segment %s: %d bytes with checksum %016x instead of %d with %016x", g.path, size, sum, g.info.Size, g.info.Checksum)
	}
	return nil
}
