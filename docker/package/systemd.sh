#!/bin/bash
# systemd.sh OLDER.deb NEWER.deb: the deb's service under a real systemd, which is process 1 of a container of systemd-nspawn: installed, started,
# written to, reloaded, restarted, killed, misconfigured, upgraded, stopped and removed, as an administrator does it. The container's root is
# this machine's, with all changes in memory, without its units, its network and its tables of mounts: nothing of it is changed or started.
#
# Where systemd cannot run it prints why, and exits with 0.
set -euo pipefail
skip() { echo "make test-package: SKIPPED, no systemd ran the service: $*"; exit 0; }
fail() {
	echo "make test-package: systemd: $*"
	status
	journalctl --no-pager --unit spillway --lines 40 || true
	exit 1
}
patience=300 # seconds for something that comes by itself; what needs longer never comes
url=http://127.0.0.1:8428

# outside prepares the root, and runs this file in it as the one unit of systemd.
outside() {
	[ "$(id -u)" = 0 ] || skip "it needs root"
	for program in systemd-nspawn:systemd-container curl:curl; do
		command -v "${program%:*}" >/dev/null || skip "there is no ${program%:*}; on Debian: apt-get install ${program#*:}"
	done
	[ -x /lib/systemd/systemd ] || skip "there is no systemd; on Debian: apt-get install systemd"
	why=$(unshare --mount true 2>&1) || skip "namespaces cannot be made here: $why"
	packages=$(mktemp -d)
	group=spillway-systemd.$$
	container=
	trap clean EXIT
	trap 'exit 143' TERM INT HUP
	install -m 0644 "$1" "$packages/older.deb"
	install -m 0644 "$2" "$packages/newer.deb"
	install -m 0755 "$0" "$packages/systemd.sh"
	touch "$packages/log"
	code=0
	# Process 1 ends with the code of the unit. A container that hangs is ended from here, whole.
	timeout --kill-after=30 15m unshare --mount --propagation private "$0" --root "$packages" "$group" >"$packages/console" 2>&1 &
	container=$!
	wait $container || code=$? # wait is interrupted by a signal, a command is not
	container=
	cat "$packages/log"
	if [ ! -s "$packages/log" ]; then
		# The unit did not begin.
		tail -n 20 "$packages/console"
		case $code in 124 | 137) echo "make test-package: systemd: the container hung before the unit began, and was ended with code $code; what it printed last stands above"; exit 1 ;; esac
		skip "systemd-nspawn does not boot here, with code $code; what it printed last stands above"
	fi
	[ $code = 0 ] || { echo "make test-package: systemd: ended with code $code"; exit 1; }
}

clean() {
	trap '' TERM INT HUP # make sends a signal on, as a second one
	# timeout is in a process group of its own: a signal to that of this program did not reach it.
	if [ -n "$container" ]; then
		kill "$container" 2>/dev/null || true
		wait "$container" || true
	fi
	rm -rf "$packages"
	# Of cgroups the directories stay when their processes are gone.
	find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} + 2>/dev/null || true
}

# root is in a mount namespace of its own.
root() {
	packages=$1 group=$2
	# A cgroup of its own, for those that systemd makes.
	for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
		[ -e $hierarchy/cgroup.procs ] || continue
		mkdir "$hierarchy/$group"
		echo $$ >"$hierarchy/$group/cgroup.procs"
	done
	mount -t tmpfs -o mode=0755 tmpfs /run
	mkdir /run/changes
	mount -t tmpfs -o mode=0755 tmpfs /run/changes
	mkdir /run/changes/upper /run/changes/work /run/changes/root
	mount -t overlay -o lowerdir=/,upperdir=/run/changes/upper,workdir=/run/changes/work overlay /run/changes/root
	root=/run/changes/root
	rm -rf $root/etc/systemd/system $root/etc/rc?.d $root/etc/machine-id
	mkdir -p $root/etc/systemd/system
	: >$root/etc/fstab
	: >$root/etc/machine-id
	cat >$root/etc/systemd/system/spillway-test.service <<END
[Unit]
Description=Test of the unit of Spillway
SuccessAction=exit
FailureAction=exit
FailureActionExitStatus=1
[Service]
Type=oneshot
ExecStart=/packages/systemd.sh --inside
StandardOutput=file:/packages/log
StandardError=file:/packages/log
END
	exec systemd-nspawn --quiet --register=no --keep-unit --private-network --link-journal=no --machine=spillway-test \
		--directory=$root --bind="$packages:/packages" --boot systemd.unit=spillway-test.service
}

# eventually CHECK...: repeats a check until it holds.
eventually() {
	local end=$((SECONDS + patience))
	until "$@"; do
		[ $SECONDS -lt $end ] || fail "not after $patience s either: $*"
		sleep 0.1
	done
}

status() { systemctl --no-pager --full status spillway || true; } # its code is 3 for a service that does not run
property() { systemctl show --property "$1" --value spillway; }
active() { [ "$(property ActiveState)" = active ]; }
journal() { journalctl --no-pager --quiet --unit spillway --output cat; } # the container's journal is empty at first
contains() { [[ $1 == *"$2"* ]]; } # TEXT PART; grep -q in a pipe would end the program before it with SIGPIPE
is() { # PROPERTY VALUE
	[ "$(property "$1")" = "$2" ] || fail "$1 is $(property "$1"), want $2"
}
has() { # VALUE: of the series cpu_usage. Started again, it serves at once.
	contains "$(spillway query 'last_over_time(cpu_usage[1d])')" " $1" || fail "the row $1 is not there: $(spillway query 'last_over_time(cpu_usage[1d])')"
}
setting() { contains "$(curl -sS $url/api/v1/status/config)" "$1"; }

