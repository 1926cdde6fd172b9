package rpc

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
	"github.com/spillwaydb/spillway/protocols/point"
)

func idleReads(p *Peer) int {
	k := &p.mu.line.keptReads
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mu.idle)
}

// wantValues asks for the values of a label: the memory answers with the label's name and its own names.
func wantValues(t *testing.T, p *Peer, label string, more ...string) {
	t.Helper()
	got, truncated, err := p.LabelValues(t.Context(), &peer.Select{Table: "t"}, label, 7)
	if want := append([]string{label}, more...); err != nil || !truncated || !slices.Equal(got, want) {
		t.Errorf("%d values instead of %d, truncated %v, %v", len(got), len(want), truncated, err)
	}
}

// wantSeries asks for the labels of series, and ends the context before it closes the set, as gateways do.
func wantSeries(t *testing.T, p *Peer, want int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	set, err := p.Select(ctx, &peer.Select{Table: "t", LabelsOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for set.Next() {
		n++
	}
	cancel()
	if err := errors.Join(set.Err(), set.Close()); err != nil || n != want {
		t.Errorf("%d series instead of %d, %v", n, want, err)
	}
}

func manySeries(n int) (all []peer.Series) {
	for i := range n {
		all = append(all, peer.Series{Labels: point.MakeLabels("__name__", "m", "id", fmt.Sprintf("%x", uint64(i)*0x9e3779b97f4a7c15))})
	}
	return all
}

// TestLookUpsUseOneStreamAgain: of every kind, also after one that failed, and after answers of no part and of many.
func TestLookUpsUseOneStreamAgain(t *testing.T) {
	m, p := pair(t)
	m.names = []string{"x"}
	m.series = manySeries(3)
	for range 5 {
		wantValues(t, p, "a", "x")
		wantSeries(t, p, 3)
	}
	if names, _, err := p.LabelNames(t.Context(), &peer.Select{Table: "t"}, 0); err != nil || !slices.Equal(names, m.names) {
		t.Error(names, err)
	}
	m.rows = []point.MetadataRow{{Metric: "m", Type: "counter"}}
	if rows, err := p.GetMetadata(t.Context(), "t", "m"); err != nil || !slices.Equal(rows, m.rows) {
		t.Error(rows, err)
	}
	if found, err := p.Exemplars(t.Context(), &peer.Select{Table: "t"}, nil); err != nil || len(found) != 0 {
		t.Error(found, err)
	}
	_, _, err := p.StagedTimes(t.Context(), "t")
	wantKind(t, "a storage without staging", err, fault.Invalid)
	m.fail = peer.WithMap(fault.Errorf(fault.Stale, "another leads"), peer.MapAt{Txn: peer.TxnID{1}, Seq: 9, Servers: []string{"n1"}})
	_, _, err = p.LabelValues(t.Context(), &peer.Select{Table: "t"}, "a", 0)
	if at, ok := peer.MapOf(err); !fault.Is(err, fault.Stale) || !ok || at.Seq != 9 {
		t.Error(err)
	}
	_, err = p.Select(t.Context(), &peer.Select{Table: "t", LabelsOnly: true})
	wantKind(t, "a refused select", err, fault.Stale)
	m.fail = nil
	m.names = nil
	for range 3000 {
		m.names = append(m.names, strings.Repeat("x", 1000))
	}
	wantValues(t, p, "a", m.names...)
	m.series = manySeries(20_000)
	wantSeries(t, p, 20_000)
	m.series = nil
	wantSeries(t, p, 0)
	if n := idleReads(p); n != 1 || !p.mu.line.keptReads.mu.idle[0].used {
		t.Errorf("%d streams are idle, not the one", n)
	}
}

// TestASelectThatBreaksOffIsAnError: its rows do not count as all.
func TestASelectThatBreaksOffIsAnError(t *testing.T) {
	m, p := pair(t)
	m.series, m.setErr = manySeries(20_000), fault.Errorf(fault.Corrupt, "a block is damaged")
	set, err := p.Select(t.Context(), &peer.Select{Table: "t", LabelsOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for set.Next() {
	}
	wantKind(t, "a set that broke off", set.Err(), fault.Corrupt)
	if err := set.Close(); err != nil || idleReads(p) != 1 {
		t.Error(err, idleReads(p))
	}
}

// TestAnAnswerThatIsNotReadToItsEndCostsItsStream: its rest would be the answer to the next request.
func TestAnAnswerThatIsNotReadToItsEndCostsItsStream(t *testing.T) {
	m, p := pair(t)
	m.series = manySeries(60_000)
	set, err := p.Select(t.Context(), &peer.Select{Table: "t", LabelsOnly: true})
	if err != nil || !set.Next() {
		t.Fatal(err)
	}
	if err := set.Close(); err != nil || idleReads(p) != 0 {
		t.Error(err, idleReads(p))
	}
	wantValues(t, p, "a")
	m.until(t, "the set is closed", func() bool { return m.sets == 0 })
}

// patientMemory is a storage that answers the look-up of a label's values when its caller has left.
type patientMemory struct {
	*memory
	asked chan struct{}
}

func (w patientMemory) LabelValues(ctx context.Context, q *peer.Select, name string, limit int) ([]string, bool, error) {
	if name != "wait" {
		return w.memory.LabelValues(ctx, q, name, limit)
	}
	w.asked <- struct{}{}
	<-ctx.Done()
	return nil, false, ctx.Err()
}

// TestALookUpEndsWithItsCaller: at the server, too, and no later one gets its answer.
func TestALookUpEndsWithItsCaller(t *testing.T) {
	w := patientMemory{newMemory(), make(chan struct{})}
	p := serveEvaluator(t, w)
	wantValues(t, p, "a")
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, _, err := p.LabelValues(ctx, &peer.Select{Table: "t"}, "wait", 0)
		left <- err
	}()
	<-w.asked
	leave()
	wantKind(t, "a caller that left", <-left, fault.Canceled)
	if n := idleReads(p); n != 0 {
		t.Errorf("%d streams are idle", n)
	}
	wantValues(t, p, "b")
}

// TestALookUpEndsWithItsDeadline: a kept stream has none, so its caller ends it, and the server stops working on it.
func TestALookUpEndsWithItsDeadline(t *testing.T) {
	w := patientMemory{newMemory(), make(chan struct{}, 1)}
	p, srv := serveStorage(t, w)
	wantValues(t, p, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, _, err := p.LabelValues(ctx, &peer.Select{Table: "t"}, "wait", 0)
	wantKind(t, "a look-up that lasts longer than its caller waits", err, fault.KindOf(ended(ctx, "x")))
	until(t, "the server has ended it", func() bool { return srv.RequestBytes() == 0 && srv.UnreadBytes() == 0 })
	wantValues(t, p, "b")
}

// TestALookUpOnAStreamThatEndedIsAskedAgain: the server, or a proxy between, may end a stream at any time while it is idle.
func TestALookUpOnAStreamThatEndedIsAskedAgain(t *testing.T) {
	m, p := pair(t)
	m.series = manySeries(2)
	wantValues(t, p, "a")
	p.mu.line.keptReads.mu.idle[0].end(nil)
	wantValues(t, p, "b")
	wantValues(t, p, "c")
	p.mu.line.keptReads.mu.idle[0].end(nil)
	wantSeries(t, p, 2)
}

// TestALongRequestHasAStreamOfItsOwn, where it waits for room as it arrives.
func TestALongRequestHasAStreamOfItsOwn(t *testing.T) {
	_, p := pair(t)
	wantValues(t, p, strings.Repeat("a", 2*keptRequestMax))
	if n := idleReads(p); n != 0 {
		t.Errorf("%d streams are idle", n)
	}
	wantValues(t, p, strings.Repeat("a", keptRequestMax-100))
	if n := idleReads(p); n != 1 {
		t.Errorf("%d streams are idle", n)
	}
}

// TestALabelSelectThatMayLastLongHasAStreamOfItsOwn: the server waits as long as its deadline for a client that reads slowly, and not as long as for a kept stream.
func TestALabelSelectThatMayLastLongHasAStreamOfItsOwn(t *testing.T) {
	m, p := pair(t)
	m.series = manySeries(1)
	for _, last := range []time.Duration{2 * keptSelectMax, keptSelectMax / 2} {
		ctx, cancel := context.WithTimeout(t.Context(), last)
		set, err := p.Select(ctx, &peer.Select{Table: "t", LabelsOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		for set.Next() {
		}
		if err := errors.Join(set.Err(), set.Close()); err != nil {
			t.Error(err)
		}
		if kept, want := idleReads(p) == 1, last < keptSelectMax; kept != want {
			t.Errorf("a select of at most %v on a kept stream: %t", last, kept)
		}
		cancel()
	}
}

// TestAGatewayWithoutKeptReadsIsAnswered: an older build opens a stream for each look-up, beside newer ones that keep theirs.
func TestAGatewayWithoutKeptReadsIsAnswered(t *testing.T) {
	m, newer := pair(t)
	m.names, m.series = []string{"x"}, manySeries(3)
	older := dial(t, newer.addr, DialSettings{TLS: plain})
	if err := older.Ping(t.Context()); err != nil { // a connection that is made forgets what its server knows
		t.Fatal(err)
	}
	older.mu.line.keptReads.unknown.Store(true)
	for range 2 {
		for _, p := range []*Peer{older, newer} {
			wantValues(t, p, "a", "x")
			wantSeries(t, p, 3)
		}
	}
	if idleReads(older) != 0 || idleReads(newer) != 1 {
		t.Errorf("%d and %d streams are idle", idleReads(older), idleReads(newer))
	}
}

// TestLookUpsThatAreUnderWayCountAsCalls: as many as there may be, on kept streams too.
func TestLookUpsThatAreUnderWayCountAsCalls(t *testing.T) {
	w := patientMemory{newMemory(), make(chan struct{})}
	p := dial(t, serveEvaluator(t, w).addr, DialSettings{TLS: plain, CallsMax: 1})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, _, err := p.LabelValues(ctx, &peer.Select{Table: "t"}, "wait", 0)
		left <- err
	}()
	<-w.asked
	_, _, err := p.LabelNames(t.Context(), &peer.Select{Table: "t"}, 0)
	wantKind(t, "a look-up beside another", err, fault.Throttled)
	leave()
	wantKind(t, "a caller that left", <-left, fault.Canceled)
	wantValues(t, p, "a")
}

// TestLookUpsBesideEachOther: each gets its own answer, a bounded number of streams stay, and the server stops although they are idle.
func TestLookUpsBesideEachOther(t *testing.T) {
	m := newMemory()
	srv, err := NewServer(Deps{Storage: m}, Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	l, done := listen(t), make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	p := dial(t, l.Addr().String(), DialSettings{TLS: plain})
	var all sync.WaitGroup
	for i := range 3 * keptMax {
		all.Go(func() {
			for range 20 {
				wantValues(t, p, fmt.Sprint(i))
			}
		})
	}
	all.Wait()
	if n := idleReads(p); n == 0 || n > keptMax {
		t.Errorf("%d streams are idle, at most %d may be", n, keptMax)
	}
	if err := srv.Shutdown(t.Context()); err != nil { // it would wait for ever
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	_, _, err = p.LabelValues(t.Context(), &peer.Select{Table: "t"}, "a", 0)
	wantKind(t, "a server that stopped", err, fault.Unavailable)
}

// gatedMemory answers the look-up of a label's values when its gate opens.
type gatedMemory struct {
	*memory
	came chan struct{}
	gate chan struct{}
}

func (w gatedMemory) LabelValues(ctx context.Context, q *peer.Select, name string, limit int) ([]string, bool, error) {
	w.came <- struct{}{}
	<-w.gate
	return w.memory.LabelValues(ctx, q, name, limit)
}

// controlCounter is a listener that counts the frames of its connections which carry nothing.
type controlCounter struct {
	net.Listener
	frames atomic.Int64
}

type controlCounted struct {
	net.Conn
	of     *controlCounter
	frames controlFrames
}

func (l *controlCounter) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &controlCounted{c, l, newControlFrames()}, nil
}

func (c *controlCounted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.of.frames.Add(int64(c.frames.count(b[:n])))
	return n, err
}

// TestManyLookUpsAtATimeDoNotSlowTheirConnection: the streams that are too many to keep end without a reset, of which a server bears a thousand a second, and rows travel on the same connection.
func TestManyLookUpsAtATimeDoNotSlowTheirConnection(t *testing.T) {
	const rounds, callers = 10, 3 * keptMax
	w := gatedMemory{newMemory(), make(chan struct{}), make(chan struct{})}
	srv, err := NewServer(Deps{Storage: w}, Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	l, done := &controlCounter{Listener: listen(t)}, make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	p := dial(t, l.Addr().String(), DialSettings{TLS: plain, SilenceMax: time.Minute})
	for range rounds {
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() { wantValues(t, p, fmt.Sprint(i)) })
		}
		for range callers {
			<-w.came
		}
		for range callers {
			w.gate <- struct{}{}
		}
		all.Wait()
		until(t, "no call is under way", func() bool { return p.mu.line.active.Load() == 0 })
		if n := idleReads(p); n != keptMax {
			t.Errorf("%d streams are idle", n)
		}
	}
	if n := l.frames.Load(); n > rounds*keptMax {
		t.Errorf("%d frames that carry nothing for %d look-ups", n, rounds*callers)
	}
	if err := errors.Join(srv.Shutdown(t.Context()), <-done); err != nil {
		t.Error(err)
	}
}

// TestAServerWithoutKeptReadsIsAskedByOneStreamForEach: an older build answers Unimplemented once.
func TestAServerWithoutKeptReadsIsAskedByOneStreamForEach(t *testing.T) {
	srv := &Server{deps: Deps{Storage: newMemory()}, metrics: newServerMetrics(nil, nil), settings: Settings{RequestBytesMax: 1 << 20}}
	older := grpc.NewServer(grpc.ForceServerCodecV2(codec{}))
	older.RegisterService(&grpc.ServiceDesc{ServiceName: service, Streams: []grpc.StreamDesc{{StreamName: methodLabelValues, ClientStreams: true, ServerStreams: true,
		Handler: func(_ any, ss grpc.ServerStream) error { return toStatus(lookUp(srv, srv.labelValues)(ss)) }}}}, nil)
	l, done := listen(t), make(chan error, 1)
	go func() { done <- older.Serve(l) }()
	defer func() { older.Stop(); <-done }()
	p := dial(t, l.Addr().String(), DialSettings{TLS: plain})
	wantValues(t, p, "a")
	wantValues(t, p, "b")
	if !p.mu.line.keptReads.unknown.Load() || idleReads(p) != 0 {
		t.Error("it is asked for kept streams again")
	}
}

// readExamples are a request, and the messages of an answer, by name.
func readExamples(t testing.TB) map[string][]byte {
	t.Helper()
	encode := func(head byte, m proto.Message) []byte {
		b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte{head}, m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	q := toSelect(&peer.Select{Table: "t", Lo: 1, Hi: 2, Matchers: []peer.Matcher{{Name: "host", Value: "a"}}})
	q.Name, q.Limit = []byte("os"), 7
	return map[string][]byte{
		"read":      encode(byte(readNumber(methodLabelValues)), q),
		"readpart":  append([]byte{readPart}, "half"...),
		"readlast":  encode(readLast, &peerpb.Names{Names: []string{"linux", "x"}, Truncated: true}),
		"readerror": encode(readError, status.New(codes.Unavailable, "away").Proto()),
	}
}

// spoken is a stream that keeps the messages sent on it.
type spoken struct {
	grpc.ServerStream
	all [][]byte
}

// SendMsg implements grpc.ServerStream.
func (s *spoken) SendMsg(m any) error {
	s.all = append(s.all, m.(*message).data.Materialize())
	return nil
}

// TestReadsAsTheyWereWritten: builds understand each other's reads.
func TestReadsAsTheyWereWritten(t *testing.T) {
	for name, b := range readExamples(t) {
		golden(t, name, hex.Dump(b))
	}
	said := &spoken{}
	names := func(a *keptAnswer) error {
		_, err := sendChunks(a, &peerpb.Names{Names: []string{"linux", "x"}, Truncated: true})
		return err
	}
	half := func(a *keptAnswer) error {
		return errors.Join(sendBuffer(a, mem.SliceBuffer("half")), sendBuffer(a, mem.SliceBuffer("not sent")))
	}
	for _, handler := range []func(*keptAnswer) error{names, half} {
		a := &keptAnswer{ServerStream: said}
		outcome := handler(a)
		if len(said.all) > 1 { // half of an answer was sent
			outcome = status.Error(codes.Unavailable, "away")
		}
		if err := a.end(outcome); err != nil {
			t.Fatal(err)
		}
	}
	examples := readExamples(t)
	if want := [][]byte{examples["readlast"], examples["readpart"], examples["readerror"]}; !slices.EqualFunc(said.all, want, bytes.Equal) {
		t.Errorf("answers are %q, not %q", said.all, want)
	}
	numbers := map[string]int{methodLabelNames: 1, methodLabelValues: 2, methodSelect: 3, methodExemplars: 4, methodGetMetadata: 5, methodStagedTimes: 6}
	for method, number := range numbers {
		if got := readNumber(method); got != number {
			t.Errorf("%s is %d, not %d", method, got, number)
		}
	}
	if got := len(readMethods) - 1; got != len(numbers) {
		t.Errorf("%d methods, FORMAT.md has %d", got, len(numbers))
	}
}

// messages is a stream of which these messages come, each in buffers of so many bytes.
type messages struct {
	all   [][]byte
	bytes int
}

// RecvMsg implements receiver.
func (s *messages) RecvMsg(to any) error {
	if len(s.all) == 0 {
		return io.EOF
	}
	var data mem.BufferSlice
	for part := range slices.Chunk(s.all[0], max(1, s.bytes)) {
		data = append(data, mem.SliceBuffer(part))
	}
	to.(*message).data, s.all = data, s.all[1:]
	return nil
}

// readRequest reads a request as the server does: its method, and the text of its body.
func readRequest(b []byte, pieces int) (method, body string, err error) {
	a, err := receiveRead(&messages{[][]byte{b}, pieces})
	if err != nil {
		return "", "", err
	}
	var m message
	if err := a.RecvMsg(&m); err != nil {
		return "", "", err
	}
	body = string(m.data.Materialize())
	m.data.Free()
	if err := a.RecvMsg(&m); !errors.Is(err, io.EOF) {
		return "", "", fmt.Errorf("behind a request: %w", err)
	}
	return a.method, body, nil
}

// readAnswer reads a message of an answer as its caller does.
func readAnswer(b []byte, pieces int) (kind byte, body string, err error) {
	var m message
	if err := (&messages{[][]byte{b}, pieces}).RecvMsg(&m); err != nil {
		return 0, "", err
	}
	if kind, err = cutHead(&m); err != nil {
		return 0, "", err
	}
	if kind == readError {
		err := (&keptRead{}).refusal(&m)
		if fault.Is(err, fault.Corrupt) {
			return 0, "", err
		}
		return kind, err.Error(), nil
	}
	defer m.data.Free()
	return kind, string(m.data.Materialize()), nil
}

// TestReadsThatAreCutOrChangedAreRefusedOrRead, however the bytes are divided.
func TestReadsThatAreCutOrChangedAreRefusedOrRead(t *testing.T) {
	for name, b := range readExamples(t) {
		read := func(b []byte, pieces int) (text string, err error) {
			if name == "read" {
				method, body, err := readRequest(b, pieces)
				return method + " " + body, err
			}
			kind, body, err := readAnswer(b, pieces)
			return fmt.Sprint(kind, " ", body), err
		}
		same := func(b []byte) {
			t.Helper()
			want, err := read(b, len(b))
			for _, pieces := range []int{1, 2, 3} {
				if got, other := read(b, pieces); got != want || (err == nil) != (other == nil) {
					t.Errorf("%s: %q in pieces of %d is %q, %v, and else %q, %v", name, b, pieces, got, other, want, err)
				}
			}
			if err != nil && !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for cut := range b {
			same(b[:cut])
			for bit := range 8 {
				flipped := slices.Clone(b)
				flipped[cut] ^= 1 << bit
				same(flipped)
			}
		}
		same(b)
	}
	_, _, err := readRequest(make([]byte, keptRequestMax+2), arrivingPiece)
	wantKind(t, "a long request", err, fault.TooLarge)
	if method, _, err := readRequest([]byte{200, 1}, 1); method != "" || err != nil {
		t.Error("a read of a later build:", method, err)
	}
	later, err := proto.Marshal(status.New(codes.Unimplemented, "no such read").Proto())
	if err != nil {
		t.Fatal(err)
	}
	if err := (&keptRead{}).refusal(&message{data: mem.BufferSlice{mem.SliceBuffer(later)}}); !errors.Is(err, errNotKept) {
		t.Error("a read that an older server does not know:", err)
	}
}

// FuzzReads reads any bytes as a request and as a message of an answer; how they are divided does not matter.
func FuzzReads(f *testing.F) {
	for _, b := range readExamples(f) {
		f.Add(b, uint8(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, pieces uint8) {
		n := max(1, int(pieces))
		method, body, err := readRequest(b, n)
		otherMethod, otherBody, other := readRequest(b, len(b))
		if method != otherMethod || body != otherBody || (err == nil) != (other == nil) || err == nil && body != string(b[1:]) {
			t.Errorf("%s %q, %v; %s %q, %v", method, body, err, otherMethod, otherBody, other)
		}
		kind, text, err := readAnswer(b, n)
		otherKind, otherText, other := readAnswer(b, len(b))
		if kind != otherKind || text != otherText || (err == nil) != (other == nil) {
			t.Errorf("%d %q, %v; %d %q, %v", kind, text, err, otherKind, otherText, other)
		}
	})
}
