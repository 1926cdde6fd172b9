// Package promqlsuite runs Prometheus' own PromQL test scripts on our storage.
//
// The scripts come with the prometheus module (promql/promqltest/testdata). Every load command becomes one batch that is
// inserted, every eval command a query through our Queryable. Cases that differ are listed in known.go, one by one and with
// the reason; such a case must go on failing, so that the list stays true.
package promqlsuite
