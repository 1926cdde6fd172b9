package kafka

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	answersMost = 1 << 20
	longAnswer  = answersMost
)

// pipedBroker is a broker whose answers come over one connection after the other, as the client reads them: within 11 s each, and again
// after an error.
type pipedBroker struct {
	a    *answers
	name string
	send func(to net.Conn, bytes int) // the body
}

// ask has one answer come. given is how long its length waited for room, over all the connections that it needed.
func (b *pipedBroker) ask(bytes int) (given time.Duration, err error) {
	near, far := net.Pipe()
	defer near.Close()
	w := b.a.wire(far, 0, b.name)
	defer w.Close()
	begin := time.Now()
	_ = w.SetReadDeadline(begin.Add(11 * time.Second))
	go func() {
		if _, err := near.Write(binary.BigEndian.AppendUint32(nil, uint32(bytes))); err == nil {
			b.send(near, bytes)
		}
	}()
	if _, err := io.ReadFull(w, make([]byte, 4)); err != nil {
		return time.Since(begin), err
	}
	given = time.Since(begin)
	_, err = io.ReadFull(w, make([]byte, bytes))
	return given, err
}

// askOn is ask until it succeeds, and returns the times that its answers waited for room, and how often it failed.
func (b *pipedBroker) askOn(bytes int) (waited time.Duration, failed int) {
	for {
		n, err := b.ask(bytes)
		waited += n
		if err == nil {
			return waited, failed
		}
		failed++
	}
}

func atOnce(to net.Conn, bytes int) { _, _ = to.Write(make([]byte, bytes)) }
func never(net.Conn, int)           {}

// after pauses before the body.
func after(d time.Duration) func(net.Conn, int) {
	return func(to net.Conn, bytes int) {
		time.AfterFunc(d, func() { atOnce(to, bytes) })
	}
}

// spread sends the body in 40 parts.
func spread(d time.Duration) func(net.Conn, int) {
	return func(to net.Conn, bytes int) {
		for range 40 {
			time.Sleep(d / 40)
			if _, err := to.Write(make([]byte, bytes/40)); err != nil {
				return
			}
		}
		_, _ = to.Write(make([]byte, bytes%40))
	}
}

func testAnswers() *answers { return newAnswers(func() int64 { return answersMost }, func() {}) }

// standingStill are brokers that announce an answer again and again and send no more of it, until stop.
func standingStill(a *answers, n, bytes int) (stop func()) {
	var all sync.WaitGroup
	end := make(chan struct{})
	for i := range n {
		b := &pipedBroker{a: a, name: fmt.Sprint("still", i), send: never}
		all.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				_, _ = b.ask(bytes)
			}
		})
	}
	synctest.Wait()
	return func() {
		close(end)
		all.Wait()
	}
}

// TestRowsOfOtherBrokersDoNotWaitForOneThatStandsStill: two brokers announced answers and sent nothing more, again and again. Those of
// another waited up to eleven seconds, and were refused meanwhile.
func TestRowsOfOtherBrokersDoNotWaitForOneThatStandsStill(t *testing.T) {
	f := func(name string, brokers, bytes int, most, mean time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			a := testAnswers()
			defer standingStill(a, brokers, bytes)()
			b := &pipedBroker{a: a, name: "b", send: atOnce}
			const n = 20
			all := time.Duration(0)
			for range n {
				waited, failed := b.askOn(bytes)
				if waited > most {
					t.Fatalf("%s: an answer waited %v for room, and was refused %d times", name, waited, failed)
				}
				all += waited
			}
			if all/n > mean {
				t.Errorf("%s: answers waited %v for room, on average", name, all/n)
			}
		})
	}
	f("one long", 1, longAnswer, 8100*time.Millisecond, 1700*time.Millisecond)
	f("two long", 2, longAnswer, 16200*time.Millisecond, 3400*time.Millisecond)
	f("shorter", 2, answersMost/2, 8100*time.Millisecond, 1700*time.Millisecond)
	f("many long", 10, longAnswer, 81*time.Second, 17*time.Second) // each has its turn, and so has b
}

// TestAnAnswerOfASlowBrokerComesWhole, however many others wait for its room meanwhile.
func TestAnAnswerOfASlowBrokerComesWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAnswers()
		defer standingStill(a, 2, longAnswer)()
		slow := &pipedBroker{a: a, name: "slow", send: spread(7 * time.Second)}
		for range 10 {
			if _, failed := slow.askOn(60 << 20); failed > 1 { // it may wait too long for its first byte
				t.Fatalf("an answer of 7 s was broken off %d times", failed)
			}
		}
	})
}

// TestBrokersThatPauseDoNotEndEachOtherForEver: each stands still in each answer, and waits for the other one's.
func TestBrokersThatPauseDoNotEndEachOtherForEver(t *testing.T) {
	for _, pause := range []time.Duration{600 * time.Millisecond, 1500 * time.Millisecond, 1900 * time.Millisecond, 4 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			a := testAnswers()
			done := make(chan int, 2)
			for i := range 2 {
				b := &pipedBroker{a: a, name: fmt.Sprint("pauses", i), send: after(pause)}
				go func() {
					all := 0
					for range 10 {
						_, failed := b.askOn(longAnswer)
						all += failed
					}
					done <- all
				}()
			}
			if all := <-done + <-done; all > 2*2*10 {
				t.Errorf("with pauses of %v %d of 20 answers were broken off", pause, all)
			}
		})
	}
}

