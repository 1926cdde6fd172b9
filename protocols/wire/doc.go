// Package wire reads protobuf as it lies on the wire, field by field, without a message type and without memory of its
// own.
//
// It exists because the doors that receive most rows (remote write, OTLP) look at a few bytes of each message and hash the
// rest where they lie: generated code would build every message first.
//
//	message ──Read──▶ Field{Num, Type, Bits or Data} ──Varint · Double · Bytes · EachVarint · EachDouble──▶ value
//	   ▲                                  │
//	   └──────── next field, or ──────────┘ the message inside
//
// Results share memory with the message: a Field is valid as long as those bytes are. All functions may be called from
// any goroutine. Errors are plain, they describe the mistake in the bytes; the decoder that reads a body gives them
// Kind Invalid and the place.
//
// Invariant it keeps: no byte is looked at beyond the end of the message, and no memory is allocated for a declared length (I5).
//
// Not here: writing, groups, unknown fields stored for later, the order or number of fields, UTF-8.
//
// Specification: https://protobuf.dev/programming-guides/encoding/
package wire
