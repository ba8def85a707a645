#!/usr/bin/env bash
# What only a GPU can show, in parts of at most 8 minutes, the most valuable first; none needs another's output:
#   bench/gpu-check.sh [PART]...      no PART: all of them, in this order
#     clocks     the card's clocks, power and what holds them back
#     ops        every op against the oracle, in every dtype; two runs bit-equal, of attention's backward 50; on a data-centre card also the
#                kernels that RTX cards take
#     parity     training on the CPU against training on the GPU, LoRA and full, fp16 sums, fp8, a packed base, rows in chunks; one worker
#                against four and against all GPUs, bit-equal; eval, generate
#     rtx        the kernels that RTX cards take, timed: attention beside FlashAttention-2, its waits, products, packed matrices made plain
#     kernels    attention against PyTorch's, products against the best of cuBLASLt's algorithms, kernels against copy bandwidth
#     copies     pinned copies, both ways; a step that streams its weights, traced
#     steps      whole steps of a 1.7B shape, with what they waited for; once more with an RTX card's kernels
#     desktop    the same with three of the host's cores and 8, 64 and 16 thousand tokens a step, beside what `plan` makes of doctor's profile
#     peers      transformers and roundpipe on that shape; launches
#     sanitizer  compute-sanitizer over a small full and a small LoRA run, cuBLASLt's kernels left out by name
#     races      its racecheck and initcheck of LoRA, and racecheck of the kernels that share memory by hand: attention, norms, the delta rule,
#                products, 4-bit blocks
#     steps-8b   whole steps of the 8B in full, in the split layout: alone, as its states take 104 GiB of the host
#     lora-8b    LoRA of the 8B on a bf16 and on an NF4 base; PEFT
#     long       one row as long as 4 layers of the 8B take whole, and the same in chunks: losses, memory, the longest op
#     saves      the 1.7B in bf16 with and without room for activations in host memory; with fp16 sums; fp8
#     steps-8b-more  12 of its 32 layers in full, roundpipe
#     demo       the demo's accuracy (its model carried along whole or in two pieces: see stash_demo)
#     steps-moe  4 layers of the 235B mixture of experts, LoRA; roundpipe
#   bench/gpu-check.sh call-1         what a machine that is lent for 15 minutes should run first: parts in 300 seconds together
#   bench/gpu-check.sh call-2         then, in 345
#   bench/gpu-check.sh verdicts       the last lines once more, of OUT/results.jsonl, into which several calls' may have been joined
# An H100 took, in seconds: ops 16, parity 21, kernels 81, and of steps ours 25, its trace 13, transformers 31; memcheck and racecheck 3 a run.
# RH_SHARED_BYTES=102400 gives a data-centre card an RTX card's kernels in every part.
# DEVICE (cuda:0) names the device; DEVICE=emu:1 rehearses every part on an emulated GPU, with shapes small enough. OUT (build/gpu-check)
# gets results.jsonl, a line a result as it comes, also printed, and failed.log of what failed. PART_SECONDS (480) bounds a part,
# TOTAL_SECONDS (no bound) all of them, but for the last lines, which say, for each point of acceptance, what was measured, against which
# bars, and what was not measured and why. Exit status: 0 all passed, 1 something failed, 2 asked for wrongly, 3 nothing was run (no GPU,
# or programs that this machine cannot load).
# Runs in the source tree after `make gpu-bundle`, or where the bundle was unpacked; needs bash, awk and coreutils, python3 for peers.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
device=${DEVICE:-cuda:0} out=${OUT:-build/gpu-check} build=${BUILD:-build/release} limit=${PART_SECONDS:-480}
all="clocks ops parity rtx kernels copies steps desktop peers sanitizer races steps-8b lora-8b long saves steps-8b-more demo steps-moe"
# PART=SECONDS that it may take at most
call_1="clocks=5 ops=30 parity=40 rtx=45 steps=45 desktop=60 races=55"
call_2="steps-8b=120 lora-8b=90 long=60 saves=75"
roundhouse=$build/roundhouse tools=$build/gpu-tools emulated=0
# Drivers before 580 know CUDA 12 alone: they get the programs made for it, or those of a toolkit of CUDA 12. cuda: the major version.
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
[ "$driver" ] || driver=$(sed -n 's/.*Kernel Module *\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version 2>/dev/null)
case $device in
emu:*) roundhouse=$build/roundhouse-emu tools=$build/gpu-tools-emu emulated=1 cuda=0 ;;
*) [ -z "$driver" ] || [ "${driver%%.*}" -ge 580 ] || [ ! -e "$tools-cuda12" ] || { roundhouse=$roundhouse-cuda12 tools=$tools-cuda12; }
	cuda=$(grep -a -m 1 -o 'libcublasLt\.so\.[0-9]*' "$tools" 2>/dev/null | sed 's/.*\.//; q') ;;
esac
failures=0 part=start

# emit TEXT: a line of JSON, without its braces.
emit() {
	printf '{"part": "%s", "at": %d, %s}\n' "$part" $((SECONDS - part_began)) "$1" | tee -a "$out/results.jsonl"
}
skipped() {
	emit "\"result\": \"skipped\", \"what\": \"$1\", \"why\": \"$(quoted "$2")\""
}
failed() {
	failures=$((failures + 1))
	emit "\"result\": \"failed\", \"what\": \"$1\", \"why\": \"$(quoted "$2")\""
}
quoted() {
	printf '%s' "$1" | tr '\n\t' '  ' | sed 's/\\/\\\\/g; s/"/\\"/g' | cut -c1-300
}
last_line() {
	grep -v '^$' "$1" | tail -n 1
}
# What is left of the part's time. limited COMMAND...: within it, and within `item` seconds where that is set; over_time STATUS: it ended there.
left() {
	local part=$((limit - (SECONDS - part_began))) all=$((${TOTAL_SECONDS:-1000000} - SECONDS))
	echo $((part < all ? part : all))
}
item=0
limited() {
	local seconds
	seconds=$(left)
	[ "$item" -eq 0 ] || [ "$item" -ge "$seconds" ] || seconds=$item
	[ "$seconds" -gt 5 ] || return 124
	timeout -k 10 "$seconds" "$@"
}
# 137 is also what a command that the machine had no memory for ends with.
over_time() {
	[ "$1" -eq 124 ] || { [ "$1" -eq 137 ] && [ "$(left)" -le 5 ]; }
}
time_over() {
	if [ "$(left)" -le 5 ]; then echo "the part's time is over"; else echo "its $item seconds of the part's are over"; fi
}
# keep_log WHAT FILE: its end, in one file for all, as few files may travel.
keep_log() {
	{ echo "=== $part: $1"; tail -c 100000 "$2"; } >>"$out/failed.log"
}
# relay WHAT COMMAND...: lines that begin with {"bench" become results of this part; its status is the command's.
relay() {
	local what=$1 status
	shift
	limited "$@" 2>"$scratch/relay.log" | while IFS= read -r line; do
		case $line in '{"bench"'*) emit "${line:1:${#line}-2}" ;; esac
	done
	status=$?
	[ $status -eq 0 ] && return 0
	if over_time $status; then skipped "$what" "$(time_over)"; else
		failed "$what" "$(last_line "$scratch/relay.log") (exit $status)"
		keep_log "$what" "$scratch/relay.log"
	fi
	return $status
}

