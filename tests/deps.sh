#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages named as arguments that this machine lacks, saying which.
set -euo pipefail
missing=()
for package in "$@"; do
	dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "installing: ${missing[*]}"
sudo=""
if [ "$(id -u)" != 0 ]; then
	sudo=$(command -v sudo) || { echo "these packages are missing and this user cannot install them: apt-get install ${missing[*]}" >&2; exit 1; }
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >/dev/null
$sudo apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
