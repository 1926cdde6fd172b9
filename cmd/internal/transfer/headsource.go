package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/fileutil"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/tombstones"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/jsonrows"
	"github.com/spillwaydb/spillway/protocols/point"
)

// headSource reads what Prometheus has in no block yet, from its write-ahead logs, as Prometheus does at its start:
//
//	wal/checkpoint.N ─▶ wal/N+1 … ─▶ wbl/0 …      series, then samples that name them by numbers
//	                                 └─ samples that came out of order
//
// Samples of the first two that are older than the end of the newest block are in blocks already, or were deleted there,
// and are left out; so is what tombstones delete. The logs are read twice, because a tombstone stands behind the samples
// that it deletes. Memory: the labels of the head's series.
type headSource struct {
	segments []segment
	ordered  int // segments of the wal; those behind are of the wbl
	sign     string
	lo, hi   int64
	inBlocks int64 // samples in order before this are in blocks
	losses   *Losses
	say      func(string)

	opened  bool
	dead    map[chunks.HeadSeriesRef]tombstones.Intervals
	series  map[chunks.HeadSeriesRef]labels.Labels
	decoder record.Decoder
	reader  *segmentReader
	at      int   // segments[at] is read
	done    int64 // bytes of the segments before
	size    int64
	ordinal int64 // samples that were read
	skip    int64 // samples at the begin that an earlier run had
	pending []headSample
	taken   int // of pending
}

// headSample is a float or a histogram of a series.
type headSample struct {
	ref chunks.HeadSeriesRef
	t   int64
	f   float64
	h   jsonrows.Histogram
}

// Why rows of a head are left out.
const (
	lostSegment = "places in the write-ahead log are damaged: what stands behind them in their segments is not imported (Prometheus may have a part of it in chunks_head: start it, and import with --from <its URL>)"
	lostSeries  = "rows in the write-ahead log are of series that it does not name any more"
	lostRecord  = "records of the write-ahead log could not be decoded"
	lostHead    = "Prometheus is using its directory: its newest rows, which are in no block yet, are not imported. Stop it and run the same command again, or import them with --from <its URL> --start 6h"
)

// headOf finds the logs of a directory; nil if there are none.
func headOf(dir string, blocks []block, lo, hi int64, losses *Losses, say func(string)) (*headSource, error) {
	wal := filepath.Join(dir, "wal")
	checkpoint, number := lastCheckpoint(wal)
	s := &headSource{lo: lo, hi: hi, inBlocks: TimeMin, losses: losses, say: say}
	for _, part := range []struct {
		dir   string
		above int
	}{{checkpoint, -1}, {wal, number}, {filepath.Join(dir, "wbl"), -1}} {
		if part.dir == "" {
			continue
		}
		found, err := segmentsIn(part.dir, part.above)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "the write-ahead log of %s", dir)
		}
		s.segments = append(s.segments, found...)
		if part.dir == wal {
			s.ordered = len(s.segments)
		}
	}
	if len(s.segments) == 0 {
		return nil, nil
	}
	for i := range s.segments {
		s.size += s.segments[i].size
	}
	for i := range blocks {
		if !blocks[i].besideTheHead() {
			s.inBlocks = max(s.inBlocks, blocks[i].meta.MaxTime)
		}
	}
	s.sign = fmt.Sprintf("%s%d segments of %d bytes, blocks to %d", headSign, len(s.segments), s.size, s.inBlocks)
	return s, nil
}

// headSign begins the note of a run that came to the head.
const headSign = "head: "

// besideTheHead reports whether a block was made of some rows only, so that its end says nothing of the others.
func (b *block) besideTheHead() bool {
	return slices.ContainsFunc(b.meta.Compaction.Hints, func(h string) bool {
		return h == "from-out-of-order" || h == "from-stale-series" || h == "from-selected-series"
	})
}

