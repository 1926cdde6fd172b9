// Package trace sends what requests do, as spans, to a receiver of OpenTelemetry over HTTP.
//
//	request ──Tracer.Server──▶ span ─ctx─▶ Client ──▶ span of a call ──Header──▶ traceparent ──▶ other process: Tracer.Remote
//	                             └──────────── End ──▶ queue of QueueMax, dropped and counted beyond ──▶ POST Endpoint
//
// It is off without an endpoint: a Tracer is nil then, and its methods, Client and Header do nothing and allocate nothing.
//
// One request of Settings.OneIn begins a trace; a request with a traceparent follows its sender's choice. A process behind the first has spans of traces
// that came to it alone. What cannot be sent is dropped: a receiver that is away delays no request.
package trace
