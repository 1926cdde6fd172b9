// Package database opens Pebble databases, and returns an error where the disk fails meanwhile.
//
// Pebble calls Logger.Fatalf and expects that the process ends, and flushes that fail are tried again at once and for ever, so that a
// disk which fails while a database is opened for writing makes pebble.Open spin and never return. Open returns then. An open database
// changes its directory no more after a fatal error, because the process goes on.
package database
