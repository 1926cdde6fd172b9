package terminal

import (
	"errors"
	"fmt"
	"os"
)

// ExitCode is an error that ends the process with its number; everything was printed before.
type ExitCode int

// Error names the number.
func (e ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// ExitCode is called by main.
func (e ExitCode) ExitCode() int { return int(e) }

// The codes of commands that examine something; 0: nothing was found.
const (
	Degraded ExitCode = 1 // something needs a look, or is missing
	Broken   ExitCode = 2 // something is damaged or not served, or could not be seen
)

// Unseen makes err, a failure to examine something, end the process as a broken one does: scripts must not mistake it for health.
func Unseen(err error) error { return unseenError{err} }

// unseenError is an error of Unseen.
type unseenError struct{ error }

// ExitCode is called by main.
func (unseenError) ExitCode() int { return int(Broken) }

// Unwrap returns the reason.
func (e unseenError) Unwrap() error { return e.error }

// Fail prints an error, and returns the exit code of the process.
func Fail(err error) int {
	if code := ExitCode(0); errors.As(err, &code) {
		return int(code) // everything was printed before
	}
	fmt.Fprintln(os.Stderr, "spillway: "+err.Error())
	var coder interface{ ExitCode() int }
	if errors.As(err, &coder) {
		return coder.ExitCode()
	}
	return 1
}
