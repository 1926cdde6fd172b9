// Command attack tries to hurt a running Spillway from outside while a bystander tenant goes on writing and reading.
//
// It starts the product as a user would, with a fixed --memory, and runs one attack after the other against it: hostile
// bodies and labels, floods of tables, partitions and series, query bombs, HTTP tricks, overload. Attacks of one group
// share a process; each group begins on an empty directory and ends with a restart.
//
//	                ┌ attack: bodies │ labels │ floods │ queries │ wire │ odd │ slow │ handshakes │ overload │ budget
//	spillway ◀──────┤
//	  RSS, exit     └ bystander: writes rows of its own table, reads them back, keeps a ledger of acked rows
//	control  ◀───────── the bystander also asks a process that only answers: the wait there is due to the machine
//
// An attack succeeds, and the run fails, if the process ends, if its peak memory exceeds the budget by more than a tenth, if an
// answer is anything but 2xx, 4xx or 503, if a write or read of the bystander is refused, or if a row that was acked to any
// client cannot be read afterwards, before and after a restart. Latencies are printed; with -latency they are judged too: the
// bystander's writes may last three times as long as without an attack, or as the control under it.
//
//	attack -memory 512MiB -seconds 10             # everything
//	attack -only 'queries/' -seconds 3            # one group
//
// The groups peers, plainpeers and cluster are run only where -only names them: they start etcd, which must lie beside the program. The first two attack the port at
// which a storage server answers its peers, with certificates and in the clear.
//
// The exit code is 0 if nothing was hurt, 1 if something was, 2 if the run itself failed.
package main
