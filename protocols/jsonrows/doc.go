// Package jsonrows writes rows as lines of JSON and reads them back, bit by bit the same.
//
// It is the format of the export route (/api/v1/export) and of `spillway export --format json`: one line holds some rows of
// one series, floats and native histograms, with times in nanoseconds. JSON has no NaN and no infinity, so these values are
// texts; a stale marker and a NaN with other bits than the usual ones keep their bits. Lines of VictoriaMetrics' export,
// with times in milliseconds, are read too.
//
// FORMAT.md draws a line. A line has a bound, LineBytesMax, and needs no other line to be understood.
package jsonrows
