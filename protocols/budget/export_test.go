package budget

import "context"

// Wait books n bytes as soon as there are as many, in the order in which callers arrived. The error is TooLarge for
// more than it may ever hold, Throttled when too many wait already, and Canceled when ctx ended first.
func (a *Account) Wait(ctx context.Context, n int64) error {
	return a.wait(ctx, n, 0)
}
