package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var plain = TLS{Insecure: true}

// serve starts a server of m on a loopback port.
func serve(t testing.TB, m *memory, s Settings) (addr string, srv *Server) {
	t.Helper()
	if s.TLS == (TLS{}) {
		s.TLS = plain
	}
	srv, err := NewServer(Deps{Storage: m, Metadata: m, Registerer: prometheus.NewRegistry()}, s)
	if err != nil {
		t.Fatal(err)
	}
	return serving(t, srv), srv
}

// A server that is stopped before it serves, or while it begins to, ends; the race detector looks on.
func TestAServerMayBeStoppedBeforeItServes(t *testing.T) {
	for range 50 {
		srv, err := NewServer(Deps{Storage: newMemory(), Registerer: prometheus.NewRegistry()}, Settings{TLS: plain})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		l := listen(t)
		go func() { done <- srv.Serve(l) }()
		if err := srv.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func dial(t testing.TB, addr string, s DialSettings) *Peer {
	t.Helper()
	if s.TLS == (TLS{}) {
		s.TLS = plain
	}
	p, err := Dial(addr, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// pair is a server of a memory and its peer.
func pair(t testing.TB) (*memory, *Peer) {
	t.Helper()
	m := newMemory()
	addr, _ := serve(t, m, Settings{})
	return m, dial(t, addr, DialSettings{})
}

func openStream(t testing.TB, p *Peer) peer.Stream {
	t.Helper()
	st, err := p.OpenStream(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

func wantKind(t testing.TB, what string, err error, k fault.Kind) {
	t.Helper()
	if !fault.Is(err, k) {
		t.Errorf("%s: %v, of kind %v; want %v", what, err, fault.KindOf(err), k)
	}
}

func someDefs(n int) []peer.Def {
	defs := make([]peer.Def, n)
	for i := range defs {
		defs[i] = peer.Def{ID: point.SeriesID(i), Labels: point.MakeLabels("__name__", fmt.Sprint("m", i%101), "host", fmt.Sprint("h", i/101), "os", "x")}
	}
	return defs
}

func someRows(n int, rng *rand.Rand) *peer.Insert {
	in := &peer.Insert{Partition: point.PartitionID(rng.Uint64()), MapSeq: rng.Uint64(), Stamp: point.Stamp(rng.Uint64()), Level: point.Level(rng.IntN(3))}
	for i := range n {
		in.IDs = append(in.IDs, point.SeriesID(i))
		in.Times = append(in.Times, int64(i/7)*1e9)
		in.Values = append(in.Values, float64(rng.IntN(1000))/10)
	}
	return in
}

func TestInsertsArriveAsTheyWere(t *testing.T) {
	m, p := pair(t)
	st := openStream(t, p)
	defs := someDefs(20_000) // several parts
	defs[7].ID = 4_000_000_000
	if err := st.Define(t.Context(), defs); err != nil {
		t.Fatal(err)
	}
	for _, d := range defs {
		if m.defs[d.ID] != d.Labels {
			t.Fatalf("%d was defined as %v, arrived as %v", d.ID, d.Labels, m.defs[d.ID])
		}
	}
	in := someRows(1000, rand.New(rand.NewPCG(1, 2)))
	in.Values[3] = math.Float64frombits(point.StaleNaN)
	in.Hists = []point.HistRow{{ID: 4_000_000_000, Time: -5, H: []byte{1, 2, 3}}, {ID: 2, Time: 7, H: []byte{}}}
	in.Exemplars = []point.ExemplarRow{{ID: 3, Time: 9, Value: math.Inf(1), Labels: point.MakeLabels("__name__", "x", "trace", "1")}, {ID: 4}}
	for _, x := range []*peer.Insert{in, {Partition: 1}} {
		if err := st.Insert(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	bits := cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) })
	empty := cmp.Comparer(func(a, b []byte) bool { return string(a) == string(b) })
	if d := cmp.Diff(*in, m.got[0], bits, empty); d != "" {
		t.Error(d)
	}
	if m.got[1].Partition != 1 || len(m.got[1].IDs) != 0 {
		t.Errorf("an insert of nothing arrived as %v", m.got[1])
	}
}

// TestManyInsertsAreUnderWayAtOnce needs all inserts at the gate before it opens.
func TestManyInsertsAreUnderWayAtOnce(t *testing.T) {
	m, p := pair(t)
	m.gate = make(chan struct{})
	st := openStream(t, p)
	const n = 300
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			in := someRows(10, rand.New(rand.NewPCG(uint64(i), 2)))
			in.Partition = point.PartitionID(i)
			if err := st.Insert(t.Context(), in); err != nil {
				t.Error(err)
			}
		})
	}
	m.until(t, "all inserts wait together", func() bool { return m.waiting == n })
	close(m.gate)
	wg.Wait()
	seen := map[point.PartitionID]bool{}
	for _, in := range m.got {
		seen[in.Partition] = true
	}
	if len(seen) != n {
		t.Errorf("%d of %d inserts arrived", len(seen), n)
	}
}

func TestKindsSurvive(t *testing.T) {
	m, p := pair(t)
	st := openStream(t, p)
	for _, k := range fault.Kinds() {
		m.mu.Lock()
		m.fail = fault.Errorf(k, "the reason is %q", k)
		m.mu.Unlock()
		want := k
		if k == fault.Canceled {
			want = fault.Unavailable // this side has cancelled nothing
		}
		calls := map[string]error{
			"insert": st.Insert(t.Context(), &peer.Insert{}),
			"define": st.Define(t.Context(), someDefs(1)),
			"delete": p.DeleteSeries(t.Context(), &peer.Select{}),
			"store":  p.Store(t.Context(), &peer.File{}),
			"put":    p.PutMetadata(t.Context(), "t", nil),
		}
		_, calls["open"] = p.OpenStream(t.Context(), "t")
		_, calls["select"] = p.Select(t.Context(), &peer.Select{})
		_, calls["change"] = p.Change(t.Context(), &peer.Change{})
		_, calls["fetch"] = p.Fetch(t.Context(), &peer.FileQuery{Table: "t"})
		_, calls["stats"] = p.Stats(t.Context(), "t", 1)
		_, calls["get"] = p.GetMetadata(t.Context(), "t", "")
		_, _, calls["names"] = p.LabelNames(t.Context(), &peer.Select{}, 0)
		_, _, calls["values"] = p.LabelValues(t.Context(), &peer.Select{}, "", 0)
		_, calls["exemplars"] = p.Exemplars(t.Context(), &peer.Select{}, nil)
		for what, err := range calls {
			if !fault.Is(err, want) || !strings.Contains(err.Error(), fmt.Sprintf("the reason is %q", k)) {
				t.Errorf("%s: %v arrived as %v, of kind %v", what, m.fail, err, fault.KindOf(err))
			}
			if called := what != "define"; called && !peer.IsAnswer(err) {
				t.Errorf("%s: %v is not known as the server's own answer", what, err)
			}
		}
	}
	m.fail = nil
	if err := st.Insert(t.Context(), &peer.Insert{}); err != nil {
		t.Errorf("the stream does not go on after errors: %v", err)
	}
	if _, err := p.OpenStream(t.Context(), "another"); !fault.Is(err, fault.Stale) {
		t.Errorf("a stream into a table that is not known: %v", err)
	}
	m.setErr = fault.Errorf(fault.TooLarge, "too many samples")
	m.series = someSeries(10, 10)
	got, err := readAll(p.Select(t.Context(), &peer.Select{}))
	if len(got) > 10 || !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "too many samples") {
		t.Errorf("a select that ends early: %d series, %v", len(got), err)
	}
}

// TestEveryFieldTravels fills requests and answers by reflection: a field that is added and not carried is found here.
func TestEveryFieldTravels(t *testing.T) {
	m, p := pair(t)
	rng := rand.New(rand.NewPCG(3, 4))
	var (
		q       peer.Select
		rows    []point.MetadataRow
		ex      []peer.SeriesExemplars
		parts   []point.PartitionID
		sets    [][]peer.Matcher
		change  peer.Change
		file    peer.File
		changed peer.Changed
		stats   peer.Stats
	)
	for _, x := range []any{&q, &rows, &ex, &parts, &sets, &change, &file, &changed, &stats} {
		fill(reflect.ValueOf(x).Elem(), rng)
	}
	q.Copies = peer.UnsureCopies
	q.Ranks = false               // a select asks for ranks by the format it reads, see TestSelectGivesWhatThePeerHas
	q.Newest, q.Beside = false, 0 // do not travel
	q.Hold = 0                    // of deletions in staged rows alone, see below
	for i := range ex {
		for k := range ex[i].Exemplars {
			ex[i].Exemplars[k].ID = 0 // means nothing there
		}
	}
	m.rows, m.ex, m.changed, m.file, m.st, m.names = rows, ex, &changed, &file, &stats, []string{"a", "é"}
	same := func(what string, got, want any) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(p.DeleteSeries(t.Context(), &q))
	same("select", m.last, &q)
	_, err := readAll(p.Select(t.Context(), &q))
	must(err)
	same("select", m.last, &q)
	staged := peer.Select{Table: "t", Copies: peer.StagedDeletes}
	must(p.DeleteSeries(t.Context(), &staged))
	same("a deletion in staged rows", m.last, &staged)
	for _, kind := range []peer.Copies{peer.StagedHolds, peer.StagedRenewals, peer.StagedDeletes, peer.StagedReleases} {
		held := peer.Select{Table: "t", Copies: kind, Hold: 1 << 63}
		must(p.DeleteSeries(t.Context(), &held))
		same("a hold of staged rows", m.last, &held)
	}
	must(p.DeleteSeries(t.Context(), &peer.Select{}))
	same("a select of all partitions", m.last, &peer.Select{})
	must(p.DeleteSeries(t.Context(), &peer.Select{Partitions: []point.PartitionID{}}))
	same("a select of no partition", m.last, &peer.Select{Partitions: []point.PartitionID{}})
	q.Limit = 0 // of series; look-ups of names have their own
	names, more, err := p.LabelNames(t.Context(), &q, 7)
	must(err)
	same("names", []any{names, more, m.last}, []any{m.names, true, &q})
	values, more, err := p.LabelValues(t.Context(), &q, "n", 6)
	must(err)
	same("values", []any{values, more, m.last}, []any{append([]string{"n"}, m.names...), false, &q})
	of := peer.Select{Table: "t", Partitions: parts, Lo: -3, Hi: 4, MapSeq: 8, MapNext: 9, Copies: peer.SureCopies}
	exs, err := p.Exemplars(t.Context(), &of, sets)
	must(err)
	same("exemplars", []any{exs, m.last}, []any{ex, []any{&of, sets}})
	must(p.PutMetadata(t.Context(), "t", rows))
	same("put metadata", m.last, []any{"t", rows})
	gotRows, err := p.GetMetadata(t.Context(), "t", "m")
	must(err)
	same("get metadata", []any{gotRows, m.last}, []any{rows, []any{"t", "m"}})
	gotStats, err := p.Stats(t.Context(), "t", 12)
	must(err)
	same("stats", []any{gotStats, m.last}, []any{&stats, []any{"t", 12}})
	gotChanged, err := p.Change(t.Context(), &change)
	must(err)
	same("change", []any{gotChanged, m.last}, []any{&changed, &change})
	must(p.Store(t.Context(), &file))
	same("store", m.last, &file)
	gotFile, err := p.Fetch(t.Context(), &peer.FileQuery{Table: "t", Txn: file.Txn, Since: file.Since})
	must(err)
	same("fetch", []any{gotFile, m.last}, []any{&file, &peer.FileQuery{Table: "t", Txn: file.Txn, Since: file.Since}})
	must(p.Store(t.Context(), &peer.File{Ops: []byte{1}}))
	same("a file of ops", m.last, &peer.File{Ops: []byte{1}})
	must(p.Store(t.Context(), &peer.File{Ops: []byte{1}, Digest: 7}))
	same("a file of ops with a digest", m.last, &peer.File{Ops: []byte{1}, Digest: 7})
	must(p.Store(t.Context(), &peer.File{Map: []byte{}}))
	same("a file of an empty map", m.last, &peer.File{Map: []byte{}})
	file.Map = make([]byte, 5<<20)
	must(p.Store(t.Context(), &file))
	same("a map of several chunks", len(m.last.(*peer.File).Map), 5<<20)
	gotFile, err = p.Fetch(t.Context(), &peer.FileQuery{Table: "t", Txn: file.Txn, Since: file.Since})
	must(err)
	same("a map of several chunks", gotFile, &file)
}

// fill sets every field to something other than zero.
func fill(v reflect.Value, rng *rand.Rand) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), rng)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		for i := range 3 {
			fill(v.Index(i), rng)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), rng)
		}
	case reflect.String:
		if v.Type() == reflect.TypeFor[point.Labels]() {
			v.SetString(string(point.MakeLabels("__name__", fmt.Sprint("m", rng.Uint32()))))
			return
		}
		v.SetString(fmt.Sprint("s", rng.Uint32()))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(rng.Float64())
	case reflect.Int, reflect.Int64:
		v.SetInt(-1 - rng.Int64N(1<<40))
	case reflect.Uint8:
		v.SetUint(1 + rng.Uint64N(3))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(1 + uint64(rng.Uint32()>>1))
	default:
		panic("what is a " + v.Type().String())
	}
}

