// Command cluster runs a cluster on this machine, in the foreground, to try it out: etcd, storage servers and gateways are
// processes of one built binary. Ctrl-C stops them all. With -demo it writes a load by three protocols, too, and reports how evenly the
// storage servers carry it, with smearing and without:
//
//	load ──line protocol, remote write──▶ gateways ──▶ turns    partitions of 10 s, one server after the other
//	   └──Kafka (one within this process)──┘          spread   the same rows, smeared
//	                                                   sized    the same rows, partitions cut by the forecast
//	status page of a gateway, every ten seconds ──▶ a line: rows/s of each server, busiest ÷ mean
package main
