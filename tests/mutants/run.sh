#!/usr/bin/env bash
# run.sh [WORD...]: one-line faults, each built and tried in a copy of the tree, build/mutants. An entry of `list` is a file, "- old", "+ new" (parts of
# one line, old being once in the file) and the test programs that should find it, one of which must fail. Built without CUDA. Exit status 1 where one
# survives.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
top=$PWD tree=$PWD/build/mutants
mkdir -p "$tree"
find "$tree" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
git ls-files -z | tar -c --null -T - | tar -x -C "$tree"
mkdir -p "$tree/build"
[ -e build/venv ] && ln -sfn "$top/build/venv" "$tree/build/venv"
cd "$tree" || exit 2
# A run that was ended in the middle left an object with its fault, newer than the file is now.
[ -e build/mutant.file ] && touch "$(cat build/mutant.file)"
export RH_BUILD=build/release
found=0 survived=0 tried=0

replace() { # FILE OLD NEW: literally, once
	awk -v old="$2" -v new="$3" 'BEGIN { old = ENVIRON["OLD"]; new = ENVIRON["NEW"] } { at = index($0, old); if (at && !done) { $0 = substr($0, 1, at - 1) new substr($0, at + length(old)); done = 1 } print } END { exit !done }' "$1"
}

build() { make -s CUDA=0 -j"$(nproc)" build/release/roundhouse "${programs[@]/#/build/release/tests/}" >build/mutant.log 2>&1; }

# The first of the named programs that fails; empty: none does.
finder() {
	for program in "${programs[@]}"; do
		timeout -k 5 "${RH_TIMEOUT:-600}" "build/release/tests/$program" >build/mutant.out 2>&1 || {
			[ $? -ge 124 ] && echo -n "no end, or ended by a signal, "
			echo "$program: $(grep -m 1 '^\[  FAILED  \] [a-z_0-9A-Z]*$' build/mutant.out | cut -c14- || true)"
			return
		}
	done
}

try() {
	local file=$1 old=$2 new=$3 count
	programs=($4)
	tried=$((tried + 1))
	count=$(OLD=$old awk 'BEGIN { old = ENVIRON["OLD"] } { line = $0; while (at = index(line, old)) { n++; line = substr(line, at + length(old)) } } END { print n + 0 }' "$file")
	if [ "$count" -ne 1 ]; then
		echo "STALE    $file: '$old' is there $count times"
		survived=$((survived + 1))
		return
	fi
	cp "$file" build/mutant.kept
	echo "$file" >build/mutant.file
	OLD=$old NEW=$new replace "$file" "$old" "$new" >build/mutant.new && cp build/mutant.new "$file"
	local who
	if build; then who=$(finder); else who="" && tail -n 5 build/mutant.log; fi
	cp build/mutant.kept "$file"
	if [ -n "$who" ]; then
		found=$((found + 1))
		echo "found    $file: $new    ($who)"
	else
		survived=$((survived + 1))
		echo "SURVIVED $file: $old -> $new    (${programs[*]})"
	fi
}

wanted() { # of an entry's words
	[ ${#words[@]} -eq 0 ] && return 0
	for word in "${words[@]}"; do case "$1" in *"$word"*) return 0 ;; esac; done
	return 1
}

programs=()
build || { tail -n 5 build/mutant.log; echo "the program itself does not build"; exit 2; }
words=("$@")
while IFS= read -r file; do
	case $file in '' | '#'*) continue ;; esac
	IFS= read -r old && IFS= read -r new && IFS= read -r names
	old=${old#- } new=${new#+ }
	wanted "$file $old $new $names" && try "$file" "$old" "$new" "$names"
done <"$top/tests/mutants/list"
echo "$tried faults: $found found, $survived survived"
[ "$survived" -eq 0 ]
