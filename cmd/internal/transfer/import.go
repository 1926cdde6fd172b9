package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/jsonrows"
)

// Import is one run from a file, a directory of blocks, or another server, to a server.
type Import struct {
	Server    *Server
	From      string  // file ("-": standard input), or directory of Prometheus; "" with Source
	Source    *Export // another server: its Reader, Lo, Hi and Window count
	Format    string
	Precision string // of times in line protocol: ns, us, ms, s
	Lo, Hi    int64  // milliseconds, of a directory of Prometheus; both included
	Senders   int
	Note      string // the file that notes how far the run came; "": none
	What      string // the run's parameters, for resuming
	Losses    *Losses
	Progress  func(Progress)
	Say       func(string)
}

// SendersMax bounds how many requests are under way at once.
const SendersMax = 64

// noteEvery is how often the note is written.
const noteEvery = time.Second

// Run imports everything, and returns how many rows (lines, of line protocol) were written.
func (m *Import) Run(ctx context.Context) (rows int64, err error) {
	note, goesOn := &resume{What: m.What}, false
	if m.Note != "" {
		old, err := loadResume(m.Note, m.What)
		if err != nil {
			return 0, err
		}
		if old != nil {
			m.Say(fmt.Sprintf("going on where an earlier run ended, after %d rows (%s)", old.Rows, m.Note))
			note, goesOn = old, true
		}
	}
	if note.Version == 0 {
		note.Done = []string{}
	}
	if note.Now == 0 {
		note.Now = time.Now().UnixNano()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	src, err := m.open(ctx, note)
	if err != nil {
		return 0, err
	}
	defer src.close()
	// Before the first row: a run that is killed at once has the same time for rows without one when it goes on, and a directory that cannot be
	// written is found out before hours of work.
	if err := m.save(note); err != nil {
		return 0, err
	}
	w := &writer{server: m.Server, losses: m.Losses, say: m.Say}
	if err := m.pump(ctx, src, w, note); err != nil {
		if note.nowhere() && !w.unsure.Load() && !goesOn { // of a run before this one it is not known which rows came
			return 0, errors.Join(err, m.forget()) // nothing to go on with
		}
		return note.Rows, errors.Join(err, m.save(note))
	}
	if note.Lossy && !m.Losses.Any() {
		m.Losses.Add("earlier parts of this run left something out, as it said then", 1, "")
	}
	return note.Rows, m.forget()
}

// save writes the note, if the run has one.
func (m *Import) save(note *resume) error {
	if m.Note == "" {
		return nil
	}
	if err := note.save(m.Note); err != nil {
		return fmt.Errorf("%w: %w; --resume FILE has it written elsewhere", ErrNote, err)
	}
	return nil
}

// ErrNote is returned where a run that ends early could not note how far it came: the same command begins where the last note says.
var ErrNote = errors.New("the run is not noted")

// forget removes the note.
func (m *Import) forget() error {
	if m.Note == "" {
		return nil
	}
	if err := os.Remove(m.Note); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (m *Import) open(ctx context.Context, note *resume) (source, error) {
	if m.Source != nil {
		e := *m.Source
		if !note.nowhere() && note.Next > e.Lo { // 0 of a note of nowhere is not 1970
			e.Lo = note.Next
		}
		return newServerSource(ctx, &e), nil
	}
	if m.Format == FormatBlocks {
		return newPrometheusSource(m.From, note, m.Lo, m.Hi, m.Losses, m.Say)
	}
	lineMax := textLineMax
	if m.Format == FormatJSON {
		lineMax = jsonrows.LineBytesMax
	}
	f, err := readFile(m.From, note, lineMax)
	if err != nil {
		return nil, err
	}
	switch m.Format {
	case FormatJSON:
		return &jsonSource{file: f, losses: m.Losses}, nil
	case FormatLine:
		return newLineSource(f, m.Losses, m.Precision, note.Now), nil
	case FormatOpenMetrics, FormatPrometheus:
		return &textSource{file: f, losses: m.Losses, open: m.Format == FormatOpenMetrics, now: note.Now / nanosPerMilli}, nil
	}
	f.close()
	return nil, fault.Errorf(fault.Invalid, "%q is no format of a file", m.Format)
}

// pump reads batches, has them written by several senders, and notes how far all are written.
//
//	source ─▶ work ─▶ senders ─▶ done of each
//	      └─▶ order ───────────────▶ note, in the order of the source
func (m *Import) pump(ctx context.Context, src source, w *writer, note *resume) error {
	g, ctx := errgroup.WithContext(ctx)
	work, order := make(chan *batch), make(chan *batch, m.Senders)
	g.Go(func() error {
		defer close(work)
		defer close(order)
		for {
			b, err := src.next(ctx)
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			b.done, b.part = make(chan error, 1), src.part()
			for _, to := range []chan<- *batch{order, work} {
				select {
				case to <- b:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
	})
	for range m.Senders {
		g.Go(func() error {
			for b := range work {
				err := w.write(ctx, b)
				b.done <- err
				if err != nil {
					return fault.Annotate(err, "%s", b.at)
				}
			}
			return nil
		})
	}
	g.Go(func() error { return m.follow(ctx, order, note) })
	return g.Wait()
}

// follow notes batches that are written, in order.
func (m *Import) follow(ctx context.Context, order <-chan *batch, note *resume) error {
	last, ahead := time.Now(), int64(0) // rows behind the place of the note: of another server, those of a window that is not whole
	for b := range order {
		select {
		case err := <-b.done:
			if err != nil {
				return nil // the sender returns it
			}
		case <-ctx.Done():
			return nil
		}
		if b.anew {
			ahead = 0
		}
		if ahead += b.rows; b.next != note.Next || b.within != note.Within {
			note.Rows, ahead = note.Rows+ahead, 0
		}
		note.pass(b)
		note.Lossy = note.Lossy || m.Losses.Any()
		if m.Progress != nil {
			m.Progress(Progress{Part: b.part, At: b.at, Rows: note.Rows + ahead, Bytes: b.read})
		}
		if now := time.Now(); now.Sub(last) >= noteEvery {
			last = now
			if err := m.save(note); err != nil {
				return err
			}
		}
	}
	return nil
}

// TimeMin and TimeMax are the widest range of milliseconds that nanoseconds hold.
const (
	TimeMin = math.MinInt64 / nanosPerMilli
	TimeMax = math.MaxInt64 / nanosPerMilli
)
