#!/bin/sh
# build.sh VERSION ARCH...: deb and rpm of each architecture in $OUT, bin/packages by default; what they are made of lies in $OUT/../stage/ARCH.
# Without ARCH it only sees that nfpm, which makes packages, is there.
set -eu
version=${1#v}
shift
out=${OUT:-bin/packages}
# Versions of packages begin with a digit, and that of a commit is below every release: it may begin with a digit, too.
case "$version" in [0-9]*.*) ;; *) version="0~$version" ;; esac
nfpm=${NFPM:-github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.1}
mkdir -p "$out" bin/tools
[ -x bin/tools/nfpm ] || GOBIN=$PWD/bin/tools GOFLAGS=-trimpath go install "$nfpm" # the standard library is compiled so already
for arch in "$@"; do
	STAGE=$(dirname "$out")/stage/$arch
	mkdir -p "$STAGE"
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -tags grpcnotrace -trimpath -ldflags "-s -w -X main.version=$version" -o "$STAGE/spillway" ./cmd/spillway
	for shell in bash zsh fish; do
		go run ./cmd/spillway completion $shell >"$STAGE/completion.$shell"
	done
	for kind in deb rpm; do
		STAGE=$STAGE ARCH=$arch VERSION=$version bin/tools/nfpm package --config docker/package/nfpm.yaml --packager $kind --target "$out"
	done
done
