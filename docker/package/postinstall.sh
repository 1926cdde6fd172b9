#!/bin/sh
set -e
install -d -o spillway -g spillway -m 0750 /var/lib/spillway
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# An upgrade restarts what ran; a first installation leaves the start to the administrator.
	systemctl try-restart spillway.service
fi
