#!/usr/bin/env bash
# A Debian package of what `make install` installs: deb.sh STAGE OUTPUT_DIRECTORY, STAGE being a folder that it was installed into with
# DESTDIR and PREFIX=/usr. Dependencies are those of the libraries that the program is linked with, as dpkg-shlibdeps names them.
set -euo pipefail
stage=$(realpath "$1") output=$(realpath "$2")
program=$stage/usr/bin/roundhouse
version=$("$program" --version | cut -d' ' -f2)
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/debian" "$stage/DEBIAN"
printf 'Source: roundhouse\n\nPackage: roundhouse\nArchitecture: any\n' >"$work/debian/control" # dpkg-shlibdeps wants one
depends=$(cd "$work" && dpkg-shlibdeps -O "$program" | sed -n 's/^shlibs:Depends=//p')
cat >"$stage/DEBIAN/control" <<CONTROL
Package: roundhouse
Version: $version
Architecture: $architecture
Maintainer: Roundhouse <roundhouse@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$stage" | cut -f1)
Depends: $depends
Suggests: bash-completion
Section: science
Priority: optional
Description: fine-tunes models far larger than a GPU's memory
 LoRA or full fine-tuning on one to eight consumer GPUs, or on CPUs alone:
 host memory and NVMe hold the model, GPUs are fed layer by layer.
CONTROL
dpkg-deb --root-owner-group --build "$stage" "$output/roundhouse_${version}_$architecture.deb" >/dev/null
echo "$output/roundhouse_${version}_$architecture.deb"
