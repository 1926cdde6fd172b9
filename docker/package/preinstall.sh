#!/bin/sh
set -e
# The group owns settings, so that it is there before they are.
if ! getent passwd spillway >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/spillway --no-create-home --shell /usr/sbin/nologin spillway
fi
