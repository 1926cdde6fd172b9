// Package intake is the front doors: it serves write requests of every protocol over one HTTP port and answers each in its
// protocol's terms.
//
// A connection's first line decides which server gets it. Intake paths go to fasthttp, which allocates next to nothing per
// request; everything else goes to net/http, which cancels and streams queries and also serves the intake paths. If
// requests of both kinds come over one connection, fasthttp hands it over for good at the first path that it does not
// serve.
//
//	              ┌ intake path ─▶ fasthttp ─┐                 ┌─ load ─ unpack ─ decode ─ admit ─ Table.Write ─┐
//	Accept ─ peek ┤                  │ other │─▶ route ─▶ door ┤                                                ├─▶ answer
//	              └ anything else ─▶ net/http┘                 └─ ping, health, query, buckets ─────────────────┘
//	                                   └─ not ours ─▶ Deps.Fallback (API, status page)
//
// While the store has no room for a table's rows, its requests are delayed before their bodies are read (brake.go). Bodies
// that were read are decoded in turns (turns.go).
//
// Memory: a body lies in pooled buffers that grow with the bytes received, never with the declared length; all requests
// together hold at most Settings.InFlightBytesMax. The body is released as soon as it is decoded, the batch as soon as
// Write returns.
//
// Invariants it keeps: I1 (the answer leaves after Write returned at the level asked for), I5 (connections, headers,
// bodies, unpacked bodies, rows and bytes in flight are bounded, each with an answer at the bound), I8 (kinds of errors
// become statuses only in protocols/lineproto, protocols/remotewrite and protocols/otlp).
//
// Not here: write permissions (gateway/access), TLS (pass Serve a TLS listener), Kafka.
package intake
