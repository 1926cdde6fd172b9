package staging

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// ID names a staged frame at all its holders: the rank of its rows, and a number that the gateway drew.
type ID struct {
	Stamp point.Stamp
	Nonce uint64
}

// Compare orders IDs by rank.
func (i ID) Compare(o ID) int {
	return cmp.Or(cmp.Compare(i.Stamp, o.Stamp), cmp.Compare(i.Nonce, o.Nonce))
}

// Frame is the machine's record of a staged frame.
type Frame struct {
	ID      ID
	Table   string
	MapSeq  uint64              // of the newest map of the table that the gateway knew; 0: unknown
	Bytes   int64               // encoded, and 16 a definition while their list is kept: not after a start or a deletion
	Rows    int                 // samples
	Lo, Hi  point.Nanos         // times of its rows, both included
	Holders []topology.ServerID // in the order in which they forward
	Since   time.Time           // when this server accepted it
	Due     time.Time           // when it is forwarded, of a smeared frame; zero: once there is a leader
	Alone   bool                // it could not be forwarded before: it goes without others, since its leader may be away and theirs not
}

// from is when the frame may be forwarded.
func (f *Frame) from() time.Time {
	if f.Due.After(f.Since) {
		return f.Due
	}
	return f.Since
}

// WaitMax bounds how long a smeared frame waits until it is due: the longest window there is. A gateway whose clock is ahead names a moment that is as far ahead.
const WaitMax = 10 * time.Minute

// Bound puts the times of a frame in relation to now, which is when it was accepted, or found on the disk. It is due at most WaitMax later. By the clock of a
// process that does not jump, if now has it: else frames would wait for an hour more where a wall clock is set back by an hour.
func (f *Frame) Bound(now time.Time) {
	if !f.Since.IsZero() {
		f.Since = now.Add(min(f.Since.Sub(now), 0))
	}
	if !f.Due.IsZero() {
		f.Due = now.Add(min(f.Due.Sub(now), WaitMax))
	}
}

// Before reports whether the frame was written by a map below a sequence number.
func (f *Frame) Before(seq uint64) bool { return f.MapSeq > 0 && f.MapSeq < seq }

// Settings are numbers a user sets.
type Settings struct {
	// Server is this server's name.
	Server topology.ServerID
	// BytesMax bounds the frames held. Beyond it frames are refused as Unavailable. Default 64 MiB. Larger: longer absences are bridged,
	// and use memory and disk.
	BytesMax int64
	// TurnDelay is how long a holder that is not the first waits before it forwards too. Default 30 s. Shorter: frames are forwarded twice
	// where the first holder has many.
	TurnDelay time.Duration
	// AwayAfter is how long a holder must not answer before others stage its frames again. Default 5 s.
	AwayAfter time.Duration
	// GatherFor is how long a smeared frame that is due waits for others of its table, while they have fewer than GatherRows rows together: so they go to their leaders in few
	// inserts. Default 0: no frame waits.
	GatherFor time.Duration
}

// GatherFor and GatherRows are what storage servers use. A frame on its own costs as much as thousands of rows on its way; more than that are not worth the burst.
const (
	GatherFor  = 750 * time.Millisecond
	GatherRows = 1 << 13
)

// smearedShare is the part of BytesMax, and of FramesMax, that smeared frames may fill: the rest is for leaders that are away.
const smearedShare = 2

// ReadableFor is how long a frame that this server gave to another one stays readable here: readers may not know yet that the other one has it, and one that
// asks both may come to each too early or too late. Longer than they need to doubt announcements (follow.DoubtAge), and to ask.
const ReadableFor = 7 * time.Second

// FramesMax bounds the frames that one server holds.
const FramesMax = 1 << 17

// Frames of one table that are on their way to leaders are bounded, as direct writes come first: by forwardsMax, or, of frames that go together, by their rows
// and by smallForwardsMax.
const (
	forwardsMax      = 32
	forwardRowsMax   = 1 << 14
	smallForwardsMax = 1 << 9
)

// After frames of a table were postponed the next ones wait: twice as long each time.
const (
	pauseMin = 50 * time.Millisecond
	pauseMax = time.Second
)

// SetDefaults fills the zero values.
func (s *Settings) SetDefaults() {
	if s.BytesMax == 0 {
		s.BytesMax = 64 << 20
	}
	if s.TurnDelay == 0 {
		s.TurnDelay = 30 * time.Second
	}
	if s.AwayAfter == 0 {
		s.AwayAfter = 5 * time.Second
	}
}

