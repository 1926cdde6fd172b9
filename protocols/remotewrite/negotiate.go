package remotewrite

import (
	"errors"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Version is the message a body holds. The zero Version is none.
type Version uint8

const (
	// V1 is prometheus.WriteRequest, remote write 1.0.
	V1 Version = 1
	// V2 is io.prometheus.write.v2.Request, remote write 2.0.
	V2 Version = 2
)

// String gives the number people use.
func (v Version) String() string {
	switch v {
	case V1:
		return "1.0"
	case V2:
		return "2.0"
	}
	return "of no known version"
}

// Encoding is how a body is compressed.
type Encoding uint8

const (
	// Snappy is the block format of snappy, not the framed one. Both specifications require this one.
	Snappy Encoding = iota
	// Zstd is sent by vmagent to servers that accept it.
	Zstd
)

// ErrUnsupported is in the chain of every error of Negotiate: the answer is 415, after which a 2.0 sender may fall back
// to 1.0.
var ErrUnsupported = errors.New("unsupported media type")

const (
	mediaType = "application/x-protobuf"
	protoV1   = "prometheus.WriteRequest"
	protoV2   = "io.prometheus.write.v2.Request"
)

// Negotiate reads the headers Content-Type and Content-Encoding. A missing content type means 1.0, as old Prometheus
// sends it; a missing encoding means snappy, as Prometheus' own receiver assumes. Errors are Invalid and ErrUnsupported.
//
// Specification: https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/#protocol.
func Negotiate(contentType, contentEncoding string) (Version, Encoding, error) {
	v, err := versionOf(contentType)
	if err != nil {
		return 0, 0, err
	}
	switch enc := strings.TrimSpace(contentEncoding); {
	case enc == "", strings.EqualFold(enc, "snappy"):
		return v, Snappy, nil
	case strings.EqualFold(enc, "zstd"):
		return v, Zstd, nil
	default:
		return 0, 0, fault.Errorf(fault.Invalid, "%w: content encoding %q; send snappy", ErrUnsupported, cutText(enc))
	}
}

func versionOf(contentType string) (Version, error) {
	media, params, _ := strings.Cut(contentType, ";")
	media = strings.TrimSpace(media)
	if media == "" && strings.TrimSpace(params) == "" {
		return V1, nil
	}
	if !strings.EqualFold(media, mediaType) {
		return 0, fault.Errorf(fault.Invalid, "%w: content type %q; send %s", ErrUnsupported, cutText(contentType), mediaType)
	}
	for params != "" {
		var param string
		param, params, _ = strings.Cut(params, ";")
		key, value, _ := strings.Cut(param, "=")
		if !strings.EqualFold(strings.TrimSpace(key), "proto") {
			continue
		}
		switch value = strings.Trim(strings.TrimSpace(value), `"`); value {
		case protoV1:
			return V1, nil
		case protoV2:
			return V2, nil
		default:
			return 0, fault.Errorf(fault.Invalid, "%w: proto=%s; send %s or %s", ErrUnsupported, cutText(value), protoV1, protoV2)
		}
	}
	return V1, nil
}
