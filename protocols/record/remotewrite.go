package record

import (
	"encoding/binary"

	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

// Numbers of the outermost fields: 1.0 has timeseries and metadata, 2.0 has symbols and timeseries, and they differ so
// that the messages can be distinguished.
const (
	fieldSeriesV1   = 1 // WriteRequest.timeseries
	fieldMetadataV1 = 3 // WriteRequest.metadata
	fieldSymbolsV2  = 4 // Request.symbols
	fieldSeriesV2   = 5 // Request.timeseries
)

// A request of version 1 with one series of label __name__="up" and a sample, and where framing looks:
//
//	0a 22 │ 0a 0e 0a 08 5f 5f …        tag 0a: field 1, a length; 22: 34 bytes, passed over; the end of the message: ok, version 1
//	└ outermost    └ not looked at

// framing walks over the outermost message. ok: it is one from its first byte to its last, and has a field of remote
// write; version is that of the first.
//
// A snappy block is not mistaken for one. Its first byte is that of a tag only where it unpacks to 10, 26, 34, 42 bytes or
// to a few certain lengths above 127, and then the bytes behind it, a literal's length and the text itself, would have
// to be lengths and tags that end with the block. No record with a metric name is that short.
func framing(b []byte) (version remotewrite.Version, ok bool) {
	for i := 0; i < len(b); {
		// A tag is number<<3 | wire type: 0a is field 1 with a length (type 2), 1a field 3, 22 field 4, 2a field 5.
		tag, n := binary.Uvarint(b[i:])
		if n <= 0 || tag>>3 == 0 {
			return 0, false
		}
		i += n
		var v remotewrite.Version
		switch tag >> 3 {
		case fieldSeriesV1, fieldMetadataV1:
			v = remotewrite.V1
		case fieldSymbolsV2, fieldSeriesV2:
			v = remotewrite.V2
		}
		// All fields of remote write at this level are messages or strings.
		if v != 0 && tag&7 != 2 {
			return 0, false
		}
		if i = skipField(b, i, tag&7); i < 0 {
			return 0, false
		}
		if version == 0 {
			version = v
		}
	}
	return version, version != 0
}

// skipField gives the place behind the field with its value at i; -1 where the value does not end within b.
func skipField(b []byte, i int, wire uint64) int {
	size := uint64(0)
	switch wire {
	case 0, 2:
		v, n := binary.Uvarint(b[i:])
		if n <= 0 {
			return -1
		}
		i += n
		if wire == 2 {
			size = v
		}
	case 1:
		size = 8
	case 5:
		size = 4
	default:
		return -1
	}
	// Compared as unsigned numbers: a length of 2^63 would be negative as an int.
	if size > uint64(len(b)-i) {
		return -1
	}
	return i + int(size)
}

// remoteWrite unpacks and reads a request of either version.
// The order of guesses: gzip and zstd by their first bytes; plain if it is framed from end to end; else snappy, which reports its own errors.
func (d *Decoder) remoteWrite(value []byte, o *Options) error {
	version, plain := remotewrite.Version(0), false
	packing := o.Packing
	if packing == Detect {
		if packing = magic(value); packing == Plain {
			if version, plain = framing(value); !plain {
				packing = Snappy
			}
		}
	}
	body, err := d.unpacker.unpack(value, packing)
	if err != nil {
		return err
	}
	switch o.Format {
	case RemoteWrite1:
		version = remotewrite.V1
	case RemoteWrite2:
		version = remotewrite.V2
	default:
		if !plain {
			version, _ = framing(body)
		}
	}
	if version == remotewrite.V2 {
		return d.rw2.Decode(body, d.b)
	}
	return d.rw1.Decode(body, d.b) // and reports the mistake in a message of neither version
}