// TestRowsOfABrokerThatPausesComeBesideThoseOfOthersThatDoNot: one that paused for longer than two seconds before each answer was cut again
// and again while others waited, so that none of its rows came.
func TestRowsOfABrokerThatPausesComeBesideThoseOfOthersThatDoNot(t *testing.T) {
	for _, pause := range []time.Duration{1500 * time.Millisecond, 4 * time.Second, 7 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			a := testAnswers()
			var others sync.WaitGroup
			end := make(chan struct{})
			for i := range 2 {
				b := &pipedBroker{a: a, name: fmt.Sprint("other", i), send: spread(200 * time.Millisecond)}
				others.Go(func() {
					for {
						select {
						case <-end:
							return
						default:
						}
						_, _ = b.ask(longAnswer)
					}
				})
			}
			b := &pipedBroker{a: a, name: "pauses", send: after(pause)}
			came := 0
			for begin := time.Now(); came < 3 && time.Since(begin) < 10*time.Minute; {
				if _, err := b.ask(longAnswer); err == nil {
					came++
				}
			}
			if came < 3 {
				t.Errorf("with pauses of %v %d of its answers came in ten minutes", pause, came)
			}
			close(end)
			others.Wait()
		})
	}
}

// TestABrokerThatEndsItsConnectionsHasNoMoreOfTheRoom: one that ended each shortly before it was cut would have the longest time again and
// again.
func TestABrokerThatEndsItsConnectionsHasNoMoreOfTheRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAnswers()
		b := &pipedBroker{a: a, name: "b", send: atOnce}
		ends := &pipedBroker{a: a, name: "ends", send: func(to net.Conn, _ int) {
			time.AfterFunc(7900*time.Millisecond, func() { _ = to.Close() })
		}}
		var other sync.WaitGroup
		end := make(chan struct{})
		other.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				_, _ = ends.ask(longAnswer)
			}
		})
		synctest.Wait()
		const n = 64
		all := time.Duration(0)
		for range n {
			waited, _ := b.askOn(longAnswer)
			all += waited
		}
		if all/n > 1700*time.Millisecond {
			t.Errorf("answers of another waited %v for room, on average", all/n)
		}
		close(end)
		other.Wait()
	})
}

// TestAnAnswerOverTLSThatStandsStillKeepsNoOtherWaiting: its broker reads nothing either, and a goodbye of TLS would wait for that.
func TestAnAnswerOverTLSThatStandsStillKeepsNoOtherWaiting(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	conf := server.TLS
	server.Close()
	synctest.Test(t, func(t *testing.T) {
		a := testAnswers()
		near, far := net.Pipe()
		defer near.Close()
		go func() { _, _ = tls.Server(near, conf).Write(binary.BigEndian.AppendUint32(nil, longAnswer)) }()
		still := a.wire(tls.Client(far, &tls.Config{InsecureSkipVerify: true}), 0, "still")
		if _, err := io.ReadFull(still, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		why := make(chan error, 1)
		go func() {
			_, err := still.Read(make([]byte, longAnswer))
			why <- err
		}()
		begin := time.Now()
		if waited, failed := (&pipedBroker{a: a, name: "b", send: atOnce}).askOn(longAnswer); failed > 0 || waited > 700*time.Millisecond {
			t.Errorf("an answer waited for %v, and was refused %d times", waited, failed)
		}
		if err := <-why; !errors.Is(err, errStill) {
			t.Errorf("an answer that stood still: %v", err)
		}
		_ = still.Close()
		if d := time.Since(begin); d > 800*time.Millisecond {
			t.Errorf("its connection ended after %v", d)
		}
	})
}

// TestABrokerWithoutConnectionsIsForgotten: a cluster may name others again and again.
func TestABrokerWithoutConnectionsIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAnswers()
		for i := range 1000 {
			b := &pipedBroker{a: a, name: fmt.Sprint(i), send: atOnce}
			if _, err := b.ask(100 << 10); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := len(a.brokers); n > 2*brokersKept {
			t.Errorf("%d brokers are remembered", n)
		}
	})
}

// TestTheEndOfAnAnswerThatStoodStillIsReported to the client as a closed connection, after which it asks again, and to people.
func TestTheEndOfAnAnswerThatStoodStillIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAnswers()
		why := make(chan error, 1)
		go func() {
			_, err := (&pipedBroker{a: a, name: "still", send: never}).ask(60 << 20)
			why <- err
		}()
		synctest.Wait()
		if waited, failed := (&pipedBroker{a: a, name: "b", send: atOnce}).askOn(60 << 20); failed > 0 || waited > 1500*time.Millisecond {
			t.Errorf("an answer waited for %v, and was refused %d times", waited, failed)
		}
		if err := <-why; !errors.Is(err, errStill) || !kgo.IsRetryableBrokerErr(err) || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("an answer that stood still: %v", err)
		}
	})
}
