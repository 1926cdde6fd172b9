package transfer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Progress is how far a run is.
type Progress struct {
	Part  float64 // of the whole, 0 to 1; below 0: not known
	At    string  // for people: a time or a place
	Rows  int64
	Bytes int64 // of an export: written; of an import: read, of files
}

// Export is one run from a server to a file or directory.
type Export struct {
	Reader   *Reader
	To       string // "-": standard output
	Format   string
	Lo, Hi   int64 // milliseconds, both included
	Window   time.Duration
	What     string // the run's parameters, for resuming
	Losses   *Losses
	Progress func(Progress)
	Say      func(string) // news for people
}

// partsMax is into how many requests a window is cut at most.
const partsMax = 1 << 12

// emptySpanMax is how much time without rows is passed over at once.
const emptySpanMax = 100 * 365 * 24 * time.Hour

// Run exports everything, window by window, and returns the rows and bytes or blocks that were written.
func (e *Export) Run(ctx context.Context) (rows, size int64, err error) {
	note, note1 := e.note(), &resume{What: e.What}
	begin := e.Lo
	if e.To != "-" {
		if note1, err = e.begin(note); err != nil {
			return 0, 0, err
		}
		if note1.Next > begin {
			begin = note1.Next
		}
	}
	to, err := e.open(note1)
	if err != nil {
		return 0, 0, err
	}
	window := e.Window.Milliseconds()
	var failed int64 // windows that had to be cut, in a row: later ones begin cut
	parts := int64(1)
	for lo, had := begin, true; lo <= e.Hi; {
		if !had {
			lo = e.skip(ctx, lo, window)
			if lo > e.Hi {
				break
			}
		}
		hi := min(floor(lo, window)+window-1, e.Hi)
		before := note1.Rows
		if parts, err = e.window(ctx, to, lo, hi, parts, &note1.Rows); err != nil {
			return note1.Rows, to.state(), err
		}
		if err := to.commit(); err != nil {
			return note1.Rows, to.state(), fault.Wrap(err, fault.Unavailable, "write %s", e.To)
		}
		had = note1.Rows > before
		note1.Next, note1.Bytes, note1.Block, note1.Lossy = hi+1, to.state(), to.pending(), note1.Lossy || e.Losses.Any()
		if e.To != "-" && had {
			if err := note1.save(note); err != nil {
				return note1.Rows, to.state(), err
			}
		}
		if err := to.publish(); err != nil {
			return note1.Rows, to.state(), fault.Wrap(err, fault.Unavailable, "write %s", e.To)
		}
		if failed++; parts > 1 && failed%8 == 0 {
			parts /= 2
		}
		lo = hi + 1
	}
	if note1.Lossy && !e.Losses.Any() {
		e.Losses.Add("earlier parts of this run left something out, as it said then", 1, "")
	}
	if err := to.finish(); err != nil {
		return note1.Rows, to.state(), fault.Wrap(err, fault.Unavailable, "write %s", e.To)
	}
	if e.To != "-" {
		if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return note1.Rows, to.state(), err
		}
	}
	return note1.Rows, to.state(), nil
}

// note is the path of the file that notes how far the run came.
func (e *Export) note() string {
	if e.Format == FormatBlocks {
		return filepath.Join(e.To, "export"+ResumeSuffix)
	}
	return e.To + ResumeSuffix
}

// begin finds out whether an earlier run goes on.
func (e *Export) begin(note string) (*resume, error) {
	old, err := loadResume(note, e.What)
	if err != nil {
		return nil, err
	}
	if old != nil {
		e.Say(fmt.Sprintf("going on from %s, where an earlier run ended (%s)", timeText(old.Next), note))
		return old, nil
	}
	if e.Format == FormatBlocks {
		if err := noBlocks(e.To); err != nil {
			return nil, err
		}
	} else {
		if _, err := os.Lstat(e.To); err == nil {
			return nil, fault.Errorf(fault.Invalid, "--to %s exists, and there is no note of an unfinished run to go on with; remove it or choose another name", e.To)
		}
	}
	return &resume{What: e.What, Next: e.Lo}, nil
}

