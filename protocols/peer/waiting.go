package peer

import "context"

type waitingKey struct{}

// WithWaiting gives a context for one write. waits is called, from any goroutine and perhaps often, before the write waits for
// something: a disk, another server, a commit. Until then it takes a processor, which the caller may have shared out.
func WithWaiting(ctx context.Context, waits func()) context.Context {
	return context.WithValue(ctx, waitingKey{}, waits)
}

// Waiting is the other end of WithWaiting: never nil.
func Waiting(ctx context.Context) (waits func()) {
	if waits, _ := ctx.Value(waitingKey{}).(func()); waits != nil {
		return waits
	}
	return func() {}
}
