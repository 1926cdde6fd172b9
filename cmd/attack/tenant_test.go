package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"
)

// TestTheControlAnswersUntilItsInputEnds speaks with the control as the bystander does.
func TestTheControlAnswersUntilItsInputEnds(t *testing.T) {
	in, stop := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- runAnswer(in, out) }()
	addr, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	status, _, err := apart(addr[:len(addr)-1]).ask(context.Background(), http.MethodPost, "/", nil, lines(1))
	if err != nil || status != http.StatusNoContent {
		t.Errorf("%d %v", status, err)
	}
	_ = stop.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestASpellCrossesTheProcessesWhole: a ledger that lost an acked time would not miss its row.
func TestASpellCrossesTheProcessesWhole(t *testing.T) {
	s := &spell{Writes: []time.Duration{1, 2}, Control: []time.Duration{3}, Acked: []int64{10, 20}, Wrong: 1, Refused: []string{"write: 503"}}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	got := &spell{}
	if err := json.Unmarshal(text, got); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Writes, s.Writes) || !slices.Equal(got.Control, s.Control) || !slices.Equal(got.Acked, s.Acked) || got.Wrong != 1 || !slices.Equal(got.Refused, s.Refused) {
		t.Errorf("%s came as %+v", text, got)
	}
}

// TestP99IsAMedianOfParts: one bad second of a shared machine does not decide.
func TestP99IsAMedianOfParts(t *testing.T) {
	took := make([]time.Duration, 3*p99Least)
	for i := range took {
		took[i] = time.Millisecond
	}
	for i := range p99Least / 2 {
		took[p99Least+i] = time.Second
	}
	if got := p99(took); got != time.Millisecond {
		t.Errorf("one of three parts is slow: %s", got)
	}
	for i := range 3 {
		took[2*p99Least+i] = time.Second
	}
	if got := p99(took); got != time.Second {
		t.Errorf("two of three parts are slow: %s", got)
	}
	if p99(nil) != 0 {
		t.Error("of nothing")
	}
}

// TestTheMachineIsNotTheProduct: a bystander is slow compared to its time without the attack and to the control's time under it.
func TestTheMachineIsNotTheProduct(t *testing.T) {
	for _, c := range []struct{ calm, control, want time.Duration }{
		{1, 1, 30 * time.Millisecond},
		{15 * time.Millisecond, 2 * time.Millisecond, 45 * time.Millisecond},
		{15 * time.Millisecond, 40 * time.Millisecond, 120 * time.Millisecond},
	} {
		if got := (result{calm: c.calm, control: c.control}).slow(); got != c.want {
			t.Errorf("%s without an attack, the control %s: slow from %s on, not %s", c.calm, c.control, got, c.want)
		}
	}
}
