#!/bin/sh
# release.sh VERSION ARCH...: what a release publishes, in $OUT, bin/packages by default: of each architecture a deb, an rpm, the program alone
# and its bill of materials as CycloneDX JSON; and the checksums of all of them.
set -eu
here=$(dirname "$0")
version=$1
out=${OUT:-bin/packages}
stage=$(dirname "$out")/stage
bom=${CYCLONEDX:-github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0}
rm -rf "$out"
"$here/build.sh" "$@"
[ -x bin/tools/cyclonedx-gomod ] || GOBIN=$PWD/bin/tools GOFLAGS= go install "$bom"
shift
for arch in "$@"; do
	name=spillway-$version-linux-$arch
	tar -C "$stage/$arch" -czf "$out/$name.tar.gz" spillway
	# It reads the modules and their checksums that the linker wrote into the program.
	bin/tools/cyclonedx-gomod bin -json -std -version "$version" -output "$out/$name.cdx.json" "$stage/$arch/spillway"
done
cd "$out"
sums=$(sha256sum -- *)
echo "$sums" >SHA256SUMS
cat SHA256SUMS
