package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// attacker sends the requests of one attack and counts the answers.
type attacker struct {
	*target
	k       attack
	seed    uint64
	last    time.Duration // how long the attack lasts
	goodput float64       // of an overload, the least; 0: any

	newPeerMost time.Duration // for the connection of another peer

	mu      sync.Mutex
	codes   map[int]int
	cut     int // requests without an answer
	wrong   []string
	note    string
	reasons map[string]int // of refusals, how often each was given
	acks    []string       // rows of the attack that were acked, in its own form, for check
	began   time.Time
	took    time.Duration
}

func newAttacker(t *target, k attack, o options) *attacker {
	return &attacker{target: t, k: k, seed: o.seed, last: o.seconds, goodput: o.goodput, newPeerMost: o.newPeerMost(), codes: map[int]int{}}
}

func (a *attacker) attack(ctx context.Context) {
	a.began = time.Now()
	defer func() { a.took = time.Since(a.began) }()
	a.k.run(ctx, a)
}

// rand gives the generator of one worker.
func (a *attacker) rand(worker int) *rand.Rand { return rand.New(rand.NewPCG(a.seed, uint64(worker))) }

// workers runs f on n goroutines, again and again until the attack's time is over or f returns false.
func (a *attacker) workers(ctx context.Context, n int, f func(ctx context.Context, worker, turn int) bool) {
	ctx, cancel := context.WithTimeout(ctx, a.last)
	defer cancel()
	var wg sync.WaitGroup
	for w := range n {
		wg.Go(func() {
			for turn := 0; ctx.Err() == nil && f(ctx, w, turn); turn++ {
			}
		})
	}
	wg.Wait()
}

// send sends one request, counts its answer, and returns its status; 0: there was none.
func (a *attacker) send(ctx context.Context, method, path string, header http.Header, body []byte) (int, []byte) {
	status, answer, err := a.ask(ctx, method, path, header, body)
	if errors.Is(err, errAnswer) {
		a.blame(err.Error())
	}
	if ctx.Err() != nil {
		return status, answer // the attack is over: no answer is no fault
	}
	if err != nil && status == 0 {
		a.count(0)
		return 0, nil
	}
	a.count(status)
	if !tolerable(status) {
		a.blame(fmt.Sprintf("%s %.80s: %d %.300s", method, path, status, answer))
	}
	return status, answer
}

func (a *attacker) get(ctx context.Context, path string) (int, []byte) {
	return a.send(ctx, http.MethodGet, path, nil, nil)
}

func (a *attacker) post(ctx context.Context, path string, header http.Header, body []byte) (int, []byte) {
	return a.send(ctx, http.MethodPost, path, header, body)
}

func (a *attacker) count(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if status == 0 {
		a.cut++
		return
	}
	a.codes[status]++
}

// ack notes something that was acked.
func (a *attacker) ack(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.acks = append(a.acks, text)
}

func (a *attacker) acked() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.acks)
}

// tolerable are the answers that a server under attack may give.
func tolerable(status int) bool {
	return status/100 == 2 || status/100 == 3 || status/100 == 4 || status == http.StatusServiceUnavailable || status == http.StatusHTTPVersionNotSupported
}

const wrongMax = 3

func (a *attacker) blame(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.wrong) < wrongMax {
		a.wrong = append(a.wrong, text)
	}
}

// result is one line of the table.
type result struct {
	name         string
	codes        string
	peak, memory int64
	writes       int
	p99, calm    time.Duration
	control      time.Duration
	reads        time.Duration
	health       time.Duration
	note         string
	wrong        []string
}

const header = "attack                              answers                               peak RSS  bystander: writes    p99 (calm, control)  read p99  health max"

