package otlp

import (
	"errors"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Format is how a body is written. The zero Format is none; it is answered in JSON, which people can read.
type Format uint8

const (
	// Protobuf is the binary form.
	Protobuf Format = iota + 1
	// JSON is protobuf's JSON with OTLP's exceptions: trace and span ids are hexadecimal.
	JSON
)

// Encoding is how a body is compressed.
type Encoding uint8

const (
	// Identity is not compressed.
	Identity Encoding = iota
	// Gzip is the only compression the specification asks for.
	Gzip
	// Zstd can be configured in collectors.
	Zstd
	// Deflate can be configured in SDKs, by OTEL_EXPORTER_OTLP_COMPRESSION.
	Deflate
)

// ErrUnsupported is in the chain of every error of Negotiate: the answer is 415.
var ErrUnsupported = errors.New("unsupported media type")

const (
	typeProtobuf = "application/x-protobuf"
	typeJSON     = "application/json"
)

// Negotiate reads the headers Content-Type and Content-Encoding. The format is that of the answer too, and is returned,
// if it is supported, even when the encoding is not. Errors are Invalid and ErrUnsupported.
//
// Specification: https://opentelemetry.io/docs/specs/otlp/#otlphttp-request.
func Negotiate(contentType, contentEncoding string) (Format, Encoding, error) {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.TrimSpace(media)
	var f Format
	switch {
	case strings.EqualFold(media, typeProtobuf):
		f = Protobuf
	case strings.EqualFold(media, typeJSON):
		f = JSON
	default:
		return 0, 0, fault.Errorf(fault.Invalid, "%w: content type %q; send %s or %s", ErrUnsupported, cutText(contentType), typeProtobuf, typeJSON)
	}
	switch enc := strings.TrimSpace(contentEncoding); {
	case enc == "", strings.EqualFold(enc, "identity"):
		return f, Identity, nil
	case strings.EqualFold(enc, "gzip"):
		return f, Gzip, nil
	case strings.EqualFold(enc, "zstd"):
		return f, Zstd, nil
	case strings.EqualFold(enc, "deflate"):
		return f, Deflate, nil
	default:
		return f, 0, fault.Errorf(fault.Invalid, "%w: content encoding %q; send gzip, deflate, zstd or none", ErrUnsupported, cutText(enc))
	}
}