// Machine holds the rules. One goroutine at a time.
type Machine struct {
	settings Settings
	frames   map[ID]*entry
	tables   map[string]*table
	bytes    int64
	smeared  struct{ bytes, frames int64 }   // of them
	away     map[topology.ServerID]time.Time // since when they do not answer
	began    map[topology.ServerID]time.Time // when they began with their directories, by their clocks
	leaving  bool                            // this server is drained or stops
	deleting map[string]int                  // deletions of rows of a table that are under way
	holds    map[uint64]hold                 // of deletions, also some that ended by their time
}

type entry struct {
	Frame
	logged    bool
	underWay  bool
	restaging bool
	queued    bool      // in table.queue, else in table.later
	gone      bool      // while it is still in one of them
	tried     bool      // to forward it, since this server leaves
	renewed   time.Time // when another server was last made its holder, or its holder again
}

// beganMargin is how much earlier than a frame a directory may seem to have begun, and be the younger of the two: the clocks of servers differ.
const beganMargin = 5 * time.Second

// table is one table's frames.
type table struct {
	queue    []*entry // logged and due, by the time they came or were due; some may be gone, half of them at most
	gone     int      // of queue
	later    laters   // logged, not due yet; some may be gone
	frames   int      // in both that are not gone
	underWay int
	wayRows  int // of those under way
	bytes    int64
	// quiet is until when none of queue may leave, unless something else happens; zero: it is not known.
	quiet time.Time
	pause time.Duration
	until time.Time // paused
}

// laters is a heap of frames by the time at which they are due.
type laters []*entry

// Len implements heap.Interface, as do the others.
func (l laters) Len() int { return len(l) }

// Less orders frames.
func (l laters) Less(i, j int) bool {
	return cmp.Or(l[i].Due.Compare(l[j].Due), l[i].ID.Compare(l[j].ID)) < 0
}

// Swap swaps two.
func (l laters) Swap(i, j int) { l[i], l[j] = l[j], l[i] }

// Push appends one.
func (l *laters) Push(x any) { *l = append(*l, x.(*entry)) }

// Pop removes the last one.
func (l *laters) Pop() any {
	last := len(*l) - 1
	e := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	return e
}

// all calls f with the frames held, those that are due first.
func (t *table) all(f func(*entry) (more bool)) {
	for _, e := range t.queue {
		if !e.gone && !f(e) {
			return
		}
	}
	for _, e := range t.later {
		if !e.gone && !f(e) {
			return
		}
	}
}

// ripen queues the frames that are due, or all.
func (t *table) ripen(now time.Time, all bool) {
	for len(t.later) > 0 && (all || t.later[0].gone || !now.Before(t.later[0].Due)) {
		if e := heap.Pop(&t.later).(*entry); !e.gone {
			t.enqueue(e)
		}
	}
}

func (t *table) enqueue(e *entry) {
	e.queued, t.quiet = true, time.Time{}
	t.queue = append(t.queue, e)
}

// remove removes a frame. Its place stays until half of the queue is gone, or until it would be due: so a removal needs constant time on average.
func (t *table) remove(e *entry) {
	e.gone = true
	t.frames--
	if !e.queued {
		return
	}
	if t.gone++; 2*t.gone > len(t.queue) {
		t.queue = slices.DeleteFunc(t.queue, func(e *entry) bool { return e.gone })
		t.gone = 0
	}
}

// New makes a machine.
func New(s Settings) *Machine {
	s.SetDefaults()
	return &Machine{settings: s, frames: map[ID]*entry{}, tables: map[string]*table{}, away: map[topology.ServerID]time.Time{}, began: map[topology.ServerID]time.Time{}, deleting: map[string]int{}, holds: map[uint64]hold{}}
}