# Libraries: the bundle's own, and CUDA's of this machine, wherever it keeps them.
find_libraries() {
	local cublas="" where cxx
	# of the major version that the programs ask for: Python's packages keep 13 in nvidia/cu13, 12 in nvidia/cublas
	for where in $(ldconfig -p 2>/dev/null | sed -n "s/.*libcublasLt\\.so\\.$cuda .*=> //p") /usr/local/cuda*/lib64/libcublasLt.so.$cuda \
		"$(python3 -c 'import nvidia, os; print(list(nvidia.__path__)[0])' 2>/dev/null)"/{cu13,cublas}/lib/libcublasLt.so.$cuda; do
		[ -e "$where" ] && cublas=$(dirname "$where") && break
	done
	their_path=${LD_LIBRARY_PATH:-} # of programs that are not ours
	ldconfig -p 2>/dev/null | grep -q 'libstdc++\.so\.6' && cxx="" || cxx=:$PWD/$build/lib-c++
	export LD_LIBRARY_PATH=$PWD/$build/lib${cublas:+:$cublas}${their_path:+:$their_path}$cxx
}
check_programs() {
	local need have
	[ -x "$tools" ] && [ -x "$roundhouse" ] || { echo "gpu-check: $tools and $roundhouse are not here; run \`make gpu-bundle\` first" >&2; exit 3; }
	if [ -e MANIFEST ]; then
		need=$(sed -n 's/^glibc: //p' MANIFEST) have=$(getconf GNU_LIBC_VERSION 2>/dev/null | awk '{print $2}')
		if [ "$(printf '%s\n%s\n' "$need" "${have:-0}" | sort -V | head -n 1)" != "$need" ]; then
			echo "gpu-check: these programs need glibc $need, this machine has ${have:-none}; build there with \`make gpu-bundle\`" >&2
			exit 3
		fi
	fi
	if ! "$tools" device "$device" >"$scratch/device" 2>"$scratch/device.log"; then
		echo "gpu-check: nothing was run: $(last_line "$scratch/device.log" | sed 's/^gpu-tools device: //')" >&2
		exit 3
	fi
	# what runs may take of the host's memory: what is free now, less a tenth and 2 GiB for programs and page tables
	ram=$(sed -n 's/.*"available_kib": \([0-9]*\).*/\1/p' "$scratch/device" | awk '{ mib = int($1 * 0.9 / 1024) - 2048; print (mib > 1024 ? mib : 1024) "MiB" }')
	# MiB of the GPU's memory: 24 GiB, or what is free where that is less, as on a card of 24; half a GiB is left for a desktop to grow
	vram=$(sed -n 's/.*"free_bytes": \([0-9]*\).*/\1/p' "$scratch/device" |
		awk '{ mib = int($1 / 1048576) - 512; print (mib > 24576 ? 24576 : mib > 1024 ? mib : 1024) }')
}

# A model directory of its own: $1 the directory, $2 a config.json, $3 layers (0: as it says), $4 positions at least.
make_model() {
	mkdir -p "$1"
	sed -e "$([ "$3" -gt 0 ] && echo "s/\"num_hidden_layers\": [0-9]*/\"num_hidden_layers\": $3/")" "$2" >"$1/config.json"
	cp tests/reference/interchange/tokenizer.json tests/reference/interchange/tokenizer_config.json "$1"
}
# $1 rows of text of $2 words each: numbers of a fixed generator.
make_rows() {
	awk -v rows="$1" -v words="$2" 'BEGIN { state = 1; for (r = 0; r < rows; r++) { line = ""
		for (w = 0; w < words; w++) { state = (state * 16807) % 2147483647; line = line (w ? " " : "") state % 10007 }
		print "{\"text\": \"" line "\"}" } }'
}
small_config() { # for parity and the sanitizer: the mma kernels' head size, QK-norm, tied head
	cat <<JSON
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "attention_bias": false, "hidden_size": 128,
 "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 288,
 "initializer_range": 0.02, "max_position_embeddings": 512, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "tie_word_embeddings": true}
JSON
}
# train NAME DEVICE KEYS...: a run into $scratch/NAME; its losses, a line each, in $scratch/NAME.loss.
train() {
	local name=$1 on=$2 program=$roundhouse status
	shift 2
	rm -rf "${scratch:?}/$name"
	limited "$program" train --config-name "$scratch/small" --train-file "$scratch/${file:-small}.jsonl" --output-dir "$scratch/$name" --device "$on" \
		--max-length $length --per-device-train-batch-size $rows --gradient-accumulation-steps $micros --max-steps $steps --logging-steps 1 --save-strategy no \
		--learning-rate 1e-3 --lr-scheduler-type constant --train-sampling-strategy sequential --max-ram "$ram" "$@" >"$scratch/$name.log" 2>&1
	status=$?
	[ $status -eq 0 ] && sed -n 's/.*"loss": \([^,]*\),.*/\1/p' "$scratch/$name/metrics.jsonl" >"$scratch/$name.loss"
	return $status
}
make_small() {
	mkdir -p "$scratch/small"
	small_config >"$scratch/small.json"
	make_model "$scratch/small" "$scratch/small.json" 0
	make_rows 64 40 >"$scratch/small.jsonl"
	head -n 8 "$scratch/small.jsonl" >"$scratch/few.jsonl"
	steps=10 rows=2 length=64 micros=4 words=24
	[ $emulated = 0 ] || { steps=2 rows=1 length=40 micros=2 words=4; }
}

