#!/bin/sh
# secrets.sh [DIR]: the secrets that compose.yaml names, random, in docker/secrets or DIR. Those that are there already stay.
#
# Compose shows each file to its container with the owner and mode that it has here, and the programs there run as users of their own: so
# the files may be read by all, and the directory by its owner alone.
set -eu
dir=${1:-$(dirname "$0")/secrets}
umask 022
mkdir -p "$dir"
chmod 700 "$dir"

random() { od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n'; }

[ -e "$dir/grafana_admin_password" ] || random >"$dir/grafana_admin_password"

if [ ! -e "$dir/tokens.yml" ]; then
	# entry NAME SCOPE...: a new token in a file of its own, and its entry for the tokens file.
	entry() {
		name=$1
		shift
		random >"$dir/${name}_token"
		printf -- '- name: %s\n  sha256: %s\n  scopes:\n' "$name" "$(sha256sum <"$dir/${name}_token" | cut -d ' ' -f 1)"
		printf '    - %s\n' "$@"
	}
	{
		echo tokens:
		entry prometheus '{tables: [default], may: [write]}' '{may: [metrics]}'
		entry telegraf '{tables: [default], may: [write]}'
		entry grafana '{tables: ["*"], may: [read]}'
	} >"$dir/tokens.yml.new"
	mv "$dir/tokens.yml.new" "$dir/tokens.yml"
fi

echo "Grafana, http://localhost:3000: user admin, password $(cat "$dir/grafana_admin_password")"
echo "Spillway's page, http://localhost:8428: token $(cat "$dir/grafana_token")"
