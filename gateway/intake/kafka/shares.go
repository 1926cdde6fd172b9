package kafka

// shares divides the memory for records between topics. It is pure.
//
// A topic gets max/topics, a partition its part of that. At its share a topic or partition is paused; below half of it, it
// resumes: a topic with a stuck table fills its own share and no other.
//
// Invariant: used is the sum of the topics' bytes, at most max and one round of fetches. After max shrank it may be more until the records in flight are written.
type shares struct {
	max  int64 // follows the memory of the process
	used int64

	topics map[topicKey]*topicShare
}

type topicKey struct {
	member int
	topic  string
}

type topicShare struct {
	bytes  int64
	paused bool
	parts  map[int32]*partShare
}

type partShare struct {
	bytes    int64
	paused   bool
	assigned bool
}

// partBytesMin is the least that a partition may hold: below it, pausing costs more than memory is worth, since the client
// drops the records it had fetched of a paused partition.
const partBytesMin = 256 << 10

func newShares(max int64) *shares { return &shares{max: max, topics: map[topicKey]*topicShare{}} }

func (p partition) key() topicKey { return topicKey{p.member, p.topic} }

func (s *shares) at(p partition) (*topicShare, *partShare) {
	t := s.topics[p.key()]
	if t == nil {
		t = &topicShare{parts: map[int32]*partShare{}}
		s.topics[p.key()] = t
	}
	q := t.parts[p.id]
	if q == nil {
		q = &partShare{}
		t.parts[p.id] = q
	}
	return t, q
}

func (s *shares) assign(p partition) {
	_, q := s.at(p)
	q.assigned = true
}

// drop ends an assignment; bytes still held stay counted until they are released.
func (s *shares) drop(p partition) {
	t, q := s.at(p)
	q.assigned, q.paused = false, false
	s.forget(p, t, q)
}

func (s *shares) forget(p partition, t *topicShare, q *partShare) {
	if !q.assigned && q.bytes == 0 {
		delete(t.parts, p.id)
	}
	if len(t.parts) == 0 {
		delete(s.topics, p.key())
	}
}

// add counts n bytes for a partition, or releases -n.
func (s *shares) add(p partition, n int64) {
	t, q := s.at(p)
	q.bytes += n
	t.bytes += n
	s.used += n
	s.forget(p, t, q)
}

// turns lists the partitions to pause and to resume.
type turns struct {
	pauseTopics, resumeTopics []string
	pauseParts, resumeParts   map[string][]int32
}

// turn checks a member's topics against their shares.
func (s *shares) turn(member int) (out turns) {
	if len(s.topics) == 0 {
		return out
	}
	share := max(s.max/int64(len(s.topics)), 1) // one that may hold nothing would never be read
	for k, t := range s.topics {
		if k.member != member {
			continue
		}
		if over(t.bytes, share, &t.paused) {
			out.topic(k.topic, t.paused)
		}
		most := max(share/int64(max(1, len(t.parts))), min(partBytesMin, share))
		for id, q := range t.parts {
			if q.assigned && over(q.bytes, most, &q.paused) {
				out.part(k.topic, id, q.paused)
			}
		}
	}
	return out
}

// over sets paused by bytes, and reports a change.
func over(bytes, most int64, paused *bool) (changed bool) {
	was := *paused
	*paused = bytes >= most || was && bytes >= most/2 && bytes > 0
	return *paused != was
}

func (o *turns) topic(name string, paused bool) {
	if paused {
		o.pauseTopics = append(o.pauseTopics, name)
	} else {
		o.resumeTopics = append(o.resumeTopics, name)
	}
}

func (o *turns) part(topic string, id int32, paused bool) {
	m := &o.resumeParts
	if paused {
		m = &o.pauseParts
	}
	if *m == nil {
		*m = map[string][]int32{}
	}
	(*m)[topic] = append((*m)[topic], id)
}

func (s *shares) paused(p partition) bool {
	t := s.topics[p.key()]
	return t != nil && (t.paused || t.parts[p.id] != nil && t.parts[p.id].paused)
}
