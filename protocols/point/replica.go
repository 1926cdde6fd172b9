package point

import (
	"slices"
	"strings"
	"sync"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Several senders may send the same series, as the two Prometheus servers of an HA pair do; each adds a label with its own name. The series are
// stored without that label, and the rows of one sender at a time are kept. Which one is decided for each batch, long after a row's raw bytes
// were found in the Dict. So the number that these bytes have means the series and its sender:
//
//	raw bytes ─▶ twin 2^30+k ─▶ (series 17, sender "a" of cluster "x") ──ResolveReplicas──▶ series 17, or the row is removed
//
// Tables without ReplicaLabels have no twins, and pay nothing.

// ReplicaLabels name the two labels that such senders add: that of the group, which stays, and that of the sender within it, which is removed.
// The zero value: none.
type ReplicaLabels struct{ Cluster, Replica string }

// Sender is one of several senders of the same series.
type Sender struct{ Cluster, Replica string }

// Replicas sets the labels by which senders of the same series differ, before the Dict is used. Series that have both labels get numbers that
// are good for Batch.ResolveReplicas alone; all others are numbered as usual.
func (d *Dict) Replicas(l ReplicaLabels) {
	if l == (ReplicaLabels{}) {
		return
	}
	d.twins = &twins{labels: l, most: min(twinsPerSeries*d.seriesMax, twinsMax)}
	d.twins.mu.numbers = map[twin]SeriesID{}
	d.twins.mu.senders = map[Sender]uint32{}
}

const (
	// twinFirst is the first number of a twin: those of series are below.
	twinFirst SeriesID = SeriesIDMax
	twinsMax           = 1 << 30
	// twinsPerSeries bounds the twins of a Dict: so many times its bound of series. One costs about 100 bytes.
	twinsPerSeries = 4
	// SendersMax bounds the senders that a Dict remembers. A replica label with a new value at each restart makes one each time.
	SendersMax = 10_000
	// SenderBytesMax bounds each of the two labels' values.
	SenderBytesMax = 256
)

// twin is a series as one of its senders sends it.
type twin struct {
	series SeriesID
	sender uint32
}

// twins numbers the twins of a Dict, from twinFirst on. Look-ups of present twins need no lock.
type twins struct {
	// Constant.
	labels ReplicaLabels
	most   int

	all     pages[twin]
	hashes  firstHashes // as those of the Dict, counted from 0
	senders pages[Sender]

	mu struct {
		sync.Mutex // guards growth of the three above
		numbers    map[twin]SeriesID
		senders    map[Sender]uint32
	}
}

// at returns a twin.
func (t *twins) at(id SeriesID) twin { return *t.all.at(uint32(id - twinFirst)) }

// numberTwin is Dict.number for labels that came from outside, of a Dict with ReplicaLabels.
func (d *Dict) numberTwin(labels []byte, owned Labels, first Hash) (SeriesID, error) {
	rest, from, ok := d.twins.split(Labels(labels))
	if !ok {
		return d.numberSeries(labels, owned, first, true)
	}
	if n := max(len(from.Cluster), len(from.Replica)); n > SenderBytesMax {
		return 0, fault.Errorf(fault.Invalid, "label %q or %q has a value of %d bytes: those of replicas have at most %d", d.twins.labels.Cluster, d.twins.labels.Replica, n, SenderBytesMax)
	}
	id, err := d.numberSeries([]byte(rest), "", Hash{}, true)
	if err != nil || d.dropped.Load() == uint64(id)+1 {
		return id, err
	}
	return d.twins.number(id, from, first)
}

// split removes the label of the replica. ok is false for labels that lack it, or that of the cluster.
func (t *twins) split(l Labels) (rest Labels, from Sender, ok bool) {
	before, at, after := l, Labels(""), Labels("")
	for left := l; left != ""; {
		name, value, next, more := left.Next()
		if !more {
			break
		}
		switch name {
		case t.labels.Cluster:
			from.Cluster = value
		case t.labels.Replica:
			from.Replica = value
			before, at, after = l[:len(l)-len(left)], left, next
		}
		left = next
	}
	if from.Cluster == "" || from.Replica == "" || at == "" {
		return "", Sender{}, false
	}
	return before + after, from, true
}

func (t *twins) number(series SeriesID, from Sender, first Hash) (SeriesID, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sender, ok := t.mu.senders[from]
	if !ok {
		if len(t.mu.senders) >= SendersMax {
			return 0, fault.Errorf(fault.Invalid, "labels %q and %q have %d pairs of values, and %q of %q would be one more: a replica label is not for names that change all the time",
				t.labels.Cluster, t.labels.Replica, SendersMax, from.Replica, from.Cluster)
		}
		from = Sender{strings.Clone(from.Cluster), strings.Clone(from.Replica)}
		sender = t.senders.append(from)
		t.mu.senders[from] = sender
	}
	w := twin{series, sender}
	if id, ok := t.mu.numbers[w]; ok {
		return id, nil
	}
	if t.all.len() >= t.most {
		return 0, fault.Errorf(fault.Throttled, "%d series with the label %q are active, the most there is memory for: rows of further ones are refused until some are gone", t.all.len(), t.labels.Replica)
	}
	i := t.all.append(w)
	if first != (Hash{}) {
		t.hashes.set(i, first)
	}
	id := twinFirst + SeriesID(i)
	t.mu.numbers[w] = id
	return id, nil
}

// lookupAfter is Dict.LookupAfter among twins.
func (t *twins) lookupAfter(prev SeriesID, h Hash) (SeriesID, bool) {
	next := prev + 1
	return next, next > twinFirst && next != NoSeries && t.hashes.is(uint32(next-twinFirst), h)
}

// Replica returns the replica label with which a series came; "": it had none, or the Dict removes none.
func (d *Dict) Replica(id SeriesID) string {
	if d.twins == nil || id < twinFirst {
		return ""
	}
	return d.twins.senders.at(d.twins.at(id).sender).Replica
}

// Judge decides whether the rows of a sender are kept. An error refuses them, with its Kind and text.
type Judge func(Sender) (keep bool, err error)

// ResolveReplicas asks judge once for each sender of the batch, gives kept rows the numbers of their series, and removes the others: rows of
// refused senders are counted in b.Refused, rows of senders that are not kept are returned. It is the first step after decoding: no other accepts
// the number of a twin.
func (b *Batch) ResolveReplicas(judge Judge) (n Dropped) {
	if b.Dict == nil || b.Dict.twins == nil || b.Dict.twins.all.len() == 0 {
		return n
	}
	r := resolver{b: b, t: b.Dict.twins, judge: judge}
	b.keepRows(func(item int, id *SeriesID) bool {
		v := r.verdict(id)
		if v == duplicate {
			n.Floats++
		}
		return r.kept(v, item, *id)
	})
	hists := b.Hists[:0]
	for _, h := range b.Hists {
		v := r.verdict(&h.ID)
		if v == duplicate {
			n.Hists++
		}
		if r.kept(v, 0, h.ID) {
			hists = append(hists, h)
		}
	}
	clear(b.Hists[len(hists):])
	b.Hists = hists
	exemplars := b.Exemplars[:0]
	for _, e := range b.Exemplars {
		switch r.verdict(&e.ID) {
		case keep:
			exemplars = append(exemplars, e)
		case duplicate:
			n.Exemplars++
		}
	}
	clear(b.Exemplars[len(exemplars):])
	b.Exemplars = exemplars
	return n
}

// SendersLeft returns those of the senders that ResolveReplicas kept of which a float or histogram row is still in the batch, by the group's label of
// its series. It looks no further than until it has found all. Where series are relabelled they may have another such label, or none: all senders count then, as long as
// there is a row.
func (b *Batch) SendersLeft(of []Sender) (left []Sender) {
	if len(of) == 0 {
		return nil
	}
	if b.Dict.relabeller != nil {
		if len(b.IDs)+len(b.Hists) == 0 {
			return nil
		}
		return of
	}
	group := b.Dict.twins.labels.Cluster
	last, open := NoSeries, slices.Clone(of)
	look := func(id SeriesID) {
		if id == last || len(open) == 0 {
			return
		}
		last = id
		cluster := b.Dict.Labels(id).Get(group)
		open = slices.DeleteFunc(open, func(s Sender) bool {
			if s.Cluster == cluster {
				left = append(left, s)
			}
			return s.Cluster == cluster
		})
	}
	for i := 0; i < len(b.IDs) && len(open) > 0; i++ {
		look(b.IDs[i])
	}
	for i := 0; i < len(b.Hists) && len(open) > 0; i++ {
		look(b.Hists[i].ID)
	}
	return left
}

// resolver is one call of ResolveReplicas.
type resolver struct {
	b     *Batch
	t     *twins
	judge Judge

	last    uint32 // the sender of the row before, if any was judged
	judged  map[uint32]judgement
	current judgement
}

type judgement struct {
	verdict verdict
	err     error // of refused
}

type verdict uint8

const (
	keep verdict = iota
	duplicate
	refused
)

// verdict judges the sender of a row. The number of a row that is kept becomes that of its series.
func (r *resolver) verdict(id *SeriesID) verdict {
	if *id < twinFirst {
		return keep
	}
	w := r.t.at(*id)
	if r.judged == nil || w.sender != r.last {
		r.turn(w.sender)
	}
	if r.current.verdict == keep {
		*id = w.series
	}
	return r.current.verdict
}

// turn makes the judgement of another sender the current one.
func (r *resolver) turn(sender uint32) {
	j, ok := r.judged[sender]
	if !ok {
		kept, err := r.judge(*r.t.senders.at(sender))
		switch {
		case err != nil:
			j = judgement{refused, err}
		case !kept:
			j = judgement{duplicate, nil}
		}
		if r.judged == nil {
			r.judged = map[uint32]judgement{}
		}
		r.judged[sender] = j
	}
	r.last, r.current = sender, j
}

// refusedTextMax bounds the text of a series in a refusal.
const refusedTextMax = 300

// kept reports whether a row stays, and counts it in b.Refused if its sender is refused.
func (r *resolver) kept(v verdict, item int, id SeriesID) bool {
	if v != refused {
		return v == keep
	}
	text := ""
	if len(r.b.Refused) < RefusalsMax {
		text = r.b.Dict.Labels(id).String()
		text = text[:min(len(text), refusedTextMax)]
	}
	r.b.Refuse(1, Refusal{Item: item, Text: text, Reason: r.current.err.Error(), Kind: fault.KindOf(r.current.err)})
	return false
}
