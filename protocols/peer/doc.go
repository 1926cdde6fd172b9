// Package peer is the interface between gateways and storage servers. It does not say which process calls which.
//
// The gateway sees a storage server only as a Storage. In one process that is the server itself; between processes it
// is the same interface over gRPC. Rows travel in columns and series as numbers: definitions go once per stream.
//
//	gateway ──Stream.Define(series)──▶ server        once per series and stream
//	        ──Stream.Insert(rows)────▶ partition     ack at the level asked for (I1)
//	        ──Storage.Select(…)──────▶ series in label order, each in columns
package peer
