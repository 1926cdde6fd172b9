package query

import (
	"context"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// set is a storage.SeriesSet over a peer.SeriesSet, which it opens when it is first moved: the engine names all its
// selectors before it reads the first.
type set struct {
	ctx   context.Context // of the query; a SeriesSet's methods have none
	table *Table
	ask   *peer.Select
	limit int // series; 0: none
	usage *usage
	room  roomCounter

	passing bool  // a series is dropped when the next is asked for
	last    int64 // bytes of the one stood on

	in      peer.SeriesSet
	builder labels.ScratchBuilder
	slab    []series // memory of the series to come
	at      *series
	given   int
	rows    int // read in this turn
	err     error
	ended   bool
}

// turnSeries is how many series are read in one turn, unless they have turnRows rows before.
const (
	turnSeries = 64
	turnRows   = 64 << 10
)

// slabLen is how many series share one allocation.
const slabLen = 32

func (s *set) Next() bool {
	if s.ended {
		return false
	}
	if !s.advance() {
		s.close()
		return false
	}
	if s.passing { // do not keep its memory for the others of its slab
		s.slab = make([]series, 1)
	} else if len(s.slab) == 0 {
		s.slab = make([]series, slabLen)
	}
	s.at, s.slab = &s.slab[0], s.slab[1:]
	rows := s.in.At()
	*s.at = series{labels: promLabels(&s.builder, rows.Labels), rows: rows, set: s}
	s.given++
	return true
}

// advance moves the inner set on and accounts for the series.
func (s *set) advance() bool {
	if s.in == nil {
		if !s.open() {
			return false
		}
	} else if s.given%turnSeries == 0 || s.rows >= turnRows {
		s.rows = 0
		if s.err = s.turn().Next(s.ctx); s.err != nil {
			return false
		}
	}
	if s.limit > 0 && s.given >= s.limit {
		return false
	}
	if !s.in.Next() {
		s.err = s.in.Err()
		return false
	}
	if s.passing {
		s.usage.drop(s.last)
	}
	s.last, s.err = s.usage.keep(s.in.At(), s.room.more(s.in.At()))
	s.rows += len(s.in.At().Times)
	return s.err == nil
}

// open opens the inner set, and leaves the turn in which the first series are read. False: there is none, or an error.
func (s *set) open() bool {
	r := s.table.reader
	if s.err = r.turnFor(s.ctx, s.turn()); s.err != nil {
		return false
	}
	if s.in, s.err = s.table.open(lane.With(s.ctx, s.turn()), s.ask); s.err != nil || s.in == nil {
		return false
	}
	if r.remote {
		s.err = s.turn().Next(s.ctx)
	}
	return s.err == nil
}

// turn is the way through the lane of the goroutine that reads.
func (s *set) turn() *lane.Turn {
	if t := s.usage.turn; t != nil {
		return t
	}
	return s.usage.lookup
}

func (s *set) close() {
	s.ended = true
	if s.in == nil {
		return
	}
	if err := s.in.Close(); s.err == nil {
		s.err = err
	}
	s.in = nil
}

func (s *set) At() storage.Series { return s.at }

// Err returns a promql.ErrStorage with the source's error inside, so that the API can distinguish errors of storage from
// errors of the expression.
func (s *set) Err() error {
	if s.err == nil {
		return nil
	}
	return promql.ErrStorage{Err: s.err}
}

// Warnings is empty: warnings of the source go through Warn, for every kind of request alike.
func (s *set) Warnings() annotations.Annotations { return nil }
