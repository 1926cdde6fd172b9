package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The load of the bystander.
const (
	bystanderSeries = 20
	writeEvery      = 10 * time.Millisecond
	readEvery       = 50 * time.Millisecond
	healthEvery     = 100 * time.Millisecond
	bystanderTable  = "bystander"
)

// How this program starts itself.
const (
	bystanderCommand = "bystander" // server, control
	answerCommand    = "answer"
)

// tenant is the bystander's own process. It writes one row of each of its series at a time, by line protocol and remote write
// in turns, and reads the last ones back. The value of a row is its time, so that a ledger is the list of acked times.
// Writes, reads and health have connections of their own, as the programs have that send them.
type tenant struct {
	writes, reads, health, control *target

	mu   sync.Mutex
	last int64 // acked, ms
}

// spell is the bystander's measurements over a while. Guarded by a mutex while it lasts.
type spell struct {
	mu                             sync.Mutex
	Writes, Reads, Health, Control []time.Duration // in the order of their answers
	Acked                          []int64         // ms, rising
	Wrong                          int
	Refused                        []string // the first refusals
}

// runTenant obeys "begin" and "end" lines until in ends; each end is answered with a spell.
func runTenant(server, control string, in io.Reader, out io.Writer) error {
	t := &tenant{writes: apart(server), reads: apart(server), health: apart(server), control: apart(control)}
	end := func() *spell { return nil }
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if lines.Text() == "begin" {
			end = t.begin()
			continue
		}
		if err := json.NewEncoder(out).Encode(end()); err != nil {
			return err
		}
	}
	return nil
}

// apart is a server with separate connections. An address without a scheme is one of plain HTTP.
func apart(server string) *target {
	addr, secure := strings.CutPrefix(server, "https://")
	return &target{
		addr: strings.TrimPrefix(addr, "http://"), secure: secure,
		client: &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableCompression: true, TLSClientConfig: anyCertificate()}},
	}
}

// begin begins to send; end ends it.
func (t *tenant) begin() (end func() *spell) {
	s := &spell{}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { every(ctx, writeEvery, func() { t.write(s) }) })
	wg.Go(func() { every(ctx, readEvery, func() { t.read(s) }) })
	wg.Go(func() { every(ctx, healthEvery, func() { t.healthy(s) }) })
	wg.Go(func() { every(ctx, writeEvery, func() { t.ask(s) }) })
	return func() *spell {
		stop()
		wg.Wait()
		return s
	}
}

// every calls f at a steady pace; a call that lasts longer delays the next.
func every(ctx context.Context, pace time.Duration, f func()) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}

// requestMax is the patience of the bystander.
const requestMax = 20 * time.Second

// lines are the rows of one time.
func lines(at int64) (body []byte) {
	for i := range bystanderSeries {
		body = fmt.Appendf(body, "steady,i=%d value=%d %d\n", i, at, at)
	}
	return body
}

func (t *tenant) write(s *spell) {
	at := time.Now().UnixMilli()
	ctx, cancel := context.WithTimeout(context.Background(), requestMax)
	defer cancel()
	path, header, body := "/write?precision=ms&db="+bystanderTable, http.Header(nil), lines(at)
	if at%2 == 1 {
		rows := make([]row, bystanderSeries)
		for i := range rows {
			rows[i] = row{labels: []string{"__name__", "steady", "i", strconv.Itoa(i)}, ms: at, value: float64(at)}
		}
		path, header, body = "/t/"+bystanderTable+"/api/v1/write", rw1Header(), rw1(rows)
	}
	began := time.Now()
	status, answer, err := t.writes.ask(ctx, http.MethodPost, path, header, body)
	s.note(&s.Writes, began, "write", status, answer, err, http.StatusNoContent)
	if err == nil && status == http.StatusNoContent {
		s.mu.Lock()
		s.Acked = append(s.Acked, at)
		s.mu.Unlock()
		t.mu.Lock()
		t.last = at
		t.mu.Unlock()
	}
}

// ask sends the control the same as write.
func (t *tenant) ask(s *spell) {
	ctx, cancel := context.WithTimeout(context.Background(), requestMax)
	defer cancel()
	began := time.Now()
	status, answer, err := t.control.ask(ctx, http.MethodPost, "/", nil, lines(began.UnixMilli()))
	s.note(&s.Control, began, "control", status, answer, err, http.StatusNoContent)
}

// read asks for the newest rows: those that were acked last must be there.
func (t *tenant) read(s *spell) {
	t.mu.Lock()
	want := t.last
	t.mu.Unlock()
	if want == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestMax)
	defer cancel()
	began := time.Now()
	status, answer, err := t.reads.ask(ctx, http.MethodGet, "/t/"+bystanderTable+"/api/v1/query?query=min(steady)", nil, nil)
	s.note(&s.Reads, began, "read", status, answer, err, http.StatusOK)
	if err != nil || status != http.StatusOK {
		return
	}
	got, err := firstValue(answer)
	if err != nil || got < float64(want) {
		s.wrongly(fmt.Sprintf("read: newest row is %v, acked was %d: %v %.200s", got, want, err, answer))
	}
}

func (t *tenant) healthy(s *spell) {
	ctx, cancel := context.WithTimeout(context.Background(), requestMax)
	defer cancel()
	began := time.Now()
	status, answer, err := t.health.ask(ctx, http.MethodGet, "/-/healthy", nil, nil)
	s.note(&s.Health, began, "health", status, answer, err, http.StatusOK)
}

func (s *spell) note(took *[]time.Duration, began time.Time, what string, status int, answer []byte, err error, want int) {
	s.mu.Lock()
	*took = append(*took, time.Since(began))
	s.mu.Unlock()
	if err != nil || status != want {
		s.wrongly(fmt.Sprintf("%s: %d %.200s %v", what, status, answer, err))
	}
}

func (s *spell) wrongly(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Wrong++
	if len(s.Refused) < wrongMax {
		s.Refused = append(s.Refused, text)
	}
}

// runAnswer is the control: it reads a request and answers it. It prints its address, and ends with its standard input.
func runAnswer(in io.Reader, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a sender that went away gets no answer
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		_ = server.Close()
	}()
	if err := server.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// helper runs this program as one of its helpers, if its arguments say so.
func helper(args []string) (ran bool, err error) {
	switch {
	case len(args) == 4 && args[1] == bystanderCommand:
		return true, runTenant(args[2], args[3], os.Stdin, os.Stdout)
	case len(args) == 2 && args[1] == answerCommand:
		return true, runAnswer(os.Stdin, os.Stdout)
	}
	return false, nil
}
