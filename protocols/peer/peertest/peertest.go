// Package peertest tests what every peer.Storage promises: the server in its process and the same over a connection run
// all tests.
package peertest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Target is an empty table on a storage, and one of its partitions, with the times [Lo, Hi), that the storage leads.
type Target struct {
	Storage   peer.Storage
	Table     string
	Partition point.PartitionID
	MapSeq    uint64
	Lo, Hi    point.Nanos
}

// Run runs every test on a target of its own. The partition must span 1000 s at least.
func Run(t *testing.T, target func(t *testing.T) Target) {
	for name, test := range map[string]func(*testing.T, *suite){
		"RowsComeBack":            rowsComeBack,
		"HistogramsComeBack":      histogramsComeBack,
		"SeriesComeInLabelOrder":  seriesComeInLabelOrder,
		"SelectKeepsItsBounds":    selectKeepsItsBounds,
		"SelectRefuses":           selectRefuses,
		"ClosingEarlyIsFine":      closingEarlyIsFine,
		"NamesAndValues":          namesAndValues,
		"LimitedSeries":           limitedSeries,
		"Exemplars":               exemplars,
		"Metadata":                metadata,
		"DeletedRowsAreGone":      deletedRowsAreGone,
		"StatsCount":              statsCount,
		"InsertRefuses":           insertRefuses,
		"StreamsHaveOwnNumbers":   streamsHaveOwnNumbers,
		"ManyWriters":             manyWriters,
		"CancelledCalls":          cancelledCalls,
		"ClosedStream":            closedStream,
		"UnknownTables":           unknownTables,
		"ColumnsStayTheCallers":   columnsStayTheCallers,
		"SeriesBelongToTheCaller": seriesBelongToTheCaller,
		"LaterInsertsWin":         laterInsertsWin,
		"RanksComeWhenAsked":      ranksComeWhenAsked,
	} {
		t.Run(name, func(t *testing.T) { test(t, &suite{t: t, Target: target(t)}) })
	}
}

type suite struct {
	t *testing.T
	Target
	inserts atomic.Int64
}

func (s *suite) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *suite) kind(what string, err error, k fault.Kind) {
	s.t.Helper()
	if !fault.Is(err, k) {
		s.t.Errorf("%s: %v, of kind %v; want %v", what, err, fault.KindOf(err), k)
	}
}

