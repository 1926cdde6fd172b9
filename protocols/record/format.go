package record

import (
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Format is the format of a record's value. The zero Format is Line.
type Format uint8

const (
	// Line is Influx line protocol, one or many lines.
	Line Format = iota
	// RemoteWrite is Prometheus remote write of either version, distinguished by the numbers of its fields.
	RemoteWrite
	// RemoteWrite1 is prometheus.WriteRequest.
	RemoteWrite1
	// RemoteWrite2 is io.prometheus.write.v2.Request.
	RemoteWrite2
	// TelegrafJSON is the format of Telegraf's serializer "json", a metric or a batch.
	TelegrafJSON
	// PrometheusJSON is the format of prometheus-kafka-adapter: a sample an object.
	PrometheusJSON
	// OTLP is ExportMetricsServiceRequest, protobuf or JSON.
	OTLP
	formats
)

var formatNames = [formats]string{
	Line: "line", RemoteWrite: "remote-write", RemoteWrite1: "remote-write-1", RemoteWrite2: "remote-write-2",
	TelegrafJSON: "telegraf-json", PrometheusJSON: "prometheus-json", OTLP: "otlp",
}

// String gives the format's name in settings and headers.
func (f Format) String() string {
	if f < formats {
		return formatNames[f]
	}
	return "format(?)"
}

// ParseFormat reads a name as String writes it, or one of the usual others. The error is Invalid.
func ParseFormat(s string) (Format, error) {
	switch name := strings.ToLower(s); name {
	case "", "influx", "line-protocol", "lineprotocol":
		return Line, nil
	case "prometheus-remote-write", "remotewrite", "prometheusremotewrite":
		return RemoteWrite, nil
	default:
		for f, n := range formatNames {
			if n == name {
				return Format(f), nil
			}
		}
	}
	return 0, fault.Errorf(fault.Invalid, "format %q is none of %s", cut(s), strings.Join(formatNames[:], ", "))
}

// UnmarshalText reads a format in settings.
func (f *Format) UnmarshalText(text []byte) (err error) {
	*f, err = ParseFormat(string(text))
	return err
}

// MarshalText is the inverse of UnmarshalText.
func (f Format) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// json reports whether the content type application/json agrees with a format.
func (f Format) json() bool { return f == TelegrafJSON || f == PrometheusJSON || f == OTLP }

// ofContentType corrects f by a media type. A type that says too little, such as application/json for a topic of line
// protocol, is Invalid: a guess would store wrong names.
func (f Format) ofContentType(contentType string) (Format, error) {
	media, params, _ := strings.Cut(contentType, ";")
	switch media = strings.ToLower(strings.TrimSpace(media)); media {
	case "", "application/octet-stream":
		return f, nil
	case "text/plain", "text/influx", "application/influx", "application/vnd.influx.line-protocol", "text/x-line-protocol":
		return Line, nil
	case "application/json":
		if f.json() {
			return f, nil
		}
		return 0, fault.Errorf(fault.Invalid, "content type application/json does not say which JSON; set the header format")
	case "application/x-protobuf", "application/protobuf":
		return f.ofProtobuf(params)
	}
	return 0, fault.Errorf(fault.Invalid, "content type %q is not known", cut(contentType))
}

// ofProtobuf reads the parameter proto, as remote write 2.0 defines it: application/x-protobuf;proto=io.prometheus.write.v2.Request. Without it the
// topic's format stays if it is protobuf.
func (f Format) ofProtobuf(params string) (Format, error) {
	for param := range strings.SplitSeq(params, ";") {
		key, value, _ := strings.Cut(param, "=")
		if !strings.EqualFold(strings.TrimSpace(key), "proto") {
			continue
		}
		switch value = strings.Trim(strings.TrimSpace(value), `"`); value {
		case "prometheus.WriteRequest":
			return RemoteWrite1, nil
		case "io.prometheus.write.v2.Request":
			return RemoteWrite2, nil
		default:
			return 0, fault.Errorf(fault.Invalid, "content type with proto=%q is not known", cut(value))
		}
	}
	switch f {
	case OTLP, RemoteWrite1, RemoteWrite2:
		return f, nil
	}
	return RemoteWrite, nil
}

// textMax bounds quotes of a sender's text in our messages, in bytes.
const textMax = 256

// cut shortens a sender's text, and leaves no half of a rune at its end.
func cut(s string) string {
	if len(s) > textMax {
		return strings.ToValidUTF8(s[:textMax], "") + "…"
	}
	return s
}
