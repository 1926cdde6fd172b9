package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
)

func overloadAttacks() []attack {
	return []attack{
		{name: "overload/three-protocols", does: "three times what it takes, by three protocols, slow readers beside it", run: overload},
		{name: "overload/beside-queries", does: "as much as it takes, beside eight heavy queries", run: besideQueries},
		{name: "cluster/overload", does: "three times what two gateways and three storage servers take", run: overload, cluster: true, asked: true},
		{name: "budget/taken", does: "series, rows, bodies, queries, exports and slow readers at once, until no memory is left", run: takeAll},
	}
}

// takeAll fills every account of the process's memory at once: series of three tables, rows of three protocols, bodies of the
// largest size, queries, exports, and answers that are read slowly.
func takeAll(ctx context.Context, a *attacker) {
	a.crowd(ctx)
	senders := newSenders(a.addr, senderScrapes)
	a.last = max(a.last, 10*time.Second)
	var all sync.WaitGroup
	for _, one := range []func(){
		func() { newSeries(ctx, a, 3) },
		func() { newNames(ctx, a) },
		func() { a.load(ctx, senders, capacityConns, a.last, 0) },
		func() { emptyFields(ctx, a) },
		func() { metadataFlood(ctx, a) },
		func() { heavyQueries(ctx, a) },
		func() { readAll(ctx, a) },
		func() { slowReaders(ctx, a) },
		func() { slowBodies(ctx, a) },
	} {
		all.Go(one)
	}
	all.Wait()
	for _, account := range []string{"heads", "series", "bodies", "caches", "compactions", "queries", "process"} {
		most, err := a.metric(ctx, `spillway_budget_peak_bytes{account="`+account+`"}`)
		if err != nil {
			a.blame(err.Error())
		}
		a.note += fmt.Sprintf(" %s %.0f %%", account, 100*most/float64(a.memory))
	}
	for why, n := range a.reasons {
		a.note += fmt.Sprintf("\n    refused %d: %s", n, why)
	}
}

// slowBodies has 64 clients send all but the last byte of a body of 2 MB, so that it stays in memory.
func slowBodies(ctx context.Context, a *attacker) {
	ctx, cancel := context.WithTimeout(ctx, a.last)
	defer cancel()
	body := bytes.Repeat([]byte("slow,t=x value=1\n"), 2<<20/17)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", a.addr)
			if err != nil {
				return
			}
			defer c.Close()
			if _, err := fmt.Fprintf(c, "POST /write?db=slow HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body)+1, body); err == nil {
				<-ctx.Done()
			}
		})
	}
	wg.Wait()
}

// How capacity is found: so many connections keep the server busy, and no more than it serves with ease.
const capacityConns = 48

// rounds is how often capacity and overload are measured in turns: three times where the median is judged.
func (a *attacker) rounds() int {
	if a.goodput > 0 {
		return 3
	}
	return 1
}

// overload measures the rate that the server accepts from a few senders, once its heads are full and flushing has to keep up,
// and the rate when many offer three times as much steadily, whatever is answered. Beside them clients ask for large answers
// and read them slowly.
func overload(ctx context.Context, a *attacker) {
	scrapes := senderScrapes
	if a.k.cluster { // it accepts less, and is not overloaded for longer
		scrapes = clusterScrapes
	}
	senders := newSenders(a.addr, scrapes)
	spell := max(a.last, 4*time.Second)
	a.load(ctx, senders, capacityConns, 2*spell, 0) // not measured: series are new, heads have room
	readers, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { readSlowly(readers, a, "/t/bench/api/v1/query?query=cpu_usage_user[1h]", 32) })
	var shares []float64
	for range a.rounds() { // in turns: whatever else the machine does meanwhile, it does to both
		capacity := a.load(ctx, senders, capacityConns, spell, 0)
		taken := a.load(ctx, senders, len(senders), spell, 3*capacity.rate)
		shares = append(shares, taken.rate/capacity.rate)
		a.note += fmt.Sprintf("\n    capacity       %s\n    three times it %s: %.0f %%", capacity, taken, 100*taken.rate/capacity.rate)
	}
	stop()
	wg.Wait()
	slices.Sort(shares)
	share := shares[len(shares)/2]
	a.note = fmt.Sprintf("goodput %.0f %%%s", 100*share, a.note)
	for why, n := range a.reasons {
		a.note += fmt.Sprintf("\n    refused %d: %s", n, why)
	}
	if share < a.goodput {
		a.blame(fmt.Sprintf("goodput is %.0f %% of capacity", 100*share))
	}
}

