package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// The bystander's load is small: a tenant far below its share of anything.
const (
	bystanderSeries = 20
	writeEvery      = 20 * time.Millisecond
	readEvery       = 50 * time.Millisecond
	healthEvery     = 100 * time.Millisecond
	bystanderTable  = "bystander"
)

// bystander writes one row of each of its series at a time, by line protocol and remote write in turns, and reads the last
// ones back. The value of a row is its time, so that a ledger is the list of acked times.
type bystander struct {
	t     *target
	begin time.Time
	mu    struct {
		sync.Mutex
		times []int64 // acked, ms, rising
	}
}

// spell is what the bystander saw in a while.
type spell struct {
	mu                    sync.Mutex
	writes, reads, health []time.Duration
	refused               []string // what went wrong, the first few
	wrong                 int
}

func newBystander(t *target) *bystander { return &bystander{t: t, begin: time.Now()} }

func (b *bystander) acked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.mu.times) * bystanderSeries
}

// during runs f while the bystander works, and returns what it saw.
func (b *bystander) during(ctx context.Context, f func()) *spell {
	s := &spell{}
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { every(ctx, writeEvery, func() { b.write(s) }) })
	wg.Go(func() { every(ctx, readEvery, func() { b.read(s) }) })
	wg.Go(func() { every(ctx, healthEvery, func() { b.healthy(s) }) })
	f()
	stop()
	wg.Wait()
	return s
}

// every calls f at a steady pace; a call that takes longer delays the next.
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

func (b *bystander) write(s *spell) {
	at := time.Now().UnixMilli()
	ctx, cancel := context.WithTimeout(context.Background(), requestMax)
	defer cancel()
	var status int
	var answer []byte
	var err error
	began := time.Now()
	if at%2 == 0 {
		var body []byte
		for i := range bystanderSeries {
			body = fmt.Appendf(body, "steady,i=%d value=%d %d\n", i, at, at)
		}
		status, answer, err = b.t.ask(ctx, http.MethodPost, "/write?precision=ms&db="+bystanderTable, nil, body)
	} else {
		rows := make([]row, bystanderSeries)
		for i := range rows {
			rows[i] = row{labels: []string{"__name__", "steady", "i", strconv.Itoa(i)}, ms: at, value: float64(at)}
		}
		status, answer, err = b.t.ask(ctx, http.MethodPost, "/t/"+bystanderTable+"/api/v1/write", rw1Header(), rw1(rows))
	}
	s.note(&s.writes, began, "write", status, answer, err, http.StatusNoContent)
	if err == nil && status == http.StatusNoContent {
		b.mu.Lock()
		b.mu.times = append(b.mu.times, at)
		b.mu.Unlock()
	}
}

// read asks for the newest rows: those that were acked last must be there.
func (b *bystander) read(s *spell) {
	b.mu.Lock()
	want := int64(0)
	if n := len(b.mu.times); n > 0 {
		want = b.mu.times[n-1]
	}
	b.mu.Unlock()
	if want == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestMax)
	defer cancel()
	began := time.Now()
	status, answer, err := b.t.ask(ctx, http.MethodGet, "/t/"+bystanderTable+"/api/v1/query?query=min(steady)", nil, nil)
	s.note(&s.reads, began, "read", status, answer, err, http.StatusOK)
	if err != nil || status != http.StatusOK {
		return
	}
	got, err := firstValue(answer)
	if err != nil || got < float64(want) {
		s.wrongly(fmt.Sprintf("read: newest row is %v, acked was %d: %v %.200s", got, want, err, answer))
	}
}

func (b *bystander) healthy(s *spell) {
	ctx, cancel := context.WithTimeout(context.Background(), requestMax)
	defer cancel()
	began := time.Now()
	status, answer, err := b.t.ask(ctx, http.MethodGet, "/-/healthy", nil, nil)
	s.note(&s.health, began, "health", status, answer, err, http.StatusOK)
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
	s.wrong++
	if len(s.refused) < 3 {
		s.refused = append(s.refused, text)
	}
}

// whole reads every row of the bystander and compares it with the ledger. A row that was sent and not acked may be there.
func (b *bystander) whole(ctx context.Context) error {
	b.mu.Lock()
	want := slices.Clone(b.mu.times)
	b.mu.Unlock()
	end := time.Now()
	over := strconv.Itoa(int(end.Sub(b.begin).Seconds())+5) + "s"
	series, err := b.t.matrix(ctx, bystanderTable, "steady["+over+"]", end)
	if err != nil {
		return err
	}
	if len(series) != bystanderSeries && len(want) > 0 {
		return fmt.Errorf("%d series of %d are there", len(series), bystanderSeries)
	}
	for name, rows := range series {
		for _, at := range want {
			if v, ok := rows[at]; !ok || v != float64(at) {
				return fmt.Errorf("%s: of %d acked rows the one at %d is %v (there: %v)", name, len(want), at, v, ok)
			}
		}
	}
	return nil
}

// matrix asks for raw samples: by series, by millisecond.
func (t *target) matrix(ctx context.Context, table, query string, at time.Time) (map[string]map[int64]float64, error) {
	q := url.Values{"query": {query}, "time": {strconv.FormatInt(at.Unix()+1, 10)}}
	status, answer, err := t.ask(ctx, http.MethodGet, "/t/"+table+"/api/v1/query?"+q.Encode(), nil, nil)
	if err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("%s: %d %.300s %w", query, status, answer, err)
	}
	var parsed struct {
		Warnings []string
		Data     struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := json.Unmarshal(answer, &parsed); err != nil {
		return nil, err
	}
	out := map[string]map[int64]float64{}
	for _, s := range parsed.Data.Result {
		rows := map[int64]float64{}
		for _, v := range s.Values {
			f, err := strconv.ParseFloat(v[1].(string), 64)
			if err != nil {
				return nil, err
			}
			rows[int64(math.Round(v[0].(float64)*1000))] = f
		}
		out[fmt.Sprint(s.Metric)] = rows
	}
	return out, nil
}

// firstValue gives the value of an instant query's first series; -1 if there is none.
func firstValue(answer []byte) (float64, error) {
	var parsed struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.Unmarshal(answer, &parsed); err != nil {
		return -1, err
	}
	if len(parsed.Data.Result) == 0 {
		return -1, nil
	}
	text, _ := parsed.Data.Result[0].Value[1].(string)
	return strconv.ParseFloat(text, 64)
}
