package clustertest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/intake/kafka/kafkatest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// erase deletes one of the sender's series, at all times, through one of the gateways. Its outcome is kept for each row as if
// it were a value.
func (s *sender) erase(series string) {
	times := s.sent[series]
	for _, f := range times {
		f.values = append(f.values, erased)
	}
	q := url.Values{"match[]": {fmt.Sprintf("%s{i=%q}", s.metric, series)}}
	began := time.Now()
	status, text, err := s.p.Do(http.MethodPost, "/api/v1/admin/tsdb/delete_series?"+q.Encode(), nil, nil)
	took := time.Since(began)
	s.last, s.slowErase = s.last.Add(took), max(s.slowErase, took) // deletions are not staged, and wait for a leader
	if err != nil {
		return
	}
	s.codes[status]++
	if status/100 != 2 {
		if status/100 != 5 {
			s.p.T.Errorf("deletion of %s: %d %s", series, status, text)
		}
		return
	}
	s.erasures++
	for _, f := range times {
		f.acked, f.at = len(f.values), time.Now()
	}
}

// copyOf returns every row of a metric as one server has it in its copies of the partitions, which must surely be complete.
func (c *crowd) copyOf(ctx context.Context, server topology.ServerID, ps []lease.Partition, metric string) (map[string][]processtest.Sample, error) {
	st, ok := c.view.Peers.Server(server)
	if !ok {
		return nil, fmt.Errorf("server %s is not known", server)
	}
	q := &peer.Select{Table: "default", Lo: time.Now().Add(-7 * time.Hour).UnixNano(), Hi: time.Now().Add(time.Minute).UnixNano(),
		Matchers: []peer.Matcher{{Type: peer.MatchEqual, Name: "__name__", Value: metric}}, Copies: peer.SureCopies}
	for _, p := range ps {
		q.Partitions = append(q.Partitions, p.ID)
	}
	set, err := st.Select(ctx, q)
	if err != nil {
		return nil, err
	}
	defer set.Close()
	out := map[string][]processtest.Sample{}
	for set.Next() {
		series := set.At()
		i := series.Labels.Get("i")
		for n, at := range series.Times {
			out[metric+"/"+i] = append(out[metric+"/"+i], processtest.Sample{Ms: at / int64(time.Millisecond), Value: series.Values[n]})
		}
	}
	return out, set.Err()
}

// witness is one series to which rows are appended, each with the value 1, beside readers that count them through both gateways.
type witness struct {
	c            *crowd
	metric       string
	from         time.Time
	begun, acked atomic.Int64

	mu                       sync.Mutex
	answers, refused, warned int
	slowest                  time.Duration
	wrong                    []string
}

func (w *witness) write(quit <-chan struct{}) {
	for i := 0; ; i++ {
		line := fmt.Sprintf("%s v=1 %d", w.metric, w.from.Add(time.Duration(w.begun.Add(1))*10*time.Millisecond).UnixMilli())
		for {
			select {
			case <-quit:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if status, _, err := processtest.PutLine(w.c.doors[i%len(w.c.doors)], "default", line); err == nil && status == http.StatusNoContent {
				w.acked.Add(1)
				break
			}
		}
	}
}

func (w *witness) read(d *processtest.Process, quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case <-time.After(25 * time.Millisecond):
		}
		least, began := w.acked.Load(), time.Now()
		status, text := processtest.AskAt(d, "default", "count_over_time("+w.metric+"_v[3h])", w.from.Add(2*time.Hour))
		took, most := time.Since(began), w.begun.Load()
		var answer struct {
			Warnings []string
			Data     struct{ Result []struct{ Value [2]any } }
		}
		rows := int64(0)
		if status == http.StatusOK {
			if err := json.Unmarshal([]byte(text), &answer); err != nil {
				text = err.Error()
			}
			if len(answer.Data.Result) > 0 {
				rows, _ = strconv.ParseInt(answer.Data.Result[0].Value[1].(string), 10, 64)
			}
		}
		w.mu.Lock()
		w.slowest = max(w.slowest, took)
		switch {
		case status/100 == 5 || status == 0: // 0: the gateway was killed
			w.refused++
		case status == http.StatusOK && rows > most, status != http.StatusOK, rows < least && len(answer.Warnings) == 0:
			w.wrong = append(w.wrong, fmt.Sprintf("a query was answered %d with %d rows; between %d and %d are right: %.300s", status, rows, least, most, text))
		case len(answer.Warnings) > 0:
			w.warned++
		default:
			w.answers++
		}
		w.mu.Unlock()
	}
}

// records are rows sent through Kafka. Each was acked by the broker; a gateway has stored those it has committed.
type records struct {
	t     *testing.T
	kafka *kafkatest.Cluster
	sent  map[string]map[int64]float64 // by series and millisecond
	n     int
}

const (
	chaosTopic      = "chaos"
	chaosGroup      = "spillway"
	chaosPartitions = 4
)

func newRecords(t *testing.T) *records {
	r := &records{t: t, kafka: kafkatest.Fake(t), sent: map[string]map[int64]float64{}}
	r.kafka.Create(chaosPartitions, chaosTopic)
	return r
}

// flags are those of a gateway that consumes them.
func (r *records) flags() []string {
	return []string{"--kafka.brokers=" + r.kafka.Addrs[0], "--kafka.topics=" + chaosTopic, "--kafka.group=" + chaosGroup}
}

// produce sends records until quit is closed, and returns when the broker has them all.
func (r *records) produce(metric string, quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			if err := r.kafka.Flush(); err != nil {
				r.t.Errorf("the broker did not take a record: %v", err)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
		r.n++
		series, ms, v := strconv.Itoa(r.n%7), time.Now().UnixMilli(), float64(r.n)
		key := metric + "_v/" + series
		if r.sent[key] == nil {
			r.sent[key] = map[int64]float64{}
		}
		if _, ok := r.sent[key][ms]; ok {
			continue
		}
		r.sent[key][ms] = v
		r.kafka.Produce(chaosTopic, fmt.Sprintf("%s,i=%s v=%v %d", metric, series, v, ms*int64(time.Millisecond)))
	}
}

// compare returns the mistakes in the rows read, once all records are committed.
func (r *records) compare(metric string, got map[string][]processtest.Sample) (wrong []string) {
	for key, want := range r.sent {
		if !strings.HasPrefix(key, metric+"_v/") {
			continue
		}
		n := 0
		for _, g := range got[key] {
			if v, ok := want[g.Ms]; !ok || v != g.Value {
				wrong = append(wrong, fmt.Sprintf("%s at %d: read %v, sent %v (%t)", key, g.Ms, g.Value, v, ok))
			} else {
				n++
			}
		}
		if n != len(want) {
			wrong = append(wrong, fmt.Sprintf("%s: of %d committed records %d are there", key, len(want), n))
		}
	}
	return wrong
}
