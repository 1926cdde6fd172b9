package peer

import "errors"

// ErrStreamBroken is in the chain of every error of a Stream that will never accept anything again: its connection is gone,
// its server stopped, or it was closed. The Kind is Unavailable. The caller opens another stream, which has no series
// yet: all series must be defined again. Rows of calls that failed with this error may or may not be kept.
//
//	if errors.Is(err, peer.ErrStreamBroken) { close it, forget it and its definitions; OpenStream; define; insert again }
var ErrStreamBroken = errors.New("the stream is broken: open another one and define its series again")

// ErrSilent is in the chain of the error of every call that ended because its server sent nothing at all for too long: the connection is given up, and the next call goes
// over a new one. The Kind is Unavailable. A server that only stood still for a moment answers there.
var ErrSilent = errors.New("its connection is given up")
