package kafka

import (
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// StatusPath is the path at which a process reports the state of its consumers, a Status.
const StatusPath = "/api/v1/status/kafka"

// Status is the present state of consuming, for people and pages.
type Status struct {
	InFlightBytes    int64           `json:"in_flight_bytes"`
	InFlightBytesMax int64           `json:"in_flight_bytes_max"`
	LaterRows        int             `json:"later_rows"`  // wait in their topics until they are due
	LaterBytes       int64           `json:"later_bytes"` // of these rows and their records, not in flight; they have a bound as large, which follows the memory apart from that
	Clusters         []ClusterStatus `json:"clusters"`

	early [3]uint64 // rows that left before they were due, by hurry
}

// ClusterStatus is one group on one cluster.
type ClusterStatus struct {
	Name       string   `json:"name"`
	Brokers    []string `json:"brokers"`
	Group      string   `json:"group"`
	Protocol   string   `json:"protocol"`
	Member     string   `json:"member"` // "" while we are not in the group
	Generation int32    `json:"generation"`
	Lag        int64    `json:"lag"` // of all our partitions
	CommitAge  float64  `json:"commit_age_seconds"`
	inGroup    bool
	LastError  string            `json:"last_error,omitempty"`
	ErrorTime  time.Time         `json:"last_error_time,omitzero"`
	Partitions []PartitionStatus `json:"partitions"`
}

// PartitionStatus is one of our partitions. Offsets are -1 until they are known.
type PartitionStatus struct {
	Topic         string `json:"topic"`
	Partition     int32  `json:"partition"`
	Committed     int64  `json:"committed"`
	Done          int64  `json:"done"`   // may be committed
	Polled        int64  `json:"polled"` // has reached us
	End           int64  `json:"end"`    // of the log
	Lag           int64  `json:"lag"`    // End minus the finished part
	InFlightBytes int64  `json:"in_flight_bytes"`
	Paused        bool   `json:"paused"`
	Attempts      int    `json:"attempts"` // failures since the last success
	Records       uint64 `json:"records"`
	Bytes         uint64 `json:"bytes"`
	Rows          uint64 `json:"rows"`
	Poison        uint64 `json:"poison"`
	LastPoison    string `json:"last_poison,omitempty"`
}

// Status returns the present state of consuming.
func (c *Consumer) Status() Status {
	c.mu.Lock()
	out := Status{InFlightBytes: c.shares.used, InFlightBytesMax: c.shares.max, LaterRows: c.queue.laterRows, LaterBytes: c.queue.laterBytes, Clusters: []ClusterStatus{}}
	out.early = c.queue.early
	var clients []*kgo.Client
	for _, m := range c.members {
		out.Clusters = append(out.Clusters, m.statusLocked())
		clients = append(clients, m.client)
	}
	c.mu.Unlock()
	for i, client := range clients { // not under mu: the client has its own locks
		if client != nil && out.Clusters[i].inGroup {
			out.Clusters[i].Member, out.Clusters[i].Generation = client.GroupMetadata()
		}
	}
	return out
}

func (m *member) statusLocked() ClusterStatus {
	s := ClusterStatus{Name: m.cluster.Name, Brokers: m.cluster.Brokers, Group: m.cluster.Group, Protocol: m.cluster.Protocol, Partitions: []PartitionStatus{}}
	for p, g := range m.c.tracker.parts {
		if p.member == m.index {
			s.Partitions = append(s.Partitions, m.partitionLocked(p, g))
		}
	}
	slices.SortFunc(s.Partitions, func(a, b PartitionStatus) int {
		return partition{0, a.Topic, a.Partition}.compare(partition{0, b.Topic, b.Partition})
	})
	for _, p := range s.Partitions {
		s.Lag += p.Lag
	}
	m.stats.mu.Lock()
	defer m.stats.mu.Unlock()
	s.LastError, s.ErrorTime, s.inGroup = m.stats.lastError, m.stats.errorTime, m.stats.inGroup
	if m.cluster.Protocol == "consumer" && time.Since(m.stats.beatAt) > beatAgeMax {
		s.inGroup = false
	}
	s.CommitAge = time.Since(m.stats.cleanAt).Seconds()
	return s
}

func (m *member) partitionLocked(p partition, g *progress) PartitionStatus {
	s := PartitionStatus{Topic: p.topic, Partition: p.id, Committed: g.committed.offset, Done: max(g.done.offset, g.committed.offset), Polled: g.polled,
		Paused: m.c.shares.paused(p)}
	if t := m.c.shares.topics[p.key()]; t != nil && t.parts[p.id] != nil {
		s.InFlightBytes = t.parts[p.id].bytes
	}
	if l := m.c.queue.parts[p]; l != nil {
		s.Attempts = l.attempts
	}
	m.stats.fill(p, &s)
	return s
}

// stats counts what happened to a member's partitions. It is safe for concurrent use.
type stats struct {
	member int

	mu        sync.Mutex
	parts     map[partition]*partStats
	lastError string
	errorTime time.Time
	cleanAt   time.Time // when nothing waited to be committed, or a commit succeeded
	beatAt    time.Time // when a broker last answered a heartbeat
	inGroup   bool      // the client keeps the name of a group that it lost, so that it does not say this
}

type partStats struct {
	assigned                     bool
	records, bytes, rows, poison uint64
	end                          int64
	first                        int64 // offset that this assignment began with; -1: nothing was polled yet
	lastPoison                   string
}

// statsMax bounds the partitions with counters that are kept after they moved away.
const statsMax = 10_000

func newStats(member int) *stats {
	return &stats{member: member, parts: map[partition]*partStats{}, cleanAt: time.Now()}
}

func (s *stats) with(p partition, f func(*partStats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.parts[p]
	if q == nil {
		q = &partStats{end: -1, first: -1}
		s.parts[p] = q
	}
	f(q)
}

func (s *stats) assign(p partition) {
	s.with(p, func(q *partStats) { q.assigned, q.end, q.first = true, -1, -1 })
}

func (s *stats) drop(p partition) {
	s.with(p, func(q *partStats) {
		q.assigned = false
		if len(s.parts) > statsMax {
			delete(s.parts, p)
		}
	})
}

func (s *stats) end(p partition, offset int64) { s.with(p, func(q *partStats) { q.end = offset }) }

func (s *stats) took(p partition, first int64, records int, bytes int64) {
	s.with(p, func(q *partStats) {
		if q.first < 0 {
			q.first = first
		}
		q.records, q.bytes = q.records+uint64(records), q.bytes+uint64(bytes)
	})
}

func (s *stats) rows(p partition, n int) {
	s.with(p, func(q *partStats) { q.rows += uint64(n) })
}

func (s *stats) poison(p partition, l *letter) {
	s.with(p, func(q *partStats) { q.poison, q.lastPoison = q.poison+1, l.kind.String()+": "+l.reason })
}

func (s *stats) failed(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastError, s.errorTime = text, time.Now()
}

func (s *stats) joined(in bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inGroup = in
}

// beatAgeMax is how long after the last answer to a heartbeat we are in a group of KIP-848: brokers remove a member of which they hear nothing after 45 s,
// 60 at most. The client goes on without a word where brokers do not answer; that of a classic group reports it (groupErrors).
const beatAgeMax = time.Minute

func (s *stats) beat(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beatAt = at
}

func (s *stats) clean(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanAt = at
}

// fill adds the counters to the tracked values.
func (s *stats) fill(p partition, out *PartitionStatus) {
	s.with(p, func(q *partStats) {
		out.End, out.Records, out.Bytes, out.Rows, out.Poison, out.LastPoison = q.end, q.records, q.bytes, q.rows, q.poison, q.lastPoison
		from := out.Done
		if from < 0 { // a new group that has not finished anything
			from = q.first
		}
		if out.End >= 0 && from >= 0 {
			out.Lag = max(0, out.End-from)
		}
	})
}
