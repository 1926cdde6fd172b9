package main

import "time"

// timer is a pending event. A stopped one is skipped.
type timer struct {
	what    string
	f       func()
	p       *proc // that runs f, if it is there; nil: the world
	message bool  // it is a delivery
}

func (t *timer) stop() {
	if t != nil {
		t.f = nil
	}
}

// moment is when a timer fires. It lies in the heap itself, so that comparing two reads no timer.
type moment struct {
	at  time.Duration
	seq uint64 // events of one moment fire in the order in which they were set
	t   *timer
}

func (m *moment) before(o *moment) bool { return m.at < o.at || m.at == o.at && m.seq < o.seq }

// heap is a binary heap of timers, the earliest first.
type heap []moment

func (h *heap) push(m moment) {
	s := append(*h, m)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !m.before(&s[up]) {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = m
	*h = s
}

func (h *heap) pop() moment {
	s := *h
	n := len(s) - 1
	first, last := s[0], s[n]
	s[n] = moment{}
	s = s[:n]
	*h = s
	if n == 0 {
		return first
	}
	i := 0
	for {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && s[c+1].before(&s[c]) {
			c++
		}
		if !s[c].before(&last) {
			break
		}
		s[i] = s[c]
		i = c
	}
	s[i] = last
	return first
}
