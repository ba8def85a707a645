#!/usr/bin/env bash
# The manual page, roundhouse(1), of what the program says of itself: manual.sh PROGRAM >roundhouse.1
set -euo pipefail
program=$1

# Text as it stands: backslashes, and dots and quotes that begin a line, are troff's.
verbatim() { sed -e 's/\\/\\e/g' -e "s/^[.']/\\\\\&&/" -e 's/-/\\-/g'; }

version=$("$program" --version)
printf '.TH ROUNDHOUSE 1 "" "%s" "User Commands"\n' "$version"
printf '.SH NAME\nroundhouse \\- fine\\-tunes models far larger than a GPU'"'"'s memory\n'
printf '.SH SYNOPSIS\n.B roundhouse\n.I VERB\n[CONFIG.yaml] [\\-\\-KEY VALUE]...\n'
printf '.SH VERBS\n.nf\n'
"$program" --help | sed '1,2d' | verbatim
printf '.fi\n'
for verb in $("$program" --help | sed -nE 's/^  ([a-z]+) .*/\1/p'); do
	printf '.SH "ROUNDHOUSE %s"\n.nf\n' "${verb^^}"
	"$program" "$verb" --help | verbatim
	printf '.fi\n'
done
