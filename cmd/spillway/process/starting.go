package process

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/cmd/spillway/client"
)

// starting answers for a process until it serves. Recovery of a large log lasts minutes: without an answer meanwhile, it looks like a process
// that hangs, and what watches over containers would end it.
//
//	/-/healthy   200: the process runs
//	all else     503 with Retry-After, and what it does
type starting struct {
	began   time.Time
	doing   atomic.Pointer[string]
	serving []*startingServer
	once    sync.Once
}

// startingServer serves one listener, which another server gets later.
type startingServer struct {
	*http.Server
	lent  *lentListener
	ended chan struct{}
}

// answerStarting begins to answer at listeners; nil ones are left out.
func answerStarting(doing string, listeners ...net.Listener) *starting {
	s := &starting{began: time.Now()}
	s.at(doing)
	for _, l := range listeners {
		if l == nil {
			continue
		}
		one := &startingServer{administration.BareServer(http.HandlerFunc(s.answer)), &lentListener{Listener: l}, make(chan struct{})}
		one.SetKeepAlivesEnabled(false) // a connection is of one server
		s.serving = append(s.serving, one)
		go func() {
			defer close(one.ended)
			_ = administration.ServePort(one.Server, one.lent) // it ends with the error of lentListener
		}()
	}
	return s
}

// at says what the process does now.
func (s *starting) at(doing string) {
	s.doing.Store(&doing)
	reportStarting(doing)
}

// answer reads no body: a large or slow one would be refused as wrong, and its sender would drop it.
func (s *starting) answer(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/-/healthy" {
		healthy(w, r)
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(startingBodyMax))
	w.Header().Set(client.StartingHeader, "starting")
	w.Header().Set("Retry-After", "2")
	http.Error(w, fmt.Sprintf("Spillway is starting: %s, for %s now. Try again.", *s.doing.Load(), time.Since(s.began).Round(time.Second)), http.StatusServiceUnavailable)
}

// startingBodyMax bounds how long a body may come after its answer, before the connection ends.
const startingBodyMax = 10 * time.Second

// startingEndMax bounds how long the end waits for answers under way.
const startingEndMax = 200 * time.Millisecond

// end stops answering. The listeners stay open, and connections that come meanwhile wait for the next server.
func (s *starting) end() {
	s.once.Do(func() {
		for _, one := range s.serving {
			one.lent.giveBack()
			<-one.ended
			one.lent.ready()
			ctx, cancel := context.WithTimeout(context.Background(), startingEndMax)
			if one.Shutdown(ctx) != nil {
				_ = one.Close() // one that connected and asked nothing
			}
			cancel()
		}
	})
}

// lentListener is a listener that its server does not close, and that can be had back.
type lentListener struct {
	net.Listener
	over atomic.Bool
}

// Accept ends with net.ErrClosed once the listener is to be given back.
func (l *lentListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil && l.over.Load() {
		return nil, net.ErrClosed
	}
	return c, err
}

// Close leaves the listener open.
func (l *lentListener) Close() error { return nil }

// giveBack has Accept end.
func (l *lentListener) giveBack() {
	l.over.Store(true)
	l.deadline(time.Unix(1, 0))
}

// ready makes the listener as it was.
func (l *lentListener) ready() { l.deadline(time.Time{}) }

func (l *lentListener) deadline(t time.Time) {
	if d, ok := l.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		_ = d.SetDeadline(t) // a listener that is closed accepts nothing either
	}
}

// tlsListener is a listener with TLS that passes deadlines on.
type tlsListener struct {
	net.Listener
	tcp net.Listener
}

// SetDeadline sets that of Accept.
func (l *tlsListener) SetDeadline(t time.Time) error {
	if d, ok := l.tcp.(interface{ SetDeadline(time.Time) error }); ok {
		return d.SetDeadline(t)
	}
	return nil
}
