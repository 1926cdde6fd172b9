package partition

import (
	"slices"

	"github.com/cockroachdb/errors/oserror"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// A placement that follows may get a segment that lies below frames which its own segments hold: its leader committed a compaction below minors that were flushed meanwhile, and wrote these
// anew, or it flushed several heads that an earlier leader had flushed, too. The segment waits until those above it have come that hold these frames.
//
//	leader     major  a  b  c  d  e  f   ─▶   major  a  X  Y       X of b, c and d; Y of e and f
//	follower   major  a  b  c  d  e  f        X comes: it lacks the frames of e and f, and waits
//	                                          Y comes: one entry of the catalogue has X and Y in the place of b to f
//
// One that waits is an unfinished file: a start removes it, and the leader offers it again.

// ahead is a segment that waits.
type ahead struct {
	segment.Info
	path string
}

const aheadSuffix = ".ahead" + segment.TempSuffix

// aheadLocked returns those that wait, each based on the one before it: the leader that is followed sent them.
func (p *Partition) aheadLocked() []ahead {
	if !p.mu.follows || p.mu.leader != p.mu.aheadOf {
		return nil
	}
	return p.mu.ahead
}

// Ahead lists the segments of the leader that wait for those above them: they are here, and in no entry of the catalogue yet.
func (p *Partition) Ahead() (ids []point.SegmentID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.aheadLocked() {
		ids = append(ids, a.ID)
	}
	return ids
}

// keepAhead has a segment wait on top of others that do. The flush lock is held.
func (p *Partition) keepAhead(sender point.Epoch, before []ahead, info segment.Info, path string) error {
	b := p.deps.Brick
	to := b.SegmentPath(p.ident.Placement, info.ID) + aheadSuffix
	if err := b.MakeSegmentDir(p.ident.Placement); err != nil {
		return err
	}
	if err := b.FS().Rename(path, to); err != nil {
		return fault.Wrap(err, fault.Unavailable, "rename %s to %s", path, to)
	}
	p.log.Info("a segment waits for those above it", "segment", info.ID, "bytes", info.Size, "ends", info.Ends)
	p.setAhead(sender, append(slices.Clip(before), ahead{info, to}))
	return nil
}

// setAhead replaces the list of segments that wait, and removes the files of others; one that stays is removed at the next start. The flush lock is held.
func (p *Partition) setAhead(sender point.Epoch, list []ahead) {
	p.mu.Lock()
	old := p.mu.ahead
	p.mu.ahead, p.mu.aheadOf = list, sender
	p.mu.Unlock()
	for _, a := range old {
		if slices.ContainsFunc(list, func(o ahead) bool { return o.path == a.path }) {
			continue
		}
		if err := p.deps.Brick.FS().Remove(a.path); err != nil && !oserror.IsNotExist(err) {
			p.log.Warn("the file of a segment that waited cannot be removed", "file", a.path, "error", err)
		}
	}
}

// tidyAhead removes the files of segments that wait since an earlier epoch.
func (p *Partition) tidyAhead() {
	p.mu.Lock()
	stale := len(p.mu.ahead) > 0 && len(p.aheadLocked()) == 0
	p.mu.Unlock()
	if !stale || !p.flushMu.TryLock() {
		return
	}
	defer p.flushMu.Unlock()
	p.setAhead(0, nil)
}