func (s *suite) stream() peer.Stream {
	s.t.Helper()
	st, err := s.Storage.OpenStream(s.t.Context(), s.Table)
	s.must(err)
	s.t.Cleanup(func() {
		if err := st.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return st
}

// at is a time within the partition.
func (s *suite) at(second int) point.Nanos { return s.Lo + int64(second)*1e9 }

func (s *suite) insert(stamp point.Stamp, in peer.Insert) *peer.Insert {
	in.Partition, in.MapSeq = s.Partition, s.MapSeq
	in.Stamp = point.Stamp(time.Now().UnixNano())&^1023 + stamp<<10 + point.Stamp(s.inserts.Add(1)%1024) // each of another gateway: no two are the same
	return &in
}

func host(i int) point.Labels {
	return point.MakeLabels("__name__", "cpu", "host", fmt.Sprintf("h%03d", i), "parity", []string{"even", "odd"}[i%2])
}

// write defines n hosts and inserts a row a second of each.
func (s *suite) write(st peer.Stream, n, seconds int) {
	s.t.Helper()
	var defs []peer.Def
	var in peer.Insert
	for i := range n {
		defs = append(defs, peer.Def{ID: point.SeriesID(i), Labels: host(i)})
		for k := range seconds {
			in.IDs = append(in.IDs, point.SeriesID(i))
			in.Times = append(in.Times, s.at(k))
			in.Values = append(in.Values, float64(1000*i+k))
		}
	}
	s.must(st.Define(s.t.Context(), defs))
	s.must(st.Insert(s.t.Context(), s.insert(0, in)))
}

func (s *suite) all() *peer.Select { return &peer.Select{Table: s.Table, Lo: s.Lo, Hi: s.Hi - 1} }

// read returns a select as text: a line a series.
func (s *suite) read(q *peer.Select) string {
	s.t.Helper()
	set, err := s.Storage.Select(s.t.Context(), q)
	s.must(err)
	var b strings.Builder
	for set.Next() {
		x := set.At()
		fmt.Fprint(&b, x.Labels.Get("host"))
		for i, at := range x.Times {
			fmt.Fprintf(&b, " %d:%v", (at-s.Lo)/1e9, x.Values[i])
		}
		for _, h := range x.Hists {
			fmt.Fprintf(&b, " %d:%x", (h.Time-s.Lo)/1e9, h.H)
		}
		b.WriteByte('\n')
	}
	s.must(errors.Join(set.Err(), set.Close()))
	return b.String()
}

func (s *suite) reads(what string, q *peer.Select, want ...string) {
	s.t.Helper()
	text := ""
	for _, w := range want {
		text += w + "\n"
	}
	if got := s.read(q); got != text {
		s.t.Errorf("%s:\n%swant\n%s", what, got, text)
	}
}

func rowsComeBack(t *testing.T, s *suite) {
	s.reads("nothing was written", s.all())
	st := s.stream()
	s.write(st, 3, 2)
	s.reads("all", s.all(), "h000 0:0 1:1", "h001 0:1000 1:1001", "h002 0:2000 1:2001")
	special := []float64{math.Inf(-1), math.Float64frombits(point.StaleNaN), math.Copysign(0, -1), math.SmallestNonzeroFloat64}
	var in peer.Insert
	for i, v := range special {
		in.IDs, in.Times, in.Values = append(in.IDs, 1), append(in.Times, s.at(10+i)), append(in.Values, v)
	}
	s.must(st.Insert(t.Context(), s.insert(1, in)))
	q := s.all()
	q.Lo, q.Partitions = s.at(10), []point.PartitionID{s.Partition}
	set, err := s.Storage.Select(t.Context(), q)
	s.must(err)
	if !set.Next() {
		t.Fatal(set.Err())
	}
	for i, v := range special {
		if got := set.At().Values[i]; math.Float64bits(got) != math.Float64bits(v) {
			t.Errorf("%x came back as %x", math.Float64bits(v), math.Float64bits(got))
		}
	}
	s.must(set.Close())
	for _, level := range []point.Level{point.All, point.One, point.Received} {
		in := s.insert(2, peer.Insert{IDs: []point.SeriesID{2}, Times: []point.Nanos{s.at(20 + int(level))}, Values: []float64{7}, Level: level})
		s.must(st.Insert(t.Context(), in))
	}
	q.Lo = s.at(20)
	s.reads("levels", q, "h002 20:7 21:7 22:7")
}

func histogramsComeBack(t *testing.T, s *suite) {
	st := s.stream()
	s.write(st, 1, 1)
	h := []byte{0} // of the least form that is stored; its reader checks the content
	s.must(st.Insert(t.Context(), s.insert(1, peer.Insert{Hists: []point.HistRow{{ID: 0, Time: s.at(5), H: h}}})))
	s.reads("all", s.all(), "h000 0:0 5:00")
}

func seriesComeInLabelOrder(t *testing.T, s *suite) {
	st := s.stream()
	const n = 700
	var defs []peer.Def
	var in peer.Insert
	for i := range n {
		k := i * 389 % n
		defs = append(defs, peer.Def{ID: point.SeriesID(k), Labels: host(k)})
		in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(k)), append(in.Times, s.at(k%9)), append(in.Values, float64(k))
	}
	s.must(st.Define(t.Context(), defs))
	s.must(st.Insert(t.Context(), s.insert(0, in)))
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("h%03d %d:%d", i, i%9, i))
	}
	s.reads("all", s.all(), want...)
}

