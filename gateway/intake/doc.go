// Package intake is the front doors: it takes write requests of every protocol over one HTTP port and answers each in the
// words its sender understands.
//
// A connection's first line decides who serves it. Known intake paths go to fasthttp, which allocates next to nothing a
// request; everything else goes to net/http, which cancels and streams queries and also knows the intake paths. Where
// requests of both kinds come over one connection, fasthttp hands it over at the first that it does not know, for good.
//
//	              ┌ intake path ─▶ fasthttp ─┐                 ┌─ load ─ unpack ─ decode ─ admit ─ Table.Write ─┐
//	Accept ─ peek ┤                  │ other │─▶ route ─▶ door ┤                                                ├─▶ answer
//	              └ anything else ─▶ net/http┘                 └─ ping, health, query, buckets ─────────────────┘
//	                                   └─ not ours ─▶ Deps.Fallback (API, status page)
//
// A table whose rows the store has no room for is held back before its bodies are read (brake.go); what was read is decoded
// in turns (turns.go).
//
// Memory: a body lies in pooled buffers that grow with what has arrived, never with what was declared; all requests
// together hold at most Settings.InFlightBytesMax. The body is given back as soon as it is decoded, the batch as soon
// as Write returns.
//
// Invariants it keeps: I1 (the answer leaves after Write returned at the level asked for), I5 (connections, headers,
// bodies, unpacked bodies, rows and bytes in flight are bounded, each with an answer at the bound), I8 (kinds of errors
// become statuses only in protocols/lineproto, protocols/remotewrite and protocols/otlp).
//
// Not here: what says who may write (gateway/access), TLS (hand Serve a listener that speaks it), Kafka.
package intake
