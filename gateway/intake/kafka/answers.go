package kafka

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// answers counts the answers of brokers as they come, of all clusters. The client allocates an answer as soon as its length is announced.
//
//	broker ─▶ length ─▶ room? ─▶ the client allocates ─▶ the rest of the answer ─▶ unpacked (unpacked) ─▶ poll
//	                     └ none: the connection is not read ╰────────────── counted here ──────────────╯
//
// Answers of up to answerSmall are not counted. Of longer ones those of up to half the room are read together, as many as fit it, and beside them one that is longer, whatever its
// length: the client bounds that. So a long one waits for no shorter ones, which come without end, and they for none that is slow. Of each sort none overtakes another. One that waits
// too long ends its connection, and the client asks again.
//
// An answer counts until its connection brings the next one or ends, or until a poll after it had come whole, or a second: by then its records are counted, or dropped.
type answers struct {
	most  func() int64 // constant: the room
	grown func()       // constant: called after more is counted, without the lock

	mu      sync.Mutex
	bytes   int64                    // of all
	long    int64                    // of the long one
	of      map[*answerWire]struct{} // that have some
	waits   []*answerWire            // in their order
	changed chan struct{}            // closed and replaced when there may be room
}

const (
	answerSmall   = 64 << 10
	answerWaitMax = 5 * time.Second
)

// errNoRoom is a closed connection to the client, which asks again then; other errors are final to some of its requests.
var errNoRoom = fault.Errorf(fault.Throttled, "answers of brokers have all the memory that they may have: %w", net.ErrClosed)

func newAnswers(most func() int64, grown func()) *answers {
	return &answers{most: most, grown: grown, of: map[*answerWire]struct{}{}, changed: make(chan struct{})}
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
	w.wants = bytes
	a.waits = append(a.waits, w)
	a.mu.Unlock()
	for {
		a.mu.Lock()
		a.dropStaleLocked(time.Now())
		switch {
		case w.gone: // nothing would drop it
			a.leaveLocked(w)
			a.mu.Unlock()
			return net.ErrClosed
		case w.past:
			a.leaveLocked(w)
			a.mu.Unlock()
			return os.ErrDeadlineExceeded
		}
		if a.fitsLocked(w) {
			w.counted, w.long, w.whole = bytes, a.isLong(bytes), time.Time{}
			if a.bytes += bytes; w.long {
				a.long = bytes
			}
			a.of[w] = struct{}{}
			a.leaveLocked(w)
			a.mu.Unlock()
			a.grown()
			return nil
		}
		changed, interrupted := a.changed, w.interrupted
		a.mu.Unlock()
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
			a.mu.Unlock()
			return err
		}
	}
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
	member int
	closed chan struct{}
	close  sync.Once

	// Owned by Read.
	head []byte // of a length, that came
	rest int64  // of the answer
	err  error  // that ended it

	// Guarded by all.mu.
	wants       int64 // the answer that waits
	counted     int64
	long        bool          // it is the long one
	whole       time.Time     // when the answer had come; zero: it has not
	past        bool          // the deadline of reads
	gone        bool          // it is closed
	interrupted chan struct{} // closed and replaced when the deadline of a read is set to a time that is past
}

func (a *answers) wire(c net.Conn, member int) *answerWire {
	return &answerWire{Conn: c, all: a, member: member, closed: make(chan struct{}), interrupted: make(chan struct{})}
}

// Read implements net.Conn. The length of an answer is returned when there is room for it.
func (w *answerWire) Read(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.Conn.Read(p)
	if came := w.follow(p[:n]); came != nil {
		w.err = came
		_ = w.Close()
		return 0, came
	}
	return n, err
}

// follow passes over bytes that came.
func (w *answerWire) follow(b []byte) error {
	for len(b) > 0 {
		if w.rest > 0 {
			n := min(w.rest, int64(len(b)))
			w.rest, b = w.rest-n, b[n:]
			if w.rest == 0 {
				w.all.mu.Lock()
				w.whole = time.Now()
				w.all.mu.Unlock()
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
	w.close.Do(func() { close(w.closed) })
	w.all.mu.Lock()
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
	return m.c.answers.wire(c, m.index), nil
}

// dialTimeMax bounds the making of a connection, and its handshake of TLS: the client's own default.
const dialTimeMax = 10 * time.Second
