package api

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Bounds of a remote-read request. A field of two bytes becomes a struct of a hundred and a pointer, and 4 MiB of such fields are
// 200 kB on the wire, so they are counted before the request is decoded.
const (
	readQueriesMax = 1000    // as many as selectors in match[]
	readFieldsMax  = 1 << 16 // of the request, its queries, their matchers and hints
	readFieldBytes = 128     // the memory of a field, decoded, and its part of the answer
)

// Numbers of the fields of prometheus.ReadRequest and prometheus.Query that hold messages.
const (
	fieldQueries  = 1
	fieldMatchers = 3
	fieldHints    = 4
)

// countRead counts the fields of an unpacked request. The error is Invalid for bytes that are no such message, and TooLarge beyond a
// bound.
func countRead(b []byte) (fields int, err error) {
	queries := 0
	err = eachField(b, &fields, func(n protowire.Number, query []byte) error {
		if n != fieldQueries {
			return nil
		}
		if queries++; queries > readQueriesMax {
			return fault.Errorf(fault.TooLarge, "the request has more than %d queries", readQueriesMax)
		}
		return eachField(query, &fields, func(n protowire.Number, part []byte) error {
			if n != fieldMatchers && n != fieldHints {
				return nil
			}
			return eachField(part, &fields, func(protowire.Number, []byte) error { return nil })
		})
	})
	return fields, err
}

// eachField counts the fields of a message and calls f with each that may be a message itself.
func eachField(b []byte, fields *int, f func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		if *fields++; *fields > readFieldsMax {
			return fault.Errorf(fault.TooLarge, "the request has more than %d fields", readFieldsMax)
		}
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return badData(protowire.ParseError(size))
		}
		b = b[size:]
		if typ == protowire.BytesType {
			part, size := protowire.ConsumeBytes(b)
			if size < 0 {
				return badData(protowire.ParseError(size))
			}
			b = b[size:]
			if err := f(n, part); err != nil {
				return err
			}
			continue
		}
		if size = protowire.ConsumeFieldValue(n, typ, b); size < 0 {
			return badData(protowire.ParseError(size))
		}
		b = b[size:]
	}
	return nil
}
