//go:build unix

package segment

import (
	"fmt"
	"testing"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/point"
)

// BenchmarkFirstFind asks a segment of the series of hosts × 101 metrics, which has just been opened with an empty cache: what a selector finds, and the values of a label. For those
// of one metric, "definitions" reads their labels from the pages of definitions, which Find does where these are few. It reports processor time. In
// "random order" eight labels of few values change from each series to the next, so that their postings are long.
func BenchmarkFirstFind(b *testing.B) {
	metric := func(name string) *Selector {
		return NewSelector([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", name)})
	}
	find := func(of *Selector) func(r *Reader) error {
		return func(r *Reader) error { _, err := r.Find(of); return err }
	}
	definitions := func(of *Selector) func(r *Reader) error {
		return func(r *Reader) error {
			ids, err := r.Match(of.ms)
			if err != nil {
				return err
			}
			return r.EachLabels(ids, func(point.DenseID, point.Labels) error { return nil })
		}
	}
	for _, hosts := range []int{2, 200} {
		fs := vfs.NewMem()
		info := devops(hosts, 1, 0).write(b, fs, "seg")
		for _, q := range []struct {
			name string
			ask  func(r *Reader) error
		}{
			{"metric", find(metric("metric_007"))},
			{"metric, definitions", definitions(metric("metric_007"))},
			{"no such metric", find(metric("metric_other"))},
			{"hosts", func(r *Reader) error { _, err := r.Look(ValuesOf("hostname", nil, 0), roaring.New()); return err }},
		} {
			b.Run(fmt.Sprintf("hosts=%d/%s", hosts, q.name), func(b *testing.B) { benchFirst(b, fs, info, q.ask) })
		}
	}
	fs := vfs.NewMem()
	info := shuffled(400_000, 29).write(b, fs, "seg")
	b.Run("random order/few", func(b *testing.B) { benchFirst(b, fs, info, find(rare)) })
	b.Run("random order/few, definitions", func(b *testing.B) { benchFirst(b, fs, info, definitions(rare)) })
}

func benchFirst(b *testing.B, fs vfs.FS, info Info, ask func(r *Reader) error) {
	b.ReportAllocs()
	took := 0.0
	for b.Loop() {
		cache := NewCache(0)
		r, err := Open(fs, "seg", info, cache)
		check(b, err)
		from := float64(cputime.Used())
		check(b, ask(r))
		took += float64(cputime.Used()) - from
		check(b, r.Close())
		cache.Close()
	}
	b.ReportMetric(took/float64(b.N)/1e3, "cpu-µs")
}
