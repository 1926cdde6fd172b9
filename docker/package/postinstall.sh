#!/bin/sh
set -e
if ! getent passwd spillway >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/spillway --no-create-home --shell /usr/sbin/nologin spillway
fi
install -d -o spillway -g spillway -m 0750 /var/lib/spillway
chgrp spillway /etc/spillway/spillway.yml /etc/default/spillway
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# An upgrade restarts what ran; a first installation leaves the start to the administrator.
	systemctl try-restart spillway.service
fi
