package peer

import "errors"

// answerError is an error that a server sent.
type answerError struct{ error }

func (e *answerError) Unwrap() error { return e.error }

// Answer marks an error that the server itself sent as its answer: it is there, whatever it says. Unmarked is an error of the way to it.
func Answer(err error) error {
	if err == nil {
		return nil
	}
	return &answerError{err}
}

// IsAnswer reports whether an error in err's chain is marked by Answer.
func IsAnswer(err error) bool {
	var e *answerError
	return errors.As(err, &e)
}