// String is the line, and one for each thing that went wrong.
func (r result) String() string {
	verdict := ""
	if len(r.wrong) > 0 {
		verdict = "  HURT"
	}
	s := fmt.Sprintf("%-34s %-38s %4.0f MB %3.0f %% %9d %s (%s %s) %s %s%s%s", r.name, r.codes, float64(r.peak)/1e6, 100*float64(r.peak)/float64(r.memory),
		r.writes, ms(r.p99), ms(r.calm), ms(r.control), ms(r.reads), ms(r.health), "  "+r.note, verdict)
	for _, w := range r.wrong {
		s += "\n    " + strings.ReplaceAll(strings.TrimSpace(w), "\n", " ")
	}
	return s
}

func ms(d time.Duration) string { return fmt.Sprintf("%7.1fms", float64(d.Microseconds())/1e3) }

// peakOver is how much of the budget the process may use at its peak, and bounds of latency with -latency.
const (
	peakOver     = 1.1
	slowerMax    = 3
	slowerLeast  = 10 * time.Millisecond // below it nothing is slow
	healthMax    = time.Second
	healthBusy   = 5 * time.Second  // its bound where latency is not judged: a machine with other work may hold an answer up, and not that long
	overallGrace = 10 * time.Second // for an attack to end once its time is over
)

// judge reports the damage of one attack to the process, the bystander and its own acked rows.
func (a *attacker) judge(ctx context.Context, o options, quiet, s *spell) result {
	r := result{
		name: a.k.name, peak: a.peak(), memory: a.memory, writes: len(s.Writes), p99: p99(s.Writes), calm: p99(quiet.Writes),
		control: p99(s.Control), reads: p99(s.Reads), health: p99(s.Health), note: a.note, wrong: a.wrong,
	}
	r.codes = a.answers()
	say := func(format string, args ...any) { r.wrong = append(r.wrong, fmt.Sprintf(format, args...)) }
	if !a.alive() {
		said := a.p.Said()
		say("the process ended, or was killed as it took more than %d times its budget; its last words: …%s", killOver, said[max(0, len(said)-600):])
		return r
	}
	if float64(r.peak) > peakOver*float64(a.memory) {
		say("peak memory is %.0f MB", float64(r.peak)/1e6)
	}
	if s.Wrong > 0 {
		say("%d requests of the bystander went wrong:", s.Wrong)
		r.wrong = append(r.wrong, s.Refused...)
	}
	if slow := r.slow(); o.latency && r.writes >= 2*p99Least && r.p99 > slow {
		say("the bystander's writes take %s (p99), more than %s", r.p99, slow)
	}
	if most := o.healthMost(); r.health > most {
		say("health took %s, more than %s", r.health, most)
	}
	if a.k.check != nil {
		if err := a.k.check(ctx, a); err != nil {
			say("%v", err)
		}
	}
	return r
}

// healthMost is the bound of /-/healthy.
func (o options) healthMost() time.Duration {
	if o.latency {
		return healthMax
	}
	return healthBusy
}

// slow is the bound of the bystander's writes at the 99th percentile: three times their duration without an attack, or the duration in
// a process that only answers under the same attack, whichever is more: the latter is due to the machine.
func (r result) slow() time.Duration { return slowerMax * max(r.calm, r.control, slowerLeast) }

// answers lists how often each status came.
func (a *attacker) answers() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var parts []string
	for code, n := range a.codes {
		parts = append(parts, fmt.Sprintf("%d×%d", code, n))
	}
	slices.Sort(parts)
	if a.cut > 0 {
		parts = append(parts, fmt.Sprintf("cut×%d", a.cut))
	}
	return strings.Join(parts, " ")
}

// p99Least is of how many requests a 99th percentile is computed: a second's writes. Of fewer than two seconds' none is judged: one of them
// could decide, by luck.
const p99Least = 100

// p99 is the median of the 99th percentiles of parts that follow each other in time.
func p99(took []time.Duration) time.Duration {
	if len(took) == 0 {
		return 0
	}
	n := max(1, len(took)/p99Least)
	all := make([]time.Duration, 0, n)
	for i := range n {
		part := slices.Sorted(slices.Values(took[i*len(took)/n : (i+1)*len(took)/n]))
		all = append(all, part[len(part)*99/100])
	}
	slices.Sort(all)
	return all[len(all)/2]
}
