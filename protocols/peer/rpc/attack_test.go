package rpc

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
	"github.com/spillwaydb/spillway/protocols/point"
)

// program is one that speaks HTTP/2 at a server's port by hand, and keeps to no rule of peers.
type program struct {
	t      testing.TB
	conn   net.Conn
	stream uint32
}

// connectProgram connects with a certificate. Of what the server sends it answers pings alone, so that it seems to be alive.
func connectProgram(t testing.TB, addr string, files TLS) *program {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", addr, &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p := &program{t: t, conn: conn}
	go p.answerPings()
	p.write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frameOf(4, 0, 0))
	p.stream = 1
	return p
}

func (p *program) answerPings() {
	const ping, ack = 6, 1
	in := bufio.NewReader(p.conn)
	for {
		head := make([]byte, frameHeaderBytes)
		if _, err := io.ReadFull(in, head); err != nil {
			return
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(in, payload); err != nil {
			return
		}
		if head[3] == ping && head[4] != ack {
			head[4] = ack
			_, _ = p.conn.Write(append(head, payload...)) // a tls.Conn is written by many
		}
	}
}

func (p *program) write(all ...[]byte) {
	p.t.Helper()
	var b []byte
	for _, one := range all {
		b = append(b, one...)
	}
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// begin begins a call with a message of which it sends the length and so many bytes.
func (p *program) begin(method string, length, bytes int) {
	p.t.Helper()
	data := make([]byte, 5+bytes)
	binary.BigEndian.PutUint32(data[1:], uint32(length))
	p.call(method)
	for len(data) > 0 {
		n := min(len(data), 16<<10)
		p.write(p.frame(frameData, 0, data[:n]))
		data = data[n:]
	}
}

// ask makes a call with a request, and gives the answer no more room than HTTP/2 does, 64 KiB.
func (p *program) ask(method string, request []byte) {
	p.t.Helper()
	p.call(method)
	p.write(p.frame(frameData, flagEndStream, append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request))), request...)))
}

func (p *program) call(method string) {
	p.t.Helper()
	p.stream += 2
	var head []byte
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", fullMethod(method)}, {":authority", "a"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		head = append(append(append(append(head, 0, byte(len(f[0]))), f[0]...), byte(len(f[1]))), f[1]...)
	}
	p.write(p.frame(frameHeaders, 4, head))
}

func (p *program) frame(kind, flags byte, payload []byte) []byte {
	f := frameOf(kind, flags, len(payload))
	copy(f[frameHeaderBytes:], payload)
	binary.BigEndian.PutUint32(f[5:], p.stream)
	return f
}

// patient are the settings of a peer that gives up no connection because this machine is busy.
func patient(files TLS) DialSettings {
	return DialSettings{TLS: files, SilenceMax: time.Minute, ConnectMax: time.Minute}
}

