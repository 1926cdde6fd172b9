package unload

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Settings are the numbers of an unload.
type Settings struct {
	// After is the time from Begin to the first read. Default 1 min. Rows that come after a deletion with a rank more than ten seconds below it are hidden by the
	// partitions themselves (storage/partition); so this is longer, for rows that arrive though their sender was notified of the end.
	After time.Duration
	// SliceBytes bounds the rows of a slice in memory, but for one time's. Default 4 MiB. Larger: fewer frames, longer waits of deletions.
	SliceBytes int64
	// Window is how many slices are read or on their way. Default 2.
	Window int
	// SendWithin bounds the sending of a slice, and the wait of deletions after a takeover. Default 10 s.
	SendWithin time.Duration
	// PauseMin and PauseMax bound the pause after a slice was not acked or read, twice as long each time. Defaults 100 ms and 10 s.
	PauseMin, PauseMax time.Duration
	// Rate bounds the bytes read in a second, so that foreground work goes on. 0: no bound.
	Rate int64
}

// SetDefaults fills the zero values.
func (s *Settings) SetDefaults() {
	if s.After == 0 {
		s.After = time.Minute
	}
	if s.SliceBytes == 0 {
		s.SliceBytes = 4 << 20
	}
	if s.Window == 0 {
		s.Window = 2
	}
	if s.SendWithin == 0 {
		s.SendWithin = 10 * time.Second
	}
	if s.PauseMin == 0 {
		s.PauseMin = 100 * time.Millisecond
	}
	if s.PauseMax == 0 {
		s.PauseMax = 10 * time.Second
	}
}

// Machine moves the rows of one partition. One goroutine at a time.
type Machine struct {
	set       Settings
	lo, hi    point.Nanos // the times of the partition
	leads     bool
	quiet     time.Time // from then on no slice of an earlier leader is on its way
	readFrom  time.Time // the earliest time of the next read
	failed    int       // slices in a row
	last      uint64    // id given to a slice
	slices    []*slice  // not acked yet, by time
	next      point.Nanos
	deletions map[uint64]bool // true: permitted
	finished  bool
	ending    ending
	now       time.Time // of the last Step
	out       []Effect
}

// slice is a range of times that is not acked yet.
type slice struct {
	id       uint64
	from, to point.Nanos
	phase    phase
}

type phase uint8

const (
	unread  phase = iota // to be read, again or for the first time
	reading              // since no deletion
	old                  // being read since before a deletion: its rows are dropped
	sending
)

// New makes the machine of a partition with times from lo to before hi.
func New(set Settings, lo, hi point.Nanos) *Machine {
	set.SetDefaults()
	return &Machine{set: set, lo: lo, hi: hi, next: lo, deletions: map[uint64]bool{}}
}

// Step handles an input and returns the effects, in order. The slice is the caller's until the next call.
func (m *Machine) Step(now time.Time, in Input) []Effect {
	m.now, m.out = now, m.out[:0]
	switch in := in.(type) {
	case Begin:
		m.begin(now, in)
	case End:
		m.leads, m.slices, m.finished, m.next = false, nil, false, m.lo
		m.ending.on = false
		clear(m.deletions)
	case Read:
		m.read(now, in)
	case Unread:
		if s := m.find(in.ID); s != nil && (s.phase == reading || s.phase == old) {
			m.again(now, s)
		}
	case Sent:
		m.sent(now, in)
	case Delete:
		if m.leads {
			m.delete(in.ID)
		}
	case Deleted:
		delete(m.deletions, in.ID)
	case Leaders:
		m.leaders(now, in)
	case Answered:
		m.answered(now, in)
	}
	if m.leads {
		m.endSlices(now)
		m.permit(now)
		m.advance(now)
	}
	return m.out
}

