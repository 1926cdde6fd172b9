package partition

import (
	"errors"
	"slices"
	"syscall"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// isDamage reports whether an error means that a segment's file is not as written: cut off, overwritten, gone, or on a bad sector.
// Any other failure, a format of a newer build or too many open files, concerns more than one partition.
func isDamage(err error) bool { return fault.Is(err, fault.Corrupt) || errors.Is(err, syscall.EIO) }

// damage makes the partition damaged: it is not read, written, flushed or changed. Called only while it is opened and replayed. No
// segment of another placement ends it.
func (p *Partition) damage(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.damageLocked(err)
}

func (p *Partition) damageLocked(err error) {
	p.mu.beyond = true
	p.closeLocked(err)
}

// damageFile is damage by a segment's file.
func (p *Partition) damageFile(id point.SegmentID, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.broken = append(p.mu.broken, id)
	p.closeLocked(err)
}

func (p *Partition) closeLocked(err error) {
	if p.mu.damaged == nil {
		p.mu.damaged = fault.Errorf(fault.Corrupt, "partition %s/%d is damaged: %w; restore the file from a backup and restart the server, run `spillway repair`, or drop the partition",
			p.ident.Table, p.ident.Partition, err)
	}
	p.log.Error("a partition is damaged: it is neither read nor written until the file is restored from a backup and the server restarted, the store is repaired, or the partition dropped",
		"error", err)
}

// harm stops reads and compactions of the partition because a segment that it serves from turned out to be damaged. It still accepts
// rows: they go to the log and to new segments, and their senders would not wait for an operator. Like damage, it lasts until the
// server is started with the file restored, or until the bytes of another copy are here (mend.go).
func (p *Partition) harm(id point.SegmentID, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if baseOf(p.mu.state.Segments, id) < 0 { // a compaction replaced it just now
		return
	}
	if !slices.Contains(p.mu.broken, id) {
		p.mu.broken = append(p.mu.broken, id)
	}
	copied := p.mu.follows || p.mu.chain != nil
	remedy := "restore the file from a backup and restart the server, or drop the partition"
	if copied {
		remedy = "it is fetched from another copy; if none has it, " + remedy
	}
	if p.mu.harmed == nil {
		p.mu.harmed = fault.Errorf(fault.Corrupt, "partition %s/%d is damaged: %w; %s", p.ident.Table, p.ident.Partition, err, remedy)
	}
	if copied {
		p.log.Error("a segment that was whole is damaged: its partition takes rows, and is not read here until another copy has sent the file", "error", err)
		return
	}
	p.log.Error("a segment that was whole is damaged: its partition takes rows, and is not read until the file is restored from a backup and the server restarted", "error", err)
}

// forgetReplacedLocked ends the harm by segments that a compaction replaced: it had read all their rows when they were found damaged, each with its checksum.
func (p *Partition) forgetReplacedLocked() {
	if p.mu.harmed == nil {
		return
	}
	p.mu.broken = slices.DeleteFunc(p.mu.broken, func(id point.SegmentID) bool { return baseOf(p.mu.state.Segments, id) < 0 })
	if len(p.mu.broken) == 0 {
		p.mu.harmed = nil
		p.log.Info("the partition is whole again: a compaction replaced the damaged segments")
	}
}

// Damaged reports which segment cannot be read, and the remedy; nil: all are readable. The error is Corrupt.
func (p *Partition) Damaged() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.damagedLocked()
}

func (p *Partition) damagedLocked() error {
	if p.mu.damaged != nil {
		return p.mu.damaged
	}
	return p.mu.harmed
}