part_clocks() {
	local what=clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu,clocks_throttle_reasons.active,pcie.link.gen.current,pcie.link.width.current
	[ $emulated = 0 ] || { skipped clocks "an emulated GPU has none"; return; }
	emit "\"what\": \"$what\", \"value\": \"$(quoted "$(limited nvidia-smi --query-gpu=$what --format=csv,noheader 2>&1 | head -n 1)")\""
}
part_ops() {
	local name log="$scratch/ops.log" ok bad
	for name in $("$tools" ops); do
		limited "$tools" ops "$name" >"$log" 2>&1
		local status=$?
		ok=$(grep -c '^\[       OK \]' "$log") bad=$(grep '^\[  FAILED  \] [a-z_0-9]*$' "$log" | sort -u | wc -l)
		if over_time $status; then
			skipped "$name" "$(time_over)"
		elif [ $status -eq 0 ]; then
			emit "\"result\": \"ok\", \"what\": \"$name\", \"cases\": $ok"
		else
			failed "$name" "$bad cases of $((ok + bad)): $(grep -m 3 -E 'oracle|ERROR|rror:' "$log") (exit $status)"
			keep_log "$name" "$log"
		fi
	done
	RH_SHARED_BYTES=102400 relay repeats "$tools" kernels "$device" repeats
}