func TestCancelledInsertsReturnAtOnce(t *testing.T) {
	m, p := pair(t)
	m.gate = make(chan struct{})
	st := openStream(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- st.Insert(ctx, &peer.Insert{}) }()
	m.until(t, "it is at the gate", func() bool { return m.waiting == 1 })
	cancel()
	wantKind(t, "an insert that was cancelled", <-done, fault.Canceled)
	wantKind(t, "an insert that is cancelled before", st.Insert(ctx, &peer.Insert{}), fault.Canceled)
	short, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	err := st.Insert(short, &peer.Insert{})
	if !fault.Is(err, fault.Unavailable) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, peer.ErrStreamBroken) {
		t.Errorf("an insert whose time ran out: %v", err)
	}
	close(m.gate)
	if err := st.Insert(t.Context(), &peer.Insert{}); err != nil {
		t.Errorf("the stream does not go on: %v", err)
	}
	_, err = p.Stats(ctx, "t", 1)
	wantKind(t, "a call that is cancelled", err, fault.Canceled)
	_, err = p.OpenStream(ctx, "t")
	wantKind(t, "an open that is cancelled", err, fault.Canceled)
}

func TestInsertsAreThrottledAtTheBounds(t *testing.T) {
	m := newMemory()
	m.gate = make(chan struct{})
	addr, _ := serve(t, m, Settings{WindowBytes: 40 << 20, InsertsMax: 3})
	p := dial(t, addr, DialSettings{})
	st := openStream(t, p)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := st.Insert(t.Context(), &peer.Insert{}); err != nil {
				t.Error(err)
			}
		})
	}
	m.until(t, "three are at the gate", func() bool { return m.waiting == 3 })
	wantKind(t, "the fourth", st.Insert(t.Context(), &peer.Insert{}), fault.Throttled)
	st.(*stream).limits.insertsMax = 100 // a gateway that ignores the bound
	wantKind(t, "the fourth, asked all the same", st.Insert(t.Context(), &peer.Insert{}), fault.Throttled)
	close(m.gate)
	wg.Wait()
	if err := st.Insert(t.Context(), &peer.Insert{}); err != nil {
		t.Error(err)
	}

	m.mu.Lock()
	m.gate = make(chan struct{})
	m.mu.Unlock()
	large := &peer.Insert{Hists: []point.HistRow{{H: make([]byte, 25<<20)}}}
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(large.Hists[0].H)
	wg.Go(func() {
		if err := st.Insert(t.Context(), large); err != nil {
			t.Error(err)
		}
	})
	m.until(t, "the large one is at the gate", func() bool { return m.waiting == 1 })
	wantKind(t, "beyond the window", st.Insert(t.Context(), large), fault.Throttled)
	st.(*stream).limits.windowBytes = 1 << 40
	wantKind(t, "beyond the window, asked all the same", st.Insert(t.Context(), large), fault.Throttled)
	close(m.gate)
	wg.Wait()
	large.Hists[0].H = make([]byte, 40<<20)
	_, _ = r.Read(large.Hists[0].H)
	wantKind(t, "larger than a message", st.Insert(t.Context(), large), fault.TooLarge)
	if err := st.Insert(t.Context(), &peer.Insert{}); err != nil {
		t.Errorf("the stream does not go on: %v", err)
	}
}

