package transfer

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// prometheusSource reads a directory of Prometheus: its blocks, oldest first, then its head. Either may be missing.
type prometheusSource struct {
	blocks *blockSource // nil: there are none left
	head   *headSource  // nil: there is none, or a Prometheus is using it
	weight float64      // the part of the whole that the blocks are
	unlock func()
}

// newPrometheusSource begins where an earlier run came to. A Prometheus that ran in between moved rows from its head into new blocks, of any
// age where they came out of order: all blocks that the run did not note as whole are read, wherever they stand.
func newPrometheusSource(dir string, note *resume, lo, hi int64, losses *Losses, say func(string)) (*prometheusSource, error) {
	all, err := findBlocks(dir)
	if err != nil && !HasHead(dir) {
		return nil, err
	}
	s := &prometheusSource{unlock: func() {}}
	if HasHead(dir) {
		release, inUse := lockHead(dir)
		if inUse {
			losses.Add(lostHead, 1, dir)
		} else if s.head, err = headOf(dir, all, lo, hi, losses, say); err != nil {
			release()
			return nil, err
		}
		s.unlock = release
	}
	atHead := strings.HasPrefix(note.Within, headSign)
	same := atHead && s.head != nil && s.head.sign == note.Within
	if len(all) > 0 && !(same && note.Done == nil) { // nil: an older build noted nothing of blocks, all of which were whole
		if s.blocks, err = newBlockSource(all, note, lo, hi, losses); err != nil {
			s.unlock()
			return nil, err
		}
		if skipped := len(all) - len(s.blocks.blocks); skipped > 0 {
			say(fmt.Sprintf("%d of %d blocks were imported by the unfinished run, and are skipped", skipped, len(all)))
		}
	}
	switch {
	case s.head == nil && (s.blocks == nil || len(s.blocks.blocks) == 0):
		s.unlock()
		return nil, fault.Errorf(fault.Unavailable, "%s: there is no block to import, and %s", dir, lostHead)
	case same:
		s.head.skip = note.Next
	case atHead:
		say("the directory has changed since the unfinished run: its write-ahead log is imported from its begin; rows that were written replace themselves")
	}
	s.weight = s.blocksPart()
	return s, nil
}

// blocksPart compares the rows of the blocks with the bytes of the logs: about five bytes a row.
func (s *prometheusSource) blocksPart() float64 {
	const logBytesPerRow = 5
	switch {
	case s.blocks == nil:
		return 0
	case s.head == nil:
		return 1
	}
	rows := 1.0
	for i := range s.blocks.blocks {
		rows += float64(s.blocks.blocks[i].meta.Stats.Samples)
	}
	return rows / (rows + float64(s.head.size)/logBytesPerRow)
}

// next implements source.
func (s *prometheusSource) next(ctx context.Context) (*batch, error) {
	if s.blocks != nil {
		b, err := s.blocks.next(ctx)
		if err != io.EOF {
			return b, err
		}
		s.blocks.close()
		s.blocks = nil
	}
	if s.head == nil {
		return nil, io.EOF
	}
	return s.head.next(ctx)
}

func (s *prometheusSource) part() float64 {
	switch {
	case s.blocks != nil:
		return s.weight * s.blocks.part()
	case s.head != nil:
		return s.weight + (1-s.weight)*s.head.part()
	}
	return 1
}

func (s *prometheusSource) close() {
	if s.blocks != nil {
		s.blocks.close()
	}
	if s.head != nil {
		s.head.close()
	}
	s.unlock()
}
