package rpc

import (
	"context"
	"io"

	"google.golang.org/grpc/mem"
)

// JoinLinks links two servers of one process for as long as both live: each gets the messages of the other without a copy. For a
// process that has several servers, and for tests.
func JoinLinks(a, b *Links) {
	a.connect(b.settings.Self.Server, func(context.Context) (pipe, context.Context, context.CancelCauseFunc, error) {
		return b.dialled()
	})
}

// dialled is the near end of a pipe; this server accepts its far end.
func (ls *Links) dialled() (pipe, context.Context, context.CancelCauseFunc, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.mu.closed {
		return nil, nil, nil, errStopping
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	near, far := memoryPipe(ctx)
	ls.running.Go(func() {
		err := ls.accept(ctx, far, "")
		far.drain()
		cancel(err)
	})
	return near, ctx, func(why error) {
		cancel(why)
		near.drain()
	}, nil
}

// memoryEnd is one end of a pipe of memory.
type memoryEnd struct {
	ctx     context.Context
	in, out chan mem.BufferSlice
}

// memoryPipeMessages is how many messages may lie in each direction.
const memoryPipeMessages = 4

func memoryPipe(ctx context.Context) (near, far *memoryEnd) {
	a, b := make(chan mem.BufferSlice, memoryPipeMessages), make(chan mem.BufferSlice, memoryPipeMessages)
	return &memoryEnd{ctx, a, b}, &memoryEnd{ctx, b, a}
}

// SendMsg implements pipe. The message belongs to the other end.
func (e *memoryEnd) SendMsg(v any) error {
	data, err := codec{}.Marshal(v)
	if err != nil {
		return err
	}
	select {
	case e.out <- data:
		return nil
	case <-e.ctx.Done():
		data.Free()
		return io.EOF
	}
}

// RecvMsg implements pipe.
func (e *memoryEnd) RecvMsg(v any) error {
	select {
	case data := <-e.in:
		v.(*message).data = data
		return nil
	case <-e.ctx.Done():
		return context.Cause(e.ctx)
	}
}

// drain frees the messages left in the pipe after its end.
func (e *memoryEnd) drain() {
	for {
		select {
		case data := <-e.in:
			data.Free()
		default:
			return
		}
	}
}
