#!/bin/bash
# images.sh: has the engine hold every image that docker/Dockerfile, docker/compose.yaml and docker/cluster.yaml name. Those that no registry
# within reach serves are made of what this machine has, under the same names: of its Go, of programs that their own modules were built to. They
# stand in for the network, not for the programs: these are the real ones, of the versions that are printed. For Grafana there is no such
# source. Images that could not be had are printed into the file ABSENT of the working directory.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
clients=${CLIENTS_DIR:-$root/.cache/bin}
stage=$DOCKER_WORK/stage

# layer FILE...: files of this machine, at the places that they have here, with the libraries that they are linked to.
layer() {
	for file; do
		mkdir -p "$stage$(dirname "$file")"
		cp -L "$file" "$stage$file"
		{ ldd "$file" 2>/dev/null || true; } | { grep -o '/[^ ]*' || true; } | while read -r library; do
			mkdir -p "$stage$(dirname "$library")"
			cp -Lu "$library" "$stage$library"
		done
	done
}

# as NAME FILE: a program of this machine, at another place.
as() {
	layer "$2"
	mkdir -p "$stage$(dirname "$1")"
	mv "$stage$2" "$stage$1"
}

# common makes what every base image has.
common() {
	rm -rf "$stage"
	mkdir -p "$stage/etc/ssl/certs" "$stage/root" "$stage/tmp" "$stage/usr/share" "$stage/home/nonroot"
	chmod 1777 "$stage/tmp"
	printf '%s\n' root:x:0:0:root:/root:/sbin/nologin nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin >"$stage/etc/passwd"
	printf '%s\n' root:x:0: nobody:x:65534: nonroot:x:65532: >"$stage/etc/group"
	echo 'hosts: files dns' >"$stage/etc/nsswitch.conf"
	cp -L /etc/ssl/certs/ca-certificates.crt "$stage/etc/ssl/certs/"
	[ ! -d /usr/share/zoneinfo ] || cp -a /usr/share/zoneinfo "$stage/usr/share/"
	chown 65532:65532 "$stage/home/nonroot"
}

# commit IMAGE CHANGE...: makes the image of the stage.
commit() {
	image=$1
	shift
	for change; do set -- "$@" --change "$change"; shift; done
	tar -C "$stage" -c . | docker import "$@" - "$image" >/dev/null
	rm -rf "$stage"
}

go_image() {
	case $(go env GOVERSION) in go"${1#golang:}"*) ;; *) echo "this machine has $(go env GOVERSION)"; return 1 ;; esac
	common
	as /bin/busybox "$(command -v busybox)"
	chroot "$stage" /bin/busybox --install -s /bin
	mkdir -p "$stage/usr/local" "$stage/go"
	cp -a "$(go env GOROOT)" "$stage/usr/local/go"
	commit "$1" 'ENV PATH=/go/bin:/usr/local/go/bin:/bin' 'ENV GOPATH=/go' 'ENV GOTOOLCHAIN=local' "ENV GOPROXY=$(go env GOPROXY)" 'WORKDIR /go'
	go version
}

# warm fills the builder's cache of compiled packages, which the Dockerfile mounts, with those that this machine has compiled. The build within the
# engine compiles the rest; without that it would be minutes of compiling what was compiled before.
warm() {
	rm -rf "$stage"
	mkdir -p "$stage"
	(cd "$root" && go build -o "$DOCKER_WORK/seed" ./cmd/dockertest/seed &&
		GOCACHEPROG="$DOCKER_WORK/seed $(go env GOCACHE) $stage/seed" CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags "-s -w" -o /dev/null ./cmd/spillway)
	cat >"$stage/Dockerfile" <<END
FROM $1
RUN --mount=type=bind,target=/context --mount=type=cache,target=/root/.cache/go-build cp -a /context/seed/. /root/.cache/go-build/
END
	echo "services: {warm: {image: warm, build: {context: .}}}" >"$stage/compose.yaml"
	docker compose --progress=quiet --file="$stage/compose.yaml" build
	rm -rf "$stage"
}

