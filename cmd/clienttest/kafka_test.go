//go:build clients

package clienttest

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/intake/kafka/kafkatest"
)

// kafka starts a real broker, or skips the test.
func kafka(t *testing.T) *kafkatest.Cluster {
	t.Helper()
	install(t, "kafka")
	libs := os.Getenv("KAFKA_LIBS")
	if libs == "" {
		libs = filepath.Join("..", "..", ".cache", "kafka", "libs")
	}
	return kafkatest.Real(t, libs)
}

// topic is one way in which Telegraf's output kafka can write to a topic, with the settings under which Spillway reads it.
type topic struct {
	name   string
	lines  func(start time.Time) []line
	output string // beyond brokers and topic
	reads  string // of Spillway's section topics, beyond the name
}

func topics() []topic {
	return []topic{
		{
			name: "influx", lines: func(start time.Time) []line { return append(fleet(start), speech(start.Add(fleetOff))...) },
			output: "  data_format = \"influx\"\n  compression_codec = 1\n  routing_tag = \"host\"\n",
			reads:  "format: line, table: influx",
		}, {
			name: "json", lines: jsonFleet,
			output: "  data_format = \"json\"\n  json_timestamp_units = \"1ns\"\n  compression_codec = 4\n",
			reads:  "format: telegraf-json, precision: ns, table: json",
		}, {
			name: "json-ms", lines: jsonFleet,
			output: "  data_format = \"json\"\n  json_timestamp_units = \"1ms\"\n  compression_codec = 2\n",
			reads:  "format: telegraf-json, precision: ms, table: json-ms",
		},
	}
}

// jsonFleet is the fleet without values that JSON lacks: Telegraf writes integers beyond 2^53 in full, and reads of
// them are as exact as float64 is; -0 it writes as 0.
func jsonFleet(start time.Time) []line {
	lines := fleet(start)
	for i := range lines {
		for j := range lines[i].fields {
			if f := &lines[i].fields[j]; f.value == 0 && math.Signbit(f.value) {
				f.text, f.value = "0", 0
			}
		}
	}
	return lines
}

// TestTelegrafThroughKafka: lines, Telegraf, a real Kafka, Spillway, and every value and time compared; again after Spillway
// was killed: rows of committed records must be on its disk.
func TestTelegrafThroughKafka(t *testing.T) {
	binary := client(t, "telegraf")
	b := kafka(t)
	all := topics()
	var reads []string
	for _, k := range all {
		b.Create(3, k.name)
		reads = append(reads, fmt.Sprintf("{name: %s, %s}", k.name, k.reads))
	}
	config := write(t, "spillway.yaml", fmt.Sprintf("kafka: [{brokers: [%q], topics: [%s]}]\n", b.Addrs[0], strings.Join(reads, ", ")))
	s := startSpillway(t, "--config.file", config)
	start := time.Now().Add(-30 * time.Minute).Truncate(fleetStep)
	for _, k := range all {
		o := output{config: "# %s listens elsewhere\n[[outputs.kafka]]\n" + fmt.Sprintf("  brokers = [%q]\n  topic = %q\n%s", b.Addrs[0], k.name, k.output)}
		conf := telegrafConfig(t, s, o, "file", write(t, "fleet.lp", fileOf(k.lines(start))), "")
		p := run(t, "telegraf", binary, "--strict-env-handling", "--config", conf, "--once")
		if err := p.wait(2 * time.Minute); err != nil {
			t.Fatalf("telegraf, %s: %v", k.name, err)
		}
		if bad := complaints(p); len(bad) > 0 {
			t.Errorf("Telegraf complains, %s:\n%s", k.name, strings.Join(bad, "\n"))
		}
	}
	committed := func() error {
		for _, k := range all {
			if lag := b.Lag("spillway", k.name, 3); lag != 0 {
				return fmt.Errorf("%d records of %s are not committed", lag, k.name)
			}
		}
		return nil
	}
	check := func() {
		t.Helper()
		for _, k := range all {
			checkFleet(t, s.of(k.name), start, expected(k.lines(start), byInflux()))
		}
	}
	eventually(t, 2*time.Minute, committed)
	check()
	s.now.kill()
	s.start()
	check()
	if refused := s.metric("spillway_kafka_poison_records_total"); refused != 0 {
		t.Errorf("%v records were put aside", refused)
	}
}
