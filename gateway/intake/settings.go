package intake

import (
	"errors"
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/otlp"
)

// ConnsMax is the default of Settings.ConnsMax.
const ConnsMax = 16_384

// Settings are the numbers a user sets. Zero means the default.
type Settings struct {
	// BodyBytesMax bounds a body as it comes over the wire. Default 32 MiB. Beyond it the answer is 413.
	BodyBytesMax int64
	// DecodedBytesMax bounds a body when it is unpacked. Default 64 MiB. Beyond it the answer is 413.
	DecodedBytesMax int64
	// InFlightBytesMax bounds the memory of all requests' bodies and batches together. Default 256 MiB. Beyond it the
	// answer is 503 with Retry-After, except for tables that hold less than a 256th: they share a further sixteenth. A request that needs more than a
	// sixteenth waits for its turn before it is refused (large.go), four seconds at most.
	// Smaller: less memory at a flood; it must hold at least one whole request.
	InFlightBytesMax int64

	// ConnsMax bounds open connections. Default 16,384. Beyond it a connection gets 503 and is closed. A connection costs
	// 6 KiB before its first request, 13 to 16 KiB behind one, and while a body is read 18 to 31 KiB and the body.
	ConnsMax int
	// PeekTimeMax is how long a new connection may need for its first line, TLS handshake included. Default 10 s.
	PeekTimeMax time.Duration
	// HeaderTimeMax is how long the sending of a request's header may last. Default 10 s.
	HeaderTimeMax time.Duration
	// BodyTimeMax bounds the time in which a request's body must arrive. For a body whose beginning was gathered (gather.go) it is counted again when a server
	// reads the rest. It also bounds how long the client of a query may stop reading its answer. Default 60 s.
	BodyTimeMax time.Duration
	// IdleTimeMax is how long a connection is kept between requests. Default 3 min, longer than the 90 s after which Go
	// clients drop theirs, so that we do not close a connection just as the client writes a request.
	IdleTimeMax time.Duration
	// AnswerTimeMax is how long a write may wait for its ack. Default 30 s. Beyond it the answer is 503, and the rows may
	// or may not be kept.
	AnswerTimeMax time.Duration
	// HeaderBytesMax bounds a request's header. Default 8 KiB on connections of write requests, eight times as much on
	// others.
	HeaderBytesMax int

	// RetryAfter is the wait that a refusal for overload advises. Default 1 s. Whole seconds: clients parse nothing finer.
	RetryAfter time.Duration

	// Admit are the limits rows are held against.
	Admit admit.Settings

	// Influx says how line protocol becomes metrics.
	Influx InfluxSettings

	// SeriesMax is how many series there is memory for, of all tables; 0: unknown. It bounds the sums of delta samples, which outlive their series.
	SeriesMax int

	// OTLP says how OpenTelemetry's metrics become ours.
	OTLP otlp.Settings

	// Delete opens /api/v2/delete and the statements of InfluxQL that delete.
	Delete bool

	// Version is the version that /ping and /health report. Default "dev".
	Version string
	// ClusterUUID is the header cluster-uuid of Influx v3 answers; left out when empty.
	ClusterUUID string
}

// InfluxSettings name what line protocol writes.
type InfluxSettings struct {
	// Separator stands between measurement and field. Default "_": cpu,host=a usage=1 is cpu_usage{host="a"}.
	Separator string
	// DBLabel, if set, is a label that every series gets with the database's name.
	DBLabel string
	// Strings is the policy for string fields. Default: dropped and counted.
	Strings lineproto.StringPolicy
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// SetDefaults gives fields that are zero their defaults.
func (s *Settings) SetDefaults() {
	orDefault(&s.BodyBytesMax, 32<<20)
	orDefault(&s.DecodedBytesMax, 64<<20)
	orDefault(&s.InFlightBytesMax, 256<<20)
	orDefault(&s.ConnsMax, ConnsMax)
	orDefault(&s.PeekTimeMax, 10*time.Second)
	orDefault(&s.HeaderTimeMax, 10*time.Second)
	orDefault(&s.BodyTimeMax, 60*time.Second)
	orDefault(&s.IdleTimeMax, 3*time.Minute)
	orDefault(&s.AnswerTimeMax, 30*time.Second)
	orDefault(&s.HeaderBytesMax, 8<<10)
	orDefault(&s.RetryAfter, time.Second)
	orDefault(&s.Version, "dev")
	orDefault(&s.Influx.Separator, lineproto.SeparatorDefault)
	s.Admit.SetDefaults()
}

// Validate reports every mistake at once. Zero values are none: they become defaults.
func (s Settings) Validate() error {
	s.SetDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"BodyBytesMax", s.BodyBytesMax}, {"DecodedBytesMax", s.DecodedBytesMax}, {"InFlightBytesMax", s.InFlightBytesMax},
		{"ConnsMax", int64(s.ConnsMax)}, {"PeekTimeMax", int64(s.PeekTimeMax)}, {"HeaderTimeMax", int64(s.HeaderTimeMax)},
		{"BodyTimeMax", int64(s.BodyTimeMax)}, {"IdleTimeMax", int64(s.IdleTimeMax)},
		{"AnswerTimeMax", int64(s.AnswerTimeMax)}, {"HeaderBytesMax", int64(s.HeaderBytesMax)},
	} {
		if n.value < 0 {
			bad("%s %d is negative", n.name, n.value)
		}
	}
	if need := s.BodyBytesMax + s.DecodedBytesMax; s.InFlightBytesMax < need {
		bad("InFlightBytesMax %d cannot hold one request: BodyBytesMax and DecodedBytesMax make %d", s.InFlightBytesMax, need)
	}
	if s.RetryAfter < time.Second || s.RetryAfter%time.Second != 0 {
		bad("RetryAfter %v is not a whole number of seconds", s.RetryAfter)
	}
	if err := s.OTLP.Validate(); err != nil {
		bad("OTLP: %w", err)
	}
	return errors.Join(append(errs, s.Admit.Validate())...)
}
