package peer

import "context"

type waitingKey struct{}

// WithWaiting returns a context for one write. waits is called, from any goroutine and perhaps often, before the write waits for
// a disk, another server or a commit. Until then the write uses a processor, which the caller may have shared out.
func WithWaiting(ctx context.Context, waits func()) context.Context {
	return context.WithValue(ctx, waitingKey{}, waits)
}

// Waiting returns the function that WithWaiting put into the context: never nil.
func Waiting(ctx context.Context) (waits func()) {
	if waits, _ := ctx.Value(waitingKey{}).(func()); waits != nil {
		return waits
	}
	return func() {}
}
