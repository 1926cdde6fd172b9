#!/bin/sh
# build.sh VERSION ARCH...: deb and rpm of each architecture in bin/packages.
set -eu
version=${1#v}
shift
case "$version" in [0-9]*) ;; *) version="0~$version" ;; esac # versions of packages begin with a digit
nfpm=${NFPM:-github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.1}
mkdir -p bin/packages bin/tools
[ -x bin/tools/nfpm ] || GOBIN=$PWD/bin/tools GOFLAGS= go install "$nfpm"
for arch in "$@"; do
	STAGE=bin/stage/$arch
	mkdir -p "$STAGE"
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -tags grpcnotrace -trimpath -ldflags "-s -w -X main.version=$version" -o "$STAGE/spillway" ./cmd/spillway
	for shell in bash zsh fish; do
		go run ./cmd/spillway completion $shell >"$STAGE/completion.$shell"
	done
	for kind in deb rpm; do
		STAGE=$STAGE ARCH=$arch VERSION=$version bin/tools/nfpm package --config docker/package/nfpm.yaml --packager $kind --target bin/packages
	done
done
