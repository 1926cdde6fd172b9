package transfer

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/index"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// blockSink writes blocks of Prometheus' TSDB into a directory, one for each window. Its series and chunks are in memory until then: about two bytes a sample.
//
//	commit: .unfinished-ID, whole and durable ──▶ note: the window is done, its block is ID ──▶ publish: ID
//
// A run that ends between two of these steps writes no window twice: a block that no note names is removed, and one that is noted gets its name.
type blockSink struct {
	dir    string
	losses *Losses
	series map[string]*blockSeries // by labels
	key    []byte
	blocks int64
	whole  string // the name of a block that publish gives it; "": none
}

type blockSeries struct {
	labels labels.Labels
	chunks []chunks.Meta
}

// blockTemp begins the names of blocks that are not whole.
const blockTemp = ".unfinished-"

func openBlocks(dir string, losses *Losses, note *resume) (*blockSink, error) {
	s := &blockSink{dir: dir, losses: losses, series: map[string]*blockSeries{}, blocks: note.Bytes}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "--to")
	}
	old, err := filepath.Glob(filepath.Join(dir, blockTemp+"*"))
	for _, o := range old {
		if id := strings.TrimPrefix(filepath.Base(o), blockTemp); id == note.Block {
			s.whole = id
		} else {
			err = cmp.Or(err, os.RemoveAll(o))
		}
	}
	return s, fault.Wrap(cmp.Or(err, s.publish()), fault.Invalid, "--to")
}

func (s *blockSink) write(l *Line) error {
	samples := s.samples(l)
	if len(samples) == 0 {
		return nil
	}
	s.key = s.key[:0]
	for _, p := range l.Labels {
		s.key = append(append(append(append(s.key, p.Name...), 0), p.Value...), 0)
	}
	of := s.series[string(s.key)]
	if of == nil {
		var b labels.ScratchBuilder
		of = &blockSeries{labels: promLabels(&b, l)}
		s.series[string(s.key)] = of
	}
	it := promstorage.NewSeriesToChunkEncoder(promstorage.NewListSeries(of.labels, samples)).Iterator(nil)
	for it.Next() {
		of.chunks = append(of.chunks, it.At())
	}
	return it.Err()
}

// samples are a line's rows as Prometheus sees them: one in each millisecond, the newest.
func (s *blockSink) samples(l *Line) []chunks.Sample {
	all := make([]chunks.Sample, 0, l.Rows())
	nanos := make([]point.Nanos, 0, l.Rows())
	for i, t := range l.Times {
		all, nanos = append(all, blockSample{t: point.MillisOf(t), f: l.Values[i]}), append(nanos, t)
	}
	for _, h := range l.Hists {
		all, nanos = append(all, blockSample{t: point.MillisOf(h.Time), h: h.Int, fh: h.Float}), append(nanos, h.Time)
	}
	if len(l.Hists) > 0 && len(l.Times) > 0 {
		slices.SortStableFunc(all, func(a, b chunks.Sample) int { return cmp.Compare(a.T(), b.T()) })
	}
	between, shared, kept := int64(0), int64(0), all[:0]
	for _, t := range nanos {
		if t%nanosPerMilli != 0 {
			between++
		}
	}
	for _, one := range all {
		if n := len(kept); n > 0 && kept[n-1].T() == one.T() {
			shared++
			if one.Type() != chunkenc.ValFloat || !point.IsStale(one.F()) {
				kept[n-1] = one
			}
			continue
		}
		kept = append(kept, one)
	}
	if between > 0 {
		s.losses.Add(lostMillis, between, string(appendSeries(nil, l)))
	}
	if shared > 0 {
		s.losses.LeaveOut(lostShared, shared, string(appendSeries(nil, l)))
	}
	return kept
}

// blockSample is one sample for Prometheus' encoder.
type blockSample struct {
	t  int64
	f  float64
	h  *histogram.Histogram
	fh *histogram.FloatHistogram
}

func (s blockSample) T() int64                      { return s.t }
func (s blockSample) ST() int64                     { return 0 }
func (s blockSample) F() float64                    { return s.f }
func (s blockSample) H() *histogram.Histogram       { return s.h }
func (s blockSample) FH() *histogram.FloatHistogram { return s.fh }
func (s blockSample) Copy() chunks.Sample           { return s }

func (s blockSample) Type() chunkenc.ValueType {
	switch {
	case s.h != nil:
		return chunkenc.ValHistogram
	case s.fh != nil:
		return chunkenc.ValFloatHistogram
	}
	return chunkenc.ValFloat
}

func (s *blockSink) rewind() error {
	clear(s.series)
	return nil
}

func (s *blockSink) finish() error { return nil }

func (s *blockSink) state() int64 { return s.blocks }

// blockMeta is the file meta.json of a block.
type blockMeta struct {
	ULID    ulid.ULID `json:"ulid"`
	MinTime int64     `json:"minTime"`
	MaxTime int64     `json:"maxTime"` // not included
	Stats   struct {
		Samples    uint64 `json:"numSamples"`
		Floats     uint64 `json:"numFloatSamples,omitempty"`
		Histograms uint64 `json:"numHistogramSamples,omitempty"`
		Series     uint64 `json:"numSeries"`
		Chunks     uint64 `json:"numChunks"`
	} `json:"stats"`
	Compaction struct {
		Level   int         `json:"level"`
		Sources []ulid.ULID `json:"sources"`
		Hints   []string    `json:"hints,omitempty"`
	} `json:"compaction"`
	Version int `json:"version"`
}