// Admit decides on a frame that a gateway, or another holder, stages here. hold asks to log it and to call Logged or Abandon; else it
// is held already. Errors are Unavailable: there is no room, or the same frame is being logged.
func (m *Machine) Admit(f Frame) (hold bool, err error) {
	if e, ok := m.frames[f.ID]; ok {
		if !e.logged {
			return false, fault.Errorf(fault.Unavailable, "the frame is being staged by another request")
		}
		return false, nil
	}
	if len(m.frames) >= FramesMax {
		return false, fault.Errorf(fault.Unavailable, "%d frames are staged on server %s, the most there may be; they wait for the leaders of their partitions", FramesMax, m.settings.Server)
	}
	if m.bytes+f.Bytes > m.settings.BytesMax {
		return false, fault.Errorf(fault.Unavailable, "staged frames take %d bytes of %d on server %s (storage.staging_bytes_max); they wait for the leaders of their partitions", m.bytes, m.settings.BytesMax, m.settings.Server)
	}
	if s := &m.smeared; !f.Due.IsZero() && (s.frames >= FramesMax/smearedShare || s.bytes+f.Bytes > m.settings.BytesMax/smearedShare) {
		return false, fault.Errorf(fault.Unavailable, "smeared rows take %d bytes on server %s, and may take 1/%d of %d (storage.staging_bytes_max)", s.bytes, m.settings.Server, smearedShare, m.settings.BytesMax)
	}
	m.add(&entry{Frame: f}, 1)
	return true, nil
}

// add counts a frame, or uncounts it with sign -1.
func (m *Machine) add(e *entry, sign int64) {
	if sign > 0 {
		m.frames[e.ID] = e
	} else {
		delete(m.frames, e.ID)
	}
	m.bytes += sign * e.Bytes
	if !e.Due.IsZero() {
		m.smeared.bytes += sign * e.Bytes
		m.smeared.frames += sign
	}
}

// Renamed reports whether a frame that is held has other holders by now: a gateway replaced one that did not accept it. They are to be logged, then Rename.
func (m *Machine) Renamed(f Frame) bool {
	e, ok := m.frames[f.ID]
	return ok && e.logged && !slices.Equal(e.Holders, f.Holders)
}

// Rename records the holders of a frame, which are logged.
func (m *Machine) Rename(now time.Time, id ID, holders []topology.ServerID) {
	if e, ok := m.frames[id]; ok {
		e.Holders, e.renewed = holders, now
	}
}

// Abandon records that an admitted frame could not be logged.
func (m *Machine) Abandon(id ID) {
	if e, ok := m.frames[id]; ok && !e.logged {
		m.add(e, -1)
	}
}

// Logged records that an admitted frame is durable.
func (m *Machine) Logged(id ID) {
	e, ok := m.frames[id]
	if !ok || e.logged {
		return
	}
	e.logged = true
	t := m.tables[e.Table]
	if t == nil {
		t = &table{}
		m.tables[e.Table] = t
	}
	if e.Due.IsZero() {
		t.enqueue(e)
	} else {
		heap.Push(&t.later, e)
	}
	t.frames++
	t.bytes += e.Bytes
}

// Restore adds a frame that was found on the disk, whatever the bounds.
func (m *Machine) Restore(f Frame) {
	if _, ok := m.frames[f.ID]; ok {
		return
	}
	m.add(&entry{Frame: f}, 1)
	m.Logged(f.ID)
}

// stir has Next no longer rely on what Due found: frames may leave that could not.
func (m *Machine) stir() {
	for _, t := range m.tables {
		t.quiet = time.Time{}
	}
}

// Answered records which servers answered, or not, at a moment.
func (m *Machine) Answered(now time.Time, server topology.ServerID, answered bool) {
	m.stir()
	if answered {
		delete(m.away, server)
	} else if _, ok := m.away[server]; !ok {
		m.away[server] = now
	}
}

// Began records when a server began with its directory: an earlier one is gone, with the frames in it.
func (m *Machine) Began(server topology.ServerID, at time.Time) {
	if !at.IsZero() {
		m.stir()
		m.began[server] = at
	}
}

// isGone reports whether a holder is away, or lost the frame with an earlier directory.
func (m *Machine) isGone(now time.Time, e *entry, s topology.ServerID) bool {
	return m.isAway(now, s) || m.lost(e, s)
}

func (m *Machine) lost(e *entry, s topology.ServerID) bool {
	at := e.Since
	if e.renewed.After(at) {
		at = e.renewed
	}
	return s != m.settings.Server && m.began[s].After(at.Add(-beganMargin))
}

func (m *Machine) isAway(now time.Time, s topology.ServerID) bool {
	since, ok := m.away[s]
	return ok && now.Sub(since) >= m.settings.AwayAfter
}

// Leave records whether this server is drained or stops. One that leaves does not wait for its turn, nor until frames are due: it forwards all, and
// stages those elsewhere that their leader did not accept.
func (m *Machine) Leave(on bool) {
	if m.leaving == on {
		return
	}
	m.leaving = on
	m.stir()
	for _, t := range m.tables {
		t.pause, t.until = 0, time.Time{}
		for _, e := range t.queue {
			e.tried = false
		}
	}
}

