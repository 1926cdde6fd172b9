package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/time/rate"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Session is a backup whose parts are known one after the other: that of a cluster. Its methods but End and Abort may be called from several
// goroutines.
type Session struct {
	// Constant after Begin.
	at     Place
	set    Settings
	limit  *rate.Limiter // nil: none
	unlock io.Closer
	made   time.Time
	there  map[string]int64 // files in the place when it began

	mu struct {
		sync.Mutex
		kept     map[string]*keeping // by name of the file
		staged   []Segment
		progress Progress
	}
}

// keeping is a file that is there, or is being written: another partition may have the same one.
type keeping struct {
	done chan struct{}
	err  error
}

// Begin locks a place for a backup. The holder names the writer, as to Place.Lock. End or Abort ends it. Errors: Unavailable (another backup into the
// place runs), Canceled.
func Begin(ctx context.Context, to Place, holder string, made time.Time, set Settings) (*Session, error) {
	unlock, err := to.Lock(ctx, holder)
	if err != nil {
		return nil, err
	}
	s := &Session{at: to, set: set, unlock: unlock, made: made.UTC()}
	if set.BytesPerSecond > 0 {
		s.limit = rate.NewLimiter(rate.Limit(set.BytesPerSecond), max(copyBuffer, set.BytesPerSecond))
	}
	s.mu.kept = map[string]*keeping{}
	if s.there, err = to.List(ctx, SegmentsDir); err != nil {
		return nil, errors.Join(err, unlock.Close())
	}
	return s, nil
}

// Expect adds files to come to the progress; less than 0: there were too many.
func (s *Session) Expect(segments int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.progress.SegmentsAll += segments
	s.mu.progress.BytesAll += bytes
}

// Keep writes a segment, unless the place has it. from names the source in messages. Where another call is writing the same bytes, Keep returns wait, which returns the result
// of that call, or of ctx; otherwise wait is nil. Errors: Damaged (the bytes are others), and those of open and of the place.
func (s *Session) Keep(ctx context.Context, g *Segment, from string, open func() (io.ReadCloser, error)) (wait func(context.Context) error, err error) {
	name := g.name()
	if size, ok := s.there[name]; ok && size == g.Size {
		s.passed(g, 0)
		return nil, nil
	}
	s.mu.Lock()
	k := s.mu.kept[name]
	if k != nil {
		s.mu.Unlock()
		return func(ctx context.Context) error { return s.join(ctx, k, g) }, nil
	}
	k = &keeping{done: make(chan struct{})}
	s.mu.kept[name] = k
	s.mu.Unlock()
	j := &job{limit: s.limit}
	k.err = j.through(ctx, g, from, func() (io.ReadCloser, int64, error) { f, err := open(); return f, g.Size, err },
		func(r io.Reader) error { return s.at.Put(ctx, SegmentsDir+"/"+name, g.Size, r) })
	if k.err != nil { // another try may have it
		s.mu.Lock()
		delete(s.mu.kept, name)
		s.mu.Unlock()
	} else {
		s.passed(g, g.Size)
	}
	close(k.done)
	return nil, k.err
}

