package process

import (
	"net/http"
	"time"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/ui"
)

// Paths at which a process shows its recent events. Each reader sees only tables that they may read.
const (
	queriesPath  = "/api/v1/status/queries"
	refusalsPath = "/api/v1/status/refusals"
	ratesPath    = "/api/v1/status/rates"
	sendersPath  = "/api/v1/status/senders"
)

// readable reports which tables the reader of a request may read, restricted to the one that ?table= names. Entries of no
// table, because their sender showed no valid credentials, are for readers of all tables.
func readable(r *http.Request) func(table string) bool {
	who, only := access.From(r.Context()), r.URL.Query().Get("table")
	return func(table string) bool {
		if only != "" && table != only {
			return false
		}
		if table == "" {
			return who.MayAll(access.Read)
		}
		return who.May(access.Read, table)
	}
}

// shownQueries serves the queries that run, and the slow and failed ones.
func (d *door) shownQueries(w http.ResponseWriter, r *http.Request) {
	ui.Answer(w, r, d.queries.Lists(time.Now(), readable(r)))
}

// shownRefusals serves the latest refusals of writes.
func (d *door) shownRefusals(w http.ResponseWriter, r *http.Request) {
	ui.Answer(w, r, d.refusals.List(readable(r)))
}

// shownSenders serves the last senders of each table. Where one table is asked for, it adds the metric names of the series that they made.
func (d *door) shownSenders(w http.ResponseWriter, r *http.Request) {
	ui.Answer(w, r, d.senders.Lists(time.Now(), readable(r), r.URL.Query().Get("table") != ""))
}

// shownRates serves the rates of the last half hour.
func (d *door) shownRates(w http.ResponseWriter, r *http.Request) {
	ui.Answer(w, r, d.limits.History(readable(r)))
}
