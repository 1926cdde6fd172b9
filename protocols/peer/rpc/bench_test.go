package rpc

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// sink is a storage that accepts inserts and drops them: the transport is measured.
type sink struct{ *memory }

func (s sink) OpenStream(context.Context, string) (peer.Stream, error) { return sinkStream{}, nil }

type sinkStream struct{}

func (sinkStream) Define(context.Context, []peer.Def) error   { return nil }
func (sinkStream) Insert(context.Context, *peer.Insert) error { return nil }
func (sinkStream) Close() error                               { return nil }

// devopsRows are 2,020 rows of 20 hosts with 101 series each: walks, counters and percentages.
func devopsRows() *peer.Insert {
	rng := rand.New(rand.NewPCG(1, 2))
	in := &peer.Insert{Partition: 1, MapSeq: 1, Stamp: 1 << 40}
	for i := range 2020 {
		in.IDs = append(in.IDs, point.SeriesID(i))
		in.Times = append(in.Times, 1767225600e9)
		switch {
		case i%25 == 0:
			in.Values = append(in.Values, float64(rng.IntN(10_000))/100)
		case i%5 < 2:
			in.Values = append(in.Values, float64(rng.IntN(1<<30)))
		default:
			in.Values = append(in.Values, float64(rng.IntN(101)))
		}
	}
	return in
}

// BenchmarkInsert sends batches of 2,020 rows through loopback, so many at a time, and for comparison only encodes and
// decodes them.
func BenchmarkInsert(b *testing.B) {
	run := func(b *testing.B, workers int, insert func(*peer.Insert) error) {
		b.ReportAllocs()
		before := cputime.Used()
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				in := devopsRows()
				for i := w; i < b.N; i += workers {
					if err := insert(in); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		spent := cputime.Used() - before
		rows := float64(b.N) * 2020
		b.ReportMetric(float64(spent.Nanoseconds())/rows, "cpu-ns/row")
		b.ReportMetric(rows/spent.Seconds()/1e6, "Mrows/cpu-s")
	}
	over := func(tls bool) func(b *testing.B) (peer.Stream, func()) {
		return func(b *testing.B) (peer.Stream, func()) {
			s, d := TLS{Insecure: true}, TLS{Insecure: true}
			if tls {
				a := newTestAuthority(b)
				s, d = a.files(b, "127.0.0.1"), a.files(b, "gw")
			}
			srv, err := NewServer(Deps{Storage: sink{newMemory()}}, Settings{TLS: s})
			if err != nil {
				b.Fatal(err)
			}
			l := listen(b)
			go func() { _ = srv.Serve(l) }()
			p, err := Dial(l.Addr().String(), DialSettings{TLS: d})
			if err != nil {
				b.Fatal(err)
			}
			st, err := p.OpenStream(b.Context(), "t")
			if err != nil {
				b.Fatal(err)
			}
			if err := st.Define(b.Context(), devopsDefs(2020)); err != nil {
				b.Fatal(err)
			}
			return st, func() {
				_ = st.Close()
				_ = p.Close()
				_ = srv.Shutdown(context.Background())
			}
		}
	}
	for _, c := range []struct {
		name    string
		workers int
		tls     bool
	}{{"loopback-1", 1, false}, {"loopback-16", 16, false}, {"tls-1", 1, true}, {"tls-16", 16, true}} {
		b.Run(c.name, func(b *testing.B) {
			st, end := over(c.tls)(b)
			defer end()
			b.ResetTimer()
			run(b, c.workers, func(in *peer.Insert) error { return st.Insert(context.Background(), in) })
			b.StopTimer()
		})
	}
	b.Run("codec-only", func(b *testing.B) {
		var e insertEncoder
		var d insertDecoder
		run(b, 1, func(in *peer.Insert) error {
			rec, err := e.encode(in)
			if err != nil {
				return err
			}
			_, err = d.decode(rec[recordLen:])
			return err
		})
	})
}

// BenchmarkDefine encodes and decodes 2,020 new series.
func BenchmarkDefine(b *testing.B) {
	defs := devopsDefs(2020)
	var e defineEncoder
	var d defineDecoder
	b.ReportAllocs()
	var bytes int
	for b.Loop() {
		rec, _ := e.encode(recordDefine, defs)
		bytes = len(rec)
		if _, err := d.decode(rec[recordLen:]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2020, "ns/series")
	b.ReportMetric(float64(bytes)/2020, "B/series")
}

// BenchmarkSelect reads 1,000 series of 360 samples that share their times.
func BenchmarkSelect(b *testing.B) {
	m := newMemory()
	m.series = someSeries(1000, 360)
	for i := range m.series {
		m.series[i].Times, m.series[i].Hists = m.series[0].Times, nil
	}
	srv, err := NewServer(Deps{Storage: m}, Settings{TLS: TLS{Insecure: true}})
	if err != nil {
		b.Fatal(err)
	}
	l := listen(b)
	go func() { _ = srv.Serve(l) }()
	p, err := Dial(l.Addr().String(), DialSettings{TLS: TLS{Insecure: true}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = p.Close()
		_ = srv.Shutdown(context.Background())
	}()
	b.ReportAllocs()
	before := cputime.Used()
	for b.Loop() {
		set, err := p.Select(context.Background(), &peer.Select{})
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for set.Next() {
			n += len(set.At().Values)
		}
		if n != 360_000 || set.Err() != nil {
			b.Fatal(n, set.Err())
		}
		_ = set.Close()
	}
	b.ReportMetric(float64((cputime.Used()-before).Nanoseconds())/float64(b.N)/360_000, "cpu-ns/sample")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/360_000, "ns/sample")
}