// fairHalf is the part of its capacity that ingest keeps beside queries.
const fairHalf = 0.5

// besideQueries measures the rate that the server accepts alone and beside heavy queries, in turns.
func besideQueries(ctx context.Context, a *attacker) {
	a.crowd(ctx)
	senders := newSenders(a.addr, senderScrapes)
	spell := max(a.last, 4*time.Second)
	a.load(ctx, senders, capacityConns, spell, 0) // not measured: series are new
	var shares []float64
	for range a.rounds() {
		alone := a.load(ctx, senders, capacityConns, spell, 0)
		queries, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { heavyQueries(queries, a) })
		beside := a.load(ctx, senders, capacityConns, spell, 0)
		stop()
		wg.Wait()
		shares = append(shares, beside.rate/alone.rate)
		a.note += fmt.Sprintf("\n    alone          %s\n    beside queries %s: %.0f %%", alone, beside, 100*beside.rate/alone.rate)
	}
	slices.Sort(shares)
	share := shares[len(shares)/2]
	a.note = fmt.Sprintf("ingest keeps %.0f %%%s", 100*share, a.note)
	if a.goodput > 0 && share < fairHalf {
		a.blame(fmt.Sprintf("beside heavy queries ingest keeps %.0f %%", 100*share))
	}
}

// throughput is the result of a load.
type throughput struct {
	rate    float64 // samples acked a second
	offered float64 // samples sent a second
	cpu     float64 // processors of the server, on average
	refused float64 // requests a second
}

func (t throughput) String() string {
	return fmt.Sprintf("%.2f M/s of %.2f offered (%.2f M a CPU-second, %.2f processors, %.0f refusals/s)", t.rate/1e6, t.offered/1e6, t.rate/1e6/max(t.cpu, 0.01), t.cpu, t.refused)
}

// sender is one writer: it has its own hosts, and sends their rows in order, as agents do. A series that came over several
// connections at once would come out of order, and be sorted when it is flushed.
type sender struct {
	requests [][]byte // as they go over the wire
	samples  []int
	next     int
}

// After its last request a sender starts again: some seconds' worth, so that heads do not hold the same rows again and again.
const (
	sendersMost    = 192
	senderHosts    = 5
	senderScrapes  = 300
	clusterScrapes = 60
	scrapesEach    = 4 // in a request: 2,020 samples
)

// newSenders makes those of the three protocols in turns.
func newSenders(addr string, scrapes int) []*sender {
	out := make([]*sender, sendersMost)
	var wg sync.WaitGroup
	protocols := []string{"rw1", "rw2", "influx"}
	for first := range len(protocols) {
		wg.Go(func() {
			encoder := fleet.NewEncoder(protocols[first])
			f := fleet.New(sendersMost/len(protocols)*senderHosts, uint64(first))
			for i := first; i < len(out); i += len(protocols) {
				hosts := f.Hosts[i/len(protocols)*senderHosts:][:senderHosts]
				out[i] = newSender(addr, encoder, f, hosts, scrapes)
			}
		})
	}
	wg.Wait()
	return out
}

func newSender(addr string, encoder fleet.Encoder, f *fleet.Fleet, hosts []fleet.Host, scrapes int) *sender {
	s := &sender{}
	head := "POST " + encoder.Path() + " HTTP/1.1\r\nHost: " + addr + "\r\n"
	for k, v := range encoder.Header() {
		head += k + ": " + v + "\r\n"
	}
	start := time.Now().Add(-time.Duration(scrapes) * 10 * time.Second).UnixMilli()
	for scrape := range scrapes {
		for i := range hosts {
			encoder.Host(f, &hosts[i], start+int64(scrape)*10_000)
		}
		if (scrape+1)%scrapesEach == 0 {
			n := encoder.Samples()
			body := encoder.Cut()
			r := fmt.Appendf(nil, "%sContent-Length: %d\r\n\r\n", head, len(body))
			s.requests, s.samples = append(s.requests, append(r, body...)), append(s.samples, n)
		}
	}
	return s
}

