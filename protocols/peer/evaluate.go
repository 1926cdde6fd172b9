package peer

import "context"

// Evaluator is a Storage that evaluates parts of plans over the rows it has, so that their results travel instead.
type Evaluator interface {
	// Evaluate evaluates a request of package columns over the rows that Select would return for q, in the range of time of the plan. It passes
	// on the messages of the answer, each valid until give returns. Errors are those of Select and of give; before the first
	// message nothing was passed on.
	Evaluate(ctx context.Context, q *Select, request []byte, give func(message []byte) error) error
}

// Evaluations is an Evaluator that is asked for several evaluations at the price of one request.
type Evaluations interface {
	Evaluator
	// EvaluateAll performs evaluations, in any order or beside each other, and returns when each has ended. One that fails ends alone.
	EvaluateAll(ctx context.Context, all []*Evaluation)
}

// Evaluation is one of several evaluations; its parts are those of Evaluate.
type Evaluation struct {
	Select  *Select
	Request []byte
	// Give receives a message of the answer, which is valid until Give returns. Its error ends this evaluation.
	Give func(message []byte) error
	// End receives the outcome of Evaluate, once. Give is not called afterwards.
	End func(error)
}

// EvaluationsMax bounds the evaluations of one EvaluateAll.
const EvaluationsMax = 64
