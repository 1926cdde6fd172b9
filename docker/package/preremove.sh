#!/bin/sh
set -e
# deb calls with "remove" or "upgrade", rpm with the number of versions that stay.
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now spillway.service
	fi
	;;
esac
