package backup

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/time/rate"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// job reads or copies the segments of a backup and counts them.
type job struct {
	set      Settings
	limit    *rate.Limiter // nil: none
	segments []Segment
	progress Progress
}

const copyBuffer = 1 << 20

func newJob(set Settings, segments []Segment) *job {
	j := &job{set: set, segments: segments}
	if set.BytesPerSecond > 0 {
		j.limit = rate.NewLimiter(rate.Limit(set.BytesPerSecond), max(copyBuffer, set.BytesPerSecond))
	}
	j.progress.SegmentsAll = len(segments)
	for i := range segments {
		j.progress.BytesAll += segments[i].Size
	}
	return j
}

// outcome is the result for one segment: the bytes that were copied, or an error.
type outcome struct {
	segment int
	copied  int64
	err     error
}

// each calls do for every segment, some at once, and returns the reasons of those that do reported as damaged (errDamaged), by
// number. Any other error ends it.
func (j *job) each(ctx context.Context, streams int, do func(context.Context, *Segment) (copied int64, err error)) (map[int]error, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		next    atomic.Int64
		running sync.WaitGroup
		results = make(chan outcome)
	)
	for range min(max(streams, 1), len(j.segments)) {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(j.segments) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				copied, err := do(ctx, &j.segments[i])
				results <- outcome{i, copied, err}
			}
		})
	}
	go func() { running.Wait(); close(results) }()
	damaged := map[int]error{}
	var failed error
	for r := range results {
		var bad errDamaged
		switch {
		case errors.As(r.err, &bad):
			damaged[r.segment] = bad
		case r.err != nil:
			if failed == nil { // the others fail because of the cancellation
				failed = r.err
			}
			cancel()
			continue
		}
		j.passed(&j.segments[r.segment], r.copied)
	}
	if failed == nil && j.progress.Segments < len(j.segments) {
		failed = ctx.Err()
	}
	return damaged, failed
}

// passed counts a finished segment.
func (j *job) passed(s *Segment, copied int64) {
	j.progress.Segments++
	j.progress.Bytes += s.Size
	j.progress.Copied += copied
	if j.set.Progress != nil {
		j.set.Progress(j.progress)
	}
}

// errDamaged reports a segment with changed bytes.
type errDamaged struct{ error }

// check makes a reader of a segment's bytes that fails where they are not the expected ones: before the last byte, so that a
// writer never completes a file of wrong bytes.
func (j *job) check(ctx context.Context, s *Segment, from string, r io.Reader) *checker {
	return &checker{ctx: ctx, limit: j.limit, segment: s, from: from, r: r, sum: xxhash.New()}
}

// checker is the reader of check. It lives as long as the copy of one segment.
type checker struct {
	ctx     context.Context
	limit   *rate.Limiter
	segment *Segment
	from    string
	r       io.Reader

	sum  *xxhash.Digest
	size int64
	err  error // the first error, also after another layer wrapped it
}

// Read implements io.Reader. Errors: errDamaged, Unavailable, Canceled.
func (c *checker) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.read(p)
	c.err = err
	return n, err
}

func (c *checker) read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p[:min(len(p), copyBuffer)])
	_, _ = c.sum.Write(p[:n]) // never fails
	c.size += int64(n)
	if c.limit != nil && n > 0 {
		if err := c.limit.WaitN(c.ctx, n); err != nil {
			return 0, err
		}
	}
	for err == nil && c.size == c.segment.Size { // the end, unless the file is too long
		var more [1]byte
		var k int
		k, err = c.r.Read(more[:])
		c.size += int64(k)
	}
	switch {
	case err == io.EOF && (c.size != c.segment.Size || c.sum.Sum64() != c.segment.Checksum), c.size > c.segment.Size:
		return 0, c.wrong()
	case err == io.EOF || err == nil:
		return n, err
	case fault.Is(err, fault.Corrupt):
		return 0, errDamaged{err}
	}
	return 0, err
}

func (c *checker) wrong() error {
	if c.size > c.segment.Size {
		return errDamaged{fault.Errorf(fault.Corrupt, "%s has more than the %d bytes that it should have", c.from, c.segment.Size)}
	}
	return errDamaged{fault.Errorf(fault.Corrupt, "%s has %d bytes with checksum %016x, and should have %d with %016x",
		c.from, c.size, c.sum.Sum64(), c.segment.Size, c.segment.Checksum)}
}

// through hands the checked bytes of a segment to write. A file that is missing is damage. Errors: errDamaged, Unavailable,
// Canceled.
func (j *job) through(ctx context.Context, s *Segment, from string, open func() (io.ReadCloser, int64, error), write func(io.Reader) error) error {
	f, _, err := open()
	if fault.Is(err, fault.NotFound) {
		return errDamaged{fault.Errorf(fault.Corrupt, "%v", err)}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	c := j.check(ctx, s, from, f)
	if err := write(c); err != nil {
		if c.err != nil && c.err != io.EOF {
			return c.err
		}
		return err
	}
	return nil
}

// drain reads to the end.
func drain(r io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, copyBuffer))
	return err
}
