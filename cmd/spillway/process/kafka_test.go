package process

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/topics"
	"github.com/spillwaydb/spillway/gateway/intake/kafka/kafkatest"
	"github.com/spillwaydb/spillway/protocols/record"
)

const kafkaYAML = `
kafka:
  - name: main
    brokers: [k1:9092, k2:9092]
    group: metrics
    protocol: consumer
    start: 6h
    sasl: {mechanism: scram-sha-512, username: spill, password: not-for-pages}
    dead_letter: {topic: dead}
    commit_interval: 500ms
    topics:
      - {name: telegraf, format: telegraf-json, precision: ms, table: hosts}
      - {regex: "prom-.*", format: remote-write, atomic: true, ack: one, smear: off}
`

func TestKafkaSettingsAreReadAndSecretsAreNotShown(t *testing.T) {
	processtest.NoSettings(t)
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte(kafkaYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Standalone{Flags: settings.Flags{ConfigFile: file}, Kafka: settings.KafkaFlags{Brokers: []string{"b:9092"}, Topics: []string{"a", "/b.*/"}, Group: "short", Format: "otlp"}}
	c, err := s.config()
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Kafka) != 2 || c.Kafka[0].Topics[0].Format != record.TelegrafJSON || c.Kafka[1].Topics[1].Regex != "b.*" || c.Kafka[1].Topics[0].Format != record.OTLP {
		t.Errorf("%+v", c.Kafka)
	}
	if text := c.String(); strings.Contains(text, "not-for-pages") || !strings.Contains(text, "regex: prom-.*") {
		t.Errorf("shown:\n%s", text)
	}
	if f := c.ForKafka().Clusters[1].DeadLetter.File; filepath.Base(f) != "kafka-dead-letters-short.jsonl" {
		t.Errorf("dead letters in %s", f)
	}
	s.Kafka = settings.KafkaFlags{Topics: []string{"a"}}
	if _, err := s.config(); err == nil {
		t.Error("topics without brokers are taken")
	}
	if err := os.WriteFile(file, []byte("kafka: [{brokers: [b:1], topics: [{name: a, regex: b}], protocol: x}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Kafka = settings.KafkaFlags{}
	if _, err := s.config(); err == nil || !strings.Contains(err.Error(), "exactly one of name and regex") || !strings.Contains(err.Error(), "protocol") {
		t.Errorf("mistakes: %v", err)
	}
}

// TestKafkaToPromQL follows a record to the end: the table of lags, and the answer to a query.
func TestKafkaToPromQL(t *testing.T) {
	cluster := kafkatest.Fake(t)
	cluster.Create(2, "metrics")
	cluster.Produce("metrics", "cpu,host=a usage=42")
	cluster.Produce("metrics", "no line")
	if err := cluster.Flush(); err != nil {
		t.Fatal(err)
	}
	cfg := config{Config: settings.Default()}
	cfg.DataDir, cfg.HTTP.Listen, cfg.Admin.Listen = t.TempDir(), "127.0.0.1:0", ""
	if err := (&settings.KafkaFlags{Brokers: cluster.Addrs, Topics: []string{"metrics"}}).Add(&cfg.Config); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p, err := openStandalone(ctx, &cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	running, cancel := context.WithCancel(ctx)
	go func() { ended <- p.kafka.Run(running) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		stop()
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	web := httptest.NewServer(p.front)
	defer web.Close()
	var table strings.Builder
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		s, err := topics.Fetch(ctx, client.Flags{}, web.URL)
		if err != nil {
			t.Fatal(err)
		}
		rows, poison := uint64(0), uint64(0)
		for _, part := range s.Clusters[0].Partitions {
			rows, poison = rows+part.Rows, poison+part.Poison
		}
		if rows == 1 && poison == 1 {
			if err := topics.Print(&table, s); err != nil {
				t.Fatal(err)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v", s)
		}
	}
	for _, want := range []string{"group spillway", "partition  lag  committed", "put aside of metrics/"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
	resp, err := http.Get(web.URL + "/api/v1/query?query=" + url.QueryEscape("cpu_usage"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), `"42"`) {
		t.Errorf("answer %s, %v", body, err)
	}
	if text, err := os.ReadFile(filepath.Join(cfg.DataDir, "kafka-dead-letters.jsonl")); err != nil || !strings.Contains(string(text), `"value":"no line"`) {
		t.Errorf("dead letters %s, %v", text, err)
	}
}
