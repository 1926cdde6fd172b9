package rpc

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestAServerThatConnectsAndSaysNothingKeepsNoLink: a link that was opened without a hello was waited for as long as its connection lived.
func TestAServerThatConnectsAndSaysNothingKeepsNoLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := linksOf(t, "b", newEar())
		defer ls.Close()
		ctx, end := context.WithCancel(t.Context())
		defer end()
		_, far := memoryPipe(ctx)
		began := time.Now()
		err := ls.accept(ctx, far, "")
		if took := time.Since(began); !fault.Is(err, fault.Unavailable) || took > 30*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// TestAServerThatStopsWaitsForNoHello: its calls ended only where the time for that was over.
func TestAServerThatStopsWaitsForNoHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := linksOf(t, "b", newEar())
		defer ls.Close()
		ctx, end := context.WithCancelCause(t.Context())
		_, far := memoryPipe(ctx)
		ended := make(chan error, 1)
		go func() { ended <- ls.accept(ctx, far, "") }()
		synctest.Wait()
		end(errStopping)
		if err := <-ended; !errors.Is(err, errStopping) {
			t.Error(err)
		}
	})
}

// TestAServerThatDoesNotAnswerIsDialledAgain: the first dial waited for its hello as long as the connection lived, and no copy got rows meanwhile.
func TestAServerThatDoesNotAnswerIsDialledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newEar(), newEar()
		x, y := linksOf(t, "a", a), linksOf(t, "b", b)
		defer y.Close()
		defer x.Close()
		var dials atomic.Int64
		x.connect("b", func(context.Context) (pipe, context.Context, context.CancelCauseFunc, error) {
			if dials.Add(1) > 1 {
				return y.dialled()
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			near, _ := memoryPipe(ctx)
			return near, ctx, cancel, nil
		})
		time.Sleep(time.Minute)
		if got := a.story(); got != "1 links, 0 ended, silent []" {
			t.Errorf("after a dial that was not answered, of %d: %s", dials.Load(), got)
		}
	})
}

// TestHalfAHelloIsNone: a record that is cut off ends the link at once.
func TestHalfAHelloIsNone(t *testing.T) {
	ls := linksOf(t, "b", newEar())
	defer ls.Close()
	own := ls.greeting("other")
	whole := own.append(nil)
	for n := range whole {
		ctx, end := context.WithCancel(t.Context())
		near, far := memoryPipe(ctx)
		buf, _ := pooled(whole[:n])
		near.out <- mem.BufferSlice{buf}
		if err := ls.accept(ctx, far, ""); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%d bytes of a hello: %v", n, err)
		}
		end()
	}
}