func TestCallsAreThrottledAtTheBound(t *testing.T) {
	m := newMemory()
	addr, _ := serve(t, m, Settings{})
	p := dial(t, addr, DialSettings{CallsMax: 1})
	openStream(t, p)
	_, err := p.Stats(t.Context(), "t", 1)
	wantKind(t, "a call beside a stream", err, fault.Throttled)
}

func TestSettingsAreChecked(t *testing.T) {
	f := func(what string, err error) {
		t.Helper()
		wantKind(t, what, err, fault.Invalid)
	}
	_, err := Dial("host:1", DialSettings{})
	f("no TLS", err)
	_, err = Dial("host", DialSettings{TLS: plain})
	f("no port", err)
	_, err = Dial("host:1", DialSettings{TLS: TLS{CAFile: "no", CertFile: "such", KeyFile: "file"}})
	f("files that are not there", err)
	f("both", (&TLS{Insecure: true, CAFile: "x"}).validate())
	f("too many calls", DialSettings{TLS: plain, CallsMax: callsMax + 1}.Validate())
	f("too little silence", DialSettings{TLS: plain, SilenceMax: 1}.Validate())
	f("a small window", Settings{TLS: plain, WindowBytes: 1 << 20}.Validate())
	f("a small sum", Settings{TLS: plain, InsertBytesMax: 1 << 20}.Validate())
	f("no silence", Settings{TLS: plain, SilenceMax: 1}.Validate())
	_, err = NewServer(Deps{}, Settings{TLS: plain})
	f("no storage", err)
	if err := errors.Join(Settings{TLS: plain}.Validate(), DialSettings{TLS: plain}.Validate()); err != nil {
		t.Error(err)
	}
}
