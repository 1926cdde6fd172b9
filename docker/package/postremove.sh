#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
# The rows in /var/lib/spillway and the user that owns them stay, after a purge too.
