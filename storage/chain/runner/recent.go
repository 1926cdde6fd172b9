package runner

import (
	"container/list"
	"slices"
	"sync"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/point"
)

// recents are the newest frames of all logs of a server, within one bound. Beyond it the log whose newest frame is the oldest loses all of its frames: its
// members have had the most time to get them, and a member that is behind gets frames read from the log.
//
//	order   log of 3 ─ log of 7 ─ log of 1      a frame of 7: log of 3 ─ log of 1 ─ log of 7, and 3 loses its frames where all are too many
type recents struct {
	most int64       // constant
	held budget.Held // with keptCost for each frame

	mu    sync.Mutex // acquired under a placement's lock: no other is acquired while it is held
	order list.List  // of *recent that have frames
}

// recent are the newest frames of a log, so that frames passed on at once are not read back from the disk.
type recent struct {
	of *recents // constant

	// Guarded by of.mu.
	frames []kept
	bytes  int64
	at     *list.Element // in of.order; nil: it has no frames
}

type kept struct {
	serial, prev point.Serial
	rec          []byte
}

func (k *kept) cost() int64 { return int64(len(k.rec)) + keptCost }

const (
	// cacheBytesMax bounds the recent frames of one partition.
	// Enough for members that keep up; one that is further behind gets frames read from the log.
	cacheBytesMax = 1 << 20
	// recentBytes bounds those of all, unless Deps.RecentBytes does.
	recentBytes = 64 << 20
	// keptCost is the cost of a frame beside its bytes.
	keptCost = 64
)

// add copies a frame. One that does not follow the newest, after a cut, starts a new list.
// The copy may be on its way on several links (TryFrame keeps it): it is never reused, and goes with the collector.
func (r *recent) add(s, prev point.Serial, rec []byte) {
	r.of.held.Add(int64(len(rec)) + keptCost)
	k := kept{s, prev, slices.Clone(rec)}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if n := len(r.frames); n > 0 && r.frames[n-1].serial != prev {
		r.clearLocked()
	}
	if r.at == nil {
		r.at = r.of.order.PushBack(r)
	} else {
		r.of.order.MoveToBack(r.at)
	}
	r.frames = append(r.frames, k)
	r.bytes += k.cost()
	for oldest := r.of.order.Front(); r.of.held.Load() > r.of.most && oldest != r.at; oldest = r.of.order.Front() {
		oldest.Value.(*recent).clearLocked()
	}
	for r.bytes > min(cacheBytesMax, r.of.most) && len(r.frames) > 1 {
		n := r.frames[0].cost()
		r.bytes -= n
		r.of.held.Add(-n)
		r.frames[0] = kept{}
		r.frames = r.frames[1:]
	}
}

// clear drops all frames.
func (r *recent) clear() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.clearLocked()
}

func (r *recent) clearLocked() {
	if r.at == nil {
		return
	}
	r.of.order.Remove(r.at)
	r.of.held.Add(-r.bytes)
	r.frames, r.bytes, r.at = nil, 0, nil
}

// RecentBytes is the memory of the newest frames of the logs, which are kept until they are passed on.
func (c *Chains) RecentBytes() int64 { return c.recents.held.Load() }

// OnRecentGrowth registers f, which is called with the coming value of RecentBytes each time before it grows.
func (c *Chains) OnRecentGrowth(f func(to int64)) { c.recents.held.OnGrowth(f) }

// after returns the frames behind a serial, about so many bytes; found: the first one, if there is any, follows serial.
func (r *recent) after(s point.Serial, bytes int) (frames []kept, found bool) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	// From the end: the frame asked for is nearly always one of the newest.
	i := len(r.frames)
	for i > 0 && r.frames[i-1].prev != s && s.Less(r.frames[i-1].serial) {
		i--
	}
	switch {
	case i > 0 && r.frames[i-1].prev == s:
		i--
	case i > 0 && r.frames[i-1].serial == s:
	default:
		return nil, false
	}
	for _, f := range r.frames[i:] {
		if frames = append(frames, f); bytes < len(f.rec) {
			break
		}
		bytes -= len(f.rec)
	}
	return frames, true
}