// heapNow is the memory in use, without garbage.
func heapNow() int64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestAProgramThatSendsWhatNobodyReadsIsRefused: what had come of a call that was not read, 1 MiB of each of 1,024 calls on any number of connections, was in no account, and had no bound for all: four connections of
// one gateway ended a server of 4 GiB.
func TestAProgramThatSendsWhatNobodyReadsIsRefused(t *testing.T) {
	a := newTestAuthority(t)
	m := newMemory()
	srv, err := NewServer(Deps{Storage: m, Registerer: prometheus.NewRegistry()}, Settings{TLS: a.files(t, "127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	srv.callers.unreadMax = 100
	has, err := srv.arrivals.long.enter(t.Context(), time.Minute, "another", 2*messageBytesMax) // so that long inserts wait, and are not read
	if err != nil {
		t.Fatal(err)
	}
	defer srv.arrivals.long.leave(has)
	srv.arrivals.wait = time.Hour
	addr := serving(t, srv)
	p := dial(t, addr, patient(a.files(t, "gw")))
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	st := openStream(t, p)
	before := heapNow()
	stolen := a.filesOf(t, "stolen", Identity{RoleGateway, "stolen"}.URI())
	bad := connectProgram(t, addr, stolen)
	for range 100 {
		bad.begin(methodInserts, messageBytesMax, 32<<10)
	}
	unread := func() int {
		srv.callers.mu.Lock()
		defer srv.callers.mu.Unlock()
		return srv.callers.unread
	}
	until(t, "its calls wait", func() bool { return unread() >= 100 })
	if n := srv.UnreadBytes(); n < 100*serverStreamWindow {
		t.Errorf("%d bytes are booked of 100 calls that are not read", n)
	}
	throttled := srv.metrics.calls.WithLabelValues(methodInserts, fault.Throttled.String())
	bad.begin(methodInserts, messageBytesMax, 0)
	until(t, "one more is refused", func() bool { return testutil.ToFloat64(throttled) == 1 })
	t.Logf("%d MiB may be held, the heap grew by %d KiB", srv.UnreadBytes()>>20, (heapNow()-before)>>10)
	if err := st.Define(t.Context(), []peer.Def{{ID: 1, Labels: point.MakeLabels(point.MetricName, "m")}}); err != nil {
		t.Errorf("a definition of another gateway: %v", err)
	}
	if _, _, err := p.LabelNames(t.Context(), &peer.Select{Table: "t"}, 0); err != nil {
		t.Errorf("a look-up of another gateway: %v", err)
	}
	other := dial(t, addr, patient(stolen))
	if err := other.Ping(t.Context()); err != nil {
		t.Errorf("a ping of the peer that is refused: %v", err)
	}
	_ = bad.conn.Close()
	until(t, "the calls of a connection that is closed are not counted", func() bool { return unread() <= 1 })
}

// TestAnswersThatNobodyReadsDoNotKeepQueriesFromMemory: a gateway that read no answer, as its network or its program had a defect, and still sent signs of life, kept the memory of its answers for
// ever, and queries of others were refused.
func TestAnswersThatNobodyReadsDoNotKeepQueriesFromMemory(t *testing.T) {
	a := newTestAuthority(t)
	m := newMemory()
	m.names = []string{strings.Repeat("n", 1<<20)}
	srv, err := NewServer(Deps{Storage: m, Registerer: prometheus.NewRegistry()}, Settings{TLS: a.files(t, "127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	if srv.sendMax != 5*time.Minute {
		t.Errorf("an answer may wait for %v", srv.sendMax)
	}
	srv.sendMax = 100 * time.Millisecond
	var most atomic.Int64
	srv.OnAnswerGrowth(func(to int64) { most.Store(max(most.Load(), to)) })
	bad := connectProgram(t, serving(t, srv), a.files(t, "gw"))
	request, err := proto.Marshal(&peerpb.Select{Table: "t", Name: []byte("host")})
	if err != nil {
		t.Fatal(err)
	}
	bad.ask(methodLabelValues, request)
	until(t, "an answer waits", func() bool { return most.Load() >= 1<<20 })
	until(t, "nothing is kept for it", func() bool { return srv.AnswerBytes() == 0 })
}

// TestAPeerHasSoManyCallsOnAllItsConnections: the bound was one of a connection, and a peer may open many.
func TestAPeerHasSoManyCallsOnAllItsConnections(t *testing.T) {
	c := callers{unreadMax: unreadLeast}
	for range callerMax {
		if err := c.enter("greedy", false); err != nil {
			t.Fatal(err)
		}
	}
	wantKind(t, "one too many", c.enter("greedy", false), fault.Throttled)
	if err := c.enter("greedy", true); err != nil {
		t.Errorf("a ping: %v", err)
	}
	if err := c.enter("honest", false); err != nil {
		t.Errorf("a call of another peer: %v", err)
	}
	c.leave("honest")
	for range callerMax + 1 {
		c.leave("greedy")
	}
	if len(c.peers) > 0 {
		t.Errorf("%d peers stay", len(c.peers))
	}
}

// TestACopyIsStillSentWhileAProgramHoldsItsMessages: a process with a certificate that sent the beginnings of long inserts, on one connection or many, had all room for long inserts, and those of every
// other peer were refused.
func TestACopyIsStillSentWhileAProgramHoldsItsMessages(t *testing.T) {
	a := newTestAuthority(t)
	m := newMemory()
	srv, err := NewServer(Deps{Storage: m, Registerer: prometheus.NewRegistry()}, Settings{TLS: a.files(t, "127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	addr := serving(t, srv)
	p := dial(t, addr, patient(a.files(t, "gw")))
	st := openStream(t, p)
	if err := st.Define(t.Context(), []peer.Def{{ID: 1, Labels: point.MakeLabels(point.MetricName, "m")}}); err != nil {
		t.Fatal(err)
	}
	before := heapNow()
	stolen := a.filesOf(t, "stolen", Identity{RoleGateway, "stolen"}.URI())
	const programs, calls = 4, 50
	for range programs {
		bad := connectProgram(t, addr, stolen)
		for range calls {
			bad.begin(methodInserts, messageBytesMax, 0)
			bad.begin(methodInserts, messageBytesMax, arrivingPiece)
			bad.begin(methodInserts, shortMessage, arrivingPiece)
		}
	}
	until(t, "the program has its share", func() bool { return srv.ArrivingBytes() > messageBytesMax })
	until(t, "all its calls", func() bool { return srv.arrivals.short.used() > 20<<20 })
	t.Logf("%d bytes are counted, the heap grew by %d KiB", srv.ArrivingBytes(), (heapNow()-before)>>10)
	in := &peer.Insert{Partition: 1, Stamp: 1 << 20}
	for i := range 100_000 {
		in.IDs, in.Times, in.Values = append(in.IDs, 1), append(in.Times, point.Nanos(i)), append(in.Values, float64(i*i)*1.37)
	}
	if err := st.Insert(t.Context(), in); err != nil {
		t.Errorf("a long insert of another gateway: %v", err)
	}
	in.IDs, in.Times, in.Values = in.IDs[:8000], in.Times[:8000], in.Values[:8000]
	if err := st.Insert(t.Context(), in); err != nil {
		t.Errorf("a short insert of another gateway: %v", err)
	}
	if err := p.Ping(t.Context()); err != nil {
		t.Errorf("a ping: %v", err)
	}
	const most = 2*messageBytesMax + 32<<20 + programs*calls*3*arrivingPiece
	if n := srv.ArrivingBytes(); n > most {
		t.Errorf("%d bytes are counted, at most %d may be", n, most)
	}
}
