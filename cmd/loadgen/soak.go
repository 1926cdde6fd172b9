package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
	"github.com/spillwaydb/spillway/cmd/internal/rival"
)

// The data of a soak begins so long before now that it does not reach the future even at this many scrapes a second.
const soakScrapesPerSecond = 100

// soakEvery is how often a line is printed.
const soakEvery = 30 * time.Second

// window counts the requests sent since the last line.
type window struct {
	sync.Mutex
	samples int
	retried int64
	took    []time.Duration
}

// soak loads one fresh server for a given time.
func soak(o options) error {
	t, err := rival.Start(o.servers[0], o.spillway)
	if err != nil {
		return err
	}
	defer t.Stop()
	span := time.Duration(o.soak.Seconds()*soakScrapesPerSecond) * o.interval
	g := newGenerator(o, time.Now().Add(-span).Truncate(time.Second))
	fmt.Printf("%s: %s, %d series, %v, %d connections; bodies are encoded beside the server\n\n", o.servers[0], o.protocol, g.series(), o.soak, o.conns)
	fmt.Println("    at  samples/CPU-s   samples/s      p99      max  refused      RSS     heads      log  in segments")

	ctx, stop := context.WithTimeout(context.Background(), o.soak)
	defer stop()
	bodies := make(chan body, 64)
	var w window
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(bodies)
		for n := 0; ctx.Err() == nil; n++ {
			g.scrape(n, func(b body) {
				select {
				case bodies <- b:
				case <-ctx.Done():
				}
			})
		}
		return nil
	})
	p := pace{begin: time.Now(), rate: o.rate}
	for range o.conns {
		group.Go(func() error { return w.send(ctx, o, t, &p, bodies) })
	}
	group.Go(func() error { return w.report(ctx, t) })
	return group.Wait()
}

func (w *window) send(ctx context.Context, o options, t *rival.Server, p *pace, bodies <-chan body) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}}
	defer client.CloseIdleConnections()
	e := fleet.NewEncoder(o.protocol)
	for b := range bodies {
		if p.wait(ctx, b.samples); ctx.Err() != nil {
			continue // the time is over: the encoder ends and closes the channel
		}
		start := time.Now()
		n, err := post(client, t.URL+e.Path(), e.Header(), b.bytes)
		if err != nil {
			return err
		}
		w.Lock()
		w.samples += b.samples
		w.retried += n
		w.took = append(w.took, time.Since(start))
		w.Unlock()
	}
	return nil
}

// report prints a line every half minute, and one of the whole at the end.
func (w *window) report(ctx context.Context, t *rival.Server) error {
	begin := time.Now()
	first, err := t.Usage()
	if err != nil {
		return err
	}
	var whole window
	last, lastAt := first, begin
	tick := time.NewTicker(soakEvery)
	defer tick.Stop()
	for ended := false; !ended; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			ended = true
		}
		w.Lock()
		now := window{samples: w.samples, retried: w.retried, took: w.took}
		w.samples, w.retried, w.took = 0, 0, nil
		w.Unlock()
		u, err := t.Usage()
		if err != nil {
			return err
		}
		s, err := segmentsOf(t)
		if err != nil {
			return err
		}
		if len(now.took) > 0 {
			now.print(time.Since(begin), time.Since(lastAt), u.CPU-last.CPU, u, s)
		}
		whole.samples += now.samples
		whole.retried += now.retried
		whole.took = append(whole.took, now.took...)
		last, lastAt = u, time.Now()
		if ended && len(whole.took) > 0 {
			fmt.Println()
			whole.print(time.Since(begin), time.Since(begin), u.CPU-first.CPU, u, s)
			fmt.Printf("%d samples, %.2f B written a sample\n", whole.samples, float64(u.Written)/float64(whole.samples))
		}
	}
	return nil
}

func (w *window) print(at, wall time.Duration, cpu float64, u rival.Usage, s segments) {
	slices.Sort(w.took)
	fmt.Printf("%5.0f s %12.0f k %9.0f k %8s %8s %8d %5.0f MB %6.0f MB %5.0f MB %9.0f M\n", at.Seconds(), float64(w.samples)/cpu/1e3,
		float64(w.samples)/wall.Seconds()/1e3, ms(w.took[len(w.took)*99/100]), ms(w.took[len(w.took)-1]), w.retried,
		float64(u.RSS)/1e6, s.head/1e6, s.log/1e6, s.rows/1e6)
}