// Wake is when the machine wants a Tick, after the last Step; zero: it waits for an answer. It may be over by now, where the caller was held up since.
func (m *Machine) Wake() time.Time {
	var at time.Time
	sooner := func(t time.Time) {
		if t.After(m.now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if !m.leads {
		return at
	}
	if m.ending.on && !m.ending.finding {
		sooner(m.ending.findAt)
	}
	if len(m.deletions) > 0 {
		sooner(m.quiet)
	} else if !m.finished {
		sooner(m.readFrom)
	}
	return at
}

// Progress returns the time before which all rows are acked, and whether all are.
func (m *Machine) Progress() (upTo point.Nanos, finished bool) {
	upTo = m.next
	if len(m.slices) > 0 {
		upTo = m.slices[0].from
	}
	return upTo, m.finished
}

func (m *Machine) begin(now time.Time, in Begin) {
	if m.leads {
		return
	}
	m.leads, m.quiet, m.next, m.failed = true, now.Add(m.set.SendWithin), m.lo, 0
	switch {
	case in.First:
		m.quiet = now
	case !in.Again:
		m.ending = ending{id: m.ending.id + 1, on: true, findAt: now, asked: map[topology.ServerID]bool{}}
	}
	m.readFrom = now.Add(m.set.After)
}

func (m *Machine) find(id uint64) *slice {
	i := slices.IndexFunc(m.slices, func(s *slice) bool { return s.id == id })
	if i < 0 {
		return nil
	}
	return m.slices[i]
}

func (m *Machine) do(e Effect) { m.out = append(m.out, e) }

// read handles the rows of a slice. Where fewer times were read than asked for, the rest is a slice of its own or the next one.
func (m *Machine) read(now time.Time, in Read) {
	s := m.find(in.ID)
	if s == nil || s.phase != reading && s.phase != old {
		m.do(Drop{in.ID})
		return
	}
	if s.phase == old || in.To <= s.from || in.To > s.to {
		m.do(Drop{in.ID})
		m.again(now, s)
		return
	}
	m.rest(s, in.To)
	m.pace(now, in.Bytes)
	if in.Rows == 0 {
		m.do(Drop{in.ID})
		m.remove(s)
		return
	}
	s.phase = sending
	m.do(Send{s.id})
}

// rest gives the unread part of a slice back.
func (m *Machine) rest(s *slice, to point.Nanos) {
	if to == s.to {
		return
	}
	if s.to == m.next {
		m.next = to
	} else {
		i := slices.Index(m.slices, s)
		m.last++
		m.slices = slices.Insert(m.slices, i+1, &slice{id: m.last, from: to, to: s.to})
	}
	s.to = to
}

// pace puts the next read off by as long as the bytes need at the rate.
func (m *Machine) pace(now time.Time, bytes int64) {
	if m.set.Rate > 0 {
		m.readFrom = now.Add(time.Duration(float64(bytes) / float64(m.set.Rate) * float64(time.Second)))
	}
}

// again has a slice read once more after a pause, under a new id: answers to the old one are of no use.
func (m *Machine) again(now time.Time, s *slice) {
	if s.phase != old {
		m.readFrom = now.Add(min(m.set.PauseMin<<min(m.failed, 16), m.set.PauseMax))
		m.failed++
	}
	m.last++
	s.id, s.phase = m.last, unread
}

func (m *Machine) remove(s *slice) {
	m.slices = slices.DeleteFunc(m.slices, func(o *slice) bool { return o == s })
}

func (m *Machine) sent(now time.Time, in Sent) {
	s := m.find(in.ID)
	if s == nil || s.phase != sending {
		return
	}
	m.do(Drop{s.id})
	if !in.OK {
		m.again(now, s)
		return
	}
	m.failed = 0
	m.remove(s)
}

// delete begins to wait for the slices on their way. A slice that is being read may have rows that the deletion removes.
func (m *Machine) delete(id uint64) {
	if _, known := m.deletions[id]; known {
		return
	}
	m.deletions[id] = false
	for _, s := range m.slices {
		if s.phase == reading {
			s.phase = old
		}
	}
}

// permit lets deletions begin once nothing is on its way, of this leader or of the one before.
func (m *Machine) permit(now time.Time) {
	if len(m.deletions) == 0 || now.Before(m.quiet) ||
		slices.ContainsFunc(m.slices, func(s *slice) bool { return s.phase == sending }) {
		return
	}
	ids := make([]uint64, 0, len(m.deletions))
	for id, permitted := range m.deletions {
		if !permitted {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		m.deletions[id] = true
		m.do(Permit{id})
	}
}

// advance reads the next slices, unless a deletion is under way.
func (m *Machine) advance(now time.Time) {
	if m.finished || len(m.deletions) > 0 || now.Before(m.readFrom) {
		return
	}
	busy := 0
	for _, s := range m.slices {
		switch {
		case s.phase != unread:
			busy++
		case busy < m.set.Window:
			busy++
			m.readSlice(s)
		}
	}
	// One open-ended read at a time: how far it goes is known with its answer.
	open := slices.ContainsFunc(m.slices, func(s *slice) bool { return s.to == m.hi && s.phase != sending })
	if m.next < m.hi && busy < m.set.Window && !open {
		m.last++
		s := &slice{id: m.last, from: m.next, to: m.hi}
		m.next = m.hi
		m.slices = append(m.slices, s)
		m.readSlice(s)
	}
	if m.next == m.hi && len(m.slices) == 0 {
		m.finished = true
		m.do(Finish{})
	}
}

func (m *Machine) readSlice(s *slice) {
	s.phase = reading
	m.do(ReadSlice{ID: s.id, From: s.from, To: s.to})
}
