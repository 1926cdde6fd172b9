package process

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/oklog/run"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// EndMax is how long a process that keeps rows may need to close its store after a signal, once its requests have had their time: a
// flush or compaction of millions of series, an answer that is being computed, or a disk that does not return must not hold it longer.
const EndMax = 5 * time.Second

// catchEnds has SIGTERM and SIGINT, which would kill the process, wait in the configuration until it runs. It comes before endsWithin: a signal that endsWithin alone has
// caught stops nothing, and the process would serve on until it is killed.
func (c *config) catchEnds() (stop func()) {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, os.Interrupt, syscall.SIGTERM)
	c.ends = ends
	return func() { signal.Stop(ends) }
}

// untilSignal is an actor that ends with run.ErrSignal when a signal to stop comes, or came since catchEnds.
// From its end on a second signal kills a gateway, which may hang while it closes; other processes end by endsWithin.
func (c *config) untilSignal(ctx context.Context) error {
	defer signal.Stop(c.ends)
	select {
	case s := <-c.ends:
		return &run.SignalError{Signal: s}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// endsWithin ends the process with code 1 if it is alive so long after SIGTERM or SIGINT. Nothing that was acknowledged is lost: the log
// has the rows, and the next start replays it, as after a crash. stop is called when everything is closed.
func endsWithin(d time.Duration, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer signal.Stop(signals)
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		select {
		case <-ctx.Done():
		case <-time.After(d):
			log.Warn("the process did not stop in time; it ends now, and the next start replays the log", "after", d)
			os.Exit(terminal.Fail(fault.Errorf(fault.Unavailable, "not everything could be closed within %s; acknowledged rows are in the log", d)))
		}
	}()
	return cancel
}
