package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
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
	l := listen(t)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String(), srv
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

// pair is a server of a memory and a peer of it.
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

// TestManyInsertsAreUnderWayAtOnce needs all of them at the gate before it opens.
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

func someSeries(n, rows int) []peer.Series {
	shared := make([]point.Nanos, rows)
	for i := range shared {
		shared[i] = int64(i) * 15e9
	}
	out := make([]peer.Series, n)
	for i := range out {
		s := &out[i]
		s.Labels = point.MakeLabels("__name__", "m", "i", fmt.Sprintf("%06d", i), "k", "v")
		s.Times = shared
		if i%5 == 4 {
			s.Times = slices.Clone(shared)
			for k := range s.Times {
				s.Times[k] += int64(k*k%97) + int64(i)
			}
		}
		s.Values = make([]float64, rows)
		for k := range s.Values {
			s.Values[k] = float64(i) + float64(k)/8
		}
		if i%3 == 2 {
			s.Hists = []peer.Hist{{Time: int64(i), H: []byte(fmt.Sprint("h", i))}, {Time: int64(i) + 1, H: []byte("x")}}
		}
	}
	return out
}

func readAll(set peer.SeriesSet, err error) ([]peer.Series, error) {
	if err != nil {
		return nil, err
	}
	var out []peer.Series
	for set.Next() {
		out = append(out, *set.At())
	}
	err = set.Err()
	return out, errors.Join(err, set.Close())
}

// someRanks are ranks in runs, as frames leave them.
func someRanks(n int) []point.Stamp {
	out := make([]point.Stamp, n)
	for i := range out {
		out[i] = point.Stamp(1_790_000_000e9+int64(i/7)*1024) ^ point.Stamp(i/900)<<40
	}
	return out
}

func TestSelectGivesWhatThePeerHas(t *testing.T) {
	m, p := pair(t)
	check := func(what string, series []peer.Series) {
		t.Helper()
		for i := range series {
			s := &series[i]
			s.Ranks, s.HistRanks = someRanks(len(s.Times)), someRanks(len(s.Hists))
		}
		m.mu.Lock()
		m.series = series
		m.mu.Unlock()
		ranked, err := readAll(p.Select(t.Context(), &peer.Select{Ranks: true}))
		if err != nil || !m.last.(*peer.Select).Ranks {
			t.Fatalf("%s with ranks: %v", what, err)
		}
		for i := range ranked {
			a, b := &series[i], &ranked[i]
			if !slices.Equal(a.Ranks, b.Ranks) || !slices.Equal(a.HistRanks, b.HistRanks) || !slices.Equal(a.Times, b.Times) {
				t.Fatalf("%s with ranks: series %d has %.200v, want %.200v", what, i, b.Ranks, a.Ranks)
			}
		}
		got, err := readAll(p.Select(t.Context(), &peer.Select{}))
		if err != nil || m.last.(*peer.Select).Ranks {
			t.Fatalf("%s: %v", what, err)
		}
		if len(got) != len(series) {
			t.Fatalf("%s: %d series, want %d", what, len(got), len(series))
		}
		for i := range got {
			a, b := &series[i], &got[i]
			ok := a.Labels == b.Labels && b.Ranks == nil && b.HistRanks == nil && slices.Equal(a.Times, b.Times) && slices.Equal(a.Values, b.Values) && len(a.Hists) == len(b.Hists)
			for k := range a.Hists {
				ok = ok && a.Hists[k].Time == b.Hists[k].Time && string(a.Hists[k].H) == string(b.Hists[k].H)
			}
			if !ok {
				t.Fatalf("%s: series %d is %.200v, want %.200v", what, i, b, a)
			}
		}
	}
	check("nothing", nil)
	check("one row each", someSeries(10_000, 1))
	check("several batches", someSeries(200, 700))
	check("series in pieces", someSeries(4, 3*pieceRowsMax+17))
	only := []peer.Series{{Labels: point.MakeLabels("__name__", "h")}}
	for i := range 3000 {
		only[0].Hists = append(only[0].Hists, peer.Hist{Time: int64(i), H: make([]byte, 500)})
	}
	check("histograms in pieces", only)
	labels := someSeries(9000, 0)
	for i := range labels {
		labels[i].Times, labels[i].Values, labels[i].Hists = nil, nil, nil
	}
	check("labels only", labels)
	m.until(t, "all sets are closed", func() bool { return m.sets == 0 })
}

