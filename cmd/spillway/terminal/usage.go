package terminal

// ExitUsage is the exit code of a command line that is not understood, and of a process with wrong settings: a restart does not mend it.
const ExitUsage = 80

// UsageError is a command line that cannot be understood, or settings of a process that are wrong, the files of access and certificates that they name among them.
type UsageError struct{ Err error }

// Error implements error.
func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the error within.
func (e UsageError) Unwrap() error { return e.Err }

// ExitCode is the exit code of the process.
func (UsageError) ExitCode() int { return ExitUsage }
