#!/bin/sh
# test.sh: makes packages of an older version and a release of a newer one, for this machine's architecture. The release is looked at; the deb,
# and the rpm where rpm is installed (on Debian too), are installed as the older version, the service is run as its unit says and used,
# upgraded and removed.
set -eu
skip() { echo "make test-package: SKIPPED: $*"; exit 0; }
fail() { echo "make test-package: $kind: $*"; exit 1; }
command -v dpkg >/dev/null || skip "there is no dpkg"
[ "$(id -u)" = 0 ] || skip "installing needs root"
for path in /usr/bin/spillway /var/lib/spillway /etc/spillway /etc/default/spillway; do
	[ ! -e $path ] || skip "a spillway is installed here already: $path exists"
done
kind=release
docker/package/build.sh 0 || skip "nfpm, which makes packages, cannot be had; the reason stands above"
tmp=$(mktemp -d)
pid=
clean() {
	[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
	! dpkg -s spillway >/dev/null 2>&1 || dpkg --purge spillway || true
	[ ! -e "$tmp/rpm" ] || rpms -e spillway 2>/dev/null || true
	rm -rf /var/lib/spillway /etc/spillway /etc/default/spillway "$tmp"
	userdel spillway 2>/dev/null || true
}
trap clean EXIT

arch=$(go env GOARCH)
before=bin/package-test/before/packages now=bin/package-test/now/packages
rm -rf bin/package-test
OUT=$before docker/package/build.sh v0.0.1 "$arch"
OUT=$now docker/package/release.sh v0.0.2 "$arch"

one() { set -- "$@"; [ $# = 1 ] && [ -e "$1" ] || fail "not one file: $*"; echo "$1"; }

# What is published is whole, the program alone runs, and the bill of materials has every module that is in it.
(cd $now && sha256sum --quiet --check SHA256SUMS) || fail "the checksums are wrong"
[ "$(wc -l <$now/SHA256SUMS)" = 4 ] || fail "not four files have checksums"
tar -C "$tmp" -xzf "$(one $now/*.tar.gz)"
"$tmp/spillway" version | grep -qF 0.0.2 || fail "the program says it is $("$tmp/spillway" version)"
bill=$(one $now/*.cdx.json)
grep -qF '"bomFormat": "CycloneDX"' "$bill" || fail "$bill is no CycloneDX"
go version -m "$tmp/spillway" | awk '$1 == "dep" { print "pkg:golang/" $2 "@" $3 }' >"$tmp/modules"
[ -s "$tmp/modules" ] || fail "the program has no modules"
while read -r module; do
	grep -qiF "\"bom-ref\": \"$module?" "$bill" || fail "$bill lacks $module"
done <"$tmp/modules"

# rpm keeps its list of packages in a directory of its own here: of Debian's packages it knows nothing.
rpms() { rpm --dbpath "$tmp/rpm" --force-debian "$@"; }

# Of each kind: install FILE, also over an older one; remove; check what lies on the disk against the package.
install_deb() { dpkg -i "$1"; }
remove_deb() { dpkg --purge spillway; }
check_deb() { dpkg --verify spillway; }
install_rpm() { rpms -U --nodeps "$1"; }
remove_rpm() { rpms -e spillway; }
check_rpm() { rpms -V --nodeps --nogroup spillway; } # postinstall gives the settings to the group of the service

owns() { # PATH OWNER:GROUP:MODE
	is=$(stat -c %U:%G:%a "$1")
	[ "$is" = "$2" ] || fail "$1 is $is, want $2"
}

files() {
	owns /usr/bin/spillway root:root:755
	owns /usr/lib/systemd/system/spillway.service root:root:644
	owns /etc/spillway/spillway.yml root:spillway:640
	owns /etc/default/spillway root:spillway:640
	owns /var/lib/spillway spillway:spillway:750
	for path in bash-completion/completions/spillway zsh/site-functions/_spillway fish/vendor_completions.d/spillway.fish \
		doc/spillway/copyright doc/spillway/README.md doc/spillway/alerts.yaml; do
		owns /usr/share/$path root:root:644
	done
}

port=$(( 20000 + $$ % 10000 ))
export SPILLWAY_HTTP_LISTEN=127.0.0.1:$port SPILLWAY_ADMIN_LISTEN= SPILLWAY_URL=http://127.0.0.1:$port
start() {
	setpriv --reuid spillway --regid spillway --clear-groups $(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/spillway.service) 2>"$tmp/log" &
	pid=$!
	for _ in $(seq 600); do
		spillway health --quiet && return
		kill -0 $pid 2>/dev/null || break
		sleep 0.1
	done
	cat "$tmp/log"
	fail "the service did not become ready"
}
stop() {
	kill -TERM $pid
	wait $pid || fail "the service ended with $?"
	pid=
}

# use FILE-OF-THE-OLDER FILE: a life of a package.
use() {
	install_$kind "$1"
	files
	check_$kind
	! command -v systemd-analyze >/dev/null || systemd-analyze verify /usr/lib/systemd/system/spillway.service
	spillway config check /etc/spillway/spillway.yml
	spillway version | grep -qF 0.0.1 || fail "the program says it is $(spillway version)"
	start
	echo 'cpu,host=a usage=42' | spillway write
	stop
	echo 'log_level: debug' >>/etc/spillway/spillway.yml

	install_$kind "$2"
	files
	spillway version | grep -qF 0.0.2 || fail "after the upgrade the program says it is $(spillway version)"
	grep -q '^log_level: debug' /etc/spillway/spillway.yml || fail "the upgrade took the administrator's settings"
	start
	spillway query cpu_usage | grep -q ' 42$' || fail "the upgrade took the row"
	stop

	remove_$kind
	[ ! -e /usr/bin/spillway ] || fail "the program stayed"
	[ -n "$(ls -A /var/lib/spillway)" ] || fail "the removal took the rows"
	echo "make test-package: installed, started, written, upgraded, read and removed: $2"
	rm -rf /var/lib/spillway /etc/spillway /etc/default/spillway
	userdel spillway
}

kind=deb
use "$(one $before/*.deb)" "$(one $now/*.deb)"
kind=rpm
if command -v rpm >/dev/null; then
	mkdir "$tmp/rpm"
	use "$(one $before/*.rpm)" "$(one $now/*.rpm)"
else
	echo "make test-package: the rpm was not installed: there is no rpm (Debian's package has that name)"
fi
