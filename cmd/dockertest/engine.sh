#!/bin/bash
# engine.sh COMMAND...: runs COMMAND with a container engine of its own, dockerd, in namespaces of processes, mounts and the network: the
# machine's ports, firewall and Docker, if it has one, are not touched, and all containers end with COMMAND, however that ends. The way out is
# slirp4netns, which forwards connections from user space: what the machine reaches, containers reach.
#
# COMMAND finds the engine by DOCKER_HOST, and `docker compose` by DOCKER_CONFIG. $DOCKER_WORK is the directory with images and volumes; without
# it they are removed in the end. It is of one engine at a time: a second one is an error. Where there is no root, or a program lacks, or the
# kernel's namespaces, cgroups or file systems are not what dockerd needs, it prints why, and exits with 0 and COMMAND was not run.
set -euo pipefail
skip() { echo "make test-docker: SKIPPED: $*"; exit 0; }
patience=300 # seconds that slirp4netns, dockerd and its end may need on a busy machine; what needs longer hangs

if [ "${1:-}" != --inside ]; then
	[ "$(id -u)" = 0 ] || skip "an engine of containers needs root"
	for program in docker:docker.io dockerd:docker.io containerd:containerd runc:runc iptables:iptables slirp4netns:slirp4netns ip:iproute2 busybox:busybox-static git:git; do
		command -v "${program%:*}" >/dev/null || skip "there is no ${program%:*}; on Debian: apt-get install ${program#*:}"
	done
	[ -c /dev/net/tun ] || skip "there is no /dev/net/tun, which slirp4netns needs"
	why=$(unshare --mount --net --pid --fork --mount-proc true 2>&1) || skip "namespaces cannot be made here: $why"
	work=${DOCKER_WORK:-$(mktemp -d /var/tmp/spillway-docker.XXXXXX)}
	mkdir -p "$work"
	exec 9>"$work/lock" # held by the engine too, until the last process of it is gone
	flock --nonblock 9 || { echo "engine.sh: another engine uses $work; wait for it, or set DOCKER_WORK to another directory" >&2; exit 1; }
	group=/spillway-docker.$$
	clean() {
		# Of cgroups the directories stay when their processes are gone.
		find /sys/fs/cgroup -depth -type d -path "*$group*" -exec rmdir {} + 2>/dev/null || true
		[ -n "${DOCKER_WORK:-}" ] || rm -rf "$work"
	}
	trap clean EXIT
	# unshare ignores SIGTERM, and process 1 of the namespace ends with it: KILL is what ends all of them, also when this shell is killed.
	setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc "$0" --inside "$work" "$group" "$@" &
	trap 'kill -KILL $!' INT TERM
	code=0
	wait $! || code=$?
	exit $code
fi

# From here on this is process 1 of the namespace: all others end with it.
work=$2 group=$3
shift 3
rm -rf "$work/run" "$work/docker.pid"
mkdir -p "$work/run" "$work/bin" "$work/config"
touch "$work/run/net"
why=$(unshare --net="$work/run/net" ip link set lo up 2>&1) || skip "a network of its own cannot be made here: $why"
slirp4netns --configure --disable-host-loopback --netns-type=path --ready-fd=3 "$work/run/net" tap0 3>"$work/run/ready" >"$work/slirp4netns.log" 2>&1 &
slirp=$!
end=$((SECONDS + patience))
until [ -s "$work/run/ready" ]; do
	[ $SECONDS -lt $end ] && kill -0 $slirp 2>/dev/null || { cat "$work/slirp4netns.log"; skip "slirp4netns does not run here, what it printed stands above"; }
	sleep 0.05
done
echo nameserver 10.0.2.3 >"$work/run/resolv.conf" # slirp4netns passes on what it is asked

inside() {
	nsenter --net="$work/run/net" unshare --mount sh -c 'mount --bind "$0" /etc/resolv.conf && exec "$@"' "$work/run/resolv.conf" "$@"
}

# Debian's iptables speaks to nf_tables; a kernel without it may have the older tables.
if ! inside iptables -t nat -S >/dev/null 2>&1 && inside iptables-legacy -t nat -S >/dev/null 2>&1; then
	ln -sf "$(command -v iptables-legacy)" "$work/bin/iptables"
	ln -sf "$(command -v ip6tables-legacy)" "$work/bin/ip6tables"
fi
export PATH=$work/bin:$PATH DOCKER_HOST=unix://$work/run/docker.sock DOCKER_CONFIG=$work/config DOCKER_WORK=$work
# Limits of open files as Docker's own packages give them: a program that needs more than 1024 raises its own limit.
ulimit -n 524288 2>/dev/null || echo "engine.sh: containers may open $(ulimit -Hn) files: the limit cannot be raised here"
inside dockerd --host="$DOCKER_HOST" --data-root="$work/data" --exec-root="$work/run/docker" --pidfile="$work/docker.pid" \
	--cgroup-parent="$group" --default-ulimit "nofile=1024:$(ulimit -Hn)" >"$work/dockerd.log" 2>&1 &
engine=$!
end=$((SECONDS + patience))
until timeout 60 docker version >/dev/null 2>&1; do
	[ $SECONDS -lt $end ] && kill -0 $engine 2>/dev/null || { tail -n 20 "$work/dockerd.log"; skip "dockerd does not run here, what it printed last stands above"; }
	sleep 0.1
done
docker version --format 'engine.sh: dockerd {{.Server.Version}}'
# An engine that runs may still start nothing: runc needs cgroups and devices.
busybox=$(readlink -f "$(command -v busybox)") # a link would be stored as one
tar -C "${busybox%/*}" --transform 's|.*|busybox|' -c "${busybox##*/}" | docker import - spillway-probe >/dev/null
why=$(timeout $patience docker run --rm --network=none spillway-probe /busybox true 2>&1) || skip "containers cannot be started here: $why"
docker image rm spillway-probe >/dev/null
code=0
inside "$@" || code=$?
[ $code = 0 ] || { echo "engine.sh: what dockerd printed last:"; tail -n 20 "$work/dockerd.log"; }
kill -TERM $engine
end=$((SECONDS + patience))
while kill -0 $engine 2>/dev/null && [ $SECONDS -lt $end ]; do sleep 0.2; done
exit $code # what is left ends with this process
