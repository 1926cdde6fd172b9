package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
)

// bodySamples is how many samples a request holds, about.
const bodySamples = 2000

// load writes the fleet's rows up to end. A host's rows go over one connection, in order.
func load(o options, url string, end time.Time) error {
	g, ctx := errgroup.WithContext(context.Background())
	lanes := make([]chan []byte, o.conns)
	e := fleet.NewEncoder("rw1")
	for i := range lanes {
		lanes[i] = make(chan []byte, 4)
		g.Go(func() error { return post(ctx, url+e.Path(), e.Header(), lanes[i]) })
	}
	g.Go(func() error {
		defer func() {
			for _, l := range lanes {
				close(l)
			}
		}()
		return encode(ctx, o, end, lanes)
	})
	return g.Wait()
}

func encode(ctx context.Context, o options, end time.Time, lanes []chan []byte) error {
	f := fleet.New(o.hosts, o.seed)
	scrapes := int(time.Duration(o.hours) * time.Hour / o.interval)
	perBody := max(1, bodySamples/f.Fields())
	e := fleet.NewEncoder("rw1")
	for s := range scrapes {
		at := end.Add(-o.interval * time.Duration(scrapes-1-s)).UnixMilli()
		for i := range f.Hosts {
			e.Host(f, &f.Hosts[i], at)
			if (i+1)%perBody != 0 && i+1 < len(f.Hosts) {
				continue
			}
			select {
			case lanes[i/perBody%len(lanes)] <- e.Cut():
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// post sends bodies one after the other; an overloaded server is asked again.
func post(ctx context.Context, url string, header map[string]string, bodies <-chan []byte) error {
	var client http.Client
	defer client.CloseIdleConnections()
	for b := range bodies {
		for {
			status, text, err := postOne(ctx, &client, url, header, b)
			if err != nil {
				return err
			}
			if status/100 == 2 {
				break
			}
			if status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
				return fmt.Errorf("status %d: %s", status, text)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

func postOne(ctx context.Context, client *http.Client, url string, header map[string]string, b []byte) (status int, text []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		return 0, nil, err
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(io.LimitReader(resp.Body, 4096))
	return resp.StatusCode, text, err
}
