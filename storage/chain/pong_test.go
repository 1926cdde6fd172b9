package chain

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAnAnswerToAPingOfBeforeARebootMakesNoReadSure: the clock of a machine restarts at a reboot, so that an old answer may name a time to come;
// the copy would answer reads as sure long after its head forgot it.
func TestAnAnswerToAPingOfBeforeARebootMakesNoReadSure(t *testing.T) {
	head, self := Member{Placement: 1, Server: "h"}, Member{Placement: 2, Server: "m"}
	now := 10 * time.Second
	m := New(now, self, 6, nil, Settings{})
	step := func(in Input) (sent []Ping) {
		for _, e := range m.Step(now, in, nil) {
			if s, ok := e.(Send); ok {
				if p, ok := s.Message.(Ping); ok {
					sent = append(sent, p)
				}
			}
		}
		return sent
	}
	step(Received{head, Begin{Epoch: 7, Version: 1, Order: []Member{head, self}}})
	step(Raised{7})
	now += 300 * time.Millisecond
	pings := step(Tick{})
	if len(pings) != 1 || pings[0].Epoch != point.Epoch(7) {
		t.Fatalf("pings %v, want one to the head", pings)
	}
	step(Received{head, Pong{Epoch: 7, Sent: now + time.Hour, For: sureFor}})
	step(Received{head, Pong{Epoch: 7, Sent: now - 7*time.Millisecond, For: sureFor}})
	if m.Sure(now) || m.Once() {
		t.Error("sure by an answer to a ping that this process never sent")
	}
	step(Received{head, Pong{Epoch: 7, Sent: pings[0].Sent, For: sureFor}})
	if !m.Sure(now+sureFor-1) || m.Sure(now+sureFor) {
		t.Error("the answer to the ping makes it sure for a second from the ping on")
	}
}

// An answer after most of a second counts, however many pings were sent meanwhile, and the list of pings is bounded.
func TestLateAnswersCount(t *testing.T) {
	m := New(0, Member{Placement: 2}, 0, nil, Settings{})
	for i := range 100 {
		m.now = time.Duration(i) * time.Millisecond
		m.ask(1)
		m.ask(1) // to another placement
	}
	if len(m.asked) != askedMax || m.asked[0] != 84*time.Millisecond || m.asked[askedMax-1] != 99*time.Millisecond {
		t.Errorf("%d pings are kept, %v", len(m.asked), m.asked)
	}
}

// TestPlacementsThatDoNotLeadDoNotPingForEver: a head lost its lease while the answer of a member that had restarted was on its way. Each answered the other's
// ping with another, as fast as the network carried them, until the next epoch began.
func TestPlacementsThatDoNotLeadDoNotPingForEver(t *testing.T) {
	a, b := Member{Placement: 1, Server: "a"}, Member{Placement: 2, Server: "b"}
	restarted, former := New(0, a, 6, nil, Settings{}), New(0, b, 6, nil, Settings{})
	out := restarted.Step(0, Received{From: b, Message: Ping{Epoch: 6, Version: 1}}, nil)
	var answer Message
	for _, e := range out {
		if s, ok := e.(Send); ok && s.To == b {
			answer = s.Message
		}
	}
	if _, ok := answer.(Ping); !ok {
		t.Fatalf("a head's ping was answered with %T", answer)
	}
	if out := former.Step(1, Received{From: a, Message: answer}, nil); len(out) > 0 {
		t.Errorf("and the answer with %+v", out)
	}
}
