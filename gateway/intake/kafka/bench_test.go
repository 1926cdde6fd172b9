package kafka

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/point"
)

// hole is a Writer that acks at once and counts: the rest is the consumer's own cost.
type hole struct {
	dict *point.Dict
	rows atomic.Int64
}

func (h *hole) Table(context.Context, string) (intake.Table, error)    { return h, nil }
func (h *hole) Existing(context.Context, string) (intake.Table, error) { return h, nil }
func (h *hole) Create(context.Context, string, *time.Duration) error   { return nil }
func (h *hole) List(context.Context) ([]string, error)                 { return nil, nil }
func (h *hole) Dict() *point.Dict                                      { return h.dict }
func (h *hole) Bounds(point.Nanos) (lo, hi point.Nanos)                { return math.MinInt64, math.MaxInt64 }
func (h *hole) Write(_ context.Context, b *point.Batch, _ point.Level) error {
	h.rows.Add(int64(len(b.IDs)))
	return nil
}

// lines writes n lines of ten fields of n hosts.
func lines(n int) string {
	var b strings.Builder
	at := time.Now().UnixNano()
	for i := range n {
		fmt.Fprintf(&b, "cpu,host=host-%04d,region=eu-west-1,os=linux usage_user=%d,usage_system=%d,usage_idle=%d,usage_nice=%d,usage_iowait=%d,usage_irq=%d,usage_softirq=%d,usage_steal=%d,usage_guest=%d,usage_guest_nice=%d %d\n",
			i, i%100, i%97, i%89, i%83, i%79, i%73, i%71, i%67, i%61, i%59, at)
	}
	return b.String()
}

// The benchmarks count processor time of this process alone: broker and HTTP client are children, made of the same binary.
// They stand for other machines.
const childEnv = "KAFKA_BENCH_CHILD"

// child starts a child and reads its first line.
func child(b *testing.B, role, arg string) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+role)
	cmd.Stdin = strings.NewReader(arg)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// childMain is the life of a child; it ends by being killed.
func childMain(role string) {
	arg, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	switch role {
	case "broker":
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "metrics"), kfake.SyntheticFetch(kfake.SyntheticBatch{Batch: arg}))
		if err != nil {
			panic(err)
		}
		fmt.Println(c.ListenAddrs()[0])
		select {}
	case "client":
		fmt.Println("ready")
		addr, encoding, _ := strings.Cut(string(arg), " ")
		post(addr, encoding, packed(encoding, lines(460)))
	}
}

// packed is a body as HTTP clients compress it, each at its library's default level.
func packed(encoding, body string) []byte {
	var b bytes.Buffer
	switch encoding {
	case "gzip":
		w := gzip.NewWriter(&b)
		_, _ = io.WriteString(w, body)
		_ = w.Close()
	case "zstd":
		w, err := zstd.NewWriter(&b)
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(w, body)
		_ = w.Close()
	case "snappy":
		return s2.EncodeSnappy(nil, []byte(body))
	default:
		return []byte(body)
	}
	return b.Bytes()
}

// post sends the same request for ever, the next when the one before is answered.
func post(addr, encoding string, body []byte) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		panic(err)
	}
	request := append([]byte(fmt.Sprintf("POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n", encoding, len(body))), body...)
	answers := bufio.NewReader(conn)
	for {
		if _, err := conn.Write(request); err != nil {
			return
		}
		for first := true; ; first = false {
			text, err := answers.ReadSlice('\n')
			if err != nil || first && !bytes.HasPrefix(text, []byte("HTTP/1.1 204")) {
				return
			}
			if len(text) == 2 {
				break
			}
		}
	}
}

// measure lets 100,000 samples pass for each turn of the loop, and reports their cost.
func (h *hole) measure(b *testing.B) {
	for h.rows.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	from, rows := cputime.Used(), h.rows.Load()
	for b.Loop() {
		for next := h.rows.Load() + 100_000; h.rows.Load() < next; {
			time.Sleep(time.Millisecond)
		}
	}
	b.ReportMetric(float64(cputime.Used()-from)/float64(h.rows.Load()-rows), "cpu-ns/sample")
}

