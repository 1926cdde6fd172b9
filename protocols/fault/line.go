package fault

import "strings"

// OneLine gives err a message of one line: libraries put stacks and hints behind the first. The chain of errors stays.
func OneLine(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if first, _, more := strings.Cut(text, "\n"); more {
		return &line{strings.TrimRight(first, " :\t"), err}
	}
	return err
}

type line struct {
	text string
	err  error
}

func (l *line) Error() string { return l.text }

func (l *line) Unwrap() error { return l.err }