// TestSharedTimesAreShared: series of one host have one column of times in memory, here as there.
func TestSharedTimesAreShared(t *testing.T) {
	m, p := pair(t)
	m.series = someSeries(4, 100)
	got, err := readAll(p.Select(t.Context(), &peer.Select{}))
	if err != nil {
		t.Fatal(err)
	}
	if &got[0].Times[0] != &got[3].Times[0] {
		t.Error("the same times came twice")
	}
	got[0].Values = append(got[0].Values, 1) // belongs to the caller: no other reader sees it
	if got[1].Values[0] != m.series[1].Values[0] {
		t.Error("appending to one series changes the next")
	}
}

func TestClosingASelectEndsItAtThePeer(t *testing.T) {
	m, p := pair(t)
	m.series = someSeries(2000, 5000) // 160 MB: far more than windows hold
	set, err := p.Select(t.Context(), &peer.Select{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if !set.Next() {
			t.Fatal(set.Err())
		}
	}
	if m.sets != 1 {
		t.Error("the peer read to the end although nobody took it")
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	if set.Next() {
		t.Error("a closed set goes on")
	}
	m.until(t, "the peer's set is closed", func() bool { return m.sets == 0 })

	ctx, cancel := context.WithCancel(t.Context())
	set, err = p.Select(ctx, &peer.Select{})
	if err != nil {
		t.Fatal(err)
	}
	set.Next()
	cancel()
	for set.Next() {
	}
	wantKind(t, "a select whose asker went away", set.Err(), fault.Canceled)
	_ = set.Close()
	m.until(t, "the peer's set is closed", func() bool { return m.sets == 0 })
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
	q.Ranks = false // a select asks for them by the format it reads, see TestSelectGivesWhatThePeerHas
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
	must(p.DeleteSeries(t.Context(), &peer.Select{}))
	same("a select of all partitions", m.last, &peer.Select{})
	must(p.DeleteSeries(t.Context(), &peer.Select{Partitions: []point.PartitionID{}}))
	same("a select of no partition", m.last, &peer.Select{Partitions: []point.PartitionID{}})
	names, more, err := p.LabelNames(t.Context(), &q, 7)
	must(err)
	same("names", []any{names, more, m.last}, []any{m.names, true, &q})
	values, more, err := p.LabelValues(t.Context(), &q, "n", 6)
	must(err)
	same("values", []any{values, more, m.last}, []any{append([]string{"n"}, m.names...), false, &q})
	of := peer.Select{Table: "t", Partitions: parts, Lo: -3, Hi: 4, MapSeq: 8, MapNext: 9}
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
	st.(*stream).limits.insertsMax = 100 // a gateway that does not keep to it
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

// TestStreamOfAKilledServer: all waiting calls fail at once, and the error says that a new stream is needed; when the server is
// back, a new stream works.
func TestStreamOfAKilledServer(t *testing.T) {
	m := newMemory()
	m.gate = make(chan struct{})
	addr, srv := serve(t, m, Settings{})
	p := dial(t, addr, DialSettings{})
	st := openStream(t, p)
	m.series = someSeries(2000, 5000)
	set, err := p.Select(t.Context(), &peer.Select{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	errs := make(chan error)
	for range 20 {
		go func() { errs <- st.Insert(context.Background(), &peer.Insert{}) }()
	}
	m.until(t, "all are at the gate", func() bool { return m.waiting == 20 })
	go srv.grpc.Stop()
	for range 20 {
		if err := <-errs; !fault.Is(err, fault.Unavailable) || !errors.Is(err, peer.ErrStreamBroken) {
			t.Errorf("an insert in flight: %v", err)
		}
	}
	for set.Next() {
	}
	wantKind(t, "a select in flight", set.Err(), fault.Unavailable)
	for _, err := range []error{st.Insert(t.Context(), &peer.Insert{}), st.Define(t.Context(), someDefs(1))} {
		if !fault.Is(err, fault.Unavailable) || !errors.Is(err, peer.ErrStreamBroken) {
			t.Errorf("a later call: %v", err)
		}
	}
	_, err = p.Stats(t.Context(), "t", 1)
	wantKind(t, "a call of a peer that is gone", err, fault.Unavailable)
	m.until(t, "the peer's streams are closed", func() bool { return m.streams == 0 && m.sets == 0 })
	close(m.gate)

	again, err := NewServer(Deps{Storage: m}, Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- again.Serve(l) }()
	until(t, "the peer is back", func() bool {
		next, err := p.OpenStream(t.Context(), "t")
		if err != nil {
			return false
		}
		defer next.Close()
		return next.Insert(t.Context(), &peer.Insert{}) == nil
	})
	_, err = p.Fetch(t.Context(), &peer.FileQuery{Table: "t"})
	wantKind(t, "METADATA of a server that keeps none", err, fault.Unavailable)
	if err := errors.Join(p.Close(), again.Shutdown(t.Context()), <-served); err != nil {
		t.Error(err)
	}
	wantKind(t, "a call of a closed peer", p.DeleteSeries(t.Context(), &peer.Select{}), fault.Unavailable)
}

// TestShutdownAcksWhatIsUnderWay: an insert that was taken is acked, the stream then ends.
func TestShutdownAcksWhatIsUnderWay(t *testing.T) {
	m := newMemory()
	m.gate = make(chan struct{})
	addr, srv := serve(t, m, Settings{})
	p := dial(t, addr, DialSettings{})
	st := openStream(t, p)
	acked := make(chan error)
	go func() { acked <- st.Insert(t.Context(), &peer.Insert{}) }()
	m.until(t, "it is at the gate", func() bool { return m.waiting == 1 })
	down := make(chan error)
	go func() { down <- srv.Shutdown(context.Background()) }()
	<-srv.stopping
	close(m.gate)
	if err := <-acked; err != nil {
		t.Errorf("an insert under way: %v", err)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
	if err := st.Insert(t.Context(), &peer.Insert{}); !errors.Is(err, peer.ErrStreamBroken) {
		t.Errorf("an insert after it: %v", err)
	}
}

func TestClosedStreamSaysSo(t *testing.T) {
	m, p := pair(t)
	m.gate = make(chan struct{})
	st := openStream(t, p)
	done := make(chan error)
	go func() { done <- st.Insert(t.Context(), &peer.Insert{}) }()
	m.until(t, "it is at the gate", func() bool { return m.waiting == 1 })
	if err := st.Close(); err != nil {
		t.Error(err)
	}
	for _, err := range []error{<-done, st.Insert(t.Context(), &peer.Insert{}), st.Define(t.Context(), someDefs(1))} {
		if !fault.Is(err, fault.Unavailable) || !errors.Is(err, peer.ErrStreamBroken) {
			t.Errorf("a call of a closed stream: %v", err)
		}
	}
	m.until(t, "the dictionary is forgotten", func() bool { return m.streams == 0 })
	close(m.gate)
}

func TestNobodyIsThere(t *testing.T) {
	l := listen(t)
	addr := l.Addr().String()
	_ = l.Close()
	p := dial(t, addr, DialSettings{})
	for range 3 {
		began := time.Now()
		_, err := p.OpenStream(t.Context(), "t")
		wantKind(t, "an open", err, fault.Unavailable)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v to say so", took)
		}
	}
}

// wire is a proxy that can be frozen: it then passes no byte in either direction, and closes nothing.
type wire struct {
	addr string
	mu   sync.Mutex
	cond *sync.Cond
	cold bool
}

func newWire(t *testing.T, to string) *wire {
	l := listen(t)
	w := &wire{addr: l.Addr().String()}
	w.cond = sync.NewCond(&w.mu)
	var conns []net.Conn
	var wg sync.WaitGroup
	copyAll := func(dst, src net.Conn) {
		b := make([]byte, 4096)
		for {
			n, err := src.Read(b)
			w.mu.Lock()
			for w.cold {
				w.cond.Wait()
			}
			w.mu.Unlock()
			if err == nil {
				_, err = dst.Write(b[:n])
			}
			if err != nil {
				_ = dst.Close()
				return
			}
		}
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			w.mu.Lock()
			conns = append(conns, in, out)
			w.mu.Unlock()
			wg.Go(func() { copyAll(out, in) })
			wg.Go(func() { copyAll(in, out) })
		}
	})
	t.Cleanup(func() {
		w.freeze(false)
		_ = l.Close()
		w.mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		w.mu.Unlock()
		wg.Wait()
	})
	return w
}

func (w *wire) freeze(cold bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cold = cold
	w.cond.Broadcast()
}

// TestFrozenPeer: inserts, selects and calls in flight do not hang when the other end neither answers nor closes.
func TestFrozenPeer(t *testing.T) {
	m := newMemory()
	m.gate = make(chan struct{})
	addr, _ := serve(t, m, Settings{})
	w := newWire(t, addr)
	metrics := NewDialMetrics(prometheus.NewRegistry())
	p := dial(t, w.addr, DialSettings{Metrics: metrics})
	st := openStream(t, p)
	done := make(chan error)
	go func() { done <- st.Insert(context.Background(), &peer.Insert{}) }()
	m.until(t, "it is at the gate", func() bool { return m.waiting == 1 })
	began := time.Now()
	w.freeze(true)
	go func() {
		_, err := p.Stats(context.Background(), "t", 1)
		done <- err
	}()
	for range 2 {
		wantKind(t, "a call in flight", <-done, fault.Unavailable)
	}
	if took := time.Since(began); took > 4*time.Second || took < time.Second {
		t.Errorf("it took %v to notice, 2 s are meant", took)
	}
	if err := st.Insert(t.Context(), &peer.Insert{}); !errors.Is(err, peer.ErrStreamBroken) {
		t.Errorf("a later insert: %v", err)
	}
	w.freeze(false)
	close(m.gate)
	until(t, "the peer is back", func() bool {
		_, _, err := p.LabelNames(t.Context(), &peer.Select{}, 0)
		return err == nil
	})
}

// LabelNames of a peer that is slow but alive: the sign of life is another call's.
func TestSlowPeerIsNotFrozen(t *testing.T) {
	m := newMemory()
	m.gate = make(chan struct{})
	addr, _ := serve(t, m, Settings{})
	p := dial(t, addr, DialSettings{SilenceMax: 400 * time.Millisecond})
	st := openStream(t, p)
	done := make(chan error, 1)
	go func() { done <- st.Insert(context.Background(), &peer.Insert{}) }()
	select {
	case err := <-done:
		t.Errorf("an insert that takes long: %v", err)
	case <-time.After(2 * time.Second):
		close(m.gate)
		if err := <-done; err != nil {
			t.Errorf("an insert that took long: %v", err)
		}
	}
}

// TestListenerThatStopsReading accepts and sends nothing at all.
func TestListenerThatStopsReading(t *testing.T) {
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	p := dial(t, l.Addr().String(), DialSettings{ConnectMax: 300 * time.Millisecond})
	began := time.Now()
	_, err := p.OpenStream(t.Context(), "t")
	wantKind(t, "an open", err, fault.Unavailable)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %v to say so", took)
	}
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
	f("too many calls", DialSettings{TLS: plain, CallsMax: 1001}.Validate())
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
