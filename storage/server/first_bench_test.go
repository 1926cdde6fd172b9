package server_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
)

// BenchmarkFirst starts a store of SPILLWAY_PARTITIONS partitions (default 50), all of it in segments, with a row of each of SPILLWAY_SERIES series (default 20,200) in
// each, and asks it one question, twice. It reports the processor time of a partition for the first time and for the second, in µs. Hosts come in
// another order in each partition.
func BenchmarkFirst(b *testing.B) {
	partitions, series := number("SPILLWAY_PARTITIONS", 50), number("SPILLWAY_SERIES", 20_200)
	dir, maps := b.TempDir(), manyPartitions(b, partitions)
	p, err := openBig(dir, maps, 1)
	if err != nil {
		b.Fatal(err)
	}
	fillTurned(b, p.server, partitions, series)
	if err := p.server.FlushAll(b.Context(), false); err != nil {
		b.Fatal(err)
	}
	p.stop(b)
	metric := peer.Matcher{Name: "__name__", Value: "node_metric_007_total"}
	for _, l := range []struct {
		name string
		ask  func(*server.Server, peer.Select) (int, error)
	}{
		{"rows of one metric", rowsOf(metric)},
		{"rows of one metric of a team", rowsOf(metric, peer.Matcher{Name: "team", Value: "team-3"})},
		{"rows of one host", rowsOf(peer.Matcher{Name: "hostname", Value: "host_1"})},
		{"rows of a metric that is nowhere", rowsOf(peer.Matcher{Name: "__name__", Value: "node_metric_other"})},
		{"values of hostname", valuesOf("hostname")},
		{"values of hostname of one metric", valuesOf("hostname", metric)},
		{"names of one metric", func(s *server.Server, q peer.Select) (int, error) {
			q.Matchers = []peer.Matcher{metric}
			l, _, err := s.LabelNames(context.Background(), &q, 0)
			return len(l), err
		}},
	} {
		b.Run(l.name, func(b *testing.B) {
			var first, again []time.Duration
			for b.Loop() {
				p, err := openFor(dir, maps)
				if err != nil {
					b.Fatal(err)
				}
				for _, took := range []*[]time.Duration{&first, &again} {
					from := cputime.Used()
					if _, err := l.ask(p.server, peer.Select{Table: "t", Lo: 0, Hi: 1 << 62}); err != nil {
						b.Fatal(err)
					}
					*took = append(*took, cputime.Used()-from)
				}
				p.stop(b)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(median(first).Nanoseconds())/1e3/float64(partitions), "first-µs")
			b.ReportMetric(float64(median(again).Nanoseconds())/1e3/float64(partitions), "again-µs")
		})
	}
}

// rowsOf counts the rows of series.
func rowsOf(ms ...peer.Matcher) func(*server.Server, peer.Select) (int, error) {
	return func(s *server.Server, q peer.Select) (n int, err error) {
		q.Matchers = ms
		set, err := s.Select(context.Background(), &q)
		if err != nil {
			return 0, err
		}
		p := set.(peer.PagedSet).Pager(256)
		for {
			page, ok, err := p.Next()
			if err != nil || !ok {
				p.Close()
				_ = set.Close()
				return n, err
			}
			for i := range page.Series {
				n += len(page.Series[i].Times)
			}
		}
	}
}

// fillTurned writes a row of each series into each of n partitions: in each the host that comes first is another one.
func fillTurned(b *testing.B, s *server.Server, n, series int) {
	ctx := context.Background()
	st, err := s.OpenStream(ctx, "t")
	if err != nil {
		b.Fatal(err)
	}
	for i := range series {
		if err := st.Define(ctx, []peer.Def{{ID: point.SeriesID(i), Labels: hostSeries(i)}}); err != nil {
			b.Fatal(err)
		}
	}
	ids, values, times := make([]point.SeriesID, series), make([]float64, series), make([]point.Nanos, series)
	for p := range n {
		for i := range ids {
			ids[i], values[i], times[i] = point.SeriesID((i+p*7*101)%series), float64(i), int64(p)*10e9
		}
		if err := st.Insert(ctx, &peer.Insert{Partition: point.PartitionID(p + 1), Level: point.Received, Stamp: point.Stamp(1<<60) + point.Stamp(p)<<10, IDs: ids, Times: times, Values: values}); err != nil {
			b.Fatal(err)
		}
	}
	if err := st.Close(); err != nil {
		b.Fatal(err)
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
