package transfer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/jsonrows"
	"github.com/spillwaydb/spillway/protocols/point"
)

// source gives batches in order; io.EOF ends it.
type source interface {
	next(ctx context.Context) (*batch, error)
	part() float64 // of the whole that was read, below 0: not known
	close()
}

// Bounds on a batch.
const (
	batchRowsMax  = 10_000
	batchBytesMax = 1 << 20
	textLineMax   = 1 << 20 // of a text format or line protocol
)

// file is a file that is read line by line, unpacked.
type file struct {
	path    string
	f       *os.File
	size    int64
	packed  *counter
	lines   *bufio.Reader
	offset  int64         // unpacked, of the next line
	number  int64         // of the next line, from 1
	sum     xxhash.Digest // of the bytes before offset
	lineMax int
}

// counter counts bytes on their way.
type counter struct {
	r io.Reader
	n int64
}

// Read implements io.Reader.
func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// readFile opens a file ("-": standard input) where an unfinished run noted that it came to. Errors are Invalid: also where it is not the file of that run.
func readFile(path string, note *resume, lineMax int) (_ *file, err error) {
	f := &file{path: path, f: os.Stdin, number: 1, lineMax: lineMax}
	f.sum.Reset()
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if path != "-" {
		if f.f, err = os.Open(path); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "the file to import")
		}
		if st, err := f.f.Stat(); err == nil && st.Mode().IsRegular() {
			f.size = st.Size()
		}
	}
	f.packed = &counter{r: f.f}
	raw := bufio.NewReaderSize(f.packed, 256<<10)
	head, _ := raw.Peek(4) // a shorter file is not packed
	var r io.Reader = raw
	switch {
	case strings.HasPrefix(string(head), "\x1f\x8b"):
		r, err = gzip.NewReader(raw)
	case string(head) == "\x28\xb5\x2f\xfd":
		r, err = zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20))
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "%s cannot be unpacked", path)
	}
	f.lines = bufio.NewReaderSize(r, 256<<10)
	return f, f.skip(note)
}

// skip goes to where an unfinished run came to. A file that was replaced by another is refused: its first rows would be passed over.
func (f *file) skip(note *resume) error {
	var buf []byte
	for f.offset < note.Next {
		var err error
		if buf, err = f.line(buf[:0]); err != nil && err != errLong {
			return fault.Errorf(fault.Invalid, "%s is shorter than it was when the unfinished run noted how far it came: %v", f.path, err)
		}
	}
	if note.Sum != "" && note.Sum != f.sumText() {
		return fault.Errorf(fault.Invalid, "%s is not the file of the unfinished run any more: its first %d bytes, which that run imported, are others now; "+
			"remove the note of that run to import all of it", f.path, note.Next)
	}
	return nil
}

func (f *file) sumText() string { return fmt.Sprintf("%016x", f.sum.Sum64()) }

// errLong is a line longer than the bound; it was skipped.
var errLong = errors.New("the line is too long")

// line appends the next line with its newline to dst; io.EOF at the end.
func (f *file) line(dst []byte) ([]byte, error) {
	begin, long := len(dst), false
	for {
		b, err := f.lines.ReadSlice('\n')
		f.offset += int64(len(b))
		_, _ = f.sum.Write(b) // it never fails
		if !long {
			dst = append(dst, b...)
		}
		if len(dst)-begin > f.lineMax {
			dst, long = dst[:begin], true
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err != nil && err != io.EOF:
			return dst, fault.Wrap(err, fault.Invalid, "%s line %d", f.path, f.number)
		case err == io.EOF && len(dst) == begin && !long:
			return dst, io.EOF
		}
		f.number++
		if long {
			return dst, errLong
		}
		return dst, nil
	}
}

func (f *file) part() float64 {
	if f.size == 0 {
		return -1
	}
	return float64(f.packed.n) / float64(f.size)
}

func (f *file) close() {
	if f.path != "-" && f.f != nil {
		f.f.Close()
	}
}

func (f *file) newBatch() *batch {
	return &batch{at: fmt.Sprintf("%s from line %d on", f.path, f.number)}
}

func (f *file) ended(b *batch) *batch {
	b.next, b.read, b.sum = f.offset, f.packed.n, f.sumText()
	return b
}

// jsonSource reads lines of JSON.
type jsonSource struct {
	*file
	losses *Losses
	parser jsonrows.Parser
	buf    []byte
}

const badLine = "lines could not be read, and were left out"

func (s *jsonSource) next(context.Context) (*batch, error) {
	b := s.newBatch()
	for bytes := 0; b.rows < batchRowsMax && bytes < batchBytesMax; bytes += len(s.buf) {
		number := s.number
		var err error
		s.buf, err = s.line(s.buf[:0])
		if err == io.EOF {
			if b.rows == 0 {
				return nil, io.EOF
			}
			break
		}
		if err != nil && err != errLong {
			return nil, err
		}
		if err == nil && len(strings.TrimSpace(string(s.buf))) == 0 {
			continue
		}
		var l *Line
		if err == nil {
			l, err = s.parser.Parse(s.buf)
		}
		if err != nil {
			s.losses.Add(badLine, 1, fmt.Sprintf("%s line %d: %v", s.path, number, err))
			continue
		}
		b.lines = append(b.lines, clone(l))
		b.rows += int64(l.Rows())
	}
	return s.ended(b), nil
}