# inside is the administrator's day.
inside() {
	echo "systemd: $(systemctl --version | head -n 1), $(systemd-detect-virt)"
	settings=/etc/spillway/spillway.yml
	dpkg -i /packages/older.deb
	is ActiveState inactive # the administrator starts it
	is UnitFileState disabled

	systemctl enable --now spillway
	is ActiveState active
	is UnitFileState enabled
	spillway health --quiet || fail "it was said to be started and is not ready"
	contains "$(property StatusText)" /var/lib/spillway || fail "systemctl status does not say where its rows are: $(property StatusText)"
	echo 'cpu,host=a usage=42' | spillway write
	has 42
	pid=$(property MainPID)
	[ "$(stat -c %U:%G:%a /var/lib/spillway)" = spillway:spillway:750 ] || fail "/var/lib/spillway is $(stat -c %U:%G:%a /var/lib/spillway)"
	awk '/^Uid:/ { u = $2 } /^CapEff:/ { c = $2 } /^NoNewPrivs:/ { n = $2 } /^Seccomp:/ { s = $2 } END { exit !(u != 0 && c ~ /^0+$/ && n == 1 && s == 2) }' /proc/"$pid"/status ||
		fail "its rights: $(cat /proc/"$pid"/status)"
	awk '/^Max open files/ { exit $4 != $5 || $4 < 1024 }' /proc/"$pid"/limits || fail "its limits: $(cat /proc/"$pid"/limits)"
	for directory in /etc /usr /var/lib /srv; do
		if nsenter --target "$pid" --mount touch $directory/spillway-test 2>/dev/null; then fail "it could write to $directory"; fi
	done

	echo 'log_level: debug' >>$settings
	systemctl reload spillway
	eventually named "settings are read anew" # the signal was sent; the process reads them in its own time
	is MainPID "$pid"
	echo 'storage: {flush_age: soon}' >>$settings
	if systemctl reload spillway; then fail "settings that are wrong were reloaded"; fi
	eventually named '"soon" is no time'
	is ActiveState active
	is MainPID "$pid"
	sed -i '$d' $settings

	systemctl restart spillway
	is ActiveState active
	[ "$(property MainPID)" != "$pid" ] || fail "it was not started again"
	setting 'log_level: debug' || fail "the restart did not read the settings"
	has 42

	echo 'cpu,host=a usage=43' | spillway write
	pid=$(property MainPID)
	systemctl kill --signal KILL spillway
	eventually another "$pid"
	is NRestarts 1
	has 43

	echo 'htpp: {}' >>$settings
	if systemctl restart spillway; then fail "it was started with settings that are wrong"; fi
	is ActiveState failed
	is ExecMainStatus 80
	eventually shown htpp
	sed -i '$d' $settings
	sed -i 's|^data_dir: .*|data_dir: /srv/spillway|' $settings
	if systemctl start spillway; then fail "it was started with a directory that the unit does not allow"; fi
	eventually shown /srv/spillway
	systemctl stop spillway
	install -d -o spillway -g spillway /srv/spillway
	mkdir /etc/systemd/system/spillway.service.d
	printf '[Service]\nReadWritePaths=/srv/spillway\n' >/etc/systemd/system/spillway.service.d/override.conf
	systemctl daemon-reload
	systemctl start spillway
	echo 'cpu,host=a usage=44' | spillway write
	has 44
	sed -i 's|^data_dir: .*|data_dir: /var/lib/spillway|' $settings
	systemctl restart spillway
	has 43

	pid=$(property MainPID)
	dpkg -i /packages/newer.deb
	is ActiveState active
	[ "$(property MainPID)" != "$pid" ] || fail "the upgrade left the older process running"
	contains "$(curl -sS $url/api/v1/status/buildinfo)" 0.0.2 || fail "after the upgrade $(curl -sS $url/api/v1/status/buildinfo) runs"
	has 43

	systemctl stop spillway
	is ActiveState inactive
	is Result success
	is ExecMainStatus 0
	dpkg -i /packages/older.deb
	is ActiveState inactive # it was stopped before
	systemctl start spillway
	echo 'htpp: {}' >>$settings
	contains "$(dpkg -i /packages/newer.deb 2>&1)" "the service did not start again" || fail "the upgrade does not say that its service did not start"
	is ActiveState failed
	contains "$(dpkg --status spillway)" "install ok installed" || fail "wrong settings make the package a broken one"
	sed -i '$d' $settings
	systemctl start spillway
	has 43

	dpkg --remove spillway
	if pgrep -x spillway >/dev/null; then fail "the service still runs after the removal"; fi
	[ ! -e /etc/systemd/system/multi-user.target.wants/spillway.service ] || fail "the removal left it enabled"
	[ -n "$(ls -A /var/lib/spillway)" ] || fail "the removal took the rows"
	echo "make test-package: under systemd the service was started, reloaded, restarted, killed, misconfigured, upgraded, stopped and removed"
}

# The process first: between the two the one killed may be noticed, and it is active only up to then.
another() { [ "$(property MainPID)" != "$1" ] && active; }
# The journal has lines a moment after they were printed; systemctl status shows the last of them.
named() { contains "$(journal)" "$1"; }
shown() { contains "$(status)" "$1"; }

case $1 in
--root) root "$2" "$3" ;;
--inside) inside ;;
*) outside "$1" "$2" ;;
esac
