//go:build kafka

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/intake/kafka/kafkatest"
)

// TestRealKafkaLosesNothing: two processes share a group; a producer writes rows, bad lines among them; one of the two is
// killed every few seconds, by turns. In the end the rows of both together are those that were produced, the bad ones
// are in the dead-letter topic, and no offset is missing.
//
//	KAFKA_ROWS=1000000 KAFKA_KILL_EVERY=3s make test-kafka
func TestRealKafkaLosesNothing(t *testing.T) {
	for _, protocol := range []string{"classic", "consumer"} {
		t.Run(protocol, func(t *testing.T) {
			b := realKafka(t)
			b.Create(8, "metrics")
			b.Create(1, "dead")
			testKills(t, b, protocol, envInt(t, "KAFKA_ROWS", 200_000))
		})
	}
}

const seriesOfKafka = 50

var errProducing = errors.New("the producer is not done")

// waitForLag waits until a group has committed all of the topic.
func waitForLag(t *testing.T, b *kafkatest.Cluster, group string) {
	t.Helper()
	lag := int64(0)
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if lag = b.Lag(group, "metrics", 8); lag == 0 {
			return
		}
	}
	t.Fatalf("%d records are not committed", lag)
}

func testKills(t *testing.T, b *kafkatest.Cluster, protocol string, rows int) {
	every := 3 * time.Second
	if s := os.Getenv("KAFKA_KILL_EVERY"); s != "" {
		var err error
		if every, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	setting := fmt.Sprintf(`SPILLWAY_KAFKA=[{brokers: [%q], group: g, protocol: %s, session_timeout: 6s, rebalance_timeout: 10s, revoke_wait: 3s,
  dead_letter: {topic: dead}, topics: [{name: metrics}]}]`, b.Addrs[0], protocol)
	both := []*process{newProcess(t, setting), newProcess(t, setting)}
	for _, p := range both {
		p.start()
	}
	began := time.Now().Add(-time.Hour).Truncate(time.Second)
	produced := make(chan error, 1)
	go func() { produced <- produceRows(b, rows, began) }()

	rng := rand.New(rand.NewPCG(1, 2))
	kills := 0
	for err := error(errProducing); kills < 4 || err == errProducing; {
		select {
		case err = <-produced:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(every/2 + time.Duration(rng.Int64N(int64(every)))):
		}
		p := both[kills%2]
		p.kill()
		kills++
		time.Sleep(time.Duration(rng.Int64N(int64(time.Second))))
		p.start()
	}
	waitForLag(t, b, "g")
	checkRows(t, both, rows, began)
	letters := letters(b, rows/badEvery)
	t.Logf("%s: %d rows, %d kills, %d dead letters for %d bad records", protocol, rows, kills, letters, rows/badEvery)
}

// badEvery: each such record holds a bad line beside its good one.
const badEvery = 1000

func produceRows(b *kafkatest.Cluster, rows int, began time.Time) error {
	for i := range rows {
		text := fmt.Sprintf("m,s=%d v=%d %d\n", i%seriesOfKafka, i, began.Add(time.Duration(i)*time.Millisecond).UnixNano())
		if i%badEvery == badEvery-1 {
			text += fmt.Sprintf("bad %d\n", i)
		}
		b.Produce("metrics", text)
		if i%2000 == 1999 { // no faster than that: kills shall fall into the middle
			time.Sleep(50 * time.Millisecond)
		}
	}
	return b.Flush()
}

func checkRows(t *testing.T, both []*process, rows int, began time.Time) {
	t.Helper()
	have := make([]bool, rows)
	count, twice := 0, 0
	for _, p := range both {
		for s := range seriesOfKafka {
			for _, samples := range p.rows(fmt.Sprintf(`m_v{s="%d"}`, s), "10h", time.Now().Add(time.Hour)) {
				for _, x := range samples {
					i := int(x.value)
					if i < 0 || i >= rows || i%seriesOfKafka != s || x.ms != began.UnixMilli()+int64(i) {
						t.Fatalf("nobody wrote %v to series %d", x, s)
					}
					if have[i] {
						twice++ // in both stores: its partition moved after it was written and before it was committed
					} else {
						have[i] = true
						count++
					}
				}
			}
		}
	}
	if count != rows {
		t.Errorf("%d rows of %d are there", count, rows)
	}
	t.Logf("%d rows delivered to both processes", twice)
}

// letters counts dead letters until there is one for each bad record.
func letters(b *kafkatest.Cluster, bad int) (n int) {
	seen := map[string]bool{}
	b.Read("dead", func(value string) bool {
		n++
		_, line, _ := strings.Cut(value, "\n")
		seen[line] = true
		return len(seen) < bad
	})
	return n
}

func realKafka(t *testing.T) *kafkatest.Cluster {
	libs := os.Getenv("KAFKA_LIBS")
	if libs == "" {
		t.Fatal("KAFKA_LIBS names no folder of jars: run make test-kafka")
	}
	return kafkatest.Real(t, libs)
}

// TestRealKafkaCat produces with kcat, where it is installed: another client's idea of records, headers and codecs.
func TestRealKafkaCat(t *testing.T) {
	kcat, err := exec.LookPath("kcat")
	if err != nil {
		t.Skip("kcat is not installed")
	}
	b := realKafka(t)
	b.Create(8, "metrics")
	p := newProcess(t, fmt.Sprintf(`SPILLWAY_KAFKA=[{brokers: [%q], topics: [{regex: "met.*"}]}]`, b.Addrs[0]))
	p.start()
	now := time.Now()
	for i, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		cmd := exec.Command(kcat, "-P", "-b", b.Addrs[0], "-t", "metrics", "-z", codec, "-H", "precision=ms")
		cmd.Stdin = strings.NewReader(fmt.Sprintf("m,s=0 v=%d %d\n", i, now.UnixMilli()+int64(i)))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kcat -z %s: %v: %s", codec, err, out)
		}
	}
	waitForLag(t, b, "spillway")
	n := 0
	for _, samples := range p.rows("m_v", "1h", now.Add(time.Minute)) {
		n += len(samples)
	}
	if n != 5 {
		t.Fatalf("%d rows of 5", n)
	}
}
