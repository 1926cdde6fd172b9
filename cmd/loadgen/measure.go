package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
	"github.com/spillwaydb/spillway/cmd/internal/rival"
)

// result is one measurement.
type result struct {
	server     string
	samples    int
	wall       time.Duration
	cpu        float64
	p50, p99   time.Duration
	max        time.Duration
	peakRSS    int64
	written    int64
	disk       int64
	retried    int64
	warmRate   float64 // of the scrapes before, in which series are new
	warmMax    time.Duration
	totalCount int
	segments   segments
}

const header = "server           samples/CPU-s   samples/s    p50      p99      max     peak RSS  written/smp  disk/smp  first scrapes/CPU-s"

func (r result) perCPU() float64 { return float64(r.samples) / r.cpu }

// String is one line of the table.
func (r result) String() string {
	return fmt.Sprintf("%-16s %10.0f k %10.0f k %7s %8s %8s %8.0f MB %9.2f B %8.2f B %10.0f k  (max %s)%s",
		r.server, r.perCPU()/1e3, float64(r.samples)/r.wall.Seconds()/1e3, ms(r.p50), ms(r.p99), ms(r.max),
		float64(r.peakRSS)/1e6, float64(r.written)/float64(r.totalCount), float64(r.disk)/float64(r.totalCount), r.warmRate/1e3, ms(r.warmMax), r.segments)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1fms", float64(d.Microseconds())/1e3) }

// touched is more memory than any server uses in the first scrapes of common loads.
const touched = 1 << 30

// measure starts a server, sends the warm scrapes, then the measured ones.
func measure(o options, name string, bodies []body) (result, error) {
	touchMemory(touched)
	t, err := rival.Start(name, o.spillway)
	if err != nil {
		return result{}, err
	}
	defer t.Stop()
	r := result{server: t.Name}
	split := slices.IndexFunc(bodies, func(b body) bool { return b.scrape >= 0 })
	u0, err := t.Usage()
	if err != nil {
		return r, err
	}
	warm, err := send(o, t, bodies[:split])
	if err != nil {
		return r, fmt.Errorf("first scrapes: %w", err)
	}
	u1, err := t.Usage()
	if err != nil {
		return r, err
	}
	if warm.samples > 0 {
		r.warmRate, r.warmMax = float64(warm.samples)/(u1.CPU-u0.CPU), slices.Max(warm.took)
	}
	stopProfile := profile(t, o.profile)
	main, err := send(o, t, bodies[split:])
	if err != nil {
		return r, err
	}
	u2, err := t.Usage()
	if err != nil {
		return r, err
	}
	if err := stopProfile(); err != nil {
		return r, err
	}
	slices.Sort(main.took)
	r.samples, r.wall, r.cpu, r.retried = main.samples, main.wall, u2.CPU-u1.CPU, main.retried
	r.p50, r.p99, r.max = main.took[len(main.took)/2], main.took[len(main.took)*99/100], main.took[len(main.took)-1]
	r.totalCount = warm.samples + main.samples
	time.Sleep(o.settle)
	u3, err := t.Usage()
	if err != nil {
		return r, err
	}
	r.peakRSS, r.written, r.disk = u3.PeakRSS, u3.Written, t.OnDisk()
	r.segments, err = segmentsOf(t)
	return r, err
}

// profile fetches a CPU profile while the load runs.
func profile(t *rival.Server, file string) func() error {
	if file == "" || t.Admin == "" {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		resp, err := http.Get(t.Admin + "/debug/pprof/profile?seconds=10")
		if err != nil {
			done <- err
			return
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		done <- errors.Join(err, os.WriteFile(file, b, 0o600))
	}()
	return func() error { return <-done }
}

// sent is the result of sending a load.
type sent struct {
	samples int
	wall    time.Duration
	took    []time.Duration
	retried int64
}

// send sends bodies in order over all connections: each sends the next. A request that an overloaded server refuses (429,
// 503) is sent again a little later, and the wait counts into the request's time.
func send(o options, t *rival.Server, bodies []body) (sent, error) {
	var s sent
	var next atomic.Int64
	var retried atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, o.conns)
	took := make([][]time.Duration, o.conns)
	e := fleet.NewEncoder(o.protocol)
	begin := time.Now()
	p := pace{begin: begin, rate: o.rate}
	for c := range o.conns {
		wg.Add(1)
		go func() {
			defer wg.Done()
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}}
			defer client.CloseIdleConnections()
			for {
				i := int(next.Add(1)) - 1
				if i >= len(bodies) {
					return
				}
				p.wait(context.Background(), bodies[i].samples)
				start := time.Now()
				n, err := post(client, t.URL+e.Path(), e.Header(), bodies[i].bytes)
				if err != nil {
					errs <- err
					return
				}
				retried.Add(n)
				took[c] = append(took[c], time.Since(start))
			}
		}()
	}
	wg.Wait()
	s.wall = time.Since(begin)
	close(errs)
	if err := <-errs; err != nil {
		return s, err
	}
	for _, b := range bodies {
		s.samples += b.samples
	}
	for _, ts := range took {
		s.took = append(s.took, ts...)
	}
	s.retried = retried.Load()
	return s, nil
}

// pace keeps senders to a rate that they share.
type pace struct {
	begin time.Time
	rate  int          // samples a second; 0: flat out
	begun atomic.Int64 // samples
}

// wait returns when so many samples more are due, or the context ends.
func (p *pace) wait(ctx context.Context, samples int) {
	if p.rate == 0 {
		return
	}
	due := p.begin.Add(time.Duration(float64(p.begun.Add(int64(samples))) / float64(p.rate) * 1e9))
	select {
	case <-time.After(time.Until(due)):
	case <-ctx.Done():
	}
}

const retriesMax = 600

func post(client *http.Client, url string, header map[string]string, b []byte) (retried int64, err error) {
	for ; ; retried++ {
		req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(b))
		if err != nil {
			return retried, err
		}
		for k, v := range header {
			req.Header.Set(k, v)
		}
		resp, err := client.Do(req)
		if err != nil {
			return retried, err
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		resp.Body.Close()
		switch {
		case resp.StatusCode/100 == 2:
			return retried, nil
		case (resp.StatusCode == 503 || resp.StatusCode == 429) && retried < retriesMax:
			time.Sleep(50 * time.Millisecond)
		default:
			return retried, fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
		}
	}
}

// compare prints the ratio of the first server to each other one, with the spread of repeated runs.
func compare(names []string, by map[string][]result) {
	first := by[names[0]]
	if len(first) == 0 || len(names) < 2 {
		return
	}
	fmt.Println()
	for _, other := range names[1:] {
		n := min(len(first), len(by[other]))
		if n == 0 {
			continue
		}
		ratios := make([]float64, n)
		for i := range n {
			ratios[i] = first[i].perCPU() / by[other][i].perCPU()
		}
		slices.Sort(ratios)
		fmt.Printf("%s / %s, samples per CPU-second: %.2f (%.2f … %.2f in %d runs)\n", names[0], other, ratios[n/2], ratios[0], ratios[n-1], n)
	}
}
