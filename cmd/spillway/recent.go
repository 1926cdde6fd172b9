package main

import (
	"net/http"
	"time"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/ui"
)

// Where a process shows what happens in it. Each reader sees of it the tables that they may read.
const (
	queriesPath  = "/api/v1/status/queries"
	refusalsPath = "/api/v1/status/refusals"
	ratesPath    = "/api/v1/status/rates"
)

// readable tells the tables that the reader of a request may read, or of those the one that ?table= names. What is of no
// table, because its sender showed no good credentials, is for those who may read all.
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

// shownRefusals serves what was refused to writers lately.
func (d *door) shownRefusals(w http.ResponseWriter, r *http.Request) {
	ui.Answer(w, r, d.refusals.List(readable(r)))
}

// shownRates serves the rates of the last half hour.
func (d *door) shownRates(w http.ResponseWriter, r *http.Request) {
	ui.Answer(w, r, d.limits.History(readable(r)))
}
