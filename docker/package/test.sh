#!/bin/sh
# test.sh: makes packages of an older version and a release of a newer one, for this machine's architecture. The release is looked at; the deb
# is installed as the older version on this machine, the service is run as its unit says and used, upgraded and removed. Where rpm is (Debian
# has it), the rpm lives the same life in roots of its own, whose every file comes from rpms: once by rpm, once by dnf, where dnf and
# createrepo_c are. Scriptlets, the program and `rpm -V` run there in a chroot, and dependencies are resolved.
# Then systemd.sh has the deb's service live under a real systemd.
# What this does not show: the tools in those roots are this machine's in an rpm, not those of Fedora or RHEL; no SELinux; and a service of the rpm
# under systemd (its unit is the deb's).
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
pid= root=
clean() {
	trap '' TERM INT HUP # make sends a signal on, as a second one
	[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
	! dpkg -s spillway >/dev/null 2>&1 || dpkg --purge spillway || true
	rm -rf /var/lib/spillway /etc/spillway /etc/default/spillway "$tmp"
	userdel spillway 2>/dev/null || true
}
trap clean EXIT
trap 'exit 143' TERM INT HUP # of which dash alone would die without clean

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

in_root() { if [ -n "$root" ]; then chroot "$root" "$@"; else "$@"; fi; }

# base makes an rpm of a shell and of what scripts of packages, and this test, call, from this machine's files.
base() {
	mkdir "$tmp/etc"
	echo 'root:x:0:0:root:/root:/bin/sh' >"$tmp/etc/passwd"
	echo 'root:x:0:' >"$tmp/etc/group"
	touch "$tmp/etc/shadow" "$tmp/etc/gshadow" "$tmp/etc/login.defs"
	{
		printf '%s\n' "name: base" "arch: $arch" "version: '1'" "maintainer: none" "description: What the test needs." "provides: [/bin/sh]" "contents:"
		for link in bin sbin lib lib64; do echo "  - {dst: /$link, src: usr/$link, type: symlink}"; done
		for file in passwd group shadow gshadow login.defs; do echo "  - {dst: /etc/$file, src: $tmp/etc/$file}"; done
		for name in sh cat chgrp getent install stat setpriv; do
			echo "  - {dst: /usr/bin/$name, src: $(readlink -f "$(command -v $name)"), file_info: {mode: 0755}}"
			ldd "$(command -v $name)" | grep -o '/[^ ]*' >>"$tmp/libraries" || true
		done
		for name in useradd nologin; do
			echo "  - {dst: /usr/sbin/$name, src: $(readlink -f "$(command -v $name)"), file_info: {mode: 0755}}"
			ldd "$(command -v $name)" | grep -o '/[^ ]*' >>"$tmp/libraries" || true
		done
		sort -u "$tmp/libraries" | while read -r file; do
			echo "  - {dst: /usr/${file#/usr}, src: $(readlink -f "$file"), file_info: {mode: 0755}}" | sed 's|//|/|'
		done
	} >"$tmp/base.yaml"
	bin/tools/nfpm package --config "$tmp/base.yaml" --packager rpm --target "$tmp/repository/base.rpm"
}

# bare makes a root without packages. Package managers and systemd provide /dev; a file takes its place where no device can be made.
bare() {
	root=$tmp/root-$kind
	mkdir -p "$root/dev"
	mknod -m 0666 "$root/dev/null" c 1 3 2>/dev/null || touch "$root/dev/null"
}

rpms() { rpm --root "$root" --dbpath /usr/lib/sysimage/rpm --force-debian "$@"; }
dnfs() { dnf -y -q --config "$tmp/dnf.conf" --setopt=reposdir=/none --setopt=varsdir=/none --releasever=1 --installroot="$root" "$@"; }

# Of each kind: install FILE, also over an older one; remove; check what lies on the disk against the package.
install_deb() { dpkg -i "$1"; }
remove_deb() { dpkg --purge spillway; }
check_deb() { dpkg --verify spillway; }
install_rpm() { rpms -U "$1"; }
remove_rpm() { rpms -e spillway; }
check_rpm() { rpms -V spillway; }
install_dnf() { dnfs install "$1"; }
remove_dnf() { dnfs remove spillway; }
check_dnf() { rpm --root "$root" -V spillway; } # dnf keeps its list where this machine's rpm does

owns() { # PATH OWNER:GROUP:MODE
	is=$(in_root stat -c %U:%G:%a "$1")
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

port=$(( 10000 + $$ % 1000 )) # below those of the tests of clusters and of the page, which may run beside
export SPILLWAY_HTTP_LISTEN=127.0.0.1:$port SPILLWAY_ADMIN_LISTEN= SPILLWAY_URL=http://127.0.0.1:$port
start() {
	set -- setpriv --reuid spillway --regid spillway --clear-groups $(sed -n 's/^ExecStart=//p' "$root/usr/lib/systemd/system/spillway.service")
	[ -z "$root" ] || set -- chroot "$root" "$@"
	"$@" 2>"$tmp/log" &
	pid=$!
	for _ in $(seq 600); do
		in_root spillway health --quiet && return
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
	[ -n "$root" ] || ! command -v systemd-analyze >/dev/null || systemd-analyze verify /usr/lib/systemd/system/spillway.service
	in_root spillway config check /etc/spillway/spillway.yml
	in_root spillway version | grep -qF 0.0.1 || fail "the program says it is $(in_root spillway version)"
	start
	echo 'cpu,host=a usage=42' | in_root spillway write
	stop
	echo 'log_level: debug' >>"$root/etc/spillway/spillway.yml"

	install_$kind "$2"
	files
	in_root spillway version | grep -qF 0.0.2 || fail "after the upgrade the program says it is $(in_root spillway version)"
	grep -q '^log_level: debug' "$root/etc/spillway/spillway.yml" || fail "the upgrade took the administrator's settings"
	start
	in_root spillway query cpu_usage | grep -q ' 42$' || fail "the upgrade took the row"
	stop

	remove_$kind
	[ ! -e "$root/usr/bin/spillway" ] || fail "the program stayed"
	[ -n "$(ls -A "$root/var/lib/spillway")" ] || fail "the removal took the rows"
	echo "make test-package: installed, started, written, upgraded, read and removed by $kind: $2"
}

kind=deb
use "$(one $before/*.deb)" "$(one $now/*.deb)"
rm -rf /var/lib/spillway /etc/spillway /etc/default/spillway
userdel spillway
docker/package/systemd.sh "$(one $before/*.deb)" "$(one $now/*.deb)"
if ! command -v rpm >/dev/null; then
	echo "make test-package: the rpm was not installed: there is no rpm (Debian's package has that name)"
	exit
fi
mkdir "$tmp/repository"
base

kind=rpm
bare
mkdir -p "$root/usr/lib/sysimage/rpm"
if rpms -U "$(one $before/*.rpm)" 2>/dev/null; then fail "it is installed where there is not even a shell"; fi
rpms -U "$tmp/repository/base.rpm"
use "$(one $before/*.rpm)" "$(one $now/*.rpm)"

# dnf finds the tools by what the package says that it needs, and installs them before it.
kind=dnf
if ! command -v dnf >/dev/null || ! command -v createrepo_c >/dev/null; then
	echo "make test-package: dnf did not install the rpm: there is no dnf or no createrepo_c (Debian's packages dnf and createrepo-c)"
	exit
fi
createrepo_c -q "$tmp/repository"
cat >"$tmp/dnf.conf" <<EOF
[main]
gpgcheck=0
plugins=0
clean_requirements_on_remove=0
cachedir=$tmp/dnf/cache
persistdir=$tmp/dnf/persist
logdir=$tmp/dnf
[test]
name=test
baseurl=file://$tmp/repository
EOF
bare
use "$(one $before/*.rpm)" "$(one $now/*.rpm)"
