package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
)

const (
	// loadSlots is how many times a second rows are sent: each host has its moment in every second.
	loadSlots = 5
	loadTick  = time.Second / loadSlots
	// sendTimeout bounds a request. A load that the cluster cannot accept becomes less, and is not queued.
	sendTimeout = 10 * time.Second
	// broker keeps records at least this long, and at most twice as long, in the memory of this process.
	brokerKeeps     = 5 * time.Minute
	topicPartitions = 4
)

// demoTables get the same rows.
var demoTables = [...]string{turnsTable, spreadTable, sizedTable}

// via is a protocol and its senders: the hosts of a fleet, a label of which names the protocol.
type via struct {
	name  string
	fleet *fleet.Fleet
	enc   fleet.Encoder
	acked atomic.Int64 // rows, of all tables
	lost  atomic.Int64 // requests or records that were not acked
}

// load writes rows as a fleet of machines does that each report once a second.
type load struct {
	lines, remote, records via
	client                 *http.Client
	kafka                  *kgo.Client
	trims                  bool // the broker is ours: old records are deleted

	mu sync.Mutex
	// offsets are the newest acked records of each partition of the topic; guarded by mu.
	offsets [topicPartitions]int64
}

// makeFleets makes as many hosts for each protocol as write a third of the rate.
func (l *load) makeFleets(rate int) {
	for i, v := range l.vias() {
		v.name, v.enc = []string{"line protocol", "remote write", "Kafka"}[i], fleet.NewEncoder([]string{"influx", "rw2", "influx"}[i])
		rows := 3 * fleet.New(1, 0).Fields()
		v.fleet = fleet.New(max((rate+rows/2)/rows, 1), uint64(i+1))
		for h := range v.fleet.Hosts { // tags are sorted by their names, and this one is the last
			host := &v.fleet.Hosts[h]
			host.Tags = append(host.Tags, [2]string{"via", []string{"lines", "remote_write", "kafka"}[i]})
		}
	}
}

// open makes the fleets, and the topic.
func (l *load) open(ctx context.Context, rate int, brokers []string, own bool) (err error) {
	l.makeFleets(rate)
	l.client, l.trims = &http.Client{Timeout: sendTimeout}, own
	l.kafka, err = kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(demoTopic), kgo.RecordDeliveryTimeout(sendTimeout), kgo.MaxBufferedRecords(10_000))
	if err != nil {
		return err
	}
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = demoTopic, topicPartitions, 1
	rq := kmsg.NewPtrCreateTopicsRequest()
	rq.Topics = append(rq.Topics, topic)
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	answer, err := rq.RequestWith(ctx, l.kafka)
	if err == nil && len(answer.Topics) == 1 {
		if err = kerr.ErrorForCode(answer.Topics[0].ErrorCode); errors.Is(err, kerr.TopicAlreadyExists) {
			err = nil
		}
	}
	if err != nil {
		l.kafka.Close()
		return fmt.Errorf("topic %s of the Kafka at %v: %w", demoTopic, brokers, err)
	}
	return nil
}

func (l *load) close() {
	l.kafka.Close()
	l.client.CloseIdleConnections()
}

func (l *load) vias() []*via { return []*via{&l.lines, &l.remote, &l.records} }

// perSecond is how many rows a table gets in a second.
func (l *load) perSecond() (rows int) {
	for _, v := range l.vias() {
		rows += len(v.fleet.Hosts) * v.fleet.Fields()
	}
	return rows
}

// run writes until ctx is done, through the gateways in turn.
func (l *load) run(ctx context.Context, gateways []string) {
	var wg sync.WaitGroup
	for _, v := range l.vias() {
		wg.Go(func() { l.send(ctx, v, gateways) })
	}
	if l.trims {
		wg.Go(func() { l.trim(ctx) })
	}
	wg.Wait()
}

// send writes the rows of one protocol. A tick that comes while rows are being sent is left out.
func (l *load) send(ctx context.Context, v *via, gateways []string) {
	ticks := time.NewTicker(loadTick)
	defer ticks.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case at := <-ticks.C:
			for i := n % loadSlots; i < len(v.fleet.Hosts); i += loadSlots {
				v.enc.Host(v.fleet, &v.fleet.Hosts[i], at.UnixMilli())
			}
		}
		rows := v.enc.Samples()
		body := v.enc.Cut()
		if body == nil {
			continue
		}
		for _, table := range demoTables {
			if v == &l.records {
				l.produce(ctx, table, body, rows)
				continue
			}
			if err := l.post(ctx, v, "http://"+gateways[n%len(gateways)], table, body); err != nil {
				v.lost.Add(1)
			} else {
				v.acked.Add(int64(rows))
			}
		}
	}
}

func (l *load) post(ctx context.Context, v *via, gateway, table string, body []byte) error {
	url := gateway + "/write?precision=ms&db=" + table
	if v == &l.remote {
		url = gateway + "/t/" + table + v.enc.Path()
	}
	rq, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for name, value := range v.enc.Header() {
		rq.Header.Set(name, value)
	}
	answer, err := l.client.Do(rq)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	return err
}

// produce hands a record over; it is acked later.
func (l *load) produce(ctx context.Context, table string, body []byte, rows int) {
	r := &kgo.Record{Value: body, Headers: []kgo.RecordHeader{{Key: "table", Value: []byte(table)}, {Key: "precision", Value: []byte("ms")}}}
	l.kafka.TryProduce(ctx, r, func(r *kgo.Record, err error) {
		if err != nil {
			l.records.lost.Add(1)
			return
		}
		l.records.acked.Add(int64(rows))
		l.mu.Lock()
		defer l.mu.Unlock()
		if int(r.Partition) < len(l.offsets) {
			l.offsets[r.Partition] = r.Offset + 1
		}
	})
}

// trim deletes records older than brokerKeeps, which were read long ago, from the broker within this process.
func (l *load) trim(ctx context.Context) {
	ticks := time.NewTicker(brokerKeeps)
	defer ticks.Stop()
	var before [topicPartitions]int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		rq := kmsg.NewPtrDeleteRecordsRequest()
		topic := kmsg.NewDeleteRecordsRequestTopic()
		topic.Topic = demoTopic
		for i, offset := range before {
			p := kmsg.NewDeleteRecordsRequestTopicPartition()
			p.Partition, p.Offset = int32(i), offset
			topic.Partitions = append(topic.Partitions, p)
		}
		rq.Topics = append(rq.Topics, topic)
		_, _ = l.kafka.Request(ctx, rq) // the next time deletes more
		l.mu.Lock()
		before = l.offsets
		l.mu.Unlock()
	}
}

// total is how many rows were acked.
func (l *load) total() string {
	acked, lost := int64(0), int64(0)
	for _, v := range l.vias() {
		acked, lost = acked+v.acked.Load(), lost+v.lost.Load()
	}
	if lost > 0 {
		return fmt.Sprintf("%s (%d requests failed)", counted(acked), lost)
	}
	return counted(acked)
}

// summary lists the acked rows by protocol.
func (l *load) summary() string {
	var out []string
	for _, v := range l.vias() {
		out = append(out, counted(v.acked.Load())+" by "+v.name)
	}
	return "rows acked: " + strings.Join(out, ", ")
}

// counted is the number with commas.
func counted(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
