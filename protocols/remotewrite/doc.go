// Package remotewrite reads Prometheus remote write 1.0 and 2.0 into point.Batch, and makes the answer.
//
// A decoder never parses the labels of a series it has seen before: in 1.0 it hashes their bytes as they lie in the
// message, in 2.0 it mixes the hashes of the symbols they refer to, each symbol hashed once a request. Only a new
// series is parsed, checked, sorted and given a number.
//
//	            Negotiate           Decompress            DecoderV1 · DecoderV2                      Outcome.Answer
//	headers ───▶ version, ── body ─▶ protobuf ─▶ series ─▶ hash of raw labels ─▶ Dict ─▶ id          204 · 400 · 413 …
//	             encoding            bytes        │        (or of symbol refs)            │                 ▲
//	                                 (≤ max)      └─▶ samples, histograms, exemplars ─────▶ Batch ── refusals, Written
//
// A mistake in one series or sample refuses that one, with a reason, and keeps its siblings; a mistake in the
// protobuf itself refuses the body. A decoder holds no bytes of the body once Decode has returned.
//
// Invariants it keeps: I5 (a declared size is compared with the limit before memory is allocated; rows and symbols of
// a request are bounded) and I8 (status.go is this protocol's table Kind → answer).
//
// Not here: limits by tenant, time bounds, HTTP itself, authentication.
package remotewrite