func selectKeepsItsBounds(t *testing.T, s *suite) {
	s.write(s.stream(), 6, 10)
	q := s.all()
	q.Lo, q.Hi = s.at(3), s.at(4)
	q.Matchers = []peer.Matcher{{Type: peer.MatchEqual, Name: "parity", Value: "odd"}, {Type: peer.MatchNotEqual, Name: "host", Value: "h001"}}
	s.reads("equal, not equal", q, "h003 3:3003 4:3004", "h005 3:5003 4:5004")
	q.Matchers = []peer.Matcher{{Type: peer.MatchRegexp, Name: "host", Value: "h00[12]"}, {Type: peer.MatchNotRegexp, Name: "host", Value: ".*1"}}
	s.reads("regular expressions", q, "h002 3:2003 4:2004")
	q.LabelsOnly = true
	s.reads("labels only", q, "h002")
	q = s.all()
	q.Partitions = []point.PartitionID{s.Partition + 1<<40}
	s.reads("another partition", q)
	q = s.all()
	q.Lo, q.Hi = s.at(100), s.at(200)
	s.reads("another time", q)
}

func selectRefuses(t *testing.T, s *suite) {
	s.write(s.stream(), 6, 10)
	read := func(q *peer.Select) error {
		set, err := s.Storage.Select(t.Context(), q)
		if err != nil {
			return err
		}
		for set.Next() {
		}
		return errors.Join(set.Err(), set.Close())
	}
	q := s.all()
	q.SeriesMax = 5
	s.kind("six series where five may be", read(q), fault.TooLarge)
	q.SeriesMax, q.SamplesMax = 6, 59
	s.kind("60 samples where 59 may be", read(q), fault.TooLarge)
	q.SamplesMax = 60
	s.must(read(q))
	q.Matchers = []peer.Matcher{{Type: peer.MatchRegexp, Name: "host", Value: "("}}
	s.kind("a regular expression that is none", read(q), fault.Invalid)
}

func closingEarlyIsFine(t *testing.T, s *suite) {
	s.write(s.stream(), 500, 20)
	for n := range 3 {
		set, err := s.Storage.Select(t.Context(), s.all())
		s.must(err)
		for range n {
			if !set.Next() {
				t.Fatal(set.Err())
			}
		}
		s.must(set.Close())
	}
}

func namesAndValues(t *testing.T, s *suite) {
	s.write(s.stream(), 5, 2)
	f := func(want []string, wantMore bool) func([]string, bool, error) {
		return func(got []string, more bool, err error) {
			t.Helper()
			if err != nil || more != wantMore || !slices.Equal(got, want) {
				t.Errorf("%q, %v, %v; want %q, %v", got, more, err, want, wantMore)
			}
		}
	}
	ctx, q := t.Context(), s.all()
	f([]string{"__name__", "host", "parity"}, false)(s.Storage.LabelNames(ctx, q, 0))
	f([]string{"__name__", "host"}, true)(s.Storage.LabelNames(ctx, q, 2))
	f([]string{"h000", "h001", "h002", "h003", "h004"}, false)(s.Storage.LabelValues(ctx, q, "host", 5))
	f([]string{"h000", "h001"}, true)(s.Storage.LabelValues(ctx, q, "host", 2))
	f(nil, false)(s.Storage.LabelValues(ctx, q, "nothing", 0))
	q.Matchers = []peer.Matcher{{Name: "parity", Value: "odd"}}
	f([]string{"h001", "h003"}, false)(s.Storage.LabelValues(ctx, q, "host", 0))
}

// limitedSeries asks for the first series in label order. A storage may return more.
func limitedSeries(t *testing.T, s *suite) {
	s.write(s.stream(), 9, 2)
	for _, limit := range []int{0, 1, 4, 9, 10} {
		q := s.all()
		q.LabelsOnly, q.Limit = true, limit
		set, err := s.Storage.Select(t.Context(), q)
		s.must(err)
		n := 0
		for ; set.Next(); n++ {
			if want := fmt.Sprintf("h%03d", n); set.At().Labels.Get("host") != want {
				t.Errorf("limit %d: series %d is %v, want that of %s", limit, n, set.At().Labels, want)
			}
		}
		s.must(set.Err())
		s.must(set.Close())
		if want := 9; limit == 0 && n != want || limit > 0 && n < min(limit, want) {
			t.Errorf("limit %d: %d series", limit, n)
		}
	}
}

