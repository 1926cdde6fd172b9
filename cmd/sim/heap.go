package main

import "time"

// timer is one thing that will happen. A stopped one is passed over, and counts for nothing.
type timer struct {
	at      time.Duration
	seq     uint64 // of two at one moment the one that was set first fires first
	what    string
	f       func()
	message bool // it is a delivery
}

func (t *timer) stop() {
	if t != nil {
		t.f = nil
	}
}

// heap is a binary heap of timers, the earliest first.
type heap []*timer

func (t *timer) before(o *timer) bool { return t.at < o.at || t.at == o.at && t.seq < o.seq }

func (h *heap) push(t *timer) {
	s := append(*h, t)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !s[i].before(s[up]) {
			break
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
	*h = s
}

func (h *heap) pop() *timer {
	s := *h
	first, n := s[0], len(s)-1
	s[0], s[n] = s[n], nil
	s = s[:n]
	for i := 0; ; {
		least := i
		for _, c := range [2]int{2*i + 1, 2*i + 2} {
			if c < n && s[c].before(s[least]) {
				least = c
			}
		}
		if least == i {
			break
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
	*h = s
	return first
}