# compare WHAT ONE TWO BOUND: losses within BOUND, which 0 makes "the same digits".
compare() {
	local worst
	worst=$(paste "$scratch/$2.loss" "$scratch/$3.loss" |
		awk '{ d = $1 - $2; if (d < 0) d = -d; if (d != d || NF < 2) d = 1e9; if (d > w) w = d; n++ } END { if (!n) w = 1e9; printf "%.3g", w }')
	if awk -v w="$worst" -v b="$4" 'BEGIN { exit !(w <= b) }'; then
		emit "\"result\": \"ok\", \"what\": \"$1\", \"worst\": $worst, \"bound\": $4, \"first\": $(head -n 1 "$scratch/$2.loss"), \"last\": $(tail -n 1 "$scratch/$2.loss")"
	else
		failed "$1" "losses differ by $worst, more than $4"
	fi
}
part_parity() {
	local mode dtype bound keys gpu=${device#*:} four all=
	four=${device%%:*}:$gpu,$gpu,$gpu,$gpu
	[ $emulated = 0 ] || four=emu:4 all=emu:2
	# all GPUs that this process sees, where there are several: contexts of their own, events across them
	[ $emulated = 1 ] || all=$("$tools" device cuda 2>"$scratch/all.log" | sed -n 's/.*"workers": \([0-9]*\).*/\1/p' | awk '$1 > 1 { print "cuda" }')
	[ "$all" ] || skipped "several GPUs" "$([ -s "$scratch/all.log" ] && last_line "$scratch/all.log" || echo "there is one")"
	make_small
	for mode in full lora; do
		for dtype in float32 bfloat16; do
			bound=1e-4
			[ $dtype = float32 ] || bound=5e-3
			keys=(--dtype $dtype)
			[ $mode = full ] || keys+=(--lora-r 8 --lora-dropout 0.1)
			train cpu cpu:1 "${keys[@]}" && train one "$device" "${keys[@]}" && train four "$four" "${keys[@]}" || {
				local status=$?
				if over_time $status; then skipped "$mode $dtype" "$(time_over)"; else
					failed "$mode $dtype" "$(tail -q -n 1 "$scratch"/{cpu,one,four}.log 2>/dev/null | grep '^roundhouse' | head -n 1)"; fi
				continue
			}
			compare "$mode $dtype: cpu against $device" cpu one $bound
			if [ $dtype = bfloat16 ]; then
				RH_SHARED_BYTES=102400 train rtx "$device" "${keys[@]}"
				local status=$?
				if [ $status -eq 0 ]; then compare "$mode $dtype: cpu against $device with an RTX card's kernels" cpu rtx $bound; elif over_time $status; then
					skipped "$mode $dtype: an RTX card's kernels" "$(time_over)"; else failed "$mode $dtype: an RTX card's kernels" "$(last_line "$scratch/rtx.log")"; fi
			fi
			compare "$mode $dtype: $device against $four" one four 0
			if [ "$all" ]; then
				train all "$all" "${keys[@]}"
				local status=$?
				if [ $status -eq 0 ]; then compare "$mode $dtype: $device against $all" one all 0; elif over_time $status; then
					skipped "$mode $dtype: $all" "$(time_over)"; else failed "$mode $dtype: $all" "$(last_line "$scratch/all.log")"; fi
			fi
			if cmp -s "$scratch"/one/*model.safetensors "$scratch"/four/*model.safetensors; then
				emit "\"result\": \"ok\", \"what\": \"$mode $dtype: weights of $device and $four bit-equal\""
			else
				failed "$mode $dtype: weights of $device and $four" "they differ"
			fi
		done
	done
	ways
	answer $mode
}
# way NAME BOUND KEYS [-- KEYS OF THE GPU'S ALONE]: the CPU's losses against the GPU's.
way() {
	local name=$1 bound=$2 status both=()
	shift 2
	while [ $# -gt 0 ] && [ "$1" != -- ]; do both+=("$1"); shift; done
	[ $# = 0 ] || shift
	train cpu cpu:1 "${both[@]}" && train one "$device" "${both[@]}" "$@"
	status=$?
	if [ $status -eq 0 ]; then compare "$name: cpu against $device" cpu one $bound; elif over_time $status; then skipped "$name" "$(time_over)"
	elif grep -q 'fp8 needs at least' "$scratch/one.log"; then skipped "$name" "$(last_line "$scratch/one.log")"
	else failed "$name" "$(tail -q -n 1 "$scratch"/{cpu,one}.log 2>/dev/null | grep '^roundhouse' | head -n 1)"; fi
}
ways() {
	local steps=$steps micros=$micros length=$length rows=$rows file=wide
	make_rows 64 200 >"$scratch/wide.jsonl"
	way "fp16 sums" 1e-2 --dtype bfloat16 -- --accumulation fp16
	way "fp8" 8e-2 --dtype bfloat16 -- --fp8 true
	way "a packed base" 5e-3 --dtype bfloat16 --lora-r 8 --load-in-4bit true
	micros=1 rows=1 length=512 steps=$((emulated ? 1 : 4))
	way "rows in chunks" 5e-3 --dtype bfloat16 --lora-r 8 --sequence-chunk 256
}
# eval and generate on the full run's model: the same greedy text in fp32, losses within 1e-4.
answer() {
	local on name
	train whole "$device" --dtype float32 || {
		if over_time $?; then skipped "eval and generate" "$(time_over)"; else failed "eval and generate" "$(last_line "$scratch/whole.log")"; fi
		return
	}
	cp tests/reference/interchange/tokenizer*.json "$scratch/whole/"
	for on in cpu:1 "$device"; do
		name=answer-${on%%:*}
		limited "$roundhouse" eval --model-name-or-path "$scratch/whole" --validation-file "$scratch/few.jsonl" --max-length $length --dtype float32 \
			--device "$on" --json 2>"$scratch/$name.log" | sed -n 's/.*"eval_loss":\([^,]*\),.*/\1/p' >"$scratch/$name.loss"
		limited "$roundhouse" generate --model-name-or-path "$scratch/whole" --prompt "17 4711" --max-new-tokens $words --dtype float32 --device "$on" \
			>"$scratch/$name.text" 2>>"$scratch/$name.log"
	done
	[ "$(left)" -gt 5 ] || { skipped "eval and generate" "$(time_over)"; return; }
	compare "eval: cpu against $device" answer-cpu "$name" 1e-4
	if [ -s "$scratch/$name.text" ] && cmp -s "$scratch/answer-cpu.text" "$scratch/$name.text"; then
		emit "\"result\": \"ok\", \"what\": \"generate: cpu and $device, $words tokens, greedy\""
	else
		failed "generate: cpu and $device" "the texts differ; $(last_line "$scratch/$name.log")"
	fi
}

# The model is larger than one call of some machines may carry. Pieces (demo-model.1, demo-model.2, from `make gpu-bundle`) that lie in
# build/gpu-demo are kept in STASH until the last is there.
stash_demo() {
	local stash=${STASH:-/tmp/roundhouse-demo} model=build/demo/SmolLM2-135M-Instruct.Q4_1.gguf piece
	[ -e "$model" ] && return 0
	mkdir -p "$stash" build/demo
	for piece in build/gpu-demo/demo-model.[12]; do
		[ ! -e "$piece" ] || cp "$piece" "$stash/"
	done
	[ -e "$stash/demo-model.1" ] && [ -e "$stash/demo-model.2" ] || return 1
	cat "$stash"/demo-model.[12] >"$model"
	echo "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53  $model" | sha256sum -c --status || { rm -f "$model"; return 1; }
}
part_demo() {
	local keys before after
	[ $emulated = 0 ] || { skipped demo "an emulated GPU would take hours over it"; return; }
	stash_demo || { skipped demo "the model is not here whole: $(ls "${STASH:-/tmp/roundhouse-demo}" 2>/dev/null | tr '\n' ' ')kept; carry the other piece in build/gpu-demo"; return; }
	[ ! -e build/gpu-demo/train.jsonl ] || cp -n build/gpu-demo/*.jsonl build/demo/
	[ -e build/demo/train.jsonl ] && [ -e build/demo/test.jsonl ] || { skipped demo "build/demo/train.jsonl and test.jsonl are not here"; return; }
	keys=(examples/demo.yaml --device "$device")
	before=$(limited "$roundhouse" eval "${keys[@]}" --validation-file build/demo/test.jsonl --json 2>"$scratch/demo.log" | sed -n 's/.*"eval_accuracy":\([^,}]*\).*/\1/p')
	rm -rf "$scratch/demo"
	limited "$roundhouse" train "${keys[@]}" --output-dir "$scratch/demo" --json >"$scratch/demo.json" 2>>"$scratch/demo.log"
	after=$(limited "$roundhouse" eval "${keys[@]}" --validation-file build/demo/test.jsonl --adapter-name-or-path "$scratch/demo" --json 2>>"$scratch/demo.log" |
		sed -n 's/.*"eval_accuracy":\([^,}]*\).*/\1/p')
	if awk -v a="${after:-0}" 'BEGIN { exit !(a >= 0.80) }'; then
		emit "\"result\": \"ok\", \"what\": \"demo\", \"before\": ${before:-null}, \"after\": $after, \"bar\": 0.80, \"train\": $(cat "$scratch/demo.json")"
	elif [ "$(left)" -le 5 ]; then
		skipped demo "$(time_over)"
	else
		failed demo "accuracy ${before:-?} before, ${after:-?} after, at least 0.80 after is wanted; $(last_line "$scratch/demo.log")"
	fi
}

# whole_keys MODEL-DIRECTORY KEYS...: what whole runs are run with, in $keys.
whole_keys() {
	local model=$1
	shift
	rows=${batch_rows:-4} length=2048 micros=${micro_batches:-8}
	[ $emulated = 0 ] || { rows=1 length=40 micros=2; }
	speed=0
	keys=(--config-name "$model" --train-file "$scratch/long.jsonl" --max-length $length --per-device-train-batch-size $rows
		--gradient-accumulation-steps $micros --logging-steps 1 --save-strategy no --dtype bfloat16 --device "$device" --max-ram "$ram" "$@")
}
# What `plan` says of $keys on doctor's profile, where part desktop has made it, or on that of an H100; tokens/s.
profile=build/gpu-doctor.yaml
hardware() {
	[ -s $profile ] && echo $profile || echo h100x1
}
predicted() {
	local i plain=()
	for ((i = 0; i < ${#keys[@]}; i += 2)); do
		case ${keys[i]} in --device) ;; *) plain+=("${keys[i]}" "${keys[i + 1]}") ;; esac
	done
	limited "$roundhouse" plan "${plain[@]}" --hardware "$(hardware)" --json 2>/dev/null |
		sed -n 's/.*"tokens_per_second":\([0-9.]*\),.*/\1/p' | awk '{ printf "%.1f", $1 } END { if (!NR) print "null" }'
}
# whole NAME MODEL-DIRECTORY KEYS...: tokens/s of a run's later steps in $speed; the same run can then be traced.
whole() {
	local name=$1 model=$2 rows length micros count=${step_count:-4} status
	shift 2
	[ $emulated = 0 ] || count=2
	whole_keys "$model" "$@"
	rm -rf "$big/whole"
	limited ${cores:+taskset -c "$cores"} "$roundhouse" train "${keys[@]}" --max-steps $count --output-dir "$big/whole" --json >"$scratch/whole.json" 2>"$scratch/whole.log"
	status=$?
	if [ $status -ne 0 ]; then
		if over_time $status; then
			skipped "$name" "$(time_over)"
			keep_log "$name" "$scratch/whole.log"
		elif grep -q 'not built yet\|: max_ram: \|architecture .* is not supported' "$scratch/whole.log"; then
			skipped "$name" "$(last_line "$scratch/whole.log")"
		else
			failed "$name" "$(last_line "$scratch/whole.log") (exit $status$([ $status -ne 137 ] || echo ", which the machine ended: out of memory?"))"
			keep_log "$name" "$scratch/whole.log"
		fi
		rm -rf "$big/whole"
		return 1
	fi
	speed=$(sed -n 's/.*"loss".*"tokens_per_second": \([^,]*\),.*/\1/p' "$big/whole/metrics.jsonl" | tail -n +2 | sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] + 0 }')
	emit "\"what\": \"$name\", \"who\": \"ours\", \"rows\": $rows, \"length\": $length, \"micro_batches\": $micros, \"tokens_per_second\": $speed, \"unit\": \"tokens/s\", \"predicted\": $(predicted), \"plan\": \"$(quoted "$(grep '^plan:' "$scratch/whole.log")")\", \"run\": $(cat "$scratch/whole.json")"
	rm -rf "$big/whole"
}
traced() {
	local name=$1 first=$(($(wc -l <"$out/results.jsonl") + 1))
	rm -rf "$big/whole"
	relay "$name, traced" "$tools" trace "$out/trace-$part.json" "${keys[@]}" --max-steps $((2 + !emulated)) --output-dir "$big/whole" --json
	local status=$?
	rm -rf "$big/whole"
	[ "$speed" != 0 ] || speed=$(tail -n +$first "$out/results.jsonl" | sed -n 's/.*"tokens_per_second": \([0-9.]*\),.*/\1/p' | head -n 1)
	[ $status -ne 0 ] || shares "$name" "$(tail -n +$first "$out/results.jsonl" | sed -n 's/.*"executed_tflops": \([0-9.]*\),.*/\1/p' | head -n 1)"
	return $status
}
# Shares of the product 8192 cubed: of all products that ran, and of those that training needs, whose recompute is not counted: three times
# the forward's (twice, with frozen weights), by the shape of the model in $shape. On an H100 0.70 of it is asked for, on an sm_89 0.85.
peak_bar() {
	case $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1) in 8.9) echo 0.85 ;; *) echo 0.70 ;; esac
}
measure_peak() {
	local first=$(($(wc -l <"$out/results.jsonl") + 1))
	relay peak "$tools" products "$device" peak
	peak=$(tail -n +$first "$out/results.jsonl" | sed -n 's/.*"8192 cubed".*"value": \([0-9.]*\),.*/\1/p')
}
shares() {
	[ $emulated = 0 ] || return 0
	emit "$(tr ',{}' '\n\n\n' <"$shape" | awk -F'[:"]+' -v name="$1" -v executed="${2:-0}" -v peak="${peak:-0}" -v speed="$speed" -v length_=2048 -v times=$times -v bar="$(peak_bar)" '
		{ gsub(/[ \t]/, "", $3); at[$2] = $3 }
		END { q = at["num_attention_heads"] * at["head_dim"]; kv = at["num_key_value_heads"] * at["head_dim"]; h = at["hidden_size"]
			weights = at["num_hidden_layers"] * (h * (2 * q + 2 * kv) + 3 * h * at["intermediate_size"]) + at["vocab_size"] * h
			needed = (2 * weights * times + 3 * 2 * length_ * q * at["num_hidden_layers"]) * speed / 1e12
			printf "\"what\": \"%s: shares of the product peak\", \"peak_tflops\": %.1f, \"executed\": %.4f, \"necessary\": %.4f, \"bar\": %s",
				name, peak, (peak > 0 ? executed / peak : 0), (peak > 0 ? needed / peak : 0), bar }')"
}
# Launches of one layer for one micro-batch (recompute, forward, backward), by the difference of two depths, beside what a 4090 needs for
# the layer's arithmetic: at 4 us each, and as long as this host took to ask for them.
launches() {
	local depth counts=()
	for depth in 2 4; do
		make_model "$scratch/depth" "$scratch/small.json" $depth
		rm -rf "$scratch/launched"
		limited "$tools" trace "$scratch/launches.json" --max-ram "$ram" --config-name "$scratch/depth" --train-file "$scratch/small.jsonl" --max-length 32 \
			--per-device-train-batch-size 1 --gradient-accumulation-steps 1 --max-steps 2 --save-strategy no --dtype bfloat16 --device "$device" \
			--backward-cuts "[$(seq -s, 1 $depth)]" --output-dir "$scratch/launched" >"$scratch/launches.log" 2>&1 ||
			{ failed launches "$(last_line "$scratch/launches.log")"; return; }
		counts+=("$(sed -n 's/.*"launches_a_step": \([0-9]*\),.*"host_us_an_op": \([0-9.]*\),.*/\1 \2/p' "$scratch/launches.log")")
	done
	emit "$(printf '%s\n' "${counts[@]}" | awk '{ n[NR] = $1; us = $2 } END { k = (n[2] - n[1]) / 2; ms = k * 4 / 1000
		printf "\"what\": \"launches\", \"a_layer\": %g, \"ms_at_4us\": %.3f, \"host_us_an_op\": %.2f, ", k, ms, us
		printf "\"layer_ms_on_a_4090_at_8192_tokens\": {\"1.7B\": 30.7, \"8B\": 78.2}, \"share_at_4us\": {\"1.7B\": %.4f, \"8B\": %.4f}", ms / 30.7, ms / 78.2 }')"
}
peer() {
	[ $emulated = 0 ] || return 0
	command -v python3 >/dev/null || { skipped "$1" "python3 is not installed"; return; }
	local name=$1 site=""
	shift
	if [[ "$*" == *roundpipe* ]] && ls build/gpu-wheels/*.whl >/dev/null 2>&1; then # bench/gpu/wheels.sh
		site=$scratch/site
		[ -d "$site" ] || python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" build/gpu-wheels/*.whl >/dev/null 2>&1
	fi
	relay "$name" env LD_LIBRARY_PATH="$their_path" ${site:+PYTHONPATH="$site"} python3 bench/gpu/peers.py "$@"
}
part_steps() {
	mkdir -p "$scratch/small"
	small_config >"$scratch/small.json"
	make_rows 64 40 >"$scratch/small.jsonl"
	if [ $emulated = 1 ]; then
		make_model "$scratch/shape" "$scratch/small.json" 2
		make_rows 16 40 >"$scratch/long.jsonl"
		whole "rehearsal, full" "$scratch/shape" --max-vram ${vram}MiB && traced "rehearsal, full"
		whole "rehearsal, LoRA" "$scratch/shape" --max-vram ${vram}MiB --lora-r 4 && traced "rehearsal, LoRA"
		return
	fi
	make_rows 256 1500 >"$scratch/long.jsonl"
	measure_peak
	make_model "$scratch/1.7b" bench/gpu/qwen3-1.7b/config.json 0
	shape=$scratch/1.7b/config.json times=3
	whole_keys "$scratch/1.7b" --max-vram ${vram}MiB
	traced "1.7B, full, offloaded"
	speed=0
	RH_SHARED_BYTES=102400 traced "1.7B, full, offloaded, an RTX card's kernels"
}
# A desktop's host: few cores update, and a small step has little to hide it behind. The measure: doctor's profile of the same three cores.
part_desktop() {
	local cores="" micro_batches step_count=3 seconds=10 model=$scratch/1.7b
	command -v taskset >/dev/null && cores=0-$(($(nproc) > 3 ? 2 : $(nproc) - 1))
	make_rows 256 1500 >"$scratch/long.jsonl"
	if [ $emulated = 1 ]; then
		mkdir -p "$scratch/small"
		small_config >"$scratch/small.json"
		model=$scratch/shape seconds=1
		make_model "$model" "$scratch/small.json" 2
		make_rows 16 40 >"$scratch/long.jsonl"
	else
		make_model "$model" bench/gpu/qwen3-1.7b/config.json 0
	fi
	rm -f $profile
	limited ${cores:+taskset -c "$cores"} "$roundhouse" doctor --device "$device" --measure-seconds $seconds --save "$profile" >"$scratch/doctor.log" 2>&1 ||
		skipped "doctor's profile" "$(last_line "$scratch/doctor.log")"
	[ ! -e $profile ] || cp $profile "$out/doctor.yaml"
	for micro_batches in 1 8 2; do
		whole "1.7B, full, three cores, $((micro_batches * 8))K tokens a step" "$model" --max-vram ${vram}MiB
		[ $emulated = 0 ] || break
	done
}
part_peers() {
	mkdir -p "$scratch/small"
	small_config >"$scratch/small.json"
	make_rows 64 40 >"$scratch/small.jsonl"
	launches
	peer "1.7B, full, transformers" step full bench/gpu/qwen3-1.7b --name 1.7B
	peer "1.7B, roundpipe" step roundpipe bench/gpu/qwen3-1.7b --name 1.7B --cap-gib $((vram / 1024))
	peer "1.7B, roundpipe, sync" step roundpipe bench/gpu/qwen3-1.7b --name 1.7B --cap-gib $((vram / 1024)) --sync
}
# The whole 8B, whose states take 104 GiB of the host: alone, traced, and no model is written. Its tokens/s are the trace's.
part_steps-8b() {
	local rows length micros
	[ $emulated = 0 ] || { skipped "8B, full" "the rehearsal of part steps is its too"; return; }
	make_rows 256 1500 >"$scratch/long.jsonl"
	measure_peak
	make_model "$scratch/8b" bench/gpu/llama-8b/config.json 0
	shape=$scratch/8b/config.json times=3
	whole_keys "$scratch/8b" --max-vram ${vram}MiB --state-layout split
	traced "8B, full, split layout" || return
	emit "$(awk -v speed="$speed" 'BEGIN { tflops = 6 * 8.03e9 * speed / 1e12
		printf "\"what\": \"8B, full: 6 N tokens/s, beside the 272 TFLOP/s that MegaTrain reports\", \"tflops\": %.1f, \"ratio\": %.3f, \"bar\": 1.5", tflops, tflops / 272 }')"
	emit "\"what\": \"8B, full, as planned\", \"tokens_per_second\": $speed, \"predicted\": $(predicted)"
}
part_lora-8b() {
	local micro_batches=2 step_count=3
	[ $emulated = 0 ] || { skipped "8B, LoRA" "the rehearsal of part steps is its too"; return; }
	make_rows 256 1500 >"$scratch/long.jsonl"
	make_model "$scratch/8b" bench/gpu/llama-8b/config.json 0
	whole "8B, LoRA, bf16 base" "$scratch/8b" --max-vram ${vram}MiB --lora-r 16
	peer "8B, LoRA, PEFT" step lora bench/gpu/llama-8b --name 8B --micro-batches 2 --ours "$speed"
	whole "8B, LoRA, NF4 base" "$scratch/8b" --max-vram ${vram}MiB --lora-r 16 --load-in-4bit true
}
# Of the longest row that fits whole, 0.98, but no more than the model's positions; the two ways' first losses.
part_long() {
	local length rows=1 micros=1 longest way chunk steps=1 layers=4 config=bench/gpu/llama-8b/config.json
	make_small
	rows=1 micros=1 steps=1
	[ $emulated = 0 ] || { layers=2 config=$scratch/small.json; }
	make_model "$scratch/long" "$config" $layers
	longest=$(limited "$roundhouse" plan --config-name "$scratch/long" --train-file "$scratch/small.jsonl" --max-length 512 --per-device-train-batch-size 1 \
		--gradient-accumulation-steps 1 --lora-r 16 --dtype bfloat16 --max-vram ${vram}MiB --max-ram "$ram" --sequence-chunk 16777216 --output-dir "$scratch/none" \
		--hardware "$(hardware)" --json 2>"$scratch/long.log" | sed -n 's/.*"longest_sequence":\([0-9]*\),.*/\1/p')
	[ "${longest:-0}" -gt 0 ] || { failed "the longest row" "$(last_line "$scratch/long.log")"; return; }
	length=$((longest * 98 / 100))
	[ $length -le 131072 ] || length=131072
	[ $emulated = 0 ] || length=512
	make_rows 2 $((length / 3)) >"$scratch/long.jsonl"
	for way in whole chunks; do
		chunk=16777216
		[ $way = whole ] || chunk=$((emulated ? 256 : 16384))
		rm -rf "$big/whole"
		relay "one row of $length tokens, $way" "$tools" trace "$out/trace-long-$way.json" --config-name "$scratch/long" --train-file "$scratch/long.jsonl" \
			--max-length $length --per-device-train-batch-size 1 --gradient-accumulation-steps 1 --max-steps 2 --logging-steps 1 --save-strategy no --dtype bfloat16 \
			--lora-r 16 --device "$device" --max-vram ${vram}MiB --max-ram "$ram" --sequence-chunk $chunk --train-sampling-strategy sequential \
			--output-dir "$big/whole" --json || return
		sed -n 's/.*"loss": \([^,]*\),.*/\1/p' "$big/whole/metrics.jsonl" | head -n 1 >"$scratch/$way.loss"
		rm -rf "$big/whole"
	done
	compare "a row of $length tokens (of $longest planned), whole against chunks" whole chunks 5e-3
}
# Host memory for the states and boundaries alone, or all that there is: then activations are kept there rather than recomputed.
part_saves() {
	local step_count=3 speeds="" all=$ram
	[ $emulated = 0 ] || { skipped "saved activations" "the rehearsal of part steps is its too"; return; }
	make_rows 256 1500 >"$scratch/long.jsonl"
	make_model "$scratch/1.7b" bench/gpu/qwen3-1.7b/config.json 0
	whole "1.7B, full" "$scratch/1.7b" --max-vram ${vram}MiB && speeds="\"bf16\": $speed"
	ram=28GiB
	whole "1.7B, full, 28 GiB of host memory" "$scratch/1.7b" --max-vram ${vram}MiB && speeds="$speeds, \"bf16 in 28 GiB\": $speed"
	ram=$all
	whole "1.7B, full, fp8" "$scratch/1.7b" --max-vram ${vram}MiB --fp8 true && speeds="$speeds, \"fp8\": $speed"
	whole "1.7B, full, fp16 sums" "$scratch/1.7b" --max-vram ${vram}MiB --accumulation fp16 && speeds="$speeds, \"fp16\": $speed"
	emit "\"what\": \"tokens/s by way of multiplying\", ${speeds#, }"
}
part_steps-8b-more() {
	local full
	[ $emulated = 0 ] || { skipped "8B shapes" "the rehearsal of part steps is theirs too"; return; }
	make_rows 256 1500 >"$scratch/long.jsonl"
	measure_peak
	make_model "$scratch/8b-12" bench/gpu/llama-8b/config.json 12
	shape=$scratch/8b-12/config.json times=3
	whole "8B with 12 layers, full, offloaded" "$scratch/8b-12" --max-vram ${vram}MiB && full=$speed && traced "8B with 12 layers, full, offloaded" &&
		peer "8B with 12 layers, roundpipe" step roundpipe bench/gpu/llama-8b --layers 12 --name "8B with 12 layers" --cap-gib $((vram / 1024)) --ours "$full"
}
part_steps-moe() {
	[ $emulated = 0 ] || { skipped "the 235B's shapes" "the rehearsal of part steps is theirs too"; return; }
	make_rows 256 1500 >"$scratch/long.jsonl"
	make_model "$scratch/moe" bench/gpu/qwen3-235b/config.json 4
	whole "235B with 4 layers, LoRA, offloaded" "$scratch/moe" --max-vram ${vram}MiB --lora-r 32 --lora-target-modules "[q_proj, k_proj, v_proj, o_proj]" &&
		peer "235B with 4 layers, roundpipe" step roundpipe-lora bench/gpu/qwen3-235b --layers 4 --name "235B with 4 layers" --cap-gib $((vram / 1024)) --ours "$speed"
}
# The kernels that an RTX card takes; of attention two lengths, beside FlashAttention-2 on the same card.
part_rtx() {
	local first=$(($(wc -l <"$out/results.jsonl") + 1)) kind
	export RH_SHARED_BYTES=102400
	for kind in attention-128 attention-64 attention-96 attention-256 attention-512; do relay "$kind" "$tools" kernels "$device" $kind; done
	tail -n +$first "$out/results.jsonl" | grep '"bench": "attention"' | grep '"who": "ours"' | grep -E '"length": (4096|16384),' >"$scratch/attention.jsonl"
	peer attention attention "$scratch/attention.jsonl" --forward-bar 0.8
	relay "scaled products" "$tools" scaled "$device"
	for kind in dequantise quantise waits; do relay "$kind" "$tools" kernels "$device" $kind; done
	relay "products, experts" "$tools" products "$device" experts
	unset RH_SHARED_BYTES
}
# Each kind in a process of its own: what fails in one leaves the others theirs.
part_kernels() {
	local first=$(($(wc -l <"$out/results.jsonl") + 1)) kind
	for kind in attention-128 attention-64 attention-256; do relay "$kind" "$tools" kernels "$device" $kind; done
	tail -n +$first "$out/results.jsonl" | grep '"bench": "attention"' | grep '"who": "ours"' >"$scratch/attention.jsonl"
	peer attention attention "$scratch/attention.jsonl"
	for kind in norms elementwise head tables quantise dequantise; do relay "$kind" "$tools" kernels "$device" $kind; done
	relay "scaled products" "$tools" scaled "$device"
	for kind in 1.7B 8B experts; do relay "products, $kind" "$tools" products "$device" $kind; done
}
# Copies of a MiB or more within a step, each way, against half of what both ways at once carry with nothing else to do.
copy_shares() {
	emit "$(tail -n +$1 "$out/results.jsonl" | awk '
		function field(name) { return match($0, "\"" name "\": [0-9.]+") ? substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4) + 0 : 0 }
		/"way": "both at once"/ { both = field("value") / 2 }
		/"bench": "trace"/ { up = field("bulk_up_gbs"); down = field("bulk_down_gbs") }
		END { printf "\"what\": \"copies in a step over pinned bandwidth with both ways busy\", \"up\": %.3f, \"down\": %.3f, \"bar\": 0.9",
			(both > 0 ? up / both : 0), (both > 0 ? down / both : 0) }')"
}
part_copies() {
	local first=$(($(wc -l <"$out/results.jsonl") + 1))
	relay "pinned copies" "$tools" copies "$device"
	if [ $emulated = 1 ]; then
		make_small
		make_model "$scratch/shape" "$scratch/small.json" 4
		cp "$scratch/small.jsonl" "$scratch/long.jsonl"
		whole "a streaming step" "$scratch/shape" --max-vram ${vram}MiB --backward-cuts "[1,2,3,4]" && traced "a streaming step"
	else
		make_rows 128 1500 >"$scratch/long.jsonl"
		make_model "$scratch/8b-4" bench/gpu/llama-8b/config.json 4
		shape=$scratch/8b-4/config.json times=3
		measure_peak
		whole "a streaming step (8B with 4 layers, a stage each)" "$scratch/8b-4" --max-vram ${vram}MiB --backward-cuts "[1,2,3,4,5]" && traced "a streaming step"
	fi
	copy_shares $first
}
# sanitize TOOL WHAT COMMAND...: compute-sanitizer's TOOL over the command. memcheck leaves cuBLASLt's kernels out; initcheck must see what
# they write, and racecheck breaks off where it is told to leave any out (13.0: "failed to handle a hardware exception").
sanitize() {
	local tool=$1 what="$1, $2" log="$scratch/sanitizer.log"
	shift 2
	if [ "$tool" = memcheck ]; then
		local name
		set -- --report-api-errors no "$@" # what CUDA refuses, our own code has to see to
		for name in cutlass xmma nvjet splitKreduce cublas ampere_ sm80_ sm89_ sm90_; do set -- --kernel-name-exclude "kernel_substring=$name" "$@"; done
	fi
	limited "$sanitizer" --tool "$tool" --error-exitcode 9 "$@" >"$log" 2>&1
	local status=$?
	if grep -q 'Device not supported\|LibraryNotLoaded\|not supported on this' "$log"; then
		skipped "$what" "$(grep -m 1 'not supported\|NotLoaded' "$log")"
	elif [ $status -eq 0 ]; then
		emit "\"result\": \"ok\", \"what\": \"$what\", \"summary\": \"$(quoted "$(grep 'SUMMARY' "$log" | tail -n 1)")\""
	elif over_time $status; then
		skipped "$what" "$(time_over)"
	else
		failed "$what" "$(grep -m 4 '=========' "$log" | tail -n +2; last_line "$log")"
		keep_log "$what" "$log"
	fi
}
find_sanitizer() {
	sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
	[ $emulated = 0 ] || { skipped compute-sanitizer "an emulated GPU has none; its kernels run under AddressSanitizer in make test"; return 1; }
	[ -n "$sanitizer" ] || { skipped compute-sanitizer "it is not installed"; return 1; }
}
# sanitize_run TOOL full|lora
sanitize_run() {
	local keys=()
	[ $2 = full ] || keys=(--lora-r 4)
	rm -rf "$scratch/sanitized"
	sanitize $1 $2 "$roundhouse" train --config-name "$scratch/small" --train-file "$scratch/small.jsonl" \
		--output-dir "$scratch/sanitized" --device "$device" --max-length 64 --per-device-train-batch-size 2 --gradient-accumulation-steps 2 \
		--max-steps 2 --save-strategy no --max-vram 64MiB --max-ram "$ram" "${keys[@]}"
}
part_sanitizer() {
	local tool mode item=0
	find_sanitizer || return
	make_small
	item=$(($(left) / 6))
	for tool in memcheck racecheck initcheck; do
		for mode in full lora; do sanitize_run $tool $mode; done
	done
}
part_races() {
	local name item=0
	find_sanitizer || return
	make_small
	item=$(($(left) / 4))
	sanitize_run racecheck lora
	sanitize_run initcheck lora
	for name in test_attention test_kernels_norm test_kernels_delta test_kernels_scaled test_moe test_kernels_rows test_kernels_activation \
		test_kernels_dequantise test_device_products; do
		sanitize racecheck $name "$tools" ops $name
	done
}

