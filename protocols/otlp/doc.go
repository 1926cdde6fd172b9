// Package otlp reads OpenTelemetry metrics as OTLP/HTTP brings them (ExportMetricsServiceRequest, protobuf or JSON) into
// point.Batch, and makes the answer.
//
// OpenTelemetry's model becomes Prometheus' by the rules of Prometheus' own OTLP receiver: names by
// github.com/prometheus/otlptranslator, service.* of the resource to the labels job and instance, the rest of the
// resource to the series target_info, exponential histograms to native histograms.
//
//	          Negotiate                       Decoder                                          Outcome.Answer
//	headers ───▶ format, ── unpacked body ─▶ resource ─▶ scope ─▶ metric ─▶ data point         200 · 400 · 413 · 503 …
//	             encoding   (JSON is turned      │          │        │          │                    ▲
//	                        into protobuf)       └── hash of their additions ───┤                    │
//	                                                to a series' labels         ▼                    │
//	                                                                   hash of its attributes ─▶ Dict ─▶ id
//	                                                                            │                    │
//	                                                                            └─▶ Batch ── refusals┘
//
// The attributes of a data point are opened only when its series is unknown: their bytes are hashed as they lie in the
// message, together with the sum of everything else that decides the labels. A series seen before costs no memory.
//
// A mistake in one data point refuses that one, with a reason, and keeps its siblings; a mistake in the protobuf or
// the JSON refuses the body. A decoder holds no bytes of the body once Decode has returned.
//
// Invariants it keeps: I5 (rows and JSON objects of a request are counted before their memory is allocated; the memory of
// a decoder and a Deltas is bounded) and I8 (status.go is this protocol's table Kind → answer).
//
// Not here: traces and logs, OTLP over gRPC, HTTP itself, time bounds, limits by tenant, authentication. Start timestamps
// are ignored.
package otlp
