package partition

import (
	"time"

	"github.com/spillwaydb/spillway/protocols/frame"
)

// A FREEZE is a frame: it stands in the log where the leader ended its head to flush it, and every placement ends its own there.
//
//	log      f1 f2 f3 FREEZE4 f5 f6 FREEZE7 f8
//	heads    └── head ───────┘└── head ────┘└─ active
//	segments └── minor, ends 4┘                          the leader makes it; a follower adopts it and lets the head go
//
// A leader that no placement follows writes none.

// logFreezeLocked logs a FREEZE, freezes the active head and passes the frame on.
func (p *Partition) logFreezeLocked() error {
	f := frame.Frame{Kind: frame.Freeze, Stamp: p.mu.ranks.Highest()}
	var enc frame.Encoder
	buf := enc.Append(nil, &f)
	wait, err := p.logLocked(&f, buf)
	if err != nil {
		return err
	}
	p.takeLocked(&f, wait, time.Now())
	p.passLocked(&f, buf, wait)
	return nil
}

// freezeLocked ends the active head with the frame of a FREEZE.
func (p *Partition) freezeLocked(f *frame.Frame, now time.Time) {
	if p.mu.frames == 0 {
		p.mu.born = now
	}
	p.mu.frames++
	p.acceptedLocked(f)
	p.pushFrozenLocked()
}