func BenchmarkRecords(b *testing.B) {
	for _, size := range []struct {
		name    string
		lines   int
		records int
		codec   kgo.CompressionCodec
	}{
		{"100kB,none", 460, 8, kgo.NoCompression()}, {"100kB,lz4", 460, 8, kgo.Lz4Compression()}, {"100kB,snappy", 460, 8, kgo.SnappyCompression()},
		{"100kB,zstd", 460, 8, kgo.ZstdCompression()}, {"100kB,gzip", 460, 8, kgo.GzipCompression()},
		{"10kB", 46, 80, kgo.NoCompression()}, {"1line", 1, 2000, kgo.NoCompression()},
	} {
		b.Run(size.name, func(b *testing.B) {
			addr := child(b, "broker", string(encoded(b, lines(size.lines), size.records, size.codec)))
			h := &hole{dict: point.NewDict(0)}
			c, err := New(Deps{Writer: h}, Settings{Clusters: []Cluster{{Brokers: []string{addr}, Topics: []Topic{{Name: "metrics"}},
				DeadLetter: DeadLetter{File: b.TempDir() + "/dead"}}}})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			h.measure(b)
			cancel()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// encoded is a batch as a producer sends it and a broker keeps it.
func encoded(b *testing.B, value string, records int, codec kgo.CompressionCodec) (batch []byte) {
	b.Helper()
	w := newWorld(b, kfake.SeedTopics(1, "x"))
	caught := make(chan []byte, 1)
	w.cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		caught <- bytes.Clone(req.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records)
		return nil, nil, false
	})
	w.producer = w.client(kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(8<<20),
		kgo.ProducerLinger(100*time.Millisecond), kgo.DisableIdempotentWrite())
	all := make([]string, records)
	for i := range all {
		all[i] = value
	}
	w.produce("x", 0, all...)
	batch = <-caught
	if n := binary.BigEndian.Uint32(batch[57:]); int(n) != records {
		b.Fatalf("a batch of %d records, want %d", n, records)
	}
	return batch
}

// BenchmarkWorkerAlone is the part behind the client: records in, a Write out.
func BenchmarkWorkerAlone(b *testing.B) {
	value := lines(460)
	h := &hole{dict: point.NewDict(0)}
	c, err := New(Deps{Writer: h}, Settings{Clusters: []Cluster{{Brokers: []string{"x:1"}, Topics: []Topic{{Name: "metrics"}}}}})
	if err != nil {
		b.Fatal(err)
	}
	w := newWorker(c)
	defer w.decoder.Close()
	records := make([]*kgo.Record, 8)
	for i := range records {
		records[i] = &kgo.Record{Topic: "metrics", Value: []byte(value), Timestamp: time.Now()}
	}
	b.ReportAllocs()
	from := cputime.Used()
	for b.Loop() {
		if err := w.process(context.Background(), c.members[0], &work{topic: topicKey{0, "metrics"}, batches: []*batch{{records: records}}}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cputime.Used()-from)/float64(b.N)/float64(8*4600), "cpu-ns/sample")
}

// BenchmarkHTTP is the rival: the same lines, 100 kB a request, through the HTTP front door to the same hole.
func BenchmarkHTTP(b *testing.B) {
	for _, encoding := range []string{"identity", "snappy", "zstd", "gzip"} {
		b.Run(encoding, func(b *testing.B) { benchHTTP(b, encoding) })
	}
}

func benchHTTP(b *testing.B, encoding string) {
	h := &hole{dict: point.NewDict(0)}
	f, err := intake.New(intake.Deps{Writer: h, Fallback: http.NotFoundHandler()}, intake.Settings{})
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- f.Serve(ln) }()
	child(b, "client", ln.Addr().String()+" "+encoding)
	h.measure(b)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := f.Shutdown(ctx); err != nil {
		b.Fatal(err)
	}
	<-served
}

// BenchmarkWorkerTables is BenchmarkWorkerAlone with records of one line, for one table and for many.
func BenchmarkWorkerTables(b *testing.B) {
	const n = 2000
	value := lines(1)
	for _, tables := range []int{1, 100} {
		b.Run(fmt.Sprint(tables), func(b *testing.B) {
			h := &hole{dict: point.NewDict(0)}
			c, err := New(Deps{Writer: h}, Settings{Clusters: []Cluster{{Brokers: []string{"x:1"}, Topics: []Topic{{Name: "metrics"}}}}})
			if err != nil {
				b.Fatal(err)
			}
			w := newWorker(c)
			defer w.decoder.Close()
			records := make([]*kgo.Record, n)
			for i := range records {
				table := kgo.RecordHeader{Key: "table", Value: []byte(fmt.Sprint("t", i%tables))}
				records[i] = &kgo.Record{Topic: "metrics", Value: []byte(value), Timestamp: time.Now(), Headers: []kgo.RecordHeader{table}}
			}
			b.ReportAllocs()
			from := cputime.Used()
			for b.Loop() {
				if err := w.process(context.Background(), c.members[0], &work{topic: topicKey{0, "metrics"}, batches: []*batch{{records: records}}}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cputime.Used()-from)/float64(b.N)/n, "cpu-ns/record")
		})
	}
}