// lockHead acquires Prometheus' own lock, so that no Prometheus begins to use the directory meanwhile; inUse if one does. A
// directory without that file, such as a copy, and one that cannot be written, are not locked.
func lockHead(dir string) (release func(), inUse bool) {
	path := filepath.Join(dir, "lock")
	if _, err := os.Stat(path); err != nil {
		return func() {}, false
	}
	lock, _, err := fileutil.Flock(path)
	if err != nil {
		return func() {}, !errors.Is(err, fs.ErrPermission) && !strings.Contains(err.Error(), "read-only")
	}
	return func() { _ = lock.Release() }, false
}

// open reads the logs for the first time: it collects the tombstones, and counts the records that are not imported.
func (s *headSource) open(ctx context.Context) error {
	s.opened = true
	s.decoder = record.NewDecoder(nil, slog.New(slog.DiscardHandler))
	s.dead = map[chunks.HeadSeriesRef]tombstones.Intervals{}
	s.series = map[chunks.HeadSeriesRef]labels.Labels{}
	exemplars, descriptions := 0, 0
	for i := range s.segments {
		r, err := openSegment(s.segments[i])
		if err != nil {
			return fault.Wrap(err, fault.Unavailable, "the write-ahead log")
		}
		for err == nil {
			var rec []byte
			if rec, err = r.next(); err != nil {
				break
			}
			switch s.decoder.Type(rec) {
			case record.Tombstones:
				stones, err := s.decoder.Tombstones(rec, nil)
				if err != nil {
					s.losses.Add(lostRecord, 1, fmt.Sprintf("%s: tombstones: %v", s.segments[i].path, err))
				}
				for _, stone := range stones {
					for _, iv := range stone.Intervals {
						ref := chunks.HeadSeriesRef(stone.Ref)
						s.dead[ref] = s.dead[ref].Add(iv)
					}
				}
			case record.Exemplars:
				found, _ := s.decoder.Exemplars(rec, nil) // they are only counted
				exemplars += len(found)
			case record.Metadata:
				found, _ := s.decoder.Metadata(rec, nil)
				descriptions += len(found)
			}
			if err := ctx.Err(); err != nil {
				r.close()
				return err
			}
		}
		r.close()
		s.noteEnd(i, err)
	}
	if exemplars+descriptions > 0 {
		s.say(fmt.Sprintf("the write-ahead log has %d exemplars and %d descriptions of metrics too, which are not imported", exemplars, descriptions))
	}
	return nil
}

// noteEnd says why the reading of a segment ended.
func (s *headSource) noteEnd(i int, err error) {
	var damage *segmentDamage
	switch {
	case err == io.EOF:
	case errors.As(err, &damage) && damage.torn && s.segments[i].last:
		s.say(fmt.Sprintf("the write-ahead log ends inside of a record, which a crash tore (%v); Prometheus cuts it off, too", damage))
	default:
		s.losses.Add(lostSegment, 1, err.Error())
	}
}

