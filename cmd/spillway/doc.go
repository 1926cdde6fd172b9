// Command spillway receives metrics, keeps every acked one of them, and serves them through PromQL.
//
//	spillway standalone     gateway, storage and metadata in one process; nothing else needed
//	spillway table, partition, server, master, audit    look at a cluster and steer it; every change is noted
//	spillway doctor         what is wrong with a cluster, and what to do
//	spillway kafka status   the lag of the topics that a running process reads
//
// Main is a list of actors: each part is opened in the order in which it is needed, run beside the others, and stopped
// in the opposite order.
//
//	listen ─▶ intake (writes) ─▶ forward ─▶ server ─▶ brick        data directory:  log/ segments/ catalogue/
//	       └▶ api (PromQL) ────▶ query ───▶ server                                  coord/
//	kafka ─▶ intake/kafka (topics) ─▶ forward
//	admin.listen ─▶ pprof, metrics
//
// Commands that need no process of their own are packages below this one, and import it never:
//
//	main ─▶ settings ─▶ verify, connect
//	main ─▶ administration ─▶ findings, figures, diagram, connect, client, settings
//	main ─▶ backups, repair ─▶ settings
//	main ─▶ backups, exchange, topics ─▶ client
//	main ─▶ administration, backups, exchange, repair, verify, client, connect ─▶ terminal
//	main ─▶ credentials, completion
package main
