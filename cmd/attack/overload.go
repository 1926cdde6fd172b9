package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
)

func overloadAttacks() []attack {
	return []attack{{name: "overload/three-protocols", does: "three times what it takes, by three protocols, slow readers beside it", run: overload}}
}

// goodput is the share of its capacity that an overloaded server must still take in.
const goodput = 0.9

// overload measures what the server takes from a few senders, once its heads are full and flushing has to keep up, then has
// many offer three times as much at a steady rate, whatever is answered. Beside them clients ask for large answers and
// read them slowly.
func overload(ctx context.Context, a *attacker) {
	senders := make([]*sender, 0, 3)
	for i, protocol := range []string{"rw1", "rw2", "influx"} {
		senders = append(senders, newSender(protocol, uint64(i)))
	}
	spell := max(a.last, 8*time.Second)
	a.load(ctx, senders, spell, 6, 0) // not measured: series are new, heads have room
	capacity := a.load(ctx, senders, spell, 6, 0)
	readers, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { readSlowly(readers, a, "/t/bench/api/v1/query?query=cpu_usage_user[1h]", 32) })
	taken := a.load(ctx, senders, spell, 192, 3*capacity)
	stop()
	wg.Wait()
	a.note = fmt.Sprintf("capacity %.2f M/s, at three times that %.2f M/s", capacity/1e6, taken/1e6)
	for why, n := range a.reasons {
		a.note += fmt.Sprintf("\n    refused %d: %s", n, why)
	}
	if taken < goodput*capacity {
		a.blame(fmt.Sprintf("goodput is %.0f %% of capacity", 100*taken/capacity))
	}
}

// sender has bodies of one protocol, made beforehand, which it sends over and over.
type sender struct {
	encoder fleet.Encoder
	header  http.Header
	bodies  [][]byte
	samples []int
	next    atomic.Int64
}

const (
	senderHosts   = 200
	senderScrapes = 10
	senderBatch   = 2000
)

func newSender(protocol string, seed uint64) *sender {
	s := &sender{encoder: fleet.NewEncoder(protocol), header: http.Header{}}
	for k, v := range s.encoder.Header() {
		s.header.Set(k, v)
	}
	f := fleet.New(senderHosts, seed)
	start := time.Now().Add(-senderScrapes * 10 * time.Second).UnixMilli()
	cut := func() {
		n := s.encoder.Samples()
		if b := s.encoder.Cut(); b != nil {
			s.bodies, s.samples = append(s.bodies, b), append(s.samples, n)
		}
	}
	for scrape := range senderScrapes {
		for i := range f.Hosts {
			s.encoder.Host(f, &f.Hosts[i], start+int64(scrape)*10_000)
			if s.encoder.Samples() >= senderBatch {
				cut()
			}
		}
	}
	cut()
	return s
}

// refused counts the reasons of refusals, numbers left out.
func (a *attacker) refused(status int, answer []byte) {
	if status != http.StatusServiceUnavailable {
		return
	}
	text := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, fmt.Sprintf("%.60s", answer))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reasons == nil {
		a.reasons = map[string]int{}
	}
	a.reasons[text]++
}

// load sends for a while over n connections and returns the samples acked a second. rate is how many are offered a second,
// in all; 0: as many as are taken.
func (a *attacker) load(ctx context.Context, senders []*sender, spell time.Duration, n int, rate float64) float64 {
	ctx, cancel := context.WithTimeout(ctx, spell)
	defer cancel()
	began := time.Now()
	var offered, acked atomic.Int64
	var wg sync.WaitGroup
	for w := range n {
		s := senders[w%len(senders)]
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(s.next.Add(1)-1) % len(s.bodies)
				if rate > 0 {
					due := began.Add(time.Duration(float64(offered.Add(int64(s.samples[i]))) / rate * 1e9))
					sleep(ctx, time.Until(due))
				}
				if status, answer := a.post(ctx, s.encoder.Path(), s.header, s.bodies[i]); status/100 == 2 {
					acked.Add(int64(s.samples[i]))
				} else if a.refused(status, answer); status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests && ctx.Err() == nil {
					a.blame(fmt.Sprintf("overload is answered with %d", status))
				}
			}
		})
	}
	wg.Wait()
	return float64(acked.Load()) / time.Since(began).Seconds()
}
