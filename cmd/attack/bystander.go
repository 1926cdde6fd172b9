package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// bystander is a tenant far below its share of anything, in a separate process: in this one its requests would wait for
// the attackers' goroutines before they are sent, and that would count as the server's time.
//
//	attack ── begin, end ──▶ attack bystander ── writes, reads, health ──▶ spillway
//	       ◀──── spell ─────                  ── the same writes ────────▶ attack answer, which only answers
//
// The last is the control: how long a process that does nothing needs to answer on this machine, under the same load.
type bystander struct {
	t       *target
	begin   time.Time
	child   *exec.Cmd
	control *exec.Cmd
	stdin   io.WriteCloser
	spells  *json.Decoder
	times   []int64 // acked, ms, rising
}

// startBystander starts the bystander's process and the control, which runs on the processors of the server.
func startBystander(ctx context.Context, t *target) (b *bystander, err error) {
	b = &bystander{t: t, begin: time.Now()}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	line := append(t.p.In[:len(t.p.In):len(t.p.In)], self, answerCommand)
	b.control = exec.CommandContext(ctx, line[0], line[1:]...)
	_, said, err := b.launch(b.control)
	if err != nil {
		return nil, err
	}
	addr, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		b.end()
		return nil, fmt.Errorf("the control: %w", err)
	}
	b.child = exec.CommandContext(ctx, self, bystanderCommand, t.url(), addr[:len(addr)-1])
	if b.stdin, said, err = b.launch(b.child); err != nil {
		b.end()
		return nil, err
	}
	b.spells = json.NewDecoder(said)
	return b, nil
}

// launch starts a process that ends with its standard input.
func (b *bystander) launch(c *exec.Cmd) (stdin io.WriteCloser, stdout io.Reader, err error) {
	c.Stderr = os.Stderr
	if stdin, err = c.StdinPipe(); err != nil {
		return nil, nil, err
	}
	if stdout, err = c.StdoutPipe(); err != nil {
		return nil, nil, err
	}
	return stdin, stdout, c.Start()
}

// end ends both processes.
func (b *bystander) end() {
	for _, c := range []*exec.Cmd{b.child, b.control} {
		if c != nil && c.Process != nil {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}
}

func (b *bystander) acked() int { return len(b.times) * bystanderSeries }

// during runs f while the bystander works, and returns its measurements.
func (b *bystander) during(f func()) (*spell, error) {
	if _, err := fmt.Fprintln(b.stdin, "begin"); err != nil {
		return nil, fmt.Errorf("the bystander ended: %w", err)
	}
	f()
	if _, err := fmt.Fprintln(b.stdin, "end"); err != nil {
		return nil, fmt.Errorf("the bystander ended: %w", err)
	}
	s := &spell{}
	if err := b.spells.Decode(s); err != nil {
		return nil, fmt.Errorf("the bystander ended: %w", err)
	}
	b.times = append(b.times, s.Acked...)
	return s, nil
}

// whole reads every row of the bystander and compares it with the ledger. A row that was sent and not acked may be there.
func (b *bystander) whole(ctx context.Context) error {
	want := b.times
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
