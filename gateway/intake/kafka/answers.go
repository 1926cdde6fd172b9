package kafka

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"maps"
	"math/bits"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// answers counts the answers of brokers as they come, of all clusters. The client allocates an answer as soon as its length is announced.
//
//	broker ─▶ length ─▶ room? ─▶ the client allocates ─▶ the rest of the answer ─▶ unpacked (unpacked) ─▶ poll
//	                     └ none: the connection is not read ╰────────────── counted here ──────────────╯
//
// Answers of up to answerSmall are not counted. Of the others there are two sorts. Those of up to half the room are read together, as many as fit it. Beside
// them one longer answer is read at a time, whatever its length, which the client bounds. So a long one need not wait for shorter ones, which come without end,
// nor they for a slow long one. Within a sort none overtakes another. An answer that waits too long ends its connection, and the client asks again; its broker
// keeps its place in the queue.
//
// An answer that stands still while others of its sort wait loses its room, and its connection ends: a thirty-second part has to come each half second. At that
// pace an answer may last longer than the client's own bound of 11 s, so that a merely slow answer is ended by that bound alone. An answer with pauses is read
// in the end, since the patience grows: of a broker's answers that were broken off each second one has a second, each fourth two, each eighth four and each
// sixteenth eight. So every pause that the client itself bears is short enough at some try, and a broker that sends nothing has the room for one and a half
// seconds on average. And a broker that stood still ends no other one until it has sent an answer without a pause: else two brokers that pause would end each
// other too often.
//
// An answer counts until its connection begins the next one or ends, until a poll after it had come whole, or until a second after it had: by then its
// records are counted elsewhere, or dropped.
type answers struct {
	most  func() int64 // constant: the room
	grown func()       // constant: called after more is counted, without the lock

	mu      sync.Mutex
	bytes   int64                    // of all
	long    int64                    // of the long one
	of      map[*answerWire]struct{} // that have some
	waits   []*answerWire
	brokers map[brokerKey]*brokerTurn
	changed chan struct{} // closed and replaced when there may be room
}

const (
	answerSmall   = 64 << 10
	answerWaitMax = 5 * time.Second

	// progressShare is the part of an answer that has to come within progressSteps looks while others wait for its room. The looks are a
	// followPeriod apart: a pause of this process is one of them, however long. The steps are doubled up to patienceMost times.
	progressShare = 32
	progressSteps = 5
	patienceMost  = 4

	// brokerKept is how long a broker without connections is remembered, once there are more than brokersKept: one that is ended connects again at once.
	brokerKept  = time.Minute
	brokersKept = 64
)

type brokerKey struct {
	member  int
	address string
}

// brokerTurn is the state of a broker kept from one connection to the next. Guarded by answers.mu.
type brokerTurn struct {
	wires int
	used  time.Time // when its last connection ended

	asked time.Time // when an answer first waited that had no room in time; zero: none
	still bool      // its last answer stood still
	broke uint      // its answers that were broken off, by whichever side, since one came whole
}

// errNoRoom is a closed connection to the client, which asks again then; other errors are final to some of its requests.
var errNoRoom = fault.Errorf(fault.Throttled, "answers of brokers have all the memory that they may have: %w", net.ErrClosed)

// errStill ends a connection whose answer stood still. It is a closed connection to the client, too.
var errStill = fault.Errorf(fault.Unavailable, "the broker's answer stood still while answers of other brokers waited for its memory: %w", net.ErrClosed)

func newAnswers(most func() int64, grown func()) *answers {
	return &answers{most: most, grown: grown, of: map[*answerWire]struct{}{}, brokers: map[brokerKey]*brokerTurn{}, changed: make(chan struct{})}
}

func (a *answers) held() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropStaleLocked(time.Now())
	return a.bytes
}

// enter waits until there is room for an answer. The errors are errNoRoom, and those of a connection that ended or is not read in time.
func (a *answers) enter(w *answerWire, bytes int64) error {
	limit := time.NewTimer(answerWaitMax)
	defer limit.Stop()
	a.mu.Lock()
	a.dropLocked(w)
	a.joinLocked(w, bytes)
	a.mu.Unlock()
	for {
		now := time.Now()
		a.mu.Lock()
		a.dropStaleLocked(now)
		switch {
		case w.gone, w.ended: // nothing would drop it
			a.leaveLocked(w)
			a.mu.Unlock()
			return net.ErrClosed
		case w.past:
			a.leaveLocked(w)
			a.mu.Unlock()
			return os.ErrDeadlineExceeded
		}
		if a.fitsLocked(w) {
			a.giveLocked(w, now)
			a.mu.Unlock()
			a.grown()
			return nil
		}
		ended := a.endStillLocked(w, now)
		changed, interrupted := a.changed, w.interrupted
		a.mu.Unlock()
		for _, other := range ended {
			other.cut()
		}
		var err error
		select {
		case <-changed:
		case <-time.After(followPeriod):
		case <-interrupted:
			err = os.ErrDeadlineExceeded
		case <-w.closed:
			err = net.ErrClosed
		case <-limit.C:
			err = errNoRoom
		}
		if err != nil {
			a.mu.Lock()
			a.leaveLocked(w)
			if err == errNoRoom && w.broker.asked.IsZero() {
				w.broker.asked = w.asked
			}
			a.mu.Unlock()
			return err
		}
	}
}