// noBlocks refuses a directory with blocks where no run goes on: after a second export beside them each row would be there twice.
func noBlocks(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "--to")
	}
	for _, entry := range entries {
		if _, err := ulid.ParseStrict(entry.Name()); err == nil && entry.IsDir() {
			return fault.Errorf(fault.Invalid, "--to %s has blocks already, such as %s, and there is no note of an unfinished run to go on with; choose another directory", dir, entry.Name())
		}
	}
	return nil
}

func (e *Export) open(note *resume) (sink, error) {
	if e.Format == FormatBlocks {
		to, err := openBlocks(e.To, e.Losses, note)
		if err == nil {
			err = note.save(e.note()) // a run that ends before its first window is whole goes on too
		}
		return to, err
	}
	enc, err := newEncoder(e.Format, e.Losses)
	if err != nil {
		return nil, err
	}
	to, err := openFile(e.To, note.Bytes, note.Version == 0, enc)
	if err == nil && e.To != "-" {
		err = note.save(e.note())
	}
	return to, err
}

// window reads one window in at least so many parts; in more when the server finds them too large. It returns in how many.
func (e *Export) window(ctx context.Context, to rowSink, lo, hi, parts int64, rows *int64) (int64, error) {
	for {
		before, undo := *rows, e.Losses.snapshot()
		err := e.attempt(ctx, to, lo, hi, parts, rows)
		if err == nil || ctx.Err() != nil {
			return parts, err
		}
		var ours given
		if errors.As(err, &ours) || !fault.Is(err, fault.TooLarge) && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Throttled) && !fault.Is(err, fault.Canceled) {
			return parts, err
		}
		if parts >= partsMax || (hi-lo)/parts < 1000 {
			return parts, fault.Annotate(err, "even in pieces of %s, from %s on", time.Duration((hi-lo+parts)/parts)*time.Millisecond, timeText(lo))
		}
		if rerr := to.rewind(); rerr != nil {
			return parts, fmt.Errorf("%w (%w)", err, rerr)
		}
		*rows = before
		undo()
		parts *= 2
		e.Say(fmt.Sprintf("%s: again in %d pieces: %v", timeText(lo), parts, err))
		select {
		case <-ctx.Done():
			return parts, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// attempt reads one window in so many parts.
func (e *Export) attempt(ctx context.Context, to rowSink, lo, hi, parts int64, rows *int64) error {
	step := max((hi-lo+parts)/parts, 1)
	for at := lo; at <= hi; at += step {
		e.progress(at, *rows, to)
		if err := e.Reader.Read(ctx, at, min(at+step-1, hi), func(l *Line) error {
			left := e.Losses.left()
			err := to.write(l)
			*rows += int64(l.Rows()) - (e.Losses.left() - left)
			e.progress(at, *rows, to)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (e *Export) progress(at, rows int64, to rowSink) {
	if e.Progress != nil {
		e.Progress(Progress{Part: float64(at-e.Lo) / float64(max(e.Hi-e.Lo, 1)), At: timeText(at), Rows: rows, Bytes: to.state()})
	}
}

// skip passes over time in which the server has nothing, by the answer to an empty look-up; rows are never passed over.
func (e *Export) skip(ctx context.Context, lo, window int64) int64 {
	for span := window; ; {
		hi := floor(lo, window) + span - 1
		if lo > e.Hi || !e.Reader.Empty(ctx, lo, min(hi, e.Hi)) {
			if span == window || lo > e.Hi {
				return lo
			}
			span = max(window, span/4/window*window)
			continue
		}
		lo = hi + 1
		if span*2 <= emptySpanMax.Milliseconds() {
			span *= 2
		}
	}
}

// floor is the begin of the window that a time is in.
func floor(t, window int64) int64 {
	r := t % window
	if r < 0 {
		r += window
	}
	return t - r
}
