// Package promqlsuite runs Prometheus' own PromQL test scripts on a storage of ours.
//
// The scripts come with the prometheus module (promql/promqltest/testdata). Every load command becomes one batch that is
// inserted, every eval command a query through our Queryable. What is known to differ is named, case by case and with
// its reason, in known.go; such a case must go on failing, so that the list stays true.
package promqlsuite
