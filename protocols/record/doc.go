// Package record reads the value of a Kafka message into a point.Batch.
//
// Producers use one format each and rarely declare it, so the reader uses the topic's settings, corrected by
// the record's headers, and looks at the bytes only where they cannot be mistaken.
//
//	topic settings ─▶ Options ◀─ headers (format, content-type, content-encoding, table, precision, atomic, smear)
//	                     │
//	value ─▶ unpack ─▶ line protocol · remote write 1, 2 · Telegraf JSON · Prometheus JSON · OTLP ─▶ Batch
//	         (bounded)                                                      └─ bad rows ─▶ Batch.Refused
//
// One Decoder belongs to one goroutine and keeps scratch memory; series seen before allocate nothing. A record that
// cannot be read at all is an error and leaves the batch as it was; a bad row is refused alone, unless the record is
// atomic.
//
// Rows without a time of their own get the record's time, not the clock's: a record that is delivered again then
// means the same again, which makes delivery at least once exact.
//
// Invariants it keeps: I5 (unpacked bytes are bounded before memory is allocated, nesting of JSON is bounded), I8 (every
// error has a Kind: Invalid, TooLarge, or Throttled where a dictionary is full).
//
// Not here: Kafka itself, whether a table may be written to, schema registries, Avro.
package record