// joinLocked has an answer wait, in the place that its broker has.
func (a *answers) joinLocked(w *answerWire, bytes int64) {
	w.wants, w.asked = bytes, w.broker.asked
	if w.asked.IsZero() {
		w.asked = time.Now()
	}
	i := len(a.waits)
	for i > 0 && a.waits[i-1].asked.After(w.asked) {
		i--
	}
	a.waits = slices.Insert(a.waits, i, w)
}

// giveLocked gives an answer that waits its room.
func (a *answers) giveLocked(w *answerWire, now time.Time) {
	w.counted, w.long, w.whole = w.wants, a.isLong(w.wants), time.Time{}
	w.stood, w.steps, w.looked, w.lookedAt = false, 0, w.came.Load(), now
	w.broker.asked = time.Time{}
	if a.bytes += w.counted; w.long {
		a.long = w.counted
	}
	a.of[w] = struct{}{}
	a.leaveLocked(w)
}

// endStillLocked returns the connections to be cut for an answer that waits: those whose answers are of its sort and stand still.
func (a *answers) endStillLocked(w *answerWire, now time.Time) (ended []*answerWire) {
	long := a.isLong(w.wants)
	for other := range a.of {
		if other.long != long || !other.standsStillLocked(now) || w.broker.still {
			continue
		}
		other.ended = true
		other.broker.broke++
		a.dropLocked(other)
		ended = append(ended, other)
	}
	return ended
}

// standsStillLocked looks at an answer that has room, and reports whether too little of it came during the last looks.
func (w *answerWire) standsStillLocked(now time.Time) bool {
	if !w.whole.IsZero() {
		return false
	}
	if came := w.came.Load(); came-w.looked >= w.counted/progressShare {
		w.looked, w.lookedAt, w.steps = came, now, 0
	}
	if now.Sub(w.lookedAt) >= followPeriod {
		w.lookedAt = now
		w.steps++
	}
	if w.steps < progressSteps<<min(bits.TrailingZeros(w.broker.broke+1), patienceMost) {
		return false
	}
	w.stood, w.broker.still = true, true
	return true
}

func (a *answers) isLong(bytes int64) bool { return bytes > a.most()/2 }

// fitsLocked reports whether an answer that waits can be read: there is room, and none of its sort waits before it.
func (a *answers) fitsLocked(w *answerWire) bool {
	long := a.isLong(w.wants)
	for _, other := range a.waits {
		if other == w {
			break
		}
		if a.isLong(other.wants) == long {
			return false
		}
	}
	if long {
		return a.long == 0
	}
	return a.bytes-a.long+w.wants <= a.most()
}

// leaveLocked ends a wait.
func (a *answers) leaveLocked(w *answerWire) {
	if i := slices.Index(a.waits, w); i >= 0 {
		a.waits = slices.Delete(a.waits, i, i+1)
		a.changeLocked()
	}
}

func (a *answers) changeLocked() {
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *answers) dropLocked(w *answerWire) {
	if w.counted == 0 {
		return
	}
	if a.bytes -= w.counted; w.long {
		a.long = 0
	}
	w.counted, w.long = 0, false
	delete(a.of, w)
	a.changeLocked()
}

// dropStaleLocked drops answers that came whole a while ago and that no poll followed: of other kinds than records, or with those of partitions that are paused.
func (a *answers) dropStaleLocked(now time.Time) {
	for w := range a.of {
		if !w.whole.IsZero() && now.Sub(w.whole) >= staleAfter {
			a.dropLocked(w)
		}
	}
}

func (a *answers) drop(w *answerWire) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropLocked(w)
}

func (a *answers) cameWhole(w *answerWire) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.whole = time.Now()
	if w.counted > 0 {
		w.broker.broke = 0
		w.broker.still = w.stood
	}
}

// polled is called after a poll of a member.
func (a *answers) polled(member int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.of {
		if w.member == member && !w.whole.IsZero() {
			a.dropLocked(w)
		}
	}
}

