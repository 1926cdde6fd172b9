#!/bin/sh
# test.sh: installs the deb of this machine's architecture, runs the service as its unit says, uses it, and removes it.
set -eu
skip() { echo "make test-package: SKIPPED: $*"; exit 0; }
command -v dpkg >/dev/null || skip "there is no dpkg"
[ "$(id -u)" = 0 ] || skip "installing needs root"
dpkg -s spillway >/dev/null 2>&1 && skip "a spillway is installed here already"
[ -e /var/lib/spillway ] && skip "/var/lib/spillway exists"
deb=$(ls -t bin/packages/spillway_*_"$(dpkg --print-architecture)".deb | head -1)
pid=
clean() {
	[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
	dpkg --purge spillway >/dev/null 2>&1 || true
	rm -rf /var/lib/spillway
	userdel spillway 2>/dev/null || true
}
trap clean EXIT
dpkg -i "$deb"
! command -v systemd-analyze >/dev/null || systemd-analyze verify /usr/lib/systemd/system/spillway.service
spillway config check /etc/spillway/spillway.yml
[ "$(stat -c %U:%a /var/lib/spillway)" = spillway:750 ] || { echo "/var/lib/spillway has the wrong owner or mode"; exit 1; }
port=$(( 20000 + $$ % 10000 ))
export SPILLWAY_HTTP_LISTEN=127.0.0.1:$port SPILLWAY_ADMIN_LISTEN= SPILLWAY_URL=http://127.0.0.1:$port
line=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/spillway.service)
start() {
	setpriv --reuid spillway --regid spillway --clear-groups $line 2>/tmp/spillway-package.$$ &
	pid=$!
	for _ in $(seq 600); do
		spillway health --quiet && return
		kill -0 $pid 2>/dev/null || break
		sleep 0.1
	done
	cat /tmp/spillway-package.$$
	echo "the service did not become ready"
	exit 1
}
stop() {
	kill -TERM $pid
	wait $pid || { echo "the service ended with $?"; exit 1; }
	pid=
}
start
echo 'cpu,host=a usage=42' | spillway write
stop
dpkg -i "$deb" # an upgrade
start
spillway query cpu_usage | grep -q ' 42$' || { echo "the row is gone"; exit 1; }
stop
rm -f /tmp/spillway-package.$$
dpkg --purge spillway
[ ! -e /usr/bin/spillway ] || { echo "the program stayed"; exit 1; }
[ -d /var/lib/spillway ] || { echo "a purge took the rows"; exit 1; }
echo "installed, started, written, upgraded, read and removed: $deb"