func exemplars(t *testing.T, s *suite) {
	st := s.stream()
	s.write(st, 3, 1)
	trace := point.MakeLabels("__name__", "x", "trace_id", "1")
	s.must(st.Insert(t.Context(), s.insert(1, peer.Insert{Exemplars: []point.ExemplarRow{
		{ID: 2, Time: s.at(3), Value: 1.5, Labels: trace}, {ID: 2, Time: s.at(1), Value: 2.5}, {ID: 0, Time: s.at(2), Value: 3, Labels: trace}}})))
	got, err := s.Storage.Exemplars(t.Context(), &peer.Select{Table: s.Table, Lo: s.Lo, Hi: s.Hi - 1}, [][]peer.Matcher{{{Name: "host", Value: "h002"}}, {{Name: "host", Value: "h000"}}})
	s.must(err)
	text := ""
	for _, x := range got {
		text += x.Labels.Get("host")
		for _, e := range x.Exemplars {
			text += fmt.Sprintf(" %d:%v%v", (e.Time-s.Lo)/1e9, e.Value, e.Labels)
		}
		text += "\n"
	}
	if want := fmt.Sprintf("h000 2:3%v\nh002 1:2.5{} 3:1.5%v\n", trace, trace); text != want {
		t.Errorf("%swant\n%s", text, want)
	}
}

func metadata(t *testing.T, s *suite) {
	s.write(s.stream(), 1, 1)
	rows := []point.MetadataRow{{Metric: "a", Type: "gauge", Help: "é", Unit: "s"}, {Metric: "b", Type: "counter"}}
	s.must(s.Storage.PutMetadata(t.Context(), s.Table, rows))
	for metric, want := range map[string][]point.MetadataRow{"": rows, "b": rows[1:], "c": nil} {
		got, err := s.Storage.GetMetadata(t.Context(), s.Table, metric)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("of %q: %v, %v; want %v", metric, got, err, want)
		}
	}
}

func deletedRowsAreGone(t *testing.T, s *suite) {
	s.write(s.stream(), 2, 4)
	q := s.all()
	q.Lo, q.Hi, q.Matchers = s.at(1), s.at(2), []peer.Matcher{{Name: "host", Value: "h001"}}
	s.must(s.Storage.DeleteSeries(t.Context(), q))
	s.reads("what is left", s.all(), "h000 0:0 1:1 2:2 3:3", "h001 0:1000 3:1003")
}

func statsCount(t *testing.T, s *suite) {
	s.write(s.stream(), 4, 5)
	st, err := s.Storage.Stats(t.Context(), s.Table, 2)
	s.must(err)
	if st.Series != 4 || st.HeadRows+st.SegmentRows != 20 || st.MinTime != s.at(0) || st.MaxTime != s.at(4) || len(st.SeriesByName) != 1 || st.SeriesByName[0] != (peer.NameCount{Name: "cpu", Count: 4}) {
		t.Errorf("%+v", st)
	}
	if len(st.ByPartition) != 1 || st.ByPartition[0].ID != s.Partition || st.ByPartition[0].Rows != 20 {
		t.Errorf("by partition: %+v", st.ByPartition)
	}
}

func insertRefuses(t *testing.T, s *suite) {
	st := s.stream()
	s.write(st, 1, 1)
	one := peer.Insert{IDs: []point.SeriesID{0}, Times: []point.Nanos{s.at(1)}, Values: []float64{1}}
	in := s.insert(1, one)
	in.Partition += 1 << 40
	s.kind("a partition that is not here", st.Insert(t.Context(), in), fault.Stale)
	in = s.insert(1, one)
	in.IDs = []point.SeriesID{77}
	if err := st.Insert(t.Context(), in); err == nil {
		t.Error("a row of a series that was never defined was accepted")
	}
	s.must(st.Insert(t.Context(), s.insert(1, one)))
	s.reads("all", s.all(), "h000 0:0 1:1")
}