# acceptance NUMBER WHAT PART...: what these parts measured against a bar, and how; what failed; what was left out, and why. A bar of what
# is not explained is above, all others are below.
acceptance() {
	local number=$1 what=$2 parts
	shift 2
	parts=" $* "
	emit "$(awk -v parts="$parts" -v number="$number" -v what="$what" '
		function text(name) { return match($0, "\"" name "\": \"[^\"]*") ? substr($0, RSTART + length(name) + 5, RLENGTH - length(name) - 5) : "" }
		function judge(name, bar, least,    value, label) {
			if (!match($0, "\"" name "\": [0-9.]+")) return
			value = substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4) + 0
			measured++
			if (least ? value >= bar : value <= bar) { met++; return }
			label = text("what") text("model") " " text("product") text("kernel") text("who") " " text("kind")
			missed = missed (missed == "" ? "" : "; ") label " " name " " value " for " bar }
		index(parts, " " text("part") " ") == 0 { next }
		text("result") == "ok" { measured++; met++ }
		text("result") == "failed" { measured++; missed = missed (missed == "" ? "" : "; ") text("what") " failed" }
		text("result") == "skipped" { left = left (left == "" ? "" : "; ") text("what") text("name") ": " text("why") }
		match($0, "\"bar\": [0-9.]+") { bar = substr($0, RSTART + 7, RLENGTH - 7) + 0
			if (/"unexplained_share"/) judge("unexplained_share", bar, 0)
			else if (/"executed"/) judge("executed", bar, 1)
			else if (/"up": /) { judge("up", bar, 1); judge("down", bar, 1) }
			else judge("ratio", bar, 1) }
		match($0, "\"bars\": {\"forward\": [0-9.]+, \"backward\": [0-9.]+") { split(substr($0, RSTART, RLENGTH), half, /[:,}]+ ?/)
			judge("forward_ratio", half[3] + 0, 1); judge("backward_ratio", half[5] + 0, 1) }
		END { printf "\"point\": %d, \"what\": \"%s\", \"measured\": %d, \"met\": %d, \"missed\": \"%s\", \"not_measured\": \"%s\"",
			number, what, measured, met, substr(missed, 1, 1200), measured + 0 || left != "" ? substr(left, 1, 1200) : "no part of it was asked for" }' \
		"$out/results.jsonl")"
}
acceptances() {
	acceptance 1 "ops, training and the demo are right" ops parity demo
	acceptance 2 "compute-sanitizer is clean" sanitizer races
	acceptance 3 "copies and compute overlap; idle time is explained" copies
	acceptance 4 "products, attention and kernels are fast" kernels rtx
	acceptance 5 "whole steps, offloaded, beside others and the plan" steps desktop peers steps-8b lora-8b long saves steps-8b-more
	acceptance 6 "the mixture of experts, beside roundpipe" steps-moe
}