// line is a connection to the server that sends requests as they are, since net/http uses as much processor time to send a
// request as the server to serve it.
type line struct {
	addr string
	conn net.Conn
	r    *bufio.Reader
}

// send sends one request and reads the answer. A server may answer before it has read all, and close the connection.
func (l *line) send(ctx context.Context, request []byte) (*http.Response, []byte, error) {
	if l.conn == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.addr)
		if err != nil {
			return nil, nil, err
		}
		l.conn, l.r = conn, bufio.NewReader(conn)
	}
	_ = l.conn.SetDeadline(time.Now().Add(requestMax))
	_, writeErr := l.conn.Write(request)
	answer, err := http.ReadResponse(l.r, nil)
	if err != nil {
		l.close()
		return nil, nil, errors.Join(err, writeErr)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || writeErr != nil || answer.Close {
		l.close()
	}
	return answer, body, err
}

func (l *line) close() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
}

// load has senders send for a while over n connections, each for its share in turns. rate is how many samples are
// offered a second, by all senders together; 0: as many as the server accepts. Refused samples are sent again.
func (a *attacker) load(ctx context.Context, senders []*sender, n int, spell time.Duration, rate float64) throughput {
	ctx, cancel := context.WithTimeout(ctx, spell)
	defer cancel()
	began, used := time.Now(), a.cpu()
	var offered, acked, refused atomic.Int64
	var wg sync.WaitGroup
	for w := range n {
		wg.Go(func() {
			l := &line{addr: a.door(w)}
			defer l.close()
			for at := w; ctx.Err() == nil; at += n {
				if at >= len(senders) {
					at = w
				}
				s := senders[at]
				mine := offered.Add(int64(s.samples[s.next]))
				if rate > 0 {
					sleep(ctx, time.Until(began.Add(time.Duration(float64(mine)/rate*1e9))))
				}
				answer, text, err := l.send(ctx, s.requests[s.next])
				switch {
				case err != nil && time.Since(began) >= spell:
					return // the dial saw the deadline before the context did
				case err != nil:
					a.count(0)
					a.blame(fmt.Sprintf("overload is answered with nothing: %v", err))
				case answer.StatusCode/100 == 2:
					a.count(answer.StatusCode)
					acked.Add(int64(s.samples[s.next]))
					s.next = (s.next + 1) % len(s.requests)
				default:
					refused.Add(1)
					a.refused(answer, text)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began).Seconds()
	per := func(n *atomic.Int64) float64 { return float64(n.Load()) / took }
	return throughput{rate: per(&acked), offered: per(&offered), refused: per(&refused), cpu: (a.cpu() - used).Seconds() / took}
}

// seriesRefused is in the answer to rows of new series that there is no memory for.
const seriesRefused = "has as many active series as its share"

// refused counts a refusal and its reason, numbers left out.
func (a *attacker) refused(answer *http.Response, text []byte) {
	a.count(answer.StatusCode)
	if s := answer.StatusCode; s == http.StatusBadRequest && bytes.Contains(text, []byte(seriesRefused)) {
		// new series of a table above its share: they would be refused the next time, too
	} else if s != http.StatusServiceUnavailable && s != http.StatusTooManyRequests {
		a.blame(fmt.Sprintf("overload is answered with %d %.200s", s, text))
	} else if _, err := strconv.Atoi(answer.Header.Get("Retry-After")); err != nil {
		a.blame(fmt.Sprintf("overload is answered with %d and Retry-After %q", s, answer.Header.Get("Retry-After")))
	}
	why := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, fmt.Sprintf("%.60s", text))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reasons == nil {
		a.reasons = map[string]int{}
	}
	a.reasons[why]++
}
