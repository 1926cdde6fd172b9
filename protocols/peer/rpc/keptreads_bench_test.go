package rpc

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// BenchmarkLookUp asks for the values of a label and for the labels of a series over loopback, on kept streams and on one for each: the processor time of both sides.
func BenchmarkLookUp(b *testing.B) {
	m, p := pair(b)
	m.names, m.series = []string{"a", "b"}, manySeries(1)
	q := &peer.Select{Table: "t", Lo: 1, Hi: 2, LabelsOnly: true, Matchers: []peer.Matcher{{Name: "__name__", Value: "cpu_usage_user"}, {Name: "hostname", Value: "host_7"}}}
	for _, of := range []struct {
		name string
		ask  func() error
	}{
		{"values", func() error { _, _, err := p.LabelValues(b.Context(), q, "hostname", 0); return err }},
		{"series", func() error {
			set, err := p.Select(b.Context(), q)
			if err != nil {
				return err
			}
			defer set.Close()
			for set.Next() {
			}
			return set.Err()
		}},
	} {
		for _, kept := range []bool{false, true} {
			b.Run(of.name+map[bool]string{false: "/own", true: "/kept"}[kept], func(b *testing.B) {
				p.mu.line.keptReads.unknown.Store(!kept)
				b.ReportAllocs()
				before := cputime.Used()
				for range b.N {
					if err := of.ask(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(cputime.Used()-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
