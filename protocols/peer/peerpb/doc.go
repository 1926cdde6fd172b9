// Package peerpb is the control messages of peers in protobuf: what is asked seldom and must grow without a version.
//
// Rows and what is selected travel in the raw formats of protocols/peer/rpc instead. Names, matchers and descriptions that
// need not be UTF-8 are bytes. A field that is added to package peer is found missing by the round-trip test of
// protocols/peer/rpc until both conversions know it.
package peerpb

//go:generate protoc -I ../../.. --go_out=../../.. --go_opt=paths=source_relative protocols/peer/peerpb/storage.proto protocols/peer/peerpb/metadata.proto protocols/peer/peerpb/rows.proto