distroless_image() {
	common
	commit "$1" 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' 'USER 65532' 'WORKDIR /home/nonroot'
	echo "certificates, zones and users"
}

prometheus_image() {
	"$root/cmd/clienttest/install.sh" prometheus
	common
	as /bin/prometheus "$clients/prometheus"
	mkdir -p "$stage/prometheus" "$stage/etc/prometheus"
	chown 65534:65534 "$stage/prometheus"
	commit "$1" 'USER nobody' 'WORKDIR /prometheus' 'VOLUME /prometheus' 'ENTRYPOINT ["/bin/prometheus"]'
	cat "$clients/prometheus.from"
}

telegraf_image() {
	"$root/cmd/clienttest/install.sh" telegraf
	common
	as /usr/bin/telegraf "$clients/telegraf"
	mkdir -p "$stage/etc/telegraf"
	commit "$1" 'USER nonroot' 'ENTRYPOINT ["/usr/bin/telegraf"]'
	cat "$clients/telegraf.from"
}

etcd_image() {
	# Our go.mod has the server as a library: a copy of it gets what etcd's own program needs beside that.
	cp "$root/go.mod" "$root/go.sum" "$DOCKER_WORK"
	(cd "$root" && CGO_ENABLED=0 go build -modfile="$DOCKER_WORK/go.mod" -mod=mod -trimpath -o "$clients/etcd" go.etcd.io/etcd/server/v3)
	common
	as /usr/local/bin/etcd "$clients/etcd"
	commit "$1" 'ENV PATH=/usr/local/bin' 'CMD ["/usr/local/bin/etcd"]'
	(cd "$root" && go list -m go.etcd.io/etcd/server/v3)
}

# Each image is made by a process of its own: bash does not stop at errors in the condition of an if.
if [ "${1:-}" = --make ]; then
	"$2" "$3"
	exit
fi

named() {
	sed -n 's/^FROM \([^ ]*\).*/\1/p' "$root/docker/Dockerfile"
	sed -n 's/^ *image: *\([a-z][^ ]*\)$/\1/p' "$root/docker/compose.yaml" "$root/docker/cluster.yaml" | sort -u
}

mkdir -p "$DOCKER_CONFIG/cli-plugins"
ln -sf "$clients/docker-compose" "$DOCKER_CONFIG/cli-plugins/docker-compose"
: >"$DOCKER_WORK/ABSENT"
unreachable=
for image in $(named); do
	docker image inspect "$image" >/dev/null 2>&1 && continue
	case $image in *.*/*) registry=${image%%/*} ;; *) registry=docker.io ;; esac
	case " $unreachable " in
	*" $registry "*) ;;
	*)
		if timeout 60 docker pull -q "$image" 2>"$DOCKER_WORK/pull"; then
			echo "images.sh: $image: pulled"
			continue
		fi
		echo "images.sh: $registry cannot be reached, or does not serve $image: $(tail -n 1 "$DOCKER_WORK/pull")"
		unreachable="$unreachable $registry"
		;;
	esac
	case $image in
	golang:*) make=go_image ;;
	*/distroless/static-*) make=distroless_image ;;
	prom/prometheus:*) make=prometheus_image ;;
	telegraf:*) make=telegraf_image ;;
	*/etcd:*) make=etcd_image ;;
	*) make= ;;
	esac
	of=
	if [ -n "$make" ] && of=$("$0" --make $make "$image"); then
		echo "images.sh: $image: a stand-in for the network, made here of: $of"
		[ $make != go_image ] || "$0" --make warm "$image"
	else
		echo "images.sh: $image: CANNOT BE HAD, its services are left out${of:+: $of}"
		echo "$image" >>"$DOCKER_WORK/ABSENT"
	fi
done
