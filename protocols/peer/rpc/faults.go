package rpc

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
)

// codeOfKind are the gRPC codes for foreign tools; our own processes read the detail peerpb.Fault.
var codeOfKind = [...]codes.Code{
	fault.Internal: codes.Internal, fault.Invalid: codes.InvalidArgument, fault.TooLarge: codes.OutOfRange,
	fault.Throttled: codes.ResourceExhausted, fault.Stale: codes.FailedPrecondition, fault.Unavailable: codes.Unavailable,
	fault.Corrupt: codes.DataLoss, fault.NotFound: codes.NotFound, fault.Canceled: codes.Canceled,
	fault.Denied: codes.PermissionDenied,
}

// toStatus is an error as it travels.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	kind := fault.KindOf(err)
	s := status.New(codeOfKind[kind], cutText(err.Error()))
	f := &peerpb.Fault{Kind: kind.String()}
	if at, ok := peer.MapOf(err); ok {
		f.Newest = toMapAt(at)
	}
	f.Unsure = peer.IsUnsure(err)
	if d, detailed := s.WithDetails(f); detailed == nil {
		s = d
	}
	return s.Err()
}

// ofStatus is an error as it arrived. An error of gRPC itself gets a Kind by its code.
func ofStatus(err error) error {
	s, ok := status.FromError(err)
	if !ok {
		if fault.KindOf(err) != fault.Internal {
			return err // ours: the message cannot be read
		}
		return fault.Wrap(err, fault.Unavailable, "peer")
	}
	for _, d := range s.Details() {
		f, ok := d.(*peerpb.Fault)
		if !ok {
			continue
		}
		for _, k := range fault.Kinds() {
			if k.String() == f.GetKind() {
				return ofFault(fault.Errorf(remote(k), "%s", s.Message()), f)
			}
		}
	}
	switch s.Code() {
	case codes.ResourceExhausted: // also of a stream that was reset with ENHANCE_YOUR_CALM, as proxies do: rows are sent again then
		if isTooLarge(s.Message()) {
			return fault.Errorf(fault.TooLarge, "peer: %s", plainText(s.Message()))
		}
	case codes.Internal, codes.Unknown:
		return fault.Errorf(fault.Internal, "peer: %s", plainText(s.Message()))
	}
	if s.Code() == codes.Unimplemented {
		return fault.Wrap(errOlder, fault.Unavailable, "peer: %s", plainText(s.Message()))
	}
	return fault.Errorf(fault.Unavailable, "peer: %s", plainText(s.Message()))
}

// isTooLarge reports whether gRPC says that a message is longer than it may be.
func isTooLarge(text string) bool {
	return strings.Contains(text, "larger than max") || strings.Contains(text, "message too large")
}

// plainTexts are sentences for what gRPC says of connections, the longest of a beginning first.
var plainTexts = []struct{ theirs, ours string }{
	{"error reading from server: EOF", "the connection ended"},
	{"error reading from server: ", "the connection broke: "},
	{"error reading server preface: ", "it does not answer as a peer does: "},
	{"transport is closing", "the connection is being closed"},
	{"authentication handshake failed: ", "the TLS handshake failed: "},
	{"Error while dialing: ", ""},
	{"write tcp ", "the connection broke: write tcp "},
}

// plainText is a message of gRPC without its layers: `connection error: desc = "transport: Error while dialing: dial tcp HOST: connect: connection refused"` is
// "dial tcp HOST: connect: connection refused". Other messages stay as they are.
func plainText(text string) string {
	for _, layer := range []string{"last connection error: ", "last resolver error: "} {
		if i := strings.Index(text, layer); i >= 0 {
			text = text[i+len(layer):]
		}
		if text == "<nil>" { // gRPC was between two tries
			return "it is not connected"
		}
	}
	text = strings.TrimPrefix(text, "connection error: ")
	if quoted, ok := strings.CutPrefix(text, "desc = "); ok {
		if inner, err := strconv.Unquote(quoted); err == nil {
			text = inner
		}
	}
	text = strings.TrimPrefix(text, "transport: ")
	for _, p := range plainTexts {
		if rest, ok := strings.CutPrefix(text, p.theirs); ok {
			return p.ours + rest
		}
	}
	return text
}

// ofFault puts on an error the marks that came with it, and that it came.
func ofFault(err error, f *peerpb.Fault) error {
	err = peer.Answer(err)
	if f.GetUnsure() {
		err = peer.Unsure(err)
	}
	return peer.WithMap(err, ofMapAt(f.GetNewest()))
}

// errOlder is in the chain of an error for a call that the peer's build does not have.
var errOlder = errors.New("the peer is of an older build, and will be upgraded")

// remote translates a Kind from the peer: Canceled means that the peer cancelled *its* work because it is stopping, since
// this side cancelled nothing.
func remote(k fault.Kind) fault.Kind {
	if k == fault.Canceled {
		return fault.Unavailable
	}
	return k
}

// ended is the error of a call after its context ended: Canceled if the asker went away, Unavailable if its time ran out.
func ended(ctx context.Context, what string) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.Wrap(err, fault.Unavailable, "%s: no answer in time", what)
	}
	return fault.Wrap(err, fault.Canceled, "%s", what)
}
