package processtest

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

// PeakOf returns the most bytes of memory that a process ever had.
func PeakOf(t *testing.T, pid int) int {
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

// ManyHosts writes rows of so many hosts into the default table.
func ManyHosts(p *Process, hosts, rows int, now time.Time) {
	p.T.Helper()
	for r := range rows {
		var b bytes.Buffer
		for h := range hosts {
			fmt.Fprintf(&b, "cpu,host=host-%d,region=r%d,long=abcdefghijklmnopqrstuvwxyz-%d usage=%d %d\n", h, h%5, h, h*7+r, now.Add(-time.Duration(rows-r)*15*time.Second).Unix())
		}
		for {
			code, text, err := p.Do(http.MethodPost, "/write?db=default&precision=s", nil, b.Bytes())
			if err == nil && code == http.StatusNoContent {
				break
			}
			if code != http.StatusServiceUnavailable {
				p.T.Fatalf("write: %d %s %v", code, text, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// QueryFlood is many heavy queries at a process, and a bystander that writes and reads beside them. Its methods may be called from any goroutine.
type QueryFlood struct {
	At   *Process
	Now  time.Time
	Over func() bool // when to end

	mu    sync.Mutex
	Codes map[int]int // answers, by their status
}

// heavy are queries that need more than there is, or that no estimate foresees.
var heavy = []string{
	`cpu_usage`, `count_values("v", cpu_usage * time())`, `topk(scalar(vector(1e9)), cpu_usage * 1)`,
	`quantile_over_time(0.5, cpu_usage[1d])`, `cpu_usage * on (host) group_left (region) cpu_usage`,
	`sum by (host) (rate(cpu_usage[1m]))`, `max_over_time(vector(1)[30d:1s])`, `deriv(cpu_usage[1h])`,
	`label_replace(cpu_usage, "x", "$1$1$1$1", "long", "(.*)") or cpu_usage`, `sum_over_time((cpu_usage * 0)[1h:10s])`,
	`count_values("x", label_join(cpu_usage, "y", ",", "host", "long", "host", "long"))`, `sort(cpu_usage) or cpu_usage @ end()`,
}

// Ask sends heavy queries until the time is over.
func (f *QueryFlood) Ask(r *rand.Rand) {
	at := func(ago time.Duration) string { return strconv.FormatInt(f.Now.Add(-ago).Unix(), 10) }
	for !f.Over() {
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
		code, _, err := f.At.Get(path + form.Encode())
		if err != nil {
			f.At.T.Errorf("%s: %v", path, err)
			return
		}
		f.mu.Lock()
		f.Codes[code]++
		f.mu.Unlock()
	}
}

// Bystand writes a new series at a time until the time is over, reads them back, and returns how many were acked.
func (f *QueryFlood) Bystand() (acked int) {
	for !f.Over() {
		line := fmt.Sprintf("bystander,n=%d v=1 %d\n", acked, f.Now.UnixNano())
		code, text, err := f.At.Do(http.MethodPost, "/write?db=bystander", nil, []byte(line))
		if err != nil || code != http.StatusNoContent {
			f.At.T.Errorf("a write of the bystander was refused: %d %s %v", code, text, err)
			return acked
		}
		acked++
		if acked%20 == 0 {
			if got := f.Count("count(count_over_time(bystander_v[1h]))"); got != acked {
				f.At.T.Errorf("%d series of the bystander are there, %d were acked", got, acked)
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
	return acked
}

// Count queries the bystander's table for a number.
func (f *QueryFlood) Count(query string) int {
	f.At.T.Helper()
	path := "/t/bystander/api/v1/query?" + url.Values{"query": {query}, "time": {strconv.FormatInt(f.Now.Unix()+1, 10)}}.Encode()
	code, text, err := f.At.Get(path)
	if err != nil || code != http.StatusOK {
		f.At.T.Errorf("a query of the bystander was refused: %d %s %v", code, text, err)
		return -1
	}
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.Data.Result) != 1 {
		f.At.T.Errorf("%s: %v", text, err)
		return -1
	}
	n, err := strconv.Atoi(fmt.Sprint(answer.Data.Result[0].Value[1]))
	if err != nil {
		f.At.T.Error(err)
	}
	return n
}