// textSource reads Prometheus' text format or OpenMetrics, by Prometheus' own parser. A sample without a time gets now.
type textSource struct {
	*file
	losses *Losses
	open   bool
	now    int64 // milliseconds
	buf    []byte
	starts []textStart
	lines  map[string]int // series of the batch, by their bytes
}

// textStart is where a line begins in the buffer, and its number in the file.
type textStart struct {
	at     int
	number int64
}

const commentEOF = "# EOF\n"

func (s *textSource) next(context.Context) (*batch, error) {
	b := s.newBatch()
	s.buf, s.starts, s.lines = s.buf[:0], s.starts[:0], map[string]int{}
	for len(s.buf) < batchBytesMax && len(s.starts) < batchRowsMax {
		start := textStart{len(s.buf), s.number}
		var err error
		s.buf, err = s.line(s.buf)
		if err == io.EOF {
			if len(s.buf) == 0 {
				return nil, io.EOF
			}
			break
		}
		if err == errLong {
			s.losses.Add(badLine, 1, fmt.Sprintf("%s line %d: %v", s.path, start.number, err))
			continue
		}
		if err != nil {
			return nil, err
		}
		// Parsers of OpenMetrics know no empty lines, and the end comes once, last.
		if text := strings.TrimSpace(string(s.buf[start.at:])); text == "" || text == strings.TrimSpace(commentEOF) {
			s.buf = s.buf[:start.at]
			continue
		}
		if s.buf[len(s.buf)-1] != '\n' {
			s.buf = append(s.buf, '\n')
		}
		s.starts = append(s.starts, start)
	}
	if err := s.parse(b, s.buf); err != nil { // once more, line by line, to keep the good ones and name the others
		b.lines, b.rows, s.lines = nil, 0, map[string]int{}
		for i, start := range s.starts {
			end := len(s.buf)
			if i+1 < len(s.starts) {
				end = s.starts[i+1].at
			}
			if err := s.parse(b, s.buf[start.at:end]); err != nil {
				s.losses.Add(badLine, 1, fmt.Sprintf("%s line %d: %v", s.path, start.number, err))
			}
		}
	}
	return s.ended(b), nil
}

// parse adds the samples of some whole lines to a batch.
func (s *textSource) parse(b *batch, text []byte) error {
	kind := "text/plain"
	text = slices.Clip(text) // parsers append here
	if s.open {
		kind = "application/openmetrics-text"
		text = append(text, commentEOF...)
	}
	p, err := textparse.New(text, kind, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return err
	}
	for {
		entry, err := p.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		series, at, v := p.Series()
		t := s.now
		if at != nil {
			t = *at
		}
		if !inRange(t) {
			return outOfRange(t)
		}
		i, ok := s.lines[string(series)]
		if !ok {
			var ls labels.Labels
			p.Labels(&ls)
			i = len(b.lines)
			b.lines = append(b.lines, Line{})
			setLabels(&b.lines[i], ls)
			s.lines[string(series)] = i
		}
		l := &b.lines[i]
		l.Times, l.Values = append(l.Times, point.Nanos(t*nanosPerMilli)), append(l.Values, v)
		b.rows++
	}
}

// lineSource passes line protocol on, in pieces of whole lines.
//
// A line without a time gets one here. The server would give each attempt to write it another, so that a line that is sent again, after
// an answer that was lost or by the next run, would be two rows.
type lineSource struct {
	*file
	losses    *Losses
	precision string
	now       []byte // in that precision
}

