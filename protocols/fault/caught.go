package fault

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
)

// errPanic is the cause of the errors that Caught makes.
var errPanic = errors.New("a panic; please report it")

// Caught is deferred by a function that reads. It turns a panic into an error of Kind Internal with the lines where it happened: a query or an answer that meets a defect ends
// alone, and not with its process and all that others have under way. Functions that write must not use it: nothing is known of a write that ended half way.
func Caught(err *error) {
	if p := recover(); p != nil {
		*err = Errorf(Internal, "%w: %.500v, at %s", errPanic, p, panicLines())
	}
}

// IsPanic reports whether an error came from a panic.
func IsPanic(err error) bool { return errors.Is(err, errPanic) }

// panicLinesMax bounds the lines of a panic that are named.
const panicLinesMax = 6

// panicLines names the innermost lines of the program that were at work, by file and line.
func panicLines() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var lines []string
	for more := true; more && len(lines) < panicLinesMax; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.HasPrefix(f.Function, "runtime.") {
			continue
		}
		parts := strings.Split(f.File, "/")
		lines = append(lines, fmt.Sprintf("%s:%d", strings.Join(parts[max(0, len(parts)-2):], "/"), f.Line))
	}
	return strings.Join(lines, " ")
}
