package chain

import (
	"github.com/spillwaydb/spillway/protocols/point"
)

// feed is the state of passing frames on to one other placement.
//
//	end ──── in flight ──── sent ──── not sent yet ──── our log's end
type feed struct {
	to    Member
	ready bool         // its end was reported in this order of the chain
	end   point.Serial // its log's, as last reported
	sent  point.Serial
	// chunks cover the frames between end and sent.
	chunks   []chunk
	inflight int
	asking   bool // a PassOn is not answered yet
	behind   bool // our log does not reach back to its end
	moved    Time // when its end last rose, or something was sent again

	// Of its reports in this order of the chain.
	upto     point.Serial
	reported bool
}

type chunk struct {
	upto  point.Serial
	bytes int
}

func (m *Machine) feedOf(to Member) *feed {
	for _, f := range m.feeds {
		if f.to == to {
			return f
		}
	}
	return nil
}

// feedOnly feeds exactly these members. One that was fed before goes on where it was, and reports again.
func (m *Machine) feedOnly(tos ...Member) {
	var feeds []*feed
	for _, to := range tos {
		f := m.feedOf(to)
		if f == nil {
			f = &feed{to: to, moved: m.now}
		}
		f.upto, f.reported = point.Serial{}, false
		feeds = append(feeds, f)
	}
	m.feeds = feeds
}

// pump passes on the frames that the other lacks, as far as the window is open.
func (m *Machine) pump(f *feed) {
	if !f.ready || f.asking || f.behind || !f.sent.Less(m.end) || f.inflight >= m.set.WindowBytes || !m.joined() {
		return
	}
	if len(f.chunks) == 0 {
		f.moved = m.now // nothing was on its way: the time for frames sent now begins now
	}
	f.asking = true
	m.do(PassOn{To: f.to, After: f.sent, BytesMax: m.set.WindowBytes - f.inflight})
}

func (m *Machine) passed(in Passed) {
	f := m.feedOf(in.To)
	if f == nil {
		return
	}
	f.asking = false
	switch {
	case f.sent != in.After: // it was rewound meanwhile
	case in.Missing:
		f.behind = true
		m.do(Behind{f.to, f.end})
		return
	case in.Upto == in.After: // no link: the next ping's time tries again
		return
	case f.sent.Less(in.Upto):
		f.sent = in.Upto
		f.chunks = append(f.chunks, chunk{in.Upto, in.Bytes})
		f.inflight += in.Bytes
	}
	m.pump(f)
}

// noteEnd records where the other's log ends.
func (m *Machine) noteEnd(f *feed, end point.Serial) {
	if f.end.Less(end) || !f.ready {
		f.moved = m.now
		f.behind = false
	}
	f.ready = true
	f.end = end
	for len(f.chunks) > 0 && !end.Less(f.chunks[0].upto) {
		f.inflight -= f.chunks[0].bytes
		f.chunks = f.chunks[1:]
	}
	if f.sent.Less(end) { // it has more than we sent: another head fed it before
		f.sent, f.chunks, f.inflight = end, nil, 0
	}
	if end.Less(f.sent) && m.now-f.moved >= m.set.PingEvery {
		m.rewind(f, end)
		return
	}
	m.pump(f)
}

// rewind sends everything behind the other's end again. Frames on their way are refused as a gap, once each: one answer is enough.
func (m *Machine) rewind(f *feed, end point.Serial) {
	if f.ready && f.end == end && f.sent != end && m.now-f.moved < m.set.PingEvery {
		return
	}
	f.ready, f.end, f.sent, f.chunks, f.inflight, f.behind, f.moved = true, end, end, nil, 0, false, m.now
	m.pump(f)
}