func streamsHaveOwnNumbers(t *testing.T, s *suite) {
	a, b := s.stream(), s.stream()
	s.must(a.Define(t.Context(), []peer.Def{{ID: 5, Labels: host(1)}}))
	s.must(b.Define(t.Context(), []peer.Def{{ID: 5, Labels: host(2)}, {ID: 5, Labels: host(2)}}))
	s.must(b.Define(t.Context(), []peer.Def{{ID: 5, Labels: host(2)}}))
	for i, st := range []peer.Stream{a, b} {
		s.must(st.Insert(t.Context(), s.insert(point.Stamp(i), peer.Insert{IDs: []point.SeriesID{5}, Times: []point.Nanos{s.at(i)}, Values: []float64{float64(i)}})))
	}
	s.reads("all", s.all(), "h001 0:0", "h002 1:1")
}

// manyWriters define and insert on one stream side by side.
func manyWriters(t *testing.T, s *suite) {
	st := s.stream()
	const writers, rounds = 16, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for k := range rounds {
				id := point.SeriesID(w)
				err := st.Define(t.Context(), []peer.Def{{ID: id, Labels: host(w)}})
				if err == nil {
					err = st.Insert(t.Context(), s.insert(point.Stamp(k), peer.Insert{IDs: []point.SeriesID{id}, Times: []point.Nanos{s.at(k)}, Values: []float64{float64(k)}}))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var want []string
	for w := range writers {
		line := host(w).Get("host")
		for k := range rounds {
			line += fmt.Sprintf(" %d:%d", k, k)
		}
		want = append(want, line)
	}
	s.reads("all", s.all(), want...)
}

func cancelledCalls(t *testing.T, s *suite) {
	st := s.stream()
	s.write(st, 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.kind("an insert", st.Insert(ctx, s.insert(1, peer.Insert{IDs: []point.SeriesID{0}, Times: []point.Nanos{s.at(1)}, Values: []float64{1}})), fault.Canceled)
	set, err := s.Storage.Select(ctx, s.all())
	if err == nil {
		for set.Next() {
		}
		err = errors.Join(set.Err(), set.Close())
	}
	s.kind("a select", err, fault.Canceled)
	s.reads("the stream and the storage go on", s.all(), "h000 0:0")
}

func closedStream(t *testing.T, s *suite) {
	st := s.stream()
	s.write(st, 1, 1)
	s.must(st.Close())
	s.must(st.Close())
	s.kind("an insert", st.Insert(t.Context(), s.insert(1, peer.Insert{IDs: []point.SeriesID{0}, Times: []point.Nanos{s.at(1)}, Values: []float64{1}})), fault.Unavailable)
	s.kind("a define", st.Define(t.Context(), []peer.Def{{ID: 1, Labels: host(1)}}), fault.Unavailable)
}

func unknownTables(t *testing.T, s *suite) {
	const no = "no_such_table"
	_, err := s.Storage.OpenStream(t.Context(), no)
	s.kind("a stream", err, fault.Stale)
	q := s.all()
	q.Table = no
	_, err = s.Storage.Select(t.Context(), q)
	s.kind("a select", err, fault.NotFound)
	_, _, err = s.Storage.LabelNames(t.Context(), q, 0)
	s.kind("names", err, fault.NotFound)
}

// columnsStayTheCallers overwrites the inserted columns as soon as that is allowed.
func columnsStayTheCallers(t *testing.T, s *suite) {
	st := s.stream()
	s.write(st, 1, 1)
	in := s.insert(1, peer.Insert{IDs: []point.SeriesID{0}, Times: []point.Nanos{0}, Values: []float64{0}})
	want := "h000 0:0"
	for k := 1; k < 50; k++ {
		in.Times[0], in.Values[0] = s.at(k), float64(k)
		s.must(st.Insert(t.Context(), in))
		in.Stamp += 1 << 10
		in.IDs[0], in.Times[0], in.Values[0] = 0, s.at(500), -1
		want += fmt.Sprintf(" %d:%d", k, k)
	}
	s.reads("all", s.all(), want)
}

func seriesBelongToTheCaller(t *testing.T, s *suite) {
	s.write(s.stream(), 300, 3)
	set, err := s.Storage.Select(t.Context(), s.all())
	s.must(err)
	var kept []peer.Series
	for set.Next() {
		kept = append(kept, *set.At())
	}
	s.must(errors.Join(set.Err(), set.Close()))
	s.read(s.all()) // all memory that is reused, is reused now
	for i, x := range kept {
		if x.Labels != host(i) || !slices.Equal(x.Times, []point.Nanos{s.at(0), s.at(1), s.at(2)}) || x.Values[2] != float64(1000*i+2) {
			t.Fatalf("series %d became %+v", i, x)
		}
	}
}

// laterInsertsWin: gateways' clocks do not decide which of two values is the newer one.
func laterInsertsWin(t *testing.T, s *suite) {
	st := s.stream()
	s.write(st, 1, 1)
	base := s.insert(0, peer.Insert{}).Stamp
	for _, x := range []struct {
		stamp point.Stamp
		value float64
	}{{5, 5}, {9, 9}, {7, 7}} {
		in := s.insert(0, peer.Insert{IDs: []point.SeriesID{0}, Times: []point.Nanos{s.at(1)}, Values: []float64{x.value}})
		in.Stamp = base + x.stamp<<10
		s.must(st.Insert(t.Context(), in))
	}
	s.reads("all", s.all(), "h000 0:0 1:7")
}

// ranksComeWhenAsked: floats and histograms have a rank each, which rise with the inserts; a select that does not ask gets none.
func ranksComeWhenAsked(t *testing.T, s *suite) {
	st := s.stream()
	s.write(st, 2, 1)
	hist := point.AppendHistogram(nil, &histogram.Histogram{Count: 1, ZeroCount: 1, Sum: 1})
	for k := 1; k < 4; k++ {
		in := peer.Insert{IDs: []point.SeriesID{0, 1}, Times: []point.Nanos{s.at(k), s.at(1)}, Values: []float64{1, float64(k)}}
		in.Hists = []point.HistRow{{ID: 0, Time: s.at(10 + k), H: hist}}
		s.must(st.Insert(t.Context(), s.insert(point.Stamp(-k), in))) // each by a slower clock
	}
	for _, ranked := range []bool{true, false} {
		q := s.all()
		q.Ranks = ranked
		set, err := s.Storage.Select(t.Context(), q)
		s.must(err)
		var last []point.Stamp
		for set.Next() {
			x := set.At()
			if !ranked && len(x.Ranks)+len(x.HistRanks) > 0 || ranked && (len(x.Ranks) != len(x.Times) || len(x.HistRanks) != len(x.Hists)) {
				t.Fatalf("asked for ranks %v: %d of %d floats, %d of %d histograms", ranked, len(x.Ranks), len(x.Times), len(x.HistRanks), len(x.Hists))
			}
			if !slices.IsSorted(x.Ranks) || !slices.IsSorted(x.HistRanks) {
				t.Errorf("ranks %v and %v do not rise with the inserts", x.Ranks, x.HistRanks)
			}
			if ranked {
				last = append(last, x.Ranks[len(x.Ranks)-1])
			}
		}
		s.must(errors.Join(set.Err(), set.Close()))
		if ranked && (len(last) != 2 || last[0] != last[1]) {
			t.Errorf("the last rows of both series came with one insert, and have the ranks %v", last)
		}
	}
	s.reads("all", s.all(), fmt.Sprintf("h000 0:0 1:1 2:1 3:1 11:%x 12:%x 13:%x", hist, hist, hist), "h001 0:1000 1:3")
}