// mine reports whether it is this server's turn to act for a frame: no holder before it is there, or it leaves.
func (m *Machine) mine(now time.Time, e *entry) bool {
	if m.leaving {
		return true
	}
	for _, h := range e.Holders {
		if h == m.settings.Server {
			return true
		}
		if !m.isGone(now, e, h) {
			return false
		}
	}
	return true
}

// Due returns the frames to be forwarded now, and marks them as under way.
func (m *Machine) Due(now time.Time) (due []Frame) {
	for _, name := range m.names() {
		t := m.tables[name]
		t.ripen(now, m.leaving)
		t.quiet = time.Time{}
		if now.Before(t.until) || m.deleting[name] > 0 {
			continue
		}
		if until, gathers := m.gathers(now, t); gathers {
			t.quiet = until
			continue
		}
		for _, e := range t.queue {
			if !t.mayForward(e) {
				if e.Alone { // those that may go together need not wait for it
					continue
				}
				break
			}
			if !m.ready(now, e) || m.heldUp(now, e) {
				continue
			}
			t.goes(e, 1)
			due = append(due, e.Frame)
		}
	}
	return due
}

// ready reports whether a frame of a queue is to be forwarded by this server.
func (m *Machine) ready(now time.Time, e *entry) bool {
	return !e.gone && !e.underWay && (m.mine(now, e) || now.Sub(e.from()) >= m.settings.TurnDelay)
}

// gathers reports whether the frames of a queue that are ready wait for others, and until when. Those that are another holder's turn wait for its forget.
func (m *Machine) gathers(now time.Time, t *table) (until time.Time, gathers bool) {
	if m.leaving || m.settings.GatherFor == 0 || len(t.queue) == t.gone {
		return until, false
	}
	rows := 0
	for _, e := range t.queue {
		if e.gone || e.underWay {
			continue
		}
		at := m.turn(now, e)
		if m.ready(now, e) {
			at = e.Due.Add(m.settings.GatherFor)
			rows += e.Rows
		}
		if e.Due.IsZero() || e.Alone || rows >= GatherRows || !now.Before(at) {
			return time.Time{}, false
		}
		if until.IsZero() || at.Before(until) {
			until = at
		}
	}
	return until, !until.IsZero()
}

// turn is when it may be this server's turn to forward a frame, if nothing happens until then.
func (m *Machine) turn(now time.Time, e *entry) time.Time {
	at := e.from().Add(m.settings.TurnDelay)
	for _, h := range e.Holders {
		since, silent := m.away[h]
		if away := since.Add(m.settings.AwayAfter); silent && away.After(now) && away.Before(at) {
			at = away
		}
	}
	return at
}

// mayForward reports whether one more frame may be on its way.
func (t *table) mayForward(e *entry) bool {
	return t.underWay < forwardsMax || !e.Alone && t.wayRows < forwardRowsMax && t.underWay < smallForwardsMax
}

// goes counts a frame as under way, or no longer with sign -1.
func (t *table) goes(e *entry, sign int) {
	e.underWay = sign > 0
	t.underWay += sign
	t.wayRows += sign * e.Rows
}

// Groups cuts frames that are due into those that go together: of one table, at most so many frames and bytes. A frame that could not be forwarded before goes alone.
func Groups(due []Frame, framesMax int, bytesMax int64) (all [][]Frame) {
	for len(due) > 0 {
		n, bytes := 1, due[0].Bytes
		for n < min(len(due), framesMax) && !due[0].Alone && !due[n].Alone && due[n].Table == due[0].Table && bytes+due[n].Bytes <= bytesMax {
			bytes += due[n].Bytes
			n++
		}
		all, due = append(all, due[:n:n]), due[n:]
	}
	return all
}

// Next returns when the first frame that waits for its time, or for others, may leave; zero: none waits. wait is true if there are frames that wait for something else, such as their leader
// or the end of a pause: those are to be looked at from time to time. Without them Due returns none before that.
func (m *Machine) Next() (at time.Time, wait bool) {
	first := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, t := range m.tables {
		wait = wait || len(t.queue) > t.gone && t.quiet.IsZero() || m.leaving && len(t.later) > 0
		if len(t.queue) > t.gone && !t.quiet.IsZero() {
			first(t.quiet)
		}
		if len(t.later) > 0 {
			first(t.later[0].Due)
		}
	}
	return at, wait
}

