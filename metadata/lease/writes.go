package lease

import (
	"cmp"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
)

// Rows a second, by which leads are spread. A server counts the rows that it accepts as a leader and names its busiest partitions in its heartbeat. Two rules
// hand leads over for the sake of balance, and neither undoes the other's work:
//
//	by load    the master (metadata/master, load.go): from the busiest server to a less busy one. The sum of the squares of the servers' loads falls
//	by count   each server above its share (planMoves): partitions that are not named first, which changes no load that is known; one that is named only
//	           where the other server would have less with it than this one has now: then that sum falls too
//
// So each hand-over lowers that sum, or leaves it and lowers the sum of the squares of the counts: while the loads stay as they are, they come to an end.

// Writes are the rows a second that a server accepts as the leader of partitions, smoothed over some tens of seconds.
type Writes struct {
	// Hot are the busiest partitions, the busiest first, at most HotMax.
	Hot []Hot `json:"hot,omitempty"`
	// Rest is the rows a second of all others together.
	Rest int64 `json:"rest,omitempty"`
}

// Hot is one busy partition.
type Hot struct {
	// Partition is what Partition.String prints.
	Partition string `json:"partition"`
	Rows      int64  `json:"rows"`
	// Seconds is for how long the partition has been measured since the server began to lead it.
	Seconds int64 `json:"seconds,omitempty"`
}

// HotMax bounds the partitions that a heartbeat row names in Writes: with names of 64 bytes that is 2 KiB.
const HotMax = 16

// LedRows is the rows a second of one partition that is led here, and for how long it has been measured.
type LedRows struct {
	Partition Partition
	Rows      int64
	For       time.Duration
}

// Next is a request to hand a lease over to a server. It counts for NextFor; a taker removes it.
type Next struct {
	Server topology.ServerID `json:"server"`
	Note
}

// NextFor is for how long a request to hand a lease over counts, by the wall clocks of the two servers: an old one, for a server that could not acquire the
// lease then, must not come true when that server is back.
const NextFor = 30 * time.Second

// keepFor is for how long a lease that was handed to this server for its load is not handed over for a share: its load is not known yet.
const keepFor = time.Minute

// HandedTo asks the holder to hand the lease over to a server.
func (l Lease) HandedTo(n Next) Lease { l.Next = &n; return l }

// All is the rows a second of all partitions.
func (w Writes) All() int64 {
	n := w.Rest
	for _, h := range w.Hot {
		n += h.Rows
	}
	return n
}

// rows is All of what may not be known.
func (w *Writes) rows() int64 {
	if w == nil {
		return 0
	}
	return w.All()
}

func (m *Machine) setWrites(in Loaded) {
	m.writes, m.hot = nil, nil
	if !in.Known {
		return
	}
	m.writes, m.hot = &Writes{Rest: in.Rest}, make(map[Partition]int64, len(in.Led))
	for _, x := range in.Led[:min(len(in.Led), HotMax)] {
		m.writes.Hot = append(m.writes.Hot, Hot{x.Partition.String(), x.Rows, int64(x.For / time.Second)})
		m.hot[x.Partition] = x.Rows
	}
}

// handsOver reports whether the server that a row of ours names as the next may acquire the lease now. If not, the request is passed over.
func (m *Machine) handsOver(e *entry) bool {
	next := e.row.Next
	if !m.counts(next) || e.assigned == nil || m.isDamaged(e, next.Server) || m.tied()[e] {
		return false
	}
	return slices.ContainsFunc(e.row.InSync, func(c Member) bool {
		if c.Server != next.Server || !e.assigned.places(c) || !m.candidate(e, c) {
			return false
		}
		b := m.beats[c.Server].beat
		return b.ReadOnly == "" && b.Load < m.set.LoadMax
	})
}

// counts reports whether a request to hand a lease over is new enough.
func (m *Machine) counts(n *Next) bool { return n != nil && m.wallNow().Sub(n.When).Abs() < NextFor }

// nextOf returns the server that a row names as its next holder, if it may acquire the lease; else "".
func (m *Machine) nextOf(e *entry, members []Member) topology.ServerID {
	if !m.counts(e.row.Next) {
		return ""
	}
	for _, c := range members {
		if c.Server == e.row.Next.Server && e.assigned.places(c) && (c.Server == m.self.Server || m.candidate(e, c) && !m.isDamaged(e, c.Server)) {
			return c.Server
		}
	}
	return ""
}

// relieves reports whether a server of these writes has less with a busy partition of ours than this server has now.
func (m *Machine) relieves(e *entry, w *Writes) bool {
	rows := m.hot[e.p]
	return rows == 0 || w == nil || w.All()+rows < m.writes.All()
}

// coolFirst are the entries in order, the busy ones last, the least busy of them first; if this server hands all over, as they are.
func (m *Machine) coolFirst() []*entry {
	all := m.sorted()
	if m.giving() || len(m.hot) == 0 {
		return all
	}
	out, hot := make([]*entry, 0, len(all)), []*entry(nil)
	for _, e := range all {
		if m.hot[e.p] > 0 {
			hot = append(hot, e)
		} else {
			out = append(out, e)
		}
	}
	slices.SortStableFunc(hot, func(a, b *entry) int { return cmp.Compare(m.hot[a.p], m.hot[b.p]) })
	return append(out, hot...)
}