// join waits for a file that another call writes.
func (s *Session) join(ctx context.Context, k *keeping, g *Segment) error {
	select {
	case <-k.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if k.err == nil {
		s.passed(g, 0)
	}
	return k.err
}

// Damaged reports whether an error of Keep says that the bytes are not those that the source promised.
func Damaged(err error) bool {
	var bad errDamaged
	return errors.As(err, &bad)
}

// KeepStaged writes a file with rows that wait for their leaders, which AppendStaged made, and returns its number.
func (s *Session) KeepStaged(ctx context.Context, b []byte) (seq uint64, err error) {
	g := Segment{Size: int64(len(b)), Checksum: xxhash.Sum64(b)}
	s.Expect(1, g.Size)
	wait, err := s.Keep(ctx, &g, "staged rows", func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
	if wait != nil {
		err = wait(ctx)
	}
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.Seq = uint64(len(s.mu.staged) + 1)
	s.mu.staged = append(s.mu.staged, g)
	return g.Seq, nil
}

// passed counts a segment that is there.
func (s *Session) passed(g *Segment, copied int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.progress.Segments++
	s.mu.progress.Bytes += g.Size
	s.mu.progress.Copied += copied
	if s.set.Progress != nil {
		s.set.Progress(s.mu.progress)
	}
}

// End writes the manifest, with which the backup is there, and unlocks the place. Of m the tables, entries, segments and missing parts are set.
func (s *Session) End(ctx context.Context, m *Manifest) (Result, error) {
	m.Version, m.Made, m.Program = clusterVersion, s.made, s.set.Program
	m.Segments = append(s.mu.staged, m.Segments...)
	if m.Tables == nil {
		m.Tables = []Table{}
	}
	s.mu.progress.SegmentsAll, s.mu.progress.BytesAll = len(m.Segments), m.Bytes()
	s.mu.progress.Segments, s.mu.progress.Bytes = s.mu.progress.SegmentsAll, s.mu.progress.BytesAll
	err := syncSegments(ctx, s.at, maps.Keys(s.mu.kept))
	if err == nil {
		err = writeManifest(ctx, s.at, m)
	}
	return Result{Name: m.name(), Progress: s.mu.progress, Missing: m.Missing}, errors.Join(err, s.unlock.Close())
}

// Abort ends a backup that is not made. Its files stay for the next one.
func (s *Session) Abort() error { return s.unlock.Close() }

// OfPlacement returns the segments of a placement.
func (m *Manifest) OfPlacement(id point.PlacementID) (all []Segment) {
	for _, g := range m.Segments {
		if g.Placement == id {
			all = append(all, g)
		}
	}
	return all
}

// ReadStaged reads a file with rows that waited, by its number, whole: it has at most StagedFileMax bytes and a frame. Errors: Corrupt, Unavailable, Canceled.
func ReadStaged(ctx context.Context, at Place, m *Manifest, seq uint64) ([]byte, error) {
	for _, g := range m.OfPlacement(0) {
		if g.Seq != seq {
			continue
		}
		var out bytes.Buffer
		err := (&job{}).from(ctx, at, &g, func(r io.Reader) error { _, err := io.Copy(&out, r); return err })
		return out.Bytes(), err
	}
	return nil, fault.Errorf(fault.Corrupt, "the backup does not list its file %d of staged rows", seq)
}

// stagedMagic begins a file with rows that waited for their leaders.
const stagedMagic = "spillway staged 1\n"

// StagedFileMax is from how many bytes on such a file is full.
const StagedFileMax = 8 << 20

// AppendStaged appends a frame to such a file, which begins empty.
func AppendStaged(b, frame []byte) []byte {
	if len(b) == 0 {
		b = append(b, stagedMagic...)
	}
	b = append(b, byte(len(frame)), byte(len(frame)>>8), byte(len(frame)>>16), byte(len(frame)>>24))
	return append(b, frame...)
}

// EachStaged passes the frames of such a file to f. Errors: Corrupt, and those of f.
func EachStaged(b []byte, f func(frame []byte) error) error {
	rest, ok := bytes.CutPrefix(b, []byte(stagedMagic))
	if !ok {
		return fault.Errorf(fault.Corrupt, "a file of staged rows does not begin as one")
	}
	for len(rest) > 0 {
		if len(rest) < 4 {
			return fault.Errorf(fault.Corrupt, "a file of staged rows ends within a length")
		}
		n := int(rest[0]) | int(rest[1])<<8 | int(rest[2])<<16 | int(rest[3])<<24
		if rest = rest[4:]; n > len(rest) {
			return fault.Errorf(fault.Corrupt, "a file of staged rows ends within a frame of %d bytes", n)
		}
		if err := f(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}