// lineUnits are nanoseconds of the precisions of line protocol.
var lineUnits = map[string]int64{"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}

// newLineSource gives lines without a time that of now, in nanoseconds.
func newLineSource(f *file, losses *Losses, precision string, now int64) *lineSource {
	return &lineSource{file: f, losses: losses, precision: precision, now: strconv.AppendInt([]byte{' '}, now/lineUnits[precision], 10)}
}

func (s *lineSource) next(context.Context) (*batch, error) {
	b := s.newBatch()
	b.precision = s.precision
	for len(b.raw) < batchBytesMax && b.rows < batchRowsMax {
		number, before := s.number, len(b.raw)
		var err error
		b.raw, err = s.line(b.raw)
		inText, undated := lineEnd(b.raw[before:])
		for err == nil && inText && len(b.raw)-before <= s.lineMax {
			b.raw, err = s.line(b.raw) // a text that has a newline
			inText, undated = lineEnd(b.raw[before:])
		}
		if err == io.EOF {
			if len(b.raw) == 0 {
				return nil, io.EOF
			}
			break
		}
		if err == errLong {
			s.losses.Add(badLine, 1, fmt.Sprintf("%s line %d: %v", s.path, number, err))
			b.raw, err = b.raw[:before], nil
			continue
		}
		if err != nil {
			return nil, err
		}
		if undated > 0 {
			b.raw = slices.Insert(b.raw, before+undated, s.now...)
		}
		b.rows++
	}
	return s.ended(b), nil
}

// lineEnd reports how a line of line protocol ends: inside of a text, so that its newline belongs to that text; or behind its fields,
// without a time, which belongs at undated (0: it has one, or is no line with fields). A text begins with a quote behind the = of a field.
//
//	cpu,host=a usage=1,note="x y" 1790000000
//	└──────── key  └── fields    └── time
func lineEnd(line []byte) (inText bool, undated int) {
	begin := len(line) - len(bytes.TrimLeft(line, " "))
	if begin == len(line) || line[begin] == '#' {
		return false, 0
	}
	spaces := 0 // between the parts
	for i := begin; i < len(line); i++ {
		switch c := line[i]; {
		case inText && c == '\\':
			i++
		case inText:
			inText = c != '"'
		case c == '\n' || c == '\r':
			if spaces == 1 && line[i-1] != ' ' {
				return false, i
			}
			return false, undated
		case c == ' ' && i > begin && line[i-1] != '\\':
			if line[i-1] == ' ' && line[i-2] != '\\' { // one more of the same; the last byte of a name may be a space, too: "m\  v=1"
				continue
			}
			if spaces++; spaces == 2 {
				undated = i
			}
		case spaces == 1 && c == '"' && line[i-1] == '=':
			inText = true
		case spaces == 2:
			return false, 0 // a time, or no number, which will be refused
		}
	}
	if spaces == 1 && !inText && line[len(line)-1] != ' ' {
		return false, len(line)
	}
	return inText, undated
}

// serverSource reads another server, window by window.
type serverSource struct {
	reader     *Reader
	lo, hi, at int64
	window     int64
	out        chan *batch
	stop       context.CancelFunc
	err        error // good once out is closed
}

// newServerSource begins to read.
func newServerSource(ctx context.Context, e *Export) *serverSource {
	ctx, stop := context.WithCancel(ctx)
	s := &serverSource{reader: e.Reader, lo: e.Lo, hi: e.Hi, at: e.Lo, window: e.Window.Milliseconds(), out: make(chan *batch, 2), stop: stop}
	go func() {
		defer close(s.out)
		to := &batchSink{ctx: ctx, out: s.out, done: e.Lo}
		s.err = s.run(ctx, e, to)
	}()
	return s
}

// run goes through the windows as an export does.
func (s *serverSource) run(ctx context.Context, e *Export, to *batchSink) error {
	var rows int64
	parts := int64(1)
	for lo, had := s.lo, true; lo <= s.hi; {
		if !had {
			if lo = e.skip(ctx, lo, s.window); lo > s.hi {
				break
			}
		}
		hi := min(floor(lo, s.window)+s.window-1, s.hi)
		before := rows
		var err error
		if parts, err = e.window(ctx, to, lo, hi, parts, &rows); err != nil {
			return err
		}
		had = rows > before
		to.hi = hi
		if err := to.commit(); err != nil {
			return err
		}
		lo = hi + 1
	}
	return nil
}

func (s *serverSource) next(ctx context.Context) (*batch, error) {
	select {
	case b, ok := <-s.out:
		if !ok {
			if s.err != nil {
				return nil, s.err
			}
			return nil, io.EOF
		}
		s.at = max(s.at, b.next)
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *serverSource) part() float64 {
	return float64(s.at-s.lo) / float64(max(s.hi-s.lo, 1))
}

func (s *serverSource) close() {
	s.stop()
	for range s.out { // until its goroutine is gone
	}
}

// batchSink makes batches of the rows that a server gives. Rows that come twice after a window was begun anew replace themselves.
type batchSink struct {
	ctx  context.Context
	out  chan<- *batch
	now  *batch
	done int64 // windows before this are whole
	hi   int64
	anew bool // the window was begun anew, and its next batch says so
}

func (s *batchSink) write(l *Line) error {
	if s.now == nil {
		s.now = s.newBatch(s.done)
	}
	s.now.lines = append(s.now.lines, clone(l))
	if s.now.rows += int64(l.Rows()); s.now.rows >= batchRowsMax {
		return s.give()
	}
	return nil
}

func (s *batchSink) give() error {
	b := s.now
	s.now = nil
	select {
	case s.out <- b:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *batchSink) commit() error {
	s.done = s.hi + 1
	if s.now == nil {
		s.now = s.newBatch(s.done)
	}
	s.now.next = s.done
	return s.give()
}

func (s *batchSink) newBatch(next int64) *batch {
	b := &batch{next: next, at: "the source", anew: s.anew}
	s.anew = false
	return b
}

func (s *batchSink) rewind() error { s.now, s.anew = nil, true; return nil }
func (s *batchSink) state() int64  { return 0 }