for wanted in "$@"; do
	[ "$*" = verdicts ] || case " $all call-1 call-2 " in *" $wanted "*) ;; *) echo "gpu-check: there is no part '$wanted'; the parts are $all; call-1 and call-2 are several" >&2; exit 2 ;; esac
done
mkdir -p "$out"
scratch=$(mktemp -d) part_began=$SECONDS
trap 'rm -rf "$scratch" "${big:?}"' EXIT
if [ "$*" = verdicts ]; then
	part=end big=$scratch
	[ -s "$out/results.jsonl" ] || { echo "gpu-check: $out/results.jsonl is not here" >&2; exit 2; }
	acceptances
	exit
fi
# What a run writes is no part of its speed, and goes to memory where there is enough of it. (Of df -P the fourth column is KiB left.)
shm=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print int($4 / 1048576) }')
big=$(mktemp -d -p "$([ -w /dev/shm ] && [ "${shm:-0}" -ge 24 ] && echo /dev/shm || echo "$scratch")")
find_libraries
check_programs
emit "\"device\": $(cat "$scratch/device"), \"gpu\": \"$(quoted "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)")\", \"host\": \"$(quoted "$(uname -r), $(nproc) cores")\", \"date\": \"$(date -u +%FT%TZ)\", \"commit\": \"$([ -e MANIFEST ] && sed -n 's/^commit: //p' MANIFEST || git rev-parse --short HEAD 2>/dev/null)\""
wanted=" ${*:-$all} "
wanted=${wanted/ call-1 / $call_1 }
for part in ${wanted/ call-2 / $call_2 }; do
	part_began=$SECONDS
	limit=${PART_SECONDS:-480}
	[[ $part != *=* ]] || limit=${part#*=} part=${part%=*}
	"part_$part"
	emit "\"seconds\": $((SECONDS - part_began))"
done
part=end part_began=$SECONDS
acceptances
emit "\"failures\": $failures"
[ $failures -eq 0 ]
