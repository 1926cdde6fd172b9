package columns

import "errors"

// meter counts samples as the engine would hold them, and ends an evaluation where the engine would.
// All in samples, as the engine counts them. It belongs to the worker that has the turn.
type meter struct {
	max       int
	held      int
	peak      int
	processed int // samples visited
	read      int
}

// ErrTooManySamples means that the engine would hold more samples than it may.
var ErrTooManySamples = errors.New("the evaluation holds too many samples")

// reach counts n more samples as held for a moment.
func (m *meter) reach(n int) error {
	m.peak = max(m.peak, m.held+n)
	if m.held+n > m.max {
		return ErrTooManySamples
	}
	return nil
}

// keep counts n more samples as held from now on.
func (m *meter) keep(n int) error {
	err := m.reach(n)
	m.held += n
	return err
}

// operator counts the samples that the engine holds while it goes through the steps of an operator with a number: the input,
// the output so far, and this step's vectors. in and out are counts by step.
func (m *meter) operator(in, out []int) error {
	so := 0
	for i := range in {
		so += out[i]
		if err := m.reach(so + in[i] + 1); err != nil {
			return err
		}
	}
	return nil
}
