// Package administration has what people do to a cluster, and how they look at it: the commands table, partition, server, master, presplit,
// doctor and audit, and the pages on admin.listen that carry out the same orders in a process.
//
//	command ─▶ coordination store, peers                                         with --servers or --coord
//	table, partition, audit ─▶ admin.listen ─▶ Orders.Pages ─▶ the same command in a process     with --url
//	                                           OrdersAlone, OrdersOfCluster: what the process has of its own
//	doctor, partition list, table top ─▶ http.listen ─▶ what the process shows of itself          with --url
//
// No process is asked by server, master, presplit and table repair. The server behind admin.listen (PortServer, ServePort) is of this package,
// and all processes use it.
//
// A command and its page run the same code on an admin: the coordination store, the servers and the maps of tables. Each change is noted in the
// audit before it is made, but for a row in the place of a missing heartbeat, which changes no state. Plans of the master, forecasts and findings are computed elsewhere, in metadata/master, cmd/spillway/figures and
// cmd/spillway/findings.
//
// Commands about forecasts and advice about settings lie here too: they share the flags and the view of the cluster with those that steer, and
// a package of their own would need more than thirty names of this one.
package administration
