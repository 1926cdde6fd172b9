package transfer

import (
	"bufio"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// rowSink gets the rows of a window.
type rowSink interface {
	write(l *Line) error
	rewind() error // drops the bytes written since the last commit
	state() int64  // of the last commit, for resuming
}

// sink writes rows, window by window.
type sink interface {
	rowSink
	commit() error   // makes the window durable
	pending() string // of the last commit: the block to which publish gives its name, once it is noted; "": none
	publish() error
	finish() error // after the last commit
}

// fileSink writes a file, or standard output. With a name that ends in .gz or .zst it is compressed, each window by itself:
// such files go on where they end.
type fileSink struct {
	f       *os.File
	name    string
	stream  bool // standard output: nothing can be undone
	encoder encoder
	buf     []byte
	packer  io.WriteCloser // nil between windows, and where nothing is compressed
	out     *bufio.Writer
	bytes   int64 // of whole windows
	dirty   bool
}

// fileBuffer is when lines are handed on.
const fileBuffer = 64 << 10

// openFile begins a fresh file, or goes on with one behind its first bytes.
func openFile(to string, bytes int64, fresh bool, enc encoder) (*fileSink, error) {
	s := &fileSink{name: to, encoder: enc, f: os.Stdout, stream: to == "-", bytes: bytes}
	if !s.stream {
		flags := os.O_WRONLY
		if fresh {
			flags |= os.O_CREATE | os.O_EXCL
		}
		var err error
		if s.f, err = os.OpenFile(to, flags, 0o644); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "--to")
		}
		if st, err := s.f.Stat(); err != nil || st.Size() < bytes {
			s.f.Close()
			return nil, fault.Errorf(fault.Invalid, "%s is shorter than it was when the unfinished run noted how far it came (%d bytes); remove it and %s to begin anew", to, bytes, to+ResumeSuffix)
		}
		if err := s.rewind(); err != nil {
			s.f.Close()
			return nil, err
		}
	}
	s.out = bufio.NewWriterSize(s.f, fileBuffer)
	return s, nil
}

func (s *fileSink) write(l *Line) (err error) {
	before := len(s.buf)
	if s.buf, err = s.encoder.append(s.buf, l); err != nil {
		s.buf = s.buf[:before]
		return err
	}
	if len(s.buf) < fileBuffer {
		return nil
	}
	return s.spill()
}

// spill hands the buffer on.
func (s *fileSink) spill() error {
	if len(s.buf) == 0 {
		return nil
	}
	s.dirty = true
	var w io.Writer = s.out
	if s.packer == nil {
		s.packer = newPacker(s.name, s.out)
	}
	if s.packer != nil {
		w = s.packer
	}
	_, err := w.Write(s.buf)
	s.buf = s.buf[:0]
	return err
}

func newPacker(name string, w io.Writer) io.WriteCloser {
	switch {
	case strings.HasSuffix(name, ".gz"):
		return gzip.NewWriter(w)
	case strings.HasSuffix(name, ".zst"):
		p, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
		if err != nil {
			panic(err) // the options are constants
		}
		return p
	}
	return nil
}

func (s *fileSink) commit() error {
	if err := s.spill(); err != nil {
		return err
	}
	if s.packer != nil {
		if err := s.packer.Close(); err != nil {
			return err
		}
		s.packer = nil
	}
	if err := s.out.Flush(); err != nil || s.stream {
		s.dirty = false
		return err
	}
	if !s.dirty {
		return nil
	}
	s.dirty = false
	at, err := s.f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	s.bytes = at
	return s.f.Sync()
}

func (s *fileSink) rewind() error {
	if s.stream {
		if s.dirty {
			return fault.Errorf(fault.Unavailable, "what was written to standard output cannot be taken back; write to a file, or choose a shorter --window")
		}
		s.buf = s.buf[:0]
		return nil
	}
	s.buf, s.packer, s.dirty = s.buf[:0], nil, false
	if err := s.f.Truncate(s.bytes); err != nil {
		return err
	}
	if _, err := s.f.Seek(s.bytes, io.SeekStart); err != nil {
		return err
	}
	if s.out != nil {
		s.out.Reset(s.f)
	}
	return nil
}

func (s *fileSink) finish() error {
	s.buf = s.encoder.end(s.buf)
	if err := s.commit(); err != nil || s.stream {
		return err
	}
	return s.f.Close()
}

func (s *fileSink) state() int64 { return s.bytes }

func (s *fileSink) pending() string { return "" }

func (s *fileSink) publish() error { return nil }