// answerWire is a connection to a broker, which the client reads in one goroutine. Its answers follow each other, each behind its length of four bytes.
type answerWire struct {
	net.Conn
	all    *answers
	broker *brokerTurn
	member int
	closed chan struct{}
	close  sync.Once

	came atomic.Int64 // bytes

	// Owned by Read.
	head []byte // of a length, that came
	rest int64  // of the answer
	err  error  // that ended it

	// Guarded by all.mu.
	wants       int64 // the answer that waits
	counted     int64
	long        bool          // it is the long one
	whole       time.Time     // when the answer had come; zero: it has not
	asked       time.Time     // its place among those that wait
	looked      int64         // of came, when enough more had come
	lookedAt    time.Time     // when it was last looked at
	steps       int           // looks since then
	stood       bool          // it stood still
	ended       bool          // for that
	past        bool          // the deadline of reads
	gone        bool          // it is closed
	interrupted chan struct{} // closed and replaced when the deadline of a read is set to a time that is past
}

func (a *answers) wire(c net.Conn, member int, address string) *answerWire {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &answerWire{Conn: c, all: a, broker: a.brokerLocked(brokerKey{member, address}), member: member,
		closed: make(chan struct{}), interrupted: make(chan struct{})}
}

// brokerLocked counts a connection of a broker. Brokers without any are forgotten after a while, or a cluster that names others again and
// again would fill the memory.
func (a *answers) brokerLocked(key brokerKey) *brokerTurn {
	b := a.brokers[key]
	if b == nil {
		if len(a.brokers) >= brokersKept {
			now := time.Now()
			maps.DeleteFunc(a.brokers, func(_ brokerKey, b *brokerTurn) bool { return b.wires == 0 && now.Sub(b.used) >= brokerKept })
		}
		b = &brokerTurn{}
		a.brokers[key] = b
	}
	b.wires++
	return b
}

// Read implements net.Conn. The length of an answer is returned when there is room for it.
func (w *answerWire) Read(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.Conn.Read(p)
	w.came.Add(int64(n))
	if came := w.follow(p[:n]); came != nil {
		w.err = came
		_ = w.Close()
		return 0, came
	}
	if err != nil && w.wasEnded() {
		err = errStill
	}
	return n, err
}

func (w *answerWire) wasEnded() bool {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	return w.ended
}

// cut ends the connection from another goroutine than the client's, which closes it then. TLS would say goodbye first, and wait for a
// broker that does not read.
func (w *answerWire) cut() {
	if t, encrypted := w.Conn.(*tls.Conn); encrypted {
		_ = t.NetConn().Close()
		return
	}
	_ = w.Conn.Close()
}

// follow passes over bytes that came.
func (w *answerWire) follow(b []byte) error {
	for len(b) > 0 {
		if w.rest > 0 {
			n := min(w.rest, int64(len(b)))
			w.rest, b = w.rest-n, b[n:]
			if w.rest == 0 {
				w.all.cameWhole(w)
			}
			continue
		}
		n := min(4-len(w.head), len(b))
		w.head, b = append(w.head, b[:n]...), b[n:]
		if len(w.head) < 4 {
			continue
		}
		w.rest = int64(binary.BigEndian.Uint32(w.head))
		w.head = w.head[:0]
		if w.rest <= answerSmall {
			w.all.drop(w)
			continue
		}
		if w.rest > 1<<31-1 {
			continue // no length: the client ends the connection
		}
		if err := w.all.enter(w, w.rest); err != nil {
			return err
		}
	}
	return nil
}

// SetReadDeadline implements net.Conn: the client sets one that is past to have a read end.
func (w *answerWire) SetReadDeadline(t time.Time) error {
	w.all.mu.Lock()
	if w.past = !t.IsZero() && !t.After(time.Now()); w.past {
		close(w.interrupted)
		w.interrupted = make(chan struct{})
	}
	w.all.mu.Unlock()
	return w.Conn.SetReadDeadline(t)
}

// Close implements net.Conn.
func (w *answerWire) Close() error {
	w.all.mu.Lock()
	w.close.Do(func() {
		close(w.closed)
		w.broker.wires--
		w.broker.used = time.Now()
		if w.counted > 0 && w.whole.IsZero() { // else one that ends its connections itself has the longest time again and again
			w.broker.broke++
		}
	})
	w.gone = true
	w.all.dropLocked(w)
	w.all.mu.Unlock()
	return w.Conn.Close()
}

// dial opens a connection to a broker.
func (m *member) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dial := m.c.deps.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeMax}).DialContext
	}
	c, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if m.tls != nil {
		conf := m.tls.Clone()
		if conf.ServerName == "" {
			if conf.ServerName, _, err = net.SplitHostPort(address); err != nil {
				_ = c.Close()
				return nil, err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, dialTimeMax)
		defer cancel()
		encrypted := tls.Client(c, conf)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			return nil, err
		}
		c = encrypted
	}
	return m.c.answers.wire(c, m.index, address), nil
}

// dialTimeMax bounds the making of a connection, and its handshake of TLS: the client's own default.
const dialTimeMax = 10 * time.Second
