package rpc

import (
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestConnectionErrorsArePlain(t *testing.T) {
	for theirs, ours := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`: "dial tcp 127.0.0.1:1: connect: connection refused",
		`last connection error: connection error: desc = "transport: authentication handshake failed: EOF"`:            "the TLS handshake failed: EOF",
		"error reading from server: EOF":                                     "the connection ended",
		"error reading from server: read tcp a->b: connection reset by peer": "the connection broke: read tcp a->b: connection reset by peer",
		"transport is closing":                                               "the connection is being closed",
		"unknown service spillway.peer.v1.Other":                             "unknown service spillway.peer.v1.Other",
		"context deadline exceeded: last connection error: <nil>":            "it is not connected",
		`desc = "not closed`:                                                 `desc = "not closed`,
	} {
		if got := plainText(theirs); got != ours {
			t.Errorf("%s: %q, want %q", theirs, got, ours)
		}
	}
}

// TestADeadPeersErrorIsPlain: what gRPC of this version says, not what its texts were once.
func TestADeadPeersErrorIsPlain(t *testing.T) {
	conn, err := grpc.NewClient("127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = ofStatus(conn.Invoke(t.Context(), "/x/y", nil, nil))
	if text := err.Error(); !fault.Is(err, fault.Unavailable) || !strings.Contains(text, "connection refused") || strings.Contains(text, "desc =") || strings.Contains(text, "transport") {
		t.Errorf("%v", err)
	}
}

// TestRowsOfAStreamThatWasResetAreSentAgain: a proxy that has enough resets streams with ENHANCE_YOUR_CALM, for which gRPC has the code of a message that is too long: senders
// dropped the rows for good.
func TestRowsOfAStreamThatWasResetAreSentAgain(t *testing.T) {
	for text, want := range map[string]fault.Kind{
		"stream terminated by RST_STREAM with error code: ENHANCE_YOUR_CALM":  fault.Unavailable,
		"stream terminated by RST_STREAM with error code: FLOW_CONTROL_ERROR": fault.Unavailable,
		"grpc: received message larger than max (9 vs. 8)":                    fault.TooLarge,
		"trying to send message larger than max (9 vs. 8)":                    fault.TooLarge,
		"grpc: received message after decompression larger than max 8":        fault.TooLarge,
		"grpc: message too large (9 bytes)":                                   fault.TooLarge,
	} {
		if err := ofStatus(status.Error(codes.ResourceExhausted, text)); fault.KindOf(err) != want {
			t.Errorf("%s: %v, want %v", text, fault.KindOf(err), want)
		}
	}
}