// Postponed records that a frame could not be forwarded: its leader is away, or has too much to do.
func (m *Machine) Postponed(now time.Time, id ID) {
	e, ok := m.frames[id]
	if !ok || !e.underWay {
		return
	}
	t := m.tables[e.Table]
	t.goes(e, -1)
	e.tried, e.Alone, t.quiet = m.leaving, true, time.Time{}
	if !now.Before(t.until) { // of several that fail together one counts
		t.pause = min(max(2*t.pause, pauseMin), pauseMax)
		t.until = now.Add(t.pause)
	}
}

// Forwarded records that the leader keeps a frame on all its copies. It returns the other holders, which may forget it; ok is false if it is not held.
func (m *Machine) Forwarded(id ID) (others []topology.ServerID, ok bool) {
	e, ok := m.frames[id]
	if !ok || !e.logged { // forgotten meanwhile, and perhaps staged again since
		return nil, false
	}
	if t := m.tables[e.Table]; t != nil {
		t.pause, t.until = 0, time.Time{}
	}
	m.drop(e)
	return slices.DeleteFunc(slices.Clone(e.Holders), func(s topology.ServerID) bool { return s == m.settings.Server }), true
}

// Forget records that another holder forwarded a frame. It reports whether it was held.
func (m *Machine) Forget(id ID) bool {
	e, ok := m.frames[id]
	if !ok || !e.logged {
		return false
	}
	m.drop(e)
	return true
}

// End ends the frames of a table that was dropped: those that were written by maps below a sequence number, that of the first map of the table
// which has the name now, if any. It returns them; those that are being logged are ended by a later call.
func (m *Machine) End(table string, below uint64) (ended []Frame) {
	t := m.tables[table]
	if t == nil {
		return nil
	}
	var old []*entry
	t.all(func(e *entry) bool {
		if e.Before(below) {
			old = append(old, e)
		}
		return true
	})
	for _, e := range old {
		ended = append(ended, e.Frame)
		m.drop(e)
	}
	return ended
}

func (m *Machine) drop(e *entry) {
	m.add(e, -1)
	t := m.tables[e.Table]
	if t == nil || !e.logged {
		return
	}
	if e.underWay {
		t.goes(e, -1)
	}
	t.bytes -= e.Bytes
	t.remove(e)
	if t.frames == 0 {
		delete(m.tables, e.Table)
	}
}

// Restage is a frame to be staged on another server because a holder is away, or this one leaves.
type Restage struct {
	ID      ID
	To      topology.ServerID
	Holders []topology.ServerID // then
	// Servers are sent the frame with the new holders, To among them: each holder looks after the others by its list, and one that never accepted the
	// frame gets it.
	Servers []topology.ServerID

	from []topology.ServerID // the holders now
}

// restagesMax bounds how many frames Restages returns at once.
const restagesMax = 64

// Restages returns the frames of which a holder is away and for which it is this server's turn, each with a server of those that take
// its place. They are under way until Restaged.
func (m *Machine) Restages(now time.Time, servers []topology.ServerID) (all []Restage) {
	for _, name := range m.names() {
		if m.deleting[name] > 0 {
			continue
		}
		m.tables[name].all(func(e *entry) bool {
			if e.restaging || e.underWay || !m.mine(now, e) || m.heldUp(now, e) {
				return true
			}
			if r, ok := m.replace(now, e, servers); ok {
				e.restaging = true
				all = append(all, r)
			}
			return len(all) < restagesMax
		})
		if len(all) == restagesMax {
			break
		}
	}
	return all
}

// replace puts another server in the place of this one, if it leaves, else of the first holder that is away. One that is there, and lost the frame, gets it again.
func (m *Machine) replace(now time.Time, e *entry, servers []topology.ServerID) (Restage, bool) {
	i := slices.IndexFunc(e.Holders, func(s topology.ServerID) bool {
		if m.leaving {
			return s == m.settings.Server && e.tried
		}
		return s != m.settings.Server && m.isGone(now, e, s)
	})
	if i < 0 {
		return Restage{}, false
	}
	s := e.Holders[i]
	if _, silent := m.away[s]; !silent && s != m.settings.Server && slices.Contains(servers, s) {
		return m.restage(e, s, e.Holders), true
	}
	var free []topology.ServerID
	for _, s := range servers {
		if _, silent := m.away[s]; !silent && s != m.settings.Server && !slices.Contains(e.Holders, s) {
			free = append(free, s)
		}
	}
	if len(free) == 0 {
		return Restage{}, false
	}
	to := free[e.ID.Nonce%uint64(len(free))]
	return m.restage(e, to, slices.Concat(e.Holders[:i], e.Holders[i+1:], []topology.ServerID{to})), true
}

