package master

import (
	"encoding/json"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Key is the row of the process that is master.
const Key = "master"

// Holder is the row: the process that is master, and the number of its renewal. An empty Holder: there is no master, and the row may be acquired at once.
type Holder struct {
	Holder topology.ServerID `json:"holder"`
	Boot   lease.Boot        `json:"boot"`
	N      uint64            `json:"n"`
}

const rowVersion = 1

// Encode gives the row's stored form: JSON with a version.
func (h Holder) Encode() []byte {
	b, err := json.Marshal(struct {
		V int `json:"v"`
		Holder
	}{rowVersion, h})
	if err != nil {
		fault.Bug("the master's row does not encode: %v", err)
	}
	return b
}

// DecodeHolder reads the row. Errors are Corrupt; such a row is acquired like one that no process renews.
func DecodeHolder(b []byte) (Holder, error) {
	var s struct {
		V int `json:"v"`
		Holder
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return Holder{}, fault.Wrap(err, fault.Corrupt, "the master's row")
	}
	if s.V != rowVersion {
		return Holder{}, fault.Errorf(fault.Corrupt, "the master's row is of version %d; this build reads version %d", s.V, rowVersion)
	}
	return s.Holder, nil
}

// Hold decides which process is master, by the same arithmetic as a heartbeat's: act for 3 s after a good renewal was sent, acquire a row that did
// not change for 4 s since it was first seen so, counting only time in which the store answered. It has no clock; times come from a clock that counts
// suspends and never jumps.
type Hold struct {
	self Holder // N is the last number written
	set  Settings

	asked     bool // rev and row hold the last read
	rev       coord.Revision
	row       Holder
	since     time.Duration // in reachable time: when rev was first seen
	reachable time.Duration // time in which the store answered without a gap
	last      time.Duration // of the clock: the last answer

	goodUntil time.Duration
}

// NewHold makes the candidate that self names. N of self is the number last written.
func NewHold(self Holder, set Settings) Hold { return Hold{self: self, set: set} }

// lookGap is the same for processes that only look at the master's row, every two seconds.
const lookGap = 2 * answerGap

// answerGap is the longest pause between two answers that counts as time in which nothing changed.
const answerGap = 2 * time.Second

// Saw records an answer: the row as read.
func (h *Hold) Saw(now time.Duration, row coord.Row) {
	if gap := now - h.last; gap > 0 && gap <= lookGap {
		h.reachable += gap
	}
	h.last = now
	if !h.asked || row.Revision != h.rev {
		h.since = h.reachable
	}
	h.asked, h.rev = true, row.Revision
	h.row, _ = DecodeHolder(row.Value) // a row that cannot be read names no boot: it grows old like any other
	if row.Revision != 0 && len(row.Value) > 0 && h.row == (Holder{}) {
		h.row.Holder = "?"
	}
}

// ours reports whether the row, as last seen, is this process's.
func (h *Hold) ours() bool {
	return h.rev != 0 && h.row.Holder == h.self.Holder && h.row.Boot == h.self.Boot
}

// Known reports whether the row certainly belongs to this process: then it is renewed without being read.
func (h *Hold) Known() bool { return h.asked && h.ours() }

// Want gives the row to write now, by compare-and-swap on rev; ok is false when there is nothing to do but look again.
func (h *Hold) Want() (next Holder, rev coord.Revision, ok bool) {
	if !h.asked {
		return Holder{}, 0, false
	}
	if !h.ours() && h.rev != 0 && h.row.Holder != "" && h.reachable-h.since < h.set.TakeAfter {
		return Holder{}, 0, false
	}
	h.self.N++
	return h.self, h.rev, true
}

// Wrote records that the row sent at sent was written.
func (h *Hold) Wrote(sent, now time.Duration, row Holder, rev coord.Revision) {
	h.Saw(now, coord.Row{Revision: rev, Value: row.Encode()})
	h.goodUntil = max(h.goodUntil, sent+h.set.ActFor)
}

// Doubt records that a write failed or that its outcome is open: the row must be read before the next.
func (h *Hold) Doubt() { h.asked = false }

// MayAct reports whether this process is master now.
func (h *Hold) MayAct(now time.Duration) bool { return now < h.goodUntil }
