// Package exchange has the commands export, import and write: rows leave a running process for files and blocks of Prometheus, and come from
// files, from directories of Prometheus and from other servers.
//
// It has the flags, the bars of progress and the words; the formats and the runs that go on after an interruption are in cmd/internal/transfer.
package exchange
