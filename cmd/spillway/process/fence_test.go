package process

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
)

// TestAFencedProcessEndsInTime: its store fails while the process runs. Whatever hangs then, its requests, or files that are closed on a disk that does not answer, it is gone after 2 s at the latest,
// and says why. Time is the bubble's, so that no busy machine changes it.
func TestAFencedProcessEndsInTime(t *testing.T) {
	errDisk := errors.New("the store is fenced")
	never, quick := time.Hour, 10*time.Millisecond
	for _, c := range []struct {
		name            string
		requests, close time.Duration // until they end
		want            time.Duration
	}{
		{"nothing hangs", quick, quick, 2 * quick},
		{"requests have their time", fencedDrain, quick, fencedDrain + quick},
		{"files cannot be closed", fencedDrain, never, 2 * fencedDrain},
		{"requests do not end", never, quick, fencedEnd - fencedDrain/2},
		{"nothing ends", never, never, fencedEnd - fencedDrain/2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, over := context.WithCancel(t.Context())
				broken := fence{over: ctx.Done(), why: func() error {
					if ctx.Err() == nil {
						return nil
					}
					return errDisk
				}}
				whole := fence{over: make(chan struct{}), why: func() error { return nil }}
				end, released := make(chan error, 2), make(chan struct{})
				hang := func(d time.Duration) {
					select {
					case <-time.After(d):
					case <-released:
					}
				}
				go func() {
					end <- liveUntil(func(why error) { end <- why }, func() error {
						err := untilFenced(broken)(context.Background()) // an actor: the others are interrupted
						hang(c.requests)
						return err
					}, func() error { hang(c.close); return nil }, whole, broken)
				}()
				time.Sleep(time.Minute) // of its life
				synctest.Wait()
				began := time.Now()
				over()
				if why := <-end; !errors.Is(why, errDisk) {
					t.Errorf("it ended with %v", why)
				}
				if took := time.Since(began); took != c.want || took > fencedEnd {
					t.Errorf("it ended after %s, want %s", took, c.want)
				}
				close(released)
				synctest.Wait()
			})
		})
	}
}

// TestAProcessThatIsNotFencedClosesItsStore: its end is waited for, however long.
func TestAProcessThatIsNotFencedClosesItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := fence{over: make(chan struct{}), why: func() error { return nil }}
		closed := errors.New("closed with an error")
		began := time.Now()
		err := liveUntil(func(why error) { t.Errorf("ended by force: %v", why) }, func() error { return nil }, func() error { time.Sleep(time.Minute); return closed }, whole)
		if !errors.Is(err, closed) || time.Since(began) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// TestAProcessWhoseDirectoryIsGoneIsNotStartedAgain: systemd started it again two seconds later, and it made an empty store. When the former directory was mounted again, it hid the rows
// that came meanwhile.
func TestAProcessWhoseDirectoryIsGoneIsNotStartedAgain(t *testing.T) {
	for err, want := range map[error]int{
		fault.Wrap(brick.ErrGone, fault.Unavailable, "the store"):                 terminal.ExitUsage,
		fault.Errorf(fault.Unavailable, "the store is fenced after a disk error"): 1,
	} {
		if code := terminal.Fail(notAgain(err)); code != want {
			t.Errorf("%v: exit code %d, want %d", err, code, want)
		}
		if !fault.Is(notAgain(err), fault.Unavailable) {
			t.Errorf("%v has no kind any more", err)
		}
	}
	if notAgain(nil) != nil {
		t.Error("an end without an error has one")
	}
}
