package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestBystanderSurvivesAFloodOfHeavyQueries sends a process of 512 MiB many parallel queries that need far more, while
// one table writes and reads: the process stays within its memory, and every acked row is there.
func TestBystanderSurvivesAFloodOfHeavyQueries(t *testing.T) {
	if testing.Short() {
		t.Skip("ten seconds of hostility")
	}
	const memory = 512 << 20
	p := newProcess(t, "SPILLWAY_STORAGE_MEMORY_BYTES=512MiB")
	p.start()
	now := time.Now()
	manyHosts(p, 30_000, 10, now)
	flood := &queryFlood{p: p, now: now, over: func() bool { return time.Since(now) > 10*time.Second }, codes: map[int]int{}}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() { flood.ask(rand.New(rand.NewPCG(1, uint64(i)))) })
	}
	acked := flood.bystand()
	wg.Wait()
	if acked == 0 {
		t.Fatal("the bystander wrote nothing")
	}
	if got := flood.count("count(count_over_time(bystander_v[1h]))"); got != acked {
		t.Errorf("%d series of the bystander are there, %d rows of them were acked", got, acked)
	}
	peak := peakOf(t, p.cmd.Process.Pid)
	if peak > memory/10*11 {
		t.Errorf("%d MiB of memory were taken of 512", peak>>20)
	}
	t.Logf("peak %d MiB, answers %v, %d rows of the bystander", peak>>20, flood.codes, acked)
	for code := range flood.codes {
		if code != http.StatusOK && code != http.StatusUnprocessableEntity && code != http.StatusServiceUnavailable {
			t.Errorf("%d answers of %d", flood.codes[code], code)
		}
	}
}

// peakOf returns the most bytes of memory that a process ever had.
func peakOf(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); f[0] == "VmHWM:" {
			kib, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no peak in %s", status)
	return 0
}

// manyHosts writes rows of so many hosts into the default table.
func manyHosts(p *process, hosts, rows int, now time.Time) {
	p.t.Helper()
	for r := range rows {
		var b bytes.Buffer
		for h := range hosts {
			fmt.Fprintf(&b, "cpu,host=host-%d,region=r%d,long=abcdefghijklmnopqrstuvwxyz-%d usage=%d %d\n", h, h%5, h, h*7+r, now.Add(-time.Duration(rows-r)*15*time.Second).Unix())
		}
		for {
			code, text, err := p.do(http.MethodPost, "/write?db=default&precision=s", nil, b.Bytes())
			if err == nil && code == http.StatusNoContent {
				break
			}
			if code != http.StatusServiceUnavailable {
				p.t.Fatalf("write: %d %s %v", code, text, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

type queryFlood struct {
	p    *process
	now  time.Time
	over func() bool // when to end

	mu    sync.Mutex
	codes map[int]int
}

// heavy are queries that need more than there is, or that no estimate foresees.
var heavy = []string{
	`cpu_usage`, `count_values("v", cpu_usage * time())`, `topk(scalar(vector(1e9)), cpu_usage * 1)`,
	`quantile_over_time(0.5, cpu_usage[1d])`, `cpu_usage * on (host) group_left (region) cpu_usage`,
	`sum by (host) (rate(cpu_usage[1m]))`, `max_over_time(vector(1)[30d:1s])`, `deriv(cpu_usage[1h])`,
	`label_replace(cpu_usage, "x", "$1$1$1$1", "long", "(.*)") or cpu_usage`, `sum_over_time((cpu_usage * 0)[1h:10s])`,
	`count_values("x", label_join(cpu_usage, "y", ",", "host", "long", "host", "long"))`, `sort(cpu_usage) or cpu_usage @ end()`,
}

// ask sends heavy queries until the time is over.
func (f *queryFlood) ask(r *rand.Rand) {
	at := func(ago time.Duration) string { return strconv.FormatInt(f.now.Add(-ago).Unix(), 10) }
	for !f.over() {
		form := url.Values{"query": {heavy[r.IntN(len(heavy))]}, "timeout": {"5s"}}
		path := "/api/v1/query?"
		switch r.IntN(5) {
		case 0, 1:
			path = "/api/v1/query_range?"
			form["start"], form["end"], form["step"] = []string{at(time.Duration(100+r.IntN(5000)) * time.Second)}, []string{at(0)}, []string{"1"}
		case 2: // a few rows of each series, at the end of many steps
			path = "/api/v1/query_range?"
			form["start"], form["end"], form["step"] = []string{at(time.Duration(1000+r.IntN(9000)) * time.Second)}, []string{at(time.Duration(130+r.IntN(20)) * time.Second)}, []string{"1"}
		case 3:
			path = "/api/v1/series?"
			form = url.Values{"match[]": {"cpu_usage", `{host=~".+"}`}}
		}
		code, _, err := f.p.get(path + form.Encode())
		if err != nil {
			f.p.t.Errorf("%s: %v", path, err)
			return
		}
		f.mu.Lock()
		f.codes[code]++
		f.mu.Unlock()
	}
}

// bystand writes a new series at a time until the time is over, reads them back, and returns how many were acked.
func (f *queryFlood) bystand() (acked int) {
	for !f.over() {
		line := fmt.Sprintf("bystander,n=%d v=1 %d\n", acked, f.now.UnixNano())
		code, text, err := f.p.do(http.MethodPost, "/write?db=bystander", nil, []byte(line))
		if err != nil || code != http.StatusNoContent {
			f.p.t.Errorf("a write of the bystander was refused: %d %s %v", code, text, err)
			return acked
		}
		acked++
		if acked%20 == 0 {
			if got := f.count("count(count_over_time(bystander_v[1h]))"); got != acked {
				f.p.t.Errorf("%d series of the bystander are there, %d were acked", got, acked)
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
	return acked
}

// count queries the bystander's table for a number.
func (f *queryFlood) count(query string) int {
	f.p.t.Helper()
	path := "/t/bystander/api/v1/query?" + url.Values{"query": {query}, "time": {strconv.FormatInt(f.now.Unix()+1, 10)}}.Encode()
	code, text, err := f.p.get(path)
	if err != nil || code != http.StatusOK {
		f.p.t.Errorf("a query of the bystander was refused: %d %s %v", code, text, err)
		return -1
	}
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.Data.Result) != 1 {
		f.p.t.Errorf("%s: %v", text, err)
		return -1
	}
	n, err := strconv.Atoi(fmt.Sprint(answer.Data.Result[0].Value[1]))
	if err != nil {
		f.p.t.Error(err)
	}
	return n
}