func (m *Machine) restage(e *entry, to topology.ServerID, holders []topology.ServerID) Restage {
	servers := slices.DeleteFunc(slices.Clone(holders), func(s topology.ServerID) bool {
		_, silent := m.away[s]
		return silent || s == m.settings.Server
	})
	return Restage{ID: e.ID, To: to, Holders: holders, Servers: servers, from: e.Holders}
}

// Restaged records the outcome of a Restage: whether all notified servers have the frame. gone: this server need not hold it any more; renamed: it does, with the new
// holders, which are to be logged.
func (m *Machine) Restaged(now time.Time, r Restage, done bool) (gone, renamed bool) {
	e, ok := m.frames[r.ID]
	if !ok {
		return false, false
	}
	e.restaging = false
	switch {
	case !done, !slices.Equal(e.Holders, r.from): // another holder changed them meanwhile: it may have relied on this one
	case slices.Contains(r.Holders, m.settings.Server):
		e.Holders, e.renewed = r.Holders, now
		return false, true
	case !e.underWay:
		m.drop(e)
		return true, false
	}
	return false, false
}

// Len is the number of frames, those being logged included.
func (m *Machine) Len() int { return len(m.frames) }

// Partners returns the other holders of all frames.
func (m *Machine) Partners() []topology.ServerID {
	seen := map[topology.ServerID]bool{}
	for _, t := range m.tables {
		t.all(func(e *entry) bool {
			for _, h := range e.Holders {
				seen[h] = h != m.settings.Server
			}
			return true
		})
	}
	var all []topology.ServerID
	for s, other := range seen {
		if other {
			all = append(all, s)
		}
	}
	slices.Sort(all)
	return all
}

// Tables lists the tables with frames.
func (m *Machine) Tables() []string { return m.names() }

func (m *Machine) names() []string {
	all := make([]string, 0, len(m.tables))
	for name := range m.tables {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// Load is what one table has staged here.
type Load struct {
	Table  string
	Frames int
	Rows   int
	Bytes  int64
	Oldest time.Time // when the oldest frame came
	// Lo and Hi are the earliest and the latest time of a row.
	Lo, Hi point.Nanos
	// Later are the rows of smeared frames that are not due yet, and LaterBytes their frames'. Overdue is since when the oldest frame could have been
	// forwarded; zero: none is due.
	Later      int
	LaterBytes int64
	Overdue    time.Time
	// Sole are the rows of frames that no other server holds that answers.
	Sole int
}

// Loads returns the sizes of the held frames, by table.
func (m *Machine) Loads() []Load {
	var all []Load
	for _, name := range m.names() {
		all = append(all, m.load(name, m.tables[name]))
	}
	return all
}

// Load returns the size of one table's held frames; false: there are none.
func (m *Machine) Load(name string) (Load, bool) {
	t, ok := m.tables[name]
	if !ok || t.frames == 0 {
		return Load{}, false
	}
	return m.load(name, t), true
}

func (m *Machine) load(name string, t *table) Load {
	l := Load{Table: name, Frames: t.frames, Bytes: t.bytes, Lo: math.MaxInt64, Hi: math.MinInt64}
	for _, e := range t.queue {
		if from := e.from(); !e.gone && (l.Overdue.IsZero() || from.Before(l.Overdue)) {
			l.Overdue = from
		}
	}
	for _, e := range t.later {
		if !e.gone {
			l.Later, l.LaterBytes = l.Later+e.Rows, l.LaterBytes+e.Bytes
		}
	}
	t.all(func(e *entry) bool {
		l.Rows += e.Rows
		if m.sole(e) {
			l.Sole += e.Rows
		}
		if l.Oldest.IsZero() || e.Since.Before(l.Oldest) {
			l.Oldest = e.Since
		}
		l.Lo, l.Hi = min(l.Lo, e.Lo), max(l.Hi, e.Hi)
		return true
	})
	return l
}

// sole reports whether every other holder of a frame is silent.
func (m *Machine) sole(e *entry) bool {
	return !slices.ContainsFunc(e.Holders, func(s topology.ServerID) bool {
		_, silent := m.away[s]
		return s != m.settings.Server && !silent && !m.lost(e, s)
	})
}

// Bytes is the size of all frames, those being logged included.
func (m *Machine) Bytes() int64 { return m.bytes }
