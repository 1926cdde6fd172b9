//go:build kafka

package standalonetest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/pages"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/gateway/intake/kafka/kafkatest"
)

// TestRealKafkaLosesNothing: two processes share a group; a producer writes rows, bad lines among them; one of the two is
// killed every few seconds, by turns. After each kill every row below the committed offsets is there; in the end the rows
// of both processes together are those that were produced, none twice in a process, the bad ones are in the dead-letter
// topic, and the commits have reached the ends of all partitions.
//
//	KAFKA_ROWS=1000000 KAFKA_KILL_EVERY=3s make test-kafka
func TestRealKafkaLosesNothing(t *testing.T) {
	for _, protocol := range []string{"classic", "consumer"} {
		t.Run(protocol, func(t *testing.T) {
			b := realKafka(t)
			b.Create(kafkaPartitions, "metrics")
			b.Create(1, "dead")
			testKills(t, b, protocol, processtest.EnvInt(t, "KAFKA_ROWS", 200_000))
		})
	}
}

const (
	seriesOfKafka   = 50
	kafkaPartitions = 8
	// badEvery: each such record holds a bad line beside its good one.
	badEvery = 1000
)

var errProducing = errors.New("the producer is not done")

// flood is the producer's data: row i is a value of series i mod seriesOfKafka, at began + i ms.
type flood struct {
	rows  int
	began time.Time

	mu    sync.Mutex
	acked []place // guarded by mu; by row
}

// place is a record's position; the zero place is none, offsets count from 1 here.
type place struct {
	partition int32
	offset    int64
}

func (f *flood) produce(b *kafkatest.Cluster) error {
	f.acked = make([]place, f.rows)
	for i := range f.rows {
		text := fmt.Sprintf("m,s=%d v=%d %d\n", i%seriesOfKafka, i, f.began.Add(time.Duration(i)*time.Millisecond).UnixNano())
		if i%badEvery == badEvery-1 {
			text += fmt.Sprintf("bad %d\n", i)
		}
		b.ProduceTo("metrics", text, func(partition int32, offset int64) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.acked[i] = place{partition, offset + 1}
		})
		if i%500 == 499 { // no faster than that: kills should come in the middle
			time.Sleep(50 * time.Millisecond)
		}
	}
	return b.Flush()
}

// below returns the rows with offsets that a group has committed.
func (f *flood) below(committed []int64) (rows []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, at := range f.acked {
		if at.offset > 0 && at.offset <= committed[at.partition] {
			rows = append(rows, i)
		}
	}
	return rows
}