// commit writes the window's block, without its name.
func (s *blockSink) commit() error {
	if len(s.series) == 0 {
		return nil
	}
	id := ulid.Make()
	temp := filepath.Join(s.dir, blockTemp+id.String())
	meta := blockMeta{ULID: id, Version: 1}
	meta.Compaction.Level, meta.Compaction.Sources = 1, []ulid.ULID{id}
	err := s.writeBlock(temp, &meta)
	if err == nil {
		err = syncDir(s.dir)
	}
	if err != nil {
		os.RemoveAll(temp)
		return err
	}
	s.blocks++
	s.whole = id.String()
	clear(s.series)
	return nil
}

func (s *blockSink) pending() string { return s.whole }

func (s *blockSink) publish() error {
	if s.whole == "" {
		return nil
	}
	if err := os.Rename(filepath.Join(s.dir, blockTemp+s.whole), filepath.Join(s.dir, s.whole)); err != nil {
		return err
	}
	s.whole = ""
	return syncDir(s.dir)
}

func (s *blockSink) writeBlock(dir string, meta *blockMeta) (err error) {
	all := make([]*blockSeries, 0, len(s.series))
	for _, of := range s.series {
		all = append(all, of)
	}
	slices.SortFunc(all, func(a, b *blockSeries) int { return labels.Compare(a.labels, b.labels) })
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cw, err := chunks.NewWriter(filepath.Join(dir, "chunks"))
	if err != nil {
		return err
	}
	for _, of := range all {
		if of.chunks, err = tidy(of.chunks); err == nil {
			err = cw.WriteChunks(of.chunks...)
		}
		if err != nil {
			cw.Close()
			return err
		}
	}
	if err := cw.Close(); err != nil {
		return err
	}
	if err := writeIndex(filepath.Join(dir, "index"), all); err != nil {
		return err
	}
	for i, of := range all {
		lo, hi := of.chunks[0].MinTime, of.chunks[len(of.chunks)-1].MaxTime
		if i == 0 {
			meta.MinTime, meta.MaxTime = lo, hi+1
		}
		meta.MinTime, meta.MaxTime = min(meta.MinTime, lo), max(meta.MaxTime, hi+1)
		meta.Stats.Series++
		meta.Stats.Chunks += uint64(len(of.chunks))
		for _, c := range of.chunks {
			n := uint64(c.Chunk.NumSamples())
			meta.Stats.Samples += n
			if e := c.Chunk.Encoding(); e == chunkenc.EncXOR || e == chunkenc.EncXOR2 {
				meta.Stats.Floats += n
			}
		}
	}
	meta.Stats.Histograms = meta.Stats.Samples - meta.Stats.Floats
	b, err := json.MarshalIndent(meta, "", "\t")
	if err == nil {
		err = writeFile(filepath.Join(dir, "meta.json"), b)
	}
	if err == nil {
		err = syncDir(dir)
	}
	return err
}

// tidy puts chunks in order of time. Those of floats and histograms that come apart and overlap are an error of the
// source: a line has both, in one order.
func tidy(list []chunks.Meta) ([]chunks.Meta, error) {
	slices.SortStableFunc(list, func(a, b chunks.Meta) int { return cmp.Compare(a.MinTime, b.MinTime) })
	for i := 1; i < len(list); i++ {
		if list[i].MinTime > list[i-1].MaxTime {
			continue
		}
		joined, err := join(list[i-1].Chunk, list[i].Chunk)
		if err != nil {
			return nil, err
		}
		list = slices.Replace(list, i-1, i+1, joined...)
		return tidy(list)
	}
	return list, nil
}

// join makes chunks of the samples of two, each in order; the second's samples count where both have one.
func join(a, b chunkenc.Chunk) ([]chunks.Meta, error) {
	by := map[int64]blockSample{}
	for _, c := range []chunkenc.Chunk{a, b} {
		it := c.Iterator(nil)
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			s := blockSample{t: it.AtT()}
			switch kind {
			case chunkenc.ValFloat:
				_, s.f = it.At()
			case chunkenc.ValHistogram:
				_, s.h = it.AtHistogram(nil)
			default:
				_, s.fh = it.AtFloatHistogram(nil)
			}
			by[s.t] = s
		}
		if err := it.Err(); err != nil {
			return nil, err
		}
	}
	all := make([]chunks.Sample, 0, len(by))
	for _, s := range by {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b chunks.Sample) int { return cmp.Compare(a.T(), b.T()) })
	it := promstorage.NewSeriesToChunkEncoder(promstorage.NewListSeries(labels.EmptyLabels(), all)).Iterator(nil)
	var out []chunks.Meta
	for it.Next() {
		out = append(out, it.At())
	}
	return out, it.Err()
}

func writeIndex(path string, all []*blockSeries) error {
	iw, err := index.NewWriter(context.Background(), path)
	if err != nil {
		return err
	}
	symbols := map[string]struct{}{}
	for _, of := range all {
		of.labels.Range(func(p labels.Label) {
			symbols[p.Name], symbols[p.Value] = struct{}{}, struct{}{}
		})
	}
	sorted := make([]string, 0, len(symbols))
	for sym := range symbols {
		sorted = append(sorted, sym)
	}
	slices.SortFunc(sorted, strings.Compare)
	for _, sym := range sorted {
		if err == nil {
			err = iw.AddSymbol(sym)
		}
	}
	for i, of := range all {
		if err == nil {
			err = iw.AddSeries(promstorage.SeriesRef(i+1), of.labels, of.chunks...)
		}
	}
	return cmp.Or(err, iw.Close())
}

func writeFile(path string, b []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	return cmp.Or(err, f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return cmp.Or(d.Sync(), d.Close())
}

// BlockWindow is the shortest and default window of blocks: that of Prometheus.
const BlockWindow = 2 * time.Hour
