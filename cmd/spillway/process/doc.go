// Package process has the three processes of Spillway, from their settings until they end: Standalone, Gateway and Storage.
//
// Each is a list of actors: each part is opened in the order in which it is needed, run beside the others, and stopped
// in the opposite order.
//
//	listen ─▶ intake (writes) ─▶ forward ─▶ server ─▶ brick        data directory:  log/ segments/ catalogue/
//	       └▶ api (PromQL) ────▶ query ───▶ server                                  coord/
//	kafka ─▶ intake/kafka (topics) ─▶ forward
//	admin.listen ─▶ pprof, metrics
//
// A door is what a gateway and a standalone process share: listeners, pages, limits, the way of writes and of queries. Gateways and storage
// servers follow their cluster through a view. Orders of administrators are carried out by cmd/spillway/administration, in the process that
// receives them.
package process