// stored returns which rows are in any of the stores, and how many are in more than one, since their partition moved
// after they were written and before they were committed.
func (f *flood) stored(t *testing.T, stores []*processtest.Process) (have []bool, moved int) {
	t.Helper()
	have = make([]bool, f.rows)
	for _, p := range stores {
		here := make([]bool, f.rows)
		for s := range seriesOfKafka {
			for _, samples := range p.Rows(fmt.Sprintf(`m_v{s="%d"}`, s), "10h", time.Now().Add(time.Hour)) {
				for _, x := range samples {
					i := int(x.Value)
					switch {
					case i < 0 || i >= f.rows || i%seriesOfKafka != s || x.Ms != f.began.UnixMilli()+int64(i):
						t.Fatalf("nobody wrote %v to series %d", x, s)
					case here[i]:
						t.Fatalf("row %d comes twice from one store", i)
					case have[i]:
						moved++
					}
					here[i], have[i] = true, true
				}
			}
		}
	}
	return have, moved
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
	both := []*processtest.Process{processtest.New(t, setting)}
	both = append(both, processtest.NewOf(t, both[0].Bin, setting))
	for _, p := range both {
		p.Start()
	}
	f := &flood{rows: rows, began: time.Now().Add(-time.Hour).Truncate(time.Second)}
	produced := make(chan error, 1)
	go func() { produced <- f.produce(b) }()

	rng := rand.New(rand.NewPCG(1, 2))
	began, kills, midway := time.Now(), 0, 0
	for err := error(errProducing); kills < 4 || err == errProducing; {
		if err == errProducing {
			select {
			case err = <-produced:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(every/2 + time.Duration(rng.Int64N(int64(every)))):
			}
		} else {
			time.Sleep(time.Duration(rng.Int64N(int64(every))))
		}
		p := both[kills%2]
		p.Kill()
		kills++
		must := f.below(b.Committed("g", "metrics", kafkaPartitions))
		time.Sleep(time.Duration(rng.Int64N(int64(time.Second))))
		p.Start()
		have, _ := f.stored(t, both)
		for _, i := range must {
			if !have[i] {
				t.Fatalf("after kill %d: the offset of row %d is committed and the row is nowhere", kills, i)
			}
		}
		midway += len(must)
	}
	waitForLag(t, b, "g", both...)
	took := time.Since(began)
	have, moved := f.stored(t, both)
	lost := 0
	for _, there := range have {
		if !there {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d rows of %d are lost", lost, rows)
	}
	if all := f.below(b.Committed("g", "metrics", kafkaPartitions)); len(all) != rows {
		t.Errorf("the offsets of %d records of %d are committed", len(all), rows)
	}
	letters := letters(b, rows/badEvery)
	t.Logf("%s: %d records in %v, %d kills, %d lost, %d looks below committed offsets; %d rows delivered to both processes; %d dead letters for %d bad records",
		protocol, rows, took.Round(time.Second), kills, lost, midway, moved, letters, rows/badEvery)
}

// waitForLag waits until a group has committed all of the topic. If it never does, it logs the status and output of the
// processes.
func waitForLag(t *testing.T, b *kafkatest.Cluster, group string, who ...*processtest.Process) {
	t.Helper()
	lag := int64(0)
	for end := time.Now().Add(processtest.Patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if lag = b.Lag(group, "metrics", kafkaPartitions); lag == 0 {
			return
		}
	}
	for i, p := range who {
		_, status, err := p.Get(kafka.StatusPath)
		p.Stop()
		t.Logf("process %d: %s %v\n%s", i, status, err, &p.Log)
	}
	t.Fatalf("%d records are not committed: offsets %v", lag, b.Committed(group, "metrics", kafkaPartitions))
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

// kafkaLibs is the folder of Kafka's jars.
func kafkaLibs(t *testing.T) string {
	libs := os.Getenv("KAFKA_LIBS")
	if libs == "" {
		t.Fatal("KAFKA_LIBS names no folder of jars: run make test-kafka")
	}
	return libs
}

func realKafka(t *testing.T) *kafkatest.Cluster { return kafkatest.Real(t, kafkaLibs(t)) }

// TestRealKafkaIsReadAsTheREADMESays runs the README's block for Kafka before a broker with topics of the names that it shows.
func TestRealKafkaIsReadAsTheREADMESays(t *testing.T) {
	blocks, err := pages.Commands("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(blocks, func(b []string) bool { return strings.Contains(b[0], "--kafka.brokers=") })
	if i < 0 || len(blocks[i]) != 2 {
		t.Fatalf("the README has no block for Kafka with two commands: %q", blocks)
	}
	b := realKafka(t)
	b.Create(1, "telegraf", "metrics-a", "other")
	b.Produce("telegraf", "cpu,host=a usage=42")
	b.Produce("metrics-a", "mem,host=a free=7")
	b.Produce("other", "disk,host=a used=1")
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	p := processtest.New(t)
	r := &readme{t: t, p: p, dir: t.TempDir()}
	r.run(strings.NewReplacer("k1:9092", b.Addrs[0], "k2:9092", p.Addr).Replace(blocks[i][0])) // k2 is away
	read := &processtest.Process{T: t, Addr: r.served}
	for end := time.Now().Add(processtest.Patience); ; time.Sleep(100 * time.Millisecond) {
		cpu, mem := read.Rows("cpu_usage", "1h", time.Now().Add(time.Minute)), read.Rows("mem_free", "1h", time.Now().Add(time.Minute))
		if len(cpu) == 1 && len(mem) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the topics were not read: %v %v", cpu, mem)
		}
	}
	if got := read.Rows("disk_used", "1h", time.Now().Add(time.Minute)); len(got) != 0 {
		t.Errorf("a topic that the line does not name was read: %v", got)
	}
	r.env = append(p.Env, "SPILLWAY_URL=http://"+r.served, "PATH="+filepath.Dir(p.Bin)+":"+os.Getenv("PATH"), "NO_PROXY=127.0.0.1")
	for _, topic := range []string{"telegraf", "metrics-a"} {
		r.run(blocks[i][1] + " | tee /dev/stderr | grep -q " + topic)
	}
}

// TestRealKafkaCat produces with kcat, where it is installed: another client's idea of records, headers and codecs.
func TestRealKafkaCat(t *testing.T) {
	kcat, err := exec.LookPath("kcat")
	if err != nil {
		t.Skip("kcat is not installed")
	}
	b := realKafka(t)
	b.Create(kafkaPartitions, "metrics")
	p := processtest.New(t, fmt.Sprintf(`SPILLWAY_KAFKA=[{brokers: [%q], topics: [{regex: "met.*"}]}]`, b.Addrs[0]))
	p.Start()
	now := time.Now()
	codecs := []string{"none", "gzip", "snappy", "lz4", "zstd"}
	want := map[string][]processtest.Sample{}
	for i, codec := range codecs {
		cmd := exec.Command(kcat, "-P", "-b", b.Addrs[0], "-t", "metrics", "-z", codec,
			"-H", "precision=ms", "-H", "table=cats", "-H", "smear=off", "-H", "of-no-meaning=x")
		var lines strings.Builder
		for n := range 100 { // a record each; alike enough that every codec can compress them
			ms, value := now.UnixMilli()+int64(n), float64(1000*i+n)
			fmt.Fprintf(&lines, "m,i=%s v=%v %d\n", codec, value, ms)
			want["m_v/"+codec] = append(want["m_v/"+codec], processtest.Sample{Ms: ms, Value: value})
		}
		cmd.Stdin = strings.NewReader(lines.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kcat -z %s: %v: %s", codec, err, out)
		}
	}
	waitForLag(t, b, "spillway")
	if n := b.Lag("nobody", "metrics", kafkaPartitions); n != int64(100*len(codecs)) {
		t.Fatalf("kcat made %d records", n)
	}
	if got := p.RowsOf("cats", "m_v", "1h", now.Add(time.Minute)); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the table has %v\nwant %v", got, want)
	}
	if got := p.Rows("m_v", "1h", now.Add(time.Minute)); len(got) != 0 {
		t.Errorf("the table of who names none has %v", got)
	}
}
