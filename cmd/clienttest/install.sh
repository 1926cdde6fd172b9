#!/bin/sh
# Builds the clients that cmd/clienttest starts: a Telegraf and a Prometheus, each inside its own module and with the
# versions of everything that its own go.mod names. The first time takes some minutes and a few hundred megabytes of
# modules; what is there already is left alone. $CLIENTS_DIR says where they go; .cache/bin of this repository otherwise.
# Kafka is a broker and no client, and Java: its jars come from Maven Central into $KAFKA_LIBS, else .cache/kafka/libs.
# Client libraries of Python and Node come from PyPI and npm, in the versions of libraries/.
#
# Compose is docker's plug-in, for cmd/dockertest.
#
#	cmd/clienttest/install.sh [telegraf|prometheus|python|npm|kafka|compose]...
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
into=${CLIENTS_DIR:-$root/.cache/bin}

# build NAME VERSION MODULE PACKAGE TAGS
build() {
	binary=$into/$1
	stamp="$3@$2 -tags $5"
	if [ -x "$binary" ] && [ "$(cat "$binary.from" 2>/dev/null)" = "$stamp" ]; then
		return
	fi
	echo "install.sh: building $1 from $3@$2; minutes the first time" >&2
	cd / # outside of every module
	if ! told=$(go mod download -json "$3@$2"); then
		echo "install.sh: $3@$2 cannot be downloaded from $(go env GOPROXY); is the module proxy within reach?" >&2
		echo "$told" | sed -n 's/.*"Error": //p' >&2
		exit 1
	fi
	cd "$(echo "$told" | sed -n 's/.*"Dir": "\(.*\)",*$/\1/p')"
	mkdir -p "$into"
	# With -trimpath, as the Makefile: the standard library and modules of equal versions are compiled once for all programs.
	GOWORK=off GOFLAGS="-mod=readonly -trimpath" GOGC=300 nice go build -ldflags=-w -tags "$5" -o "$binary.new" "$4"
	mv "$binary.new" "$binary"
	echo "$stamp" >"$binary.from"
}

# jars fetches the jars that a pom.xml names, all or none of them.
jars() {
	pom=$root/cmd/standalonetest/testdata/kafka/pom.xml
	libs=${KAFKA_LIBS:-$root/.cache/kafka/libs}
	if ! command -v java >/dev/null; then
		echo "install.sh: Kafka needs Java 17 or newer, and there is no java here" >&2
		exit 1
	fi
	if cmp -s "$pom" "$libs/pom.xml"; then
		return
	fi
	if ! command -v mvn >/dev/null; then
		echo "install.sh: the jars of Kafka are fetched by Maven, and there is no mvn here" >&2
		exit 1
	fi
	rm -rf "$libs.new"
	if ! timeout 300 mvn -q -B -f "$pom" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$libs.new" >&2; then
		echo "install.sh: the jars of Kafka cannot be fetched; is Maven Central, or the mirror of your settings.xml, within reach?" >&2
		exit 1
	fi
	cp "$pom" "$libs.new/pom.xml"
	rm -rf "$libs"
	mv "$libs.new" "$libs"
}

# python makes an environment with the libraries of PyPI.
python() {
	wanted=$root/cmd/clienttest/libraries/python/requirements.txt
	if cmp -s "$wanted" "$into/python/requirements.txt"; then
		return
	fi
	rm -rf "$into/python"
	if ! python3 -m venv "$into/python" >&2; then
		echo "install.sh: there is no python3 with venv; on Debian: apt-get install python3-venv" >&2
		exit 1
	fi
	if ! timeout 1800 "$into/python/bin/pip" install -q --disable-pip-version-check --only-binary :all: -r "$wanted" >&2; then
		echo "install.sh: the libraries of Python cannot be fetched; is PyPI, or the mirror of your pip.conf, within reach?" >&2
		exit 1
	fi
	cp "$wanted" "$into/python/requirements.txt"
}

# libraries fetches those of npm, and lays the program that uses them beside them: Node looks for modules there.
libraries() {
	from=$root/cmd/clienttest/libraries/npm
	if ! cmp -s "$from/package-lock.json" "$into/npm/installed.json"; then
		if ! command -v npm >/dev/null; then
			echo "install.sh: there is no npm" >&2
			exit 1
		fi
		rm -rf "$into/npm"
		mkdir -p "$into/npm"
		cp "$from/package.json" "$from/package-lock.json" "$into/npm"
		if ! (cd "$into/npm" && timeout 1800 npm ci --silent --ignore-scripts --no-audit >&2); then
			echo "install.sh: the libraries of Node cannot be fetched; is npm's registry, or the mirror of your .npmrc, within reach?" >&2
			exit 1
		fi
		cp "$from/package-lock.json" "$into/npm/installed.json"
	fi
	cp "$from/client.mjs" "$into/npm"
}

[ $# -gt 0 ] || set -- telegraf prometheus python npm
for name; do
	case $name in
	telegraf)
		# Telegraf's own builder makes such tags of a configuration: only the plugins that the tests and docker/telegraf.conf use.
		build telegraf v1.37.2 github.com/influxdata/telegraf ./cmd/telegraf \
			custom,inputs.cpu,inputs.disk,inputs.file,inputs.mem,inputs.net,inputs.tail,parsers.influx,outputs.influxdb,outputs.influxdb_v2,outputs.http,outputs.kafka,serializers.influx,serializers.json,serializers.prometheusremotewrite,secretstores.docker
		;;
	prometheus)
		build prometheus v0.316.0 github.com/prometheus/prometheus ./cmd/prometheus remove_all_sd
		;;
	python)
		python
		;;
	npm)
		libraries
		;;
	kafka)
		jars
		;;
	compose)
		build docker-compose v2.35.1 github.com/docker/compose/v2 ./cmd ""
		;;
	*)
		echo "install.sh: no such client: $name" >&2
		exit 2
		;;
	esac
done
