package process

import "github.com/coreos/go-systemd/v22/daemon"

// reportReady reports to systemd that the process serves: a start or restart of its unit lasts until then (Type=notify). status is a line
// for `systemctl status`. Without such a unit nothing is reported.
func reportReady(status string) { report(daemon.SdNotifyReady + "\nSTATUS=" + status) }

// reportStarting gives `systemctl status` a line about a start that lasts.
func reportStarting(doing string) { report("STATUS=Starting: " + doing) }

// report sends a datagram to the socket that systemd names in NOTIFY_SOCKET. A process that cannot is as good as one that does: it serves,
// and systemd says that it waits for it.
func report(state string) { _, _ = daemon.SdNotify(false, state) }
