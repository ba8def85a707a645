#!/usr/bin/env bash
# Runs the test programs named after the build folder, one after another, and closes with "N passed, N failed, N skipped".
# A program prints cmocka's lines ([       OK ], [  FAILED  ], [  SKIPPED ]); one that dies without a verdict counts as one failure.
set -uo pipefail
build=$1
shift
export RH_BUILD=$build
passed=0 failed=0 skipped=0
for program in "$@"; do
	log=$program.log
	"$program" >"$log" 2>&1
	status=$?
	ok=$(grep -c '^\[       OK \]' "$log")
	bad=$(grep '^\[  FAILED  \] [a-z_0-9]*$' "$log" | sort -u | wc -l) # cmocka names each twice
	skip=$(grep '^\[  SKIPPED \] [a-z_0-9]*$' "$log" | sort -u | wc -l)
	grep -h '^skipped: ' "$log" | sed 's/^/  /'
	if [ $status -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
	if [ "$bad" -gt 0 ]; then
		echo "FAILED: $program (exit $status), see $log"
		tail -n 30 "$log"
	fi
	echo "${program#"$build"/tests/}: $ok passed, $bad failed, $skip skipped"
	passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
