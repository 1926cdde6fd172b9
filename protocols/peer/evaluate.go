package peer

import "context"

// Evaluator is a Storage that evaluates parts of plans over the rows it has, so that their results travel instead.
type Evaluator interface {
	// Evaluate evaluates a request of package columns over the rows that Select would return for q, in the range of time of the plan. It passes
	// on the messages of the answer, each valid until give returns. Errors are those of Select and of give; before the first
	// message nothing was passed on.
	Evaluate(ctx context.Context, q *Select, request []byte, give func(message []byte) error) error
}
