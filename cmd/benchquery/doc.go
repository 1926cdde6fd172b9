// Command benchquery measures how fast servers answer queries of dashboards, side by side.
//
// Each server is started fresh, loaded with the same fleet by remote write, and left to settle. It is then asked every
// query a few times over one connection, with no other server under test running. A figure is the median of a query's
// times, with answers read to their end; only the ratios within one run count.
//
//	fleet ─▶ rw1 bodies ─▶ server ─settle─▶ query × repeat ─▶ p50, ratios
//
//	benchquery -servers spillway,prometheus,victoriametrics -hosts 200 -hours 12
//
// Server spillway-cluster is a cluster on this machine, of one etcd, three storage servers and two gateways; its CPU time is that of all of them. It needs
// the built etcd beside the spillway binary. Its settings, and those of spillway, come from variables:
//
//	SPILLWAY_TABLES_REPLICAS=1 benchquery -servers spillway-cluster,spillway -hours 2
//
// With -clients each query is asked by one client, and then by several at a time: questions a second, p50 and p99 of both.
//
// Queries ask servers not to use caches of whole answers (nocache=1). A query to which servers return different numbers
// of series is marked: its times do not compare.
package main
