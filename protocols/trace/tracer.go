package trace

import (
	"context"
	"log/slog"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Bounds of what waits to be sent.
const (
	QueueMax    = 2048            // spans; those beyond are dropped
	batchMax    = 256             // spans of one request to the receiver
	sendTimeMax = 5 * time.Second // of one request
	closeMax    = 2 * time.Second // that the end of the process waits for the receiver
)

// Settings are where spans go, and how many.
type Settings struct {
	Endpoint string // http://host:4318 or https, with a path if it is not /v1/traces; "": nowhere
	OneIn    int    // one request of so many begins a trace; 1: all
	Role     string // of the process: gateway, storage, standalone
	Instance string
	Version  string
}

// Validate reports mistakes. Errors are Invalid.
func (s Settings) Validate() error {
	if s.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(s.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fault.Errorf(fault.Invalid, "traces.endpoint is %q: it is the address of a receiver of OTLP over HTTP, such as http://127.0.0.1:4318", s.Endpoint)
	}
	return nil
}

// url is the endpoint with its path.
func (s Settings) url() string {
	if u, err := url.Parse(s.Endpoint); err == nil && (u.Path == "" || u.Path == "/") {
		return u.JoinPath("/v1/traces").String()
	}
	return s.Endpoint
}

// Tracer makes spans. Nil: there are none. Safe for concurrent use.
type Tracer struct {
	// Constant after Open.
	provider *sdk.TracerProvider
	tracer   api.Tracer
}

// Open begins to send spans; nil if the settings name no endpoint. The receiver is not asked for. Errors are Invalid.
func Open(ctx context.Context, s Settings, log *slog.Logger, registerer prometheus.Registerer) (*Tracer, error) {
	n := newNoted(log, registerer)
	if err := s.Validate(); err != nil || s.Endpoint == "" {
		return nil, err
	}
	out, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(s.url()), otlptracehttp.WithTimeout(sendTimeMax),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false}))
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "traces.endpoint")
	}
	n.SpanExporter = out
	of := resource.NewSchemaless(attribute.String("service.name", "spillway"), attribute.String("service.version", s.Version),
		attribute.String("service.instance.id", s.Instance), attribute.String("spillway.role", s.Role))
	provider := sdk.NewTracerProvider(sdk.WithResource(of),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(1/float64(max(1, s.OneIn))))),
		sdk.WithBatcher(n, sdk.WithMaxQueueSize(QueueMax), sdk.WithMaxExportBatchSize(batchMax), sdk.WithExportTimeout(sendTimeMax)))
	return &Tracer{provider: provider, tracer: provider.Tracer("spillway")}, nil
}

// Close sends what waits, for a while.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeMax)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // what cannot be sent is counted
}

// noted counts and logs the spans that could not be sent.
type noted struct {
	sdk.SpanExporter
	log          *slog.Logger
	sent, failed prometheus.Counter
	last         atomic.Int64 // when a failure was logged, in seconds
}

func newNoted(log *slog.Logger, registerer prometheus.Registerer) *noted {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_trace_" + name + "_total", Help: help})
	}
	n := &noted{log: log, sent: counter("sent_spans", "Spans that the receiver of traces took."),
		failed: counter("failed_spans", "Spans that could not be sent, and are dropped.")}
	registerer.MustRegister(n.sent, n.failed)
	return n
}

// ExportSpans implements sdk.SpanExporter.
func (n *noted) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := n.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		n.sent.Add(float64(len(spans)))
		return nil
	}
	n.failed.Add(float64(len(spans)))
	if now, last := time.Now().Unix(), n.last.Load(); now-last >= 60 && n.last.CompareAndSwap(last, now) {
		n.log.Warn("spans cannot be sent, and are dropped; this is logged once a minute", "spans", len(spans), "error", err)
	}
	return nil // it is noted here, not by OpenTelemetry's handler
}

// Span is one step of a request. The zero Span is none.
type Span struct{ of api.Span }

