// Command spillway receives metrics, keeps every acked one of them, and serves them through PromQL.
//
//	spillway standalone     gateway, storage and metadata in one process; nothing else needed
//	spillway table, partition, server, master, audit    look at a cluster and steer it; every change is noted
//	spillway doctor         what is wrong with a cluster, and what to do
//	spillway kafka status   the lag of the topics that a running process reads
//
// Main has the command line: which command there is, and how its line is read. Everything else is in packages below this one:
//
//	main ─▶ process ─▶ view, settings, administration (its orders and pages), connect
//	main ─▶ settings ─▶ verify, connect
//	main ─▶ administration ─▶ findings, figures, diagram, connect, client, settings
//	main ─▶ backups, repair ─▶ settings
//	main ─▶ backups, exchange, topics ─▶ client
//	main ─▶ process, administration, backups, exchange, repair, verify, client, connect ─▶ terminal
//	main ─▶ credentials, completion
package main
