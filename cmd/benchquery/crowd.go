package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
)

// pace is how fast questions were answered.
type pace struct {
	perSecond float64
	p50, p99  time.Duration
}

// inCrowd asks a server each query by one client, and then by several at a time, and shows both. Servers are asked one after the other.
func inCrowd(o options, c *column, end time.Time) error {
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("\n%s, %d series × %d h every %v, %d clients at a time; load %s\n", c.server.Name, o.hosts*101, o.hours, o.interval, o.clients, load)
	fmt.Printf("%-22s%12s%10s%12s%10s%10s%14s%12s\n", "query", "one, 1/s", "p50 ms", "all, 1/s", "p50 ms", "p99 ms", "all / one", "p99 / p50")
	mix := queries(o)
	for i := range mix {
		if err := line(o, c, mix[i].Name, mix[i:i+1], end); err != nil {
			return err
		}
	}
	return line(o, c, "each in turn", mix, end)
}

// line shows a line for queries that each client asks in turn.
func line(o options, c *column, name string, mix []fleet.Query, end time.Time) error {
	one, err := measure(c, mix, 1, o.repeat, end)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	all, err := measure(c, mix, o.clients, o.repeat, end)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Printf("%-22s%12.0f%10.2f%12.0f%10.2f%10.2f%14.2f%12.2f\n", name, one.perSecond, ms(one.p50), all.perSecond, ms(all.p50), ms(all.p99),
		all.perSecond/one.perSecond, ms(all.p99)/ms(all.p50))
	return nil
}

// measure asks for repeat rounds of the queries for each client, after one that is not measured. Clients begin at different queries.
func measure(c *column, mix []fleet.Query, clients, repeat int, end time.Time) (pace, error) {
	askers := make([]asker, clients)
	for i := range askers {
		askers[i].url = c.server.URL
		askers[i].client.Transport = &http.Transport{} // the shared one keeps two connections to a server
		defer askers[i].client.CloseIdleConnections()
		if _, err := askers[i].ask(mix[0], end); err != nil {
			return pace{}, err
		}
	}
	var wg sync.WaitGroup
	took, errs := make([][]time.Duration, clients), make([]error, clients)
	begin := time.Now()
	for i := range askers {
		wg.Go(func() {
			for n := range repeat * len(mix) {
				before := time.Now()
				if _, errs[i] = askers[i].ask(mix[(i+n)%len(mix)], end); errs[i] != nil {
					return
				}
				took[i] = append(took[i], time.Since(before))
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return pace{}, err
		}
	}
	elapsed := time.Since(begin)
	all := slices.Concat(took...)
	slices.Sort(all)
	return pace{float64(len(all)) / elapsed.Seconds(), all[len(all)/2], all[len(all)*99/100]}, nil
}
