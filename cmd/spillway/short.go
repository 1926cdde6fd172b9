package main

import (
	"cmp"
	"net/http"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
)

// Short names for what packages terminal and client have, of the commands that lie here.

const (
	exitDegraded = terminal.Degraded
	exitBroken   = terminal.Broken
)

// or returns text, or otherwise in place of an empty one.
func or(text, otherwise string) string { return cmp.Or(text, otherwise) }

func parseMoment(flag, text string, now time.Time) (time.Time, error) {
	return terminal.ParseMoment(flag, text, now)
}

func parseSpan(flag, text string) (time.Duration, error) { return terminal.ParseSpan(flag, text) }

func over[T any](dst, src *T) { terminal.Over(dst, src) }

type serverFlags = client.Server

// clientFlags are client.Flags.
type clientFlags client.Flags

func (c clientFlags) send(rq *http.Request, within time.Duration) (*http.Response, error) {
	return client.Flags(c).Send(rq, within)
}

func (c clientFlags) sender(within time.Duration, keep bool) (func(*http.Request) (*http.Response, error), error) {
	return client.Flags(c).Sender(within, keep)
}
