package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/prompb"
)

// A day on which ten million series come and go, each for at most an hour, in the time that -for says. Its hours are short, and
// so are the times after which the process forgets series: an hour and two hours of that day, as by default.
func churnAttacks() []attack {
	return []attack{{
		name: "churn/day", does: "ten million series in a day, each for an hour, then its last hour is read; only if -only names it, with -for 6m", run: churnDay, check: checkChurn, asked: true,
		env: func(o options) []string {
			hour := int(o.seconds.Seconds())/24 + 1
			return []string{
				fmt.Sprintf("SPILLWAY_STORAGE_SERIES_QUIET_AFTER=%ds", hour), fmt.Sprintf("SPILLWAY_INTAKE_SERIES_AGE=%ds", 2*hour),
				fmt.Sprintf("SPILLWAY_STORAGE_FLUSH_AGE=%ds", hour),
			}
		},
	}}
}

const (
	churnSeries  = 10_000_000
	churnWaves   = 480 // of series that come together, every three minutes
	churnRounds  = 20  // waves that are alive: a series has as many rows, over an hour
	churnEach    = churnSeries / churnWaves
	churnRequest = 2000
	churnTable   = "churn"
)

// churnStart is the midnight with which yesterday begins, so that the day is one partition.
func (a *attacker) churnStart() time.Time { return a.began.UTC().Truncate(day).Add(-day) }

// churnDay sends in each round a row of every series of the last waves.
func churnDay(ctx context.Context, a *attacker) {
	var rows, refused atomic.Int64
	pace := a.last / churnWaves
	late := time.Duration(0)
	for wave := range churnWaves {
		at := a.churnStart().Add(time.Duration(wave) * day / churnWaves).UnixMilli()
		jobs := make(chan [2]int, 64)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for j := range jobs {
					n, bad := a.churnSend(ctx, j[0], j[1], at)
					rows.Add(n)
					refused.Add(bad)
				}
			})
		}
		for w := max(0, wave-churnRounds+1); w <= wave; w++ {
			if w != wave && (wave-w)%5 != 0 { // a row every quarter of an hour
				continue
			}
			for from := 0; from < churnEach; from += churnRequest {
				jobs <- [2]int{w, from}
			}
		}
		close(jobs)
		wg.Wait()
		if ctx.Err() != nil {
			return
		}
		due := a.began.Add(time.Duration(wave+1) * pace)
		late = max(late, time.Since(due))
		sleep(ctx, time.Until(due))
		if wave%60 == 59 {
			fmt.Printf("    %4.1f h: %.1f M rows acked, %d requests refused and sent again, RSS %.0f MB, CPU %.0f s, %s behind\n",
				24*float64(wave+1)/churnWaves, float64(rows.Load())/1e6, refused.Load(), float64(a.rss())/1e6, a.cpu().Seconds(), max(0, time.Since(due)).Round(time.Second))
		}
	}
	for _, q := range []string{"count(present_over_time(churn[1h]))", "sum by (zone) (rate(churn[15m]))", `count(churn{zone="3"})`} {
		began := time.Now()
		path := "/t/" + churnTable + "/api/v1/query?" + url.Values{"query": {q}, "time": {strconv.FormatInt(a.churnStart().Add(day).Unix()-1, 10)}}.Encode()
		status, answer := a.get(ctx, path)
		v, _ := firstValue(answer)
		a.note += fmt.Sprintf("\n    %s: %d, %v, in %.2f s", q, status, v, time.Since(began).Seconds())
		if status != http.StatusOK {
			a.note += fmt.Sprintf(" %.300s", answer)
		}
	}
	a.note += fmt.Sprintf("\n    %.1f M rows of %d series, %.0f CPU-seconds, at most %s behind the clock", float64(rows.Load())/1e6, churnWaves*churnEach, a.cpu().Seconds(), late.Round(time.Second))
}

// churnSend sends rows of a part of a wave until they are accepted.
func (a *attacker) churnSend(ctx context.Context, wave, from int, at int64) (rows, refused int64) {
	var r prompb.WriteRequest
	for i := from; i < min(from+churnRequest, churnEach); i++ {
		r.Timeseries = append(r.Timeseries, prompb.TimeSeries{
			Labels: labelsOf([]string{
				"__name__", "churn", "container", "server", "namespace", fmt.Sprintf("team-%d", i%50), "pod", fmt.Sprintf("server-%05x-%05x", wave, i/20),
				"series", strconv.Itoa(i % 20), "zone", strconv.Itoa(i % 7),
			}),
			Samples: []prompb.Sample{{Timestamp: at, Value: float64(wave)}},
		})
	}
	body := packRW1(&r)
	for ctx.Err() == nil {
		status, answer := a.post(ctx, "/t/"+churnTable+"/api/v1/write", rw1Header(), body)
		switch status {
		case http.StatusNoContent:
			return int64(len(r.Timeseries)), refused
		case http.StatusServiceUnavailable:
			refused++
			sleep(ctx, 50*time.Millisecond)
		default:
			a.blame(fmt.Sprintf("rows of wave %d: %d %.200s", wave, status, answer))
			return 0, refused
		}
	}
	return 0, refused
}

// checkChurn counts the series of single waves, all of which were acked.
func checkChurn(ctx context.Context, a *attacker) error {
	for _, wave := range []int{0, churnWaves / 2, churnWaves - 1} {
		at := a.churnStart().Add(time.Duration(wave) * day / churnWaves)
		q := fmt.Sprintf(`count(churn{pod=~"server-%05x-.*"})`, wave)
		if err := a.counts(ctx, churnTable, q, at, churnEach); err != nil {
			return err
		}
	}
	return nil
}
