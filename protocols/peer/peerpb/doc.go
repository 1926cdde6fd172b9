// Package peerpb is the control messages of peers in protobuf: rare requests that must be able to grow without a version.
//
// Rows and the results of selects travel in the raw formats of protocols/peer/rpc instead. Names, matchers and descriptions that
// need not be UTF-8 are bytes. The round-trip test of protocols/peer/rpc fails for a field added to package peer until both
// conversions handle it.
package peerpb

//go:generate protoc -I ../../.. --go_out=../../.. --go_opt=paths=source_relative protocols/peer/peerpb/storage.proto protocols/peer/peerpb/metadata.proto protocols/peer/peerpb/rows.proto