// next implements source.
func (s *headSource) next(ctx context.Context) (*batch, error) {
	if !s.opened {
		if err := s.open(ctx); err != nil {
			return nil, err
		}
	}
	b := &batch{at: fmt.Sprintf("the write-ahead log from row %d on", s.ordinal), within: s.sign}
	lines := map[chunks.HeadSeriesRef]int{}
	for b.rows < batchRowsMax {
		if s.taken == len(s.pending) {
			err := s.read(ctx)
			if err == io.EOF && b.rows > 0 {
				break
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		one := &s.pending[s.taken]
		s.taken++
		if s.ordinal++; s.ordinal > s.skip {
			s.add(b, lines, one)
		}
	}
	for i := range b.lines {
		sortLine(&b.lines[i])
	}
	b.next = s.ordinal
	return b, nil
}

// add puts a sample into the batch, unless it is deleted or not asked for.
func (s *headSource) add(b *batch, lines map[chunks.HeadSeriesRef]int, one *headSample) {
	if one.t < s.lo || one.t > s.hi || slices.ContainsFunc(s.dead[one.ref], func(iv tombstones.Interval) bool { return iv.InBounds(one.t) }) {
		return
	}
	if s.at < s.ordered && one.t < s.inBlocks {
		return
	}
	i, ok := lines[one.ref]
	if !ok {
		ls, known := s.series[one.ref]
		if !known {
			s.losses.Add(lostSeries, 1, fmt.Sprintf("series %d at %s", one.ref, timeText(one.t)))
			return
		}
		i = len(b.lines)
		b.lines = append(b.lines, Line{})
		setLabels(&b.lines[i], ls)
		lines[one.ref] = i
	}
	l := &b.lines[i]
	b.rows++
	if one.h.Int != nil || one.h.Float != nil {
		l.Hists = append(l.Hists, one.h)
		return
	}
	l.Times, l.Values = append(l.Times, point.Nanos(one.t*nanosPerMilli)), append(l.Values, one.f)
}

// read decodes the next record that has samples into pending; io.EOF at the end of the logs.
func (s *headSource) read(ctx context.Context) error {
	s.pending, s.taken = s.pending[:0], 0
	for len(s.pending) == 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.at == len(s.segments) {
			return io.EOF
		}
		if s.reader == nil {
			r, err := openSegment(s.segments[s.at])
			if err != nil {
				return fault.Wrap(err, fault.Unavailable, "the write-ahead log")
			}
			s.reader = r
		}
		rec, err := s.reader.next()
		if err != nil { // the end, or damage that open noted
			s.reader.close()
			s.done += s.segments[s.at].size
			s.at, s.reader = s.at+1, nil
			continue
		}
		if err := s.decode(rec); err != nil {
			s.losses.Add(lostRecord, 1, fmt.Sprintf("%s before byte %d: %v", s.segments[s.at].path, s.reader.offset(), err))
		}
	}
	return nil
}

// decode keeps the series and samples of a record.
func (s *headSource) decode(rec []byte) error {
	switch s.decoder.Type(rec) {
	case record.Series:
		found, err := s.decoder.Series(rec, nil)
		for _, one := range found {
			s.series[one.Ref] = one.Labels
		}
		return err
	case record.Samples, record.SamplesV2:
		found, err := s.decoder.Samples(rec, nil)
		for _, one := range found {
			s.keep(headSample{ref: one.Ref, t: one.T, f: one.V})
		}
		return err
	case record.HistogramSamples, record.HistogramSamplesV2, record.CustomBucketsHistogramSamples:
		found, err := s.decoder.HistogramSamples(rec, nil)
		for _, one := range found {
			s.keep(headSample{ref: one.Ref, t: one.T, h: jsonrows.Histogram{Int: one.H}})
		}
		return err
	case record.FloatHistogramSamples, record.FloatHistogramSamplesV2, record.CustomBucketsFloatHistogramSamples:
		found, err := s.decoder.FloatHistogramSamples(rec, nil)
		for _, one := range found {
			s.keep(headSample{ref: one.Ref, t: one.T, h: jsonrows.Histogram{Float: one.FH}})
		}
		return err
	case record.Unknown:
		return errors.New("a record of a kind that is not known")
	}
	return nil // tombstones, exemplars, descriptions: open has them
}

func (s *headSource) keep(one headSample) {
	if !inRange(one.t) {
		s.losses.Add(lostRecord, 1, outOfRange(one.t).Error())
		return
	}
	one.h.Time = point.Nanos(one.t * nanosPerMilli)
	s.pending = append(s.pending, one)
}

// sortLine puts a line's rows in the order of time: those that came out of order are not.
func sortLine(l *Line) {
	if !slices.IsSorted(l.Times) {
		order := make([]int, len(l.Times))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(l.Times[a], l.Times[b]) })
		times, values := slices.Clone(l.Times), slices.Clone(l.Values)
		for i, from := range order {
			l.Times[i], l.Values[i] = times[from], values[from]
		}
	}
	slices.SortStableFunc(l.Hists, func(a, b jsonrows.Histogram) int { return cmp.Compare(a.Time, b.Time) })
}

func (s *headSource) part() float64 {
	done := s.done
	if s.reader != nil {
		done += s.reader.offset()
	}
	return float64(done) / float64(max(s.size, 1))
}

func (s *headSource) close() {
	if s.reader != nil {
		s.reader.close()
		s.reader = nil
	}
}
