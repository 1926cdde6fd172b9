package handshake

import (
	"cmp"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Bounds of a Gate. A processor computes 700 handshakes with an RSA key of 2048 bits a second.
const (
	// WaitingMax is how many handshakes may wait for their first turn.
	WaitingMax = 1024
	// WaitMax is how long one may wait, for each of its turns.
	WaitMax = 5 * time.Second
)

// Deps are a Gate's dependencies.
type Deps struct {
	Processors int                   // there are; 0: as many as Go's scheduler uses
	Registerer prometheus.Registerer // nil: no metrics are registered
}

// Gate gives handshakes their turns. Ports may share one. Safe for concurrent use.
type Gate struct {
	refused prometheus.Counter
	late    time.Duration // constant: WaitMax, except in tests

	mu    sync.Mutex
	queue queue // guarded by mu
}

// New makes a Gate that lets handshakes compute on half of the processors, and on one at least.
func New(d Deps) *Gate {
	g := &Gate{
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_handshake_refused_total",
			Help: "Connections closed because too many TLS handshakes waited for a processor, or this one for too long."}),
		late:  WaitMax,
		queue: queue{free: max(1, cmp.Or(d.Processors, runtime.GOMAXPROCS(0))/2), most: WaitingMax},
	}
	if d.Registerer != nil {
		d.Registerer.MustRegister(g.refused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_handshake_waiting",
			Help: "TLS handshakes that wait for a processor."}, func() float64 { return float64(g.Waiting()) }))
	}
	return g
}

// Waiting is how many handshakes wait for a turn.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.queue.waiting + len(g.queue.begun)
}

// enter waits for a turn, which leave ends. Errors are Throttled: there are too many, or Unavailable: the connection was closed.
func (g *Gate) enter(w *waiter, closed <-chan struct{}) error {
	w.come = make(chan error, 1)
	g.mu.Lock()
	turn, refused := g.queue.arrive(w)
	g.mu.Unlock()
	if refused != nil {
		refused.come <- fault.Errorf(fault.Throttled, "%d TLS handshakes wait for a processor, and of this sender the most", WaitingMax)
	}
	if turn {
		return nil
	}
	err := g.wait(w, closed)
	if fault.Is(err, fault.Throttled) {
		g.refused.Inc()
	}
	return err
}

func (g *Gate) wait(w *waiter, closed <-chan struct{}) (err error) {
	late := time.NewTimer(g.late)
	defer late.Stop()
	select {
	case err := <-w.come:
		return err
	case <-closed:
		err = fault.Wrap(net.ErrClosed, fault.Unavailable, "waiting for a processor")
	case <-late.C:
		err = fault.Errorf(fault.Throttled, "a TLS handshake waited for a processor for %s", g.late)
	}
	g.mu.Lock()
	waited := g.queue.remove(w)
	g.mu.Unlock()
	if !waited && <-w.come == nil { // its turn came meanwhile
		g.leave()
	}
	return err
}

// leave ends a turn, and begins the next.
func (g *Gate) leave() {
	g.mu.Lock()
	next := g.queue.leave()
	g.mu.Unlock()
	if next != nil {
		next.come <- nil
	}
}
