// Package scrape writes the metrics of its own process into a table of the store, so that its
// history is on the page and in Grafana without another server.
//
//	registry ──Gather──▶ families ──rows──▶ point.Batch ──Table.Write──▶ table _spillway      every Settings.Interval
//	                        └─ once per life of the process: types and help texts
//
// In a cluster every process writes its own: gateways as they write users' rows, storage servers as a gateway would, into whichever server leads the
// partition. The label instance distinguishes them.
//
// Rows do not come through the front doors: they count towards no sender's rate, and no metric of package intake grows by
// them. They have the labels and forms that a Prometheus gives to the same page: job, instance, up, and the values of le
// with a decimal point, so that rules and dashboards are the same for both.
//
// It cannot feed itself: the number of series depends on the metrics that exist, never on the rows written. Rows are written at
// level received: they ride with the fsyncs of others, and the last seconds are lost in a crash.
//
// Bounds: RowsMax rows a scrape, whose memory is reserved before the metrics are gathered; one scrape at a time. A scrape that
// fails is counted and not repeated: its values are in the next one.
package scrape
