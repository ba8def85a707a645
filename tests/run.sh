#!/usr/bin/env bash
# Runs the test programs named after the build folder, RH_JOBS at a time (one more than cores, as some wait; at most 4), and says of each in the
# order named how it went. Closes with the seconds of the longest ones and "N passed, N failed, N skipped". A program prints cmocka's lines
# ([       OK ], [  FAILED  ], [  SKIPPED ]); one that dies without a verdict, or takes more than RH_TIMEOUT seconds, counts as one failure.
set -uo pipefail
build=$1
shift
cores=$(nproc)
jobs=${RH_JOBS:-$((cores < 4 ? cores + 1 : 4))}
export RH_BUILD=$build RH_TIMEOUT=${RH_TIMEOUT:-3600}

# One program: its output in PROGRAM.log, what is to be said of it in PROGRAM.said, its counts and seconds, last of all, in PROGRAM.counts.
run() {
	local program=$1 log=$1.log begun=$SECONDS status ok bad skip
	timeout --foreground -k 10 "$RH_TIMEOUT" "$program" >"$log" 2>&1
	status=$?
	[ $status -ne 124 ] || echo "ended after $RH_TIMEOUT s (RH_TIMEOUT)" >>"$log"
	ok=$(grep -c '^\[       OK \]' "$log")
	bad=$(grep '^\[  FAILED  \] [a-z_0-9]*$' "$log" | sort -u | wc -l) # cmocka names each twice
	skip=$(grep '^\[  SKIPPED \] [a-z_0-9]*$' "$log" | sort -u | wc -l)
	if [ $status -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
	{
		grep -h '^skipped: ' "$log" | sed 's/^/  /'
		if [ "$bad" -gt 0 ]; then
			echo "FAILED: $program (exit $status), see $log"
			tail -n 30 "$log"
		fi
		echo "${program#"$RH_BUILD"/tests/}: $ok passed, $bad failed, $skip skipped"
	} >"$program.said"
	echo "$ok $bad $skip $((SECONDS - begun)) ${program#"$RH_BUILD"/tests/}" >"$program.counts"
	echo "$program" # done
}
export -f run
# By xargs, so that an interrupt ends them too.
together() {
	local at=0 programs=("$@")
	[ $# -eq 0 ] || printf '%s\0' "$@" | xargs -0 -n 1 -P "$jobs" bash -c 'run "$0"' | while read -r _; do
		while [ $at -lt ${#programs[@]} ] && [ -e "${programs[at]}.counts" ]; do cat "${programs[at++]}.said"; done
	done
}

programs=() readers=() # the latter read what others leave
for program in "$@"; do
	rm -f "$program.counts"
	case $program in */test_resources) readers+=("$program") ;; *) programs+=("$program") ;; esac
done
together "${programs[@]}"
together "${readers[@]}"
for program in "$@"; do
	cat "$program.counts" 2>/dev/null || echo "0 1 0 0 $program" # interrupted
done | sort -k 4,4nr | awk '{ ok += $1; bad += $2; skip += $3 } NR <= 6 { longest = longest (NR > 1 ? ", " : "") $5 " " $4 " s" }
	END { print "longest: " longest; printf "%d passed, %d failed, %d skipped\n", ok, bad, skip; exit bad > 0 }'