// End ends the span, with the error of its step.
func (s Span) End(err error) {
	if s.of == nil {
		return
	}
	if err != nil {
		s.of.SetAttributes(attribute.String("error.type", fault.KindOf(err).String()))
		s.of.SetStatus(codes.Error, err.Error())
	}
	s.of.End()
}

// Answered ends the span of a request with its HTTP status.
func (s Span) Answered(status int) {
	if s.of == nil {
		return
	}
	s.of.SetAttributes(attribute.Int("http.response.status_code", status))
	if status >= 500 {
		s.of.SetStatus(codes.Error, "")
	}
	s.of.End()
}

// Text adds an attribute.
func (s Span) Text(key, value string) {
	if s.of != nil {
		s.of.SetAttributes(attribute.String(key, value))
	}
}

// Count adds an attribute.
func (s Span) Count(key string, n int) {
	if s.of != nil {
		s.of.SetAttributes(attribute.Int(key, n))
	}
}

// ParentHeader is the HTTP header, and the key in metadata of calls, that carries a trace on.
const ParentHeader = "traceparent"

// Server begins the span of a request from outside, with the value of its traceparent; "": it has none. It must end.
func (t *Tracer) Server(ctx context.Context, name, parent string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	if parent != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{ParentHeader: parent})
	}
	return start(ctx, t.tracer, name, api.SpanKindServer)
}

// Remote begins the span of a call by a peer, if the call is part of a trace. It must end.
func (t *Tracer) Remote(ctx context.Context, name, parent string) (context.Context, Span) {
	if t == nil || parent == "" {
		return ctx, Span{}
	}
	return t.Server(ctx, name, parent)
}

// Parent names the span that a call comes from where there is no room for a header: the trace's number, then the span's. The zero Parent is none.
type Parent [ParentLen]byte

// ParentLen is the length of a Parent.
const ParentLen = len(api.TraceID{}) + len(api.SpanID{})

// ParentOf is the span of ctx for a call; none where ctx is part of no trace.
func ParentOf(ctx context.Context) (p Parent) {
	of := api.SpanContextFromContext(ctx)
	if !of.IsSampled() {
		return p
	}
	trace, span := of.TraceID(), of.SpanID()
	copy(p[copy(p[:], trace[:]):], span[:])
	return p
}

// Under begins the span of a call by a peer, if the call is part of a trace. It must end.
func (t *Tracer) Under(ctx context.Context, name string, p Parent) (context.Context, Span) {
	if t == nil || p == (Parent{}) {
		return ctx, Span{}
	}
	of := api.SpanContextConfig{TraceFlags: api.FlagsSampled, Remote: true}
	copy(of.SpanID[:], p[copy(of.TraceID[:], p[:]):])
	return start(api.ContextWithRemoteSpanContext(ctx, api.NewSpanContext(of)), t.tracer, name, api.SpanKindServer)
}

// Step begins the span of a part of what the process does for the request of ctx; none where ctx is part of no trace. It must end.
func Step(ctx context.Context, name string) (context.Context, Span) {
	return within(ctx, name, api.SpanKindInternal)
}

// Client begins the span of a call that the request of ctx makes; none where ctx is part of no trace. It must end.
func Client(ctx context.Context, name string) (context.Context, Span) {
	return within(ctx, name, api.SpanKindClient)
}

func within(ctx context.Context, name string, kind api.SpanKind) (context.Context, Span) {
	of := api.SpanFromContext(ctx)
	if !of.IsRecording() {
		return ctx, Span{}
	}
	return start(ctx, of.TracerProvider().Tracer("spillway"), name, kind)
}

func start(ctx context.Context, t api.Tracer, name string, kind api.SpanKind) (context.Context, Span) {
	ctx, of := t.Start(ctx, name, api.WithSpanKind(kind))
	if !of.IsRecording() {
		return ctx, Span{}
	}
	return ctx, Span{of}
}

// Header is the value of traceparent by which a call carries the trace of ctx on; "": ctx is part of none.
func Header(ctx context.Context) string {
	if !api.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	to := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, to)
	return to[ParentHeader]
}
