#!/bin/sh
set -e
install -d -o spillway -g spillway -m 0750 /var/lib/spillway
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# An upgrade restarts what ran; a first installation leaves the start to the administrator. A service that does not start again, of wrong
	# settings for example, is no half installed package. The unit bounds no start: dpkg, which keeps others out meanwhile, waits ten minutes.
	timeout 600 systemctl try-restart spillway.service || echo "spillway: the service did not start again, or is still at it; the reason: systemctl status spillway" >&2
fi
