package fault

import (
	"context"
	"errors"
	"fmt"
)

// Kind says how the receiver of an error can react. The zero Kind is Internal: an unclassified error is our defect.
type Kind uint8

const (
	// Internal is a defect of this program or of the machine; a retry may help.
	Internal Kind = iota
	// Invalid is input that can never be accepted; sending it again is useless.
	Invalid
	// TooLarge is input over a size limit; smaller pieces may be accepted.
	TooLarge
	// Throttled is a full queue or an exhausted budget; try later.
	Throttled
	// Stale is a decision made on an old partition map; refresh the map, then retry.
	Stale
	// Unavailable is a part that is away, fenced or read-only; try later or elsewhere.
	Unavailable
	// Corrupt is data that does not match its checksum or its form; repair from a peer or a backup.
	Corrupt
	// NotFound is a name that does not exist, such as a table that is not created on first write.
	NotFound
	// Canceled is work that was abandoned by its caller or ran out of time.
	Canceled
	// Denied is a call that its caller has no right to make; a person must change its credentials or its rights.
	Denied
)

var kindNames = [...]string{
	Internal: "internal", Invalid: "invalid", TooLarge: "too_large", Throttled: "throttled", Stale: "stale",
	Unavailable: "unavailable", Corrupt: "corrupt", NotFound: "not_found", Canceled: "canceled",
	Denied: "denied",
}

// String gives the name used in logs, metrics and on the wire.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Kinds lists every Kind, for tables that must be complete.
func Kinds() []Kind {
	ks := make([]Kind, len(kindNames))
	for i := range ks {
		ks[i] = Kind(i)
	}
	return ks
}

type fault struct {
	kind Kind
	text string // whole message, inner errors included
	err  error  // the wrapped error, or nil
}

func (f *fault) Error() string { return f.text }

func (f *fault) Unwrap() error { return f.err }

// Errorf makes an error of a Kind. A %w verb keeps its operand reachable by errors.Is and errors.As.
func Errorf(k Kind, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &fault{kind: k, text: err.Error(), err: errors.Unwrap(err)}
}

// Wrap puts a Kind and a sentence in front of err; nil stays nil.
func Wrap(err error, k Kind, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &fault{kind: k, text: fmt.Sprintf(format, args...) + ": " + err.Error(), err: err}
}

// Annotate puts a sentence in front of err and keeps its Kind; nil stays nil.
func Annotate(err error, format string, args ...any) error {
	return Wrap(err, KindOf(err), format, args...)
}

// KindOf finds the outermost Kind in err's chain. A context's end counts as Canceled, everything else unknown as Internal.
func KindOf(err error) Kind {
	var f *fault
	switch {
	case errors.As(err, &f):
		return f.kind
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Canceled
	}
	return Internal
}

// Is reports whether err is an error of Kind k; nil is of no Kind.
func Is(err error, k Kind) bool { return err != nil && KindOf(err) == k }

// Bug panics: an invariant does not hold and nothing after this line can be trusted.
func Bug(format string, args ...any) {
	panic("bug: " + fmt.Sprintf(format, args...))
}
