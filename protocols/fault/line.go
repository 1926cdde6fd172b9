package fault

import (
	"fmt"
	"strings"
)

// LineMax is the most bytes of a library's message that OneLine keeps.
const LineMax = 1000

// OneLine gives err a message of one line of at most LineMax bytes: libraries put stacks and hints behind the first line,
// and may quote a damaged file in full, of which the middle is left out. The chain of errors stays.
func OneLine(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	first, _, more := strings.Cut(text, "\n")
	if more {
		first = strings.TrimRight(first, " :\t")
	}
	if len(first) > LineMax {
		const note = 40 // bytes that the note may have
		head, tail := (LineMax-note)*3/4, (LineMax-note)/4
		first = strings.ToValidUTF8(fmt.Sprintf("%s … %d bytes left out … %s", first[:head], len(first)-head-tail, first[len(first)-tail:]), "")
	}
	if first == text {
		return err
	}
	return &line{first, err}
}

type line struct {
	text string
	err  error
}

func (l *line) Error() string { return l.text }

func (l *line) Unwrap() error { return l.err }
