package transfer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/index"
	"github.com/prometheus/prometheus/tsdb/tombstones"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// blockSource reads blocks of Prometheus' TSDB: a block, or all in a directory, oldest first.
type blockSource struct {
	blocks []block
	at     int
	lo, hi int64
	losses *Losses
	begun  string // a block of which an earlier run had the first series,
	skip   int64  // so many

	// Of the block that is open.
	index   *index.Reader
	chunks  *chunks.Reader
	dead    tombstones.Reader
	refs    index.Postings
	ordinal int64 // of the next series

	scratch labels.ScratchBuilder
	metas   []chunks.Meta
	it      chunkenc.Iterator
}

type block struct {
	dir  string
	meta blockMeta
}

// findBlocks lists the blocks of a directory; it may be one itself.
func findBlocks(dir string) ([]block, error) {
	if b, err := readBlock(dir); err == nil {
		return []block{b}, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the directory to import")
	}
	var all []block
	for _, e := range entries {
		if _, err := ulid.ParseStrict(e.Name()); err != nil || !e.IsDir() {
			continue // not a block, or one that is not whole
		}
		b, err := readBlock(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		return nil, fault.Errorf(fault.Invalid, "%s is neither a block of Prometheus nor a directory with blocks or a write-ahead log", dir)
	}
	slices.SortFunc(all, func(a, b block) int {
		return cmp.Or(cmp.Compare(a.meta.MinTime, b.meta.MinTime), a.meta.ULID.Compare(b.meta.ULID))
	})
	return all, nil
}

func readBlock(dir string) (block, error) {
	b, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	if err != nil {
		return block{}, err
	}
	var m blockMeta
	if err := json.Unmarshal(b, &m); err != nil || m.Version != 1 {
		return block{}, fault.Errorf(fault.Invalid, "%s/meta.json is not of a block that can be read (version %d, %v)", dir, m.Version, err)
	}
	return block{dir, m}, nil
}

// HasHead reports whether a directory has a write-ahead log: it is the own one of a Prometheus or its agent, or a copy.
func HasHead(dir string) bool {
	for _, log := range []string{"wal", "wbl"} {
		if segments, err := segmentsIn(filepath.Join(dir, log), -1); err == nil && len(segments) > 0 {
			return true
		}
	}
	return false
}

// newBlockSource reads the blocks of which an unfinished run did not write all.
func newBlockSource(all []block, note *resume, lo, hi int64, losses *Losses) (*blockSource, error) {
	s := &blockSource{blocks: all, lo: lo, hi: hi, losses: losses}
	if isBlock(note.Within) {
		s.begun, s.skip = note.Within, note.Next
		at := slices.IndexFunc(all, func(b block) bool { return b.meta.ULID.String() == s.begun })
		switch {
		case note.Done != nil: // where it is not there any more, its rows are in a block that is not noted as whole
		case at < 0:
			return nil, fault.Errorf(fault.Invalid, "the unfinished run came to the block %s, which is not there any more: remove the note of the run to begin anew", s.begun)
		default:
			s.blocks = all[at:]
		}
	}
	s.blocks = slices.DeleteFunc(slices.Clone(s.blocks), func(b block) bool { return slices.Contains(note.Done, b.meta.ULID.String()) })
	// The rest of the block that was begun comes before blocks that stand before it, which Prometheus made meanwhile: a note has place for one
	// block that is not whole.
	slices.SortStableFunc(s.blocks, func(a, b block) int {
		switch s.begun {
		case a.meta.ULID.String():
			return -1
		case b.meta.ULID.String():
			return 1
		}
		return 0
	})
	return s, nil
}

// isBlock reports whether the place of a note or a batch is in a block: its ULID.
func isBlock(within string) bool {
	_, err := ulid.ParseStrict(within)
	return err == nil
}

func (s *blockSource) next(ctx context.Context) (*batch, error) {
	for {
		if s.index == nil {
			if s.at >= len(s.blocks) {
				return nil, io.EOF
			}
			if b := s.blocks[s.at]; b.meta.MinTime > s.hi || b.meta.MaxTime <= s.lo {
				s.at++
				continue
			}
			if err := s.open(ctx); err != nil {
				return nil, err
			}
		}
		b, err := s.batch()
		if err != nil {
			return nil, err
		}
		if b != nil {
			return b, nil
		}
		s.close()
		s.at++
	}
}

func (s *blockSource) open(ctx context.Context) (err error) {
	dir := s.blocks[s.at].dir
	damaged := func(err error) error { return fault.Wrap(err, fault.Corrupt, "block %s", dir) }
	if s.dead, _, err = tombstones.ReadTombstones(dir); err != nil {
		return damaged(err)
	}
	if s.chunks, err = chunks.NewDirReader(filepath.Join(dir, "chunks"), nil); err != nil {
		return damaged(err)
	}
	if s.index, err = index.NewFileReader(filepath.Join(dir, "index"), index.DecodePostingsRaw); err != nil {
		s.chunks.Close()
		return damaged(err)
	}
	name, value := index.AllPostingsKey()
	s.refs, err = s.index.Postings(ctx, name, value)
	s.ordinal = 0
	for s.blocks[s.at].meta.ULID.String() == s.begun && err == nil && s.ordinal < s.skip && s.refs.Next() {
		s.ordinal++
	}
	return damaged(err)
}

// batch reads some series of the open block; nil at its end.
func (s *blockSource) batch() (*batch, error) {
	of := s.blocks[s.at]
	b := &batch{at: fmt.Sprintf("block %s from series %d on", of.meta.ULID, s.ordinal), within: of.meta.ULID.String()}
	took := false
	for b.rows < batchRowsMax && s.refs.Next() {
		took = true
		if err := s.series(b, s.refs.At()); err != nil {
			return nil, fault.Wrap(err, fault.Corrupt, "block %s, series %d", of.dir, s.ordinal)
		}
		s.ordinal++
	}
	if err := s.refs.Err(); err != nil || !took {
		return nil, fault.Wrap(err, fault.Corrupt, "block %s", of.dir)
	}
	b.next = s.ordinal
	return b, nil
}

func (s *blockSource) series(b *batch, ref promstorage.SeriesRef) error {
	if err := s.index.Series(ref, &s.scratch, &s.metas); err != nil {
		return err
	}
	dead, err := s.dead.Get(ref)
	if err != nil {
		return err
	}
	var l Line
	setLabels(&l, s.scratch.Labels())
	give := func(l *Line) error {
		without(l, dead)
		if l.Rows() > 0 {
			b.lines = append(b.lines, clone(l))
			b.rows += int64(l.Rows())
		}
		return nil
	}
	for _, m := range s.metas {
		if m.MinTime > s.hi || m.MaxTime < s.lo {
			continue
		}
		c, iterable, err := s.chunks.ChunkOrIterable(m)
		if err != nil {
			return err
		}
		if c != nil {
			s.it = c.Iterator(s.it)
		} else {
			s.it = iterable.Iterator(s.it)
		}
		if err := iterate(s.it, &l, s.lo, s.hi, give); err != nil {
			return err
		}
	}
	return flush(&l, give)
}

// without drops the rows that a block says are deleted.
func without(l *Line, dead tombstones.Intervals) {
	if len(dead) == 0 {
		return
	}
	gone := func(ns int64) bool {
		return slices.ContainsFunc(dead, func(iv tombstones.Interval) bool { return iv.InBounds(ns / nanosPerMilli) })
	}
	kept := 0
	for i, t := range l.Times {
		if !gone(int64(t)) {
			l.Times[kept], l.Values[kept] = t, l.Values[i]
			kept++
		}
	}
	l.Times, l.Values = l.Times[:kept], l.Values[:kept]
	hists := l.Hists[:0]
	for _, h := range l.Hists {
		if !gone(int64(h.Time)) {
			hists = append(hists, h)
		}
	}
	l.Hists = hists
}

func (s *blockSource) part() float64 {
	whole, done := 0.0, 0.0
	for i := range s.blocks {
		n := float64(max(s.blocks[i].meta.Stats.Series, 1))
		whole += n
		if i < s.at {
			done += n
		} else if i == s.at {
			done += math.Min(float64(s.ordinal), n)
		}
	}
	return done / whole
}

func (s *blockSource) close() {
	if s.index == nil {
		return
	}
	s.index.Close()
	s.chunks.Close()
	s.dead.Close()
	s.index, s.ordinal = nil, 0
}
