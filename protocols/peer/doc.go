// Package peer is what gateways and storage servers ask of each other, and nothing about who calls whom.
//
// The gateway knows a storage server only as a Storage. In one process that is the server itself; between processes it
// is the same interface over gRPC. Rows travel in columns and series as numbers: definitions go once per stream.
//
//	gateway ──Stream.Define(series)──▶ server        once per series and stream
//	        ──Stream.Insert(rows)────▶ partition     ack at the level asked for (I1)
//	        ──Storage.Select(…)──────▶ series in label order, each in columns
package peer
