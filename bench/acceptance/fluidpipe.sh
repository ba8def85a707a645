#!/usr/bin/env bash
# Mode fluidpipe on real tasks, at equal epochs: a small ViT from scratch on Fashion-MNIST, MiniLM-L6 on the demo's reviews and on WordNet's
# definitions, of which it names the lexicographer file (glosses; noun.animal, verb.motion and 43 others), and two language models on the
# text of Debian's package fortunes, which distil by their likeliest tokens (fluidpipe_top_k): a small GPT-2 from scratch (language), and
# all weights of the demo's SmolLM2-135M (smollm2).
#   bench/acceptance/fluidpipe.sh [PART...]   [quality]; needs pip; for the images Debian's dataset-fashion-mnist, for glosses and language apt
# quality        the recipes beside the synchronous pipeline, whose bits are those of one box, and two controls: box 1 frozen, and box 1's own
#                model, under its auxiliary head. A task says something only where the synchronous run beats both controls by 2 points of
#                accuracy, or 2 % of perplexity. With several seeds a column has the one-sided 95 % bound of what is lost against it.
# The other parts take 1,000 rows and one seed, and are printed without a claim:
# splits         box 2's first layer, without and with the extra layer
# alphas         fluidpipe_alpha1 and fluidpipe_alpha2
# caps           opportunistic steps in an epoch, at most, over a line of 50 ms and 20 Mbit/s
# regularisers   of opportunistic steps: smaller losses, dropout; over that line
# samplers       accuracy against the time since the start, over lines of 25 and 50 ms and 20 Mbit/s; also draws samplers-TASK.svg
# lora           LoRA in both boxes; of reviews alone, as the other models are not pretrained
# clock          SmolLM2's held-out loss at equal tokens and at equal time: before training, the recipes, box 1 frozen, the synchronous run, and a
#                synchronous run of as many steps as the synchronous pipeline makes in the time of FP-ND's. `plan` tells the times (virtual), for two
#                boxes of HARDWARE over a line of 25 ms and 1,000 Mbit/s.
# Results are appended to DIR/PART-TASK-ROWSxEPOCHS-cutN.jsonl, and what is there is not run again: more seeds, or the rest after an
# interruption, take another call.
#   DIR                         [build/acceptance/fluidpipe]
#   SEEDS="1 2 3"               [42]
#   TASKS="reviews glosses images language smollm2"   [images; of lora reviews; clock has smollm2 alone]
#   RECIPES="FP-ND FP-DT"       also FP-DB and each with -EL
#   ROWS to train on            [1000; of quality 4000, 20000 of images, 8000 of glosses; of smollm2 400]
#   EPOCHS                      [3; of images 20, of quality 8; of smollm2 2]
#   CUT: box 2's first layer    [2; of glosses 4, of language 3, of smollm2 16]
#   HARDWARE: a box of clock    [rtx4090x1]
#   TOP_K: likeliest tokens     [32]
#   LENGTH: tokens of a review  [128]
set -euo pipefail
cd "$(dirname "$0")/../.."
. bench/acceptance/fetch.sh
dir=${DIR:-build/acceptance/fluidpipe}
roundhouse=${ROUNDHOUSE:-build/release/roundhouse}
network=build/release/tests/link/network
mnist=/usr/share/datasets/fashion-mnist
mkdir -p "$dir"

prepare_reviews() {
	fetch_minilm build/acceptance/minilm
	[ -f build/demo/train-full.jsonl ] || python3 examples/fetch-demo.py
	python3 bench/acceptance/minilm.py rows build/demo "$dir"
	model=(--model_name_or_path $minilm --task sequence_classification --num_labels 2)
	data=(--train_file "$dir/train.jsonl")
	held=("$dir/test.jsonl" --max_length "${LENGTH:-128}")
	keys=(--max_length "${LENGTH:-128}" --per_device_train_batch_size 16 --gradient_accumulation_steps 1 --dtype float32 --weight_decay 0
		--allow duplicates)
	trained=(--use_peft false --learning_rate 5e-5)
	rows=4000 epochs=3 cut=2
}

prepare_glosses() {
	local glosses=$dir/glosses
	fetch_minilm build/acceptance/minilm
	[ -d "$dir/wordnet" ] || (cd "$dir" && apt-get download -q wordnet-base >/dev/null && dpkg -x wordnet-base_*.deb wordnet)
	python3 bench/acceptance/fluidpipe.py glosses "$dir/wordnet/usr/share/wordnet" "$glosses"
	model=(--model_name_or_path $minilm --task sequence_classification --num_labels 45)
	data=(--train_file "$glosses/train.jsonl")
	held=("$glosses/test.jsonl" --max_length 48 --per_device_eval_batch_size 64)
	keys=(--max_length 48 --per_device_train_batch_size 32 --gradient_accumulation_steps 1 --dtype float32 --weight_decay 0
		--allow duplicates,cut-answers)
	trained=(--use_peft false --learning_rate 1e-4)
	rows=8000 epochs=3 cut=4
}

# The model is as small as makes both its first layer and the layers above it worth training: patches of 7 x 7, of which an untrained
# embedding into 24 numbers loses half, and a first layer that is too little for the task.
prepare_images() {
	[ -f $mnist/train-images-idx3-ubyte.gz ] || tests/deps.sh dataset-fashion-mnist
	mkdir -p "$dir/vit"
	cat >"$dir/vit/config.json" <<-'JSON'
		{"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 24, "intermediate_size": 64,
		 "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 28, "patch_size": 7, "num_channels": 1, "num_labels": 10}
	JSON
	cat >"$dir/vit/preprocessor_config.json" <<-'JSON'
		{"image_processor_type": "ViTImageProcessor", "size": {"height": 28, "width": 28}, "image_mean": [0.286], "image_std": [0.353]}
	JSON
	model=(--config_name "$dir/vit")
	data=(--train_file $mnist/train-images-idx3-ubyte.gz)
	held=($mnist/t10k-images-idx3-ubyte.gz --per_device_eval_batch_size 256)
	keys=(--per_device_train_batch_size 64 --gradient_accumulation_steps 1 --dtype float32 --learning_rate 2.0e-3 --weight_decay 0.05
		--warmup_steps 50 --lr_scheduler_type cosine)
	trained=()
	rows=20000 epochs=8 cut=2
}

# gpt2.py's rows or texts into a directory.
prepare_fortunes() {
	mkdir -p "$2"
	fetch_fortunes "$dir"
	"$python" bench/acceptance/gpt2.py "$1" "$fortunes" "$2"
}

prepare_language() {
	local language=$dir/language
	prepare_fortunes rows "$language"
	model=(--config_name "$language/model")
	data=(--train_file "$language/train.jsonl")
	held=("$language/test.jsonl" --max_length 128)
	keys=(--max_length 128 --per_device_train_batch_size 16 --gradient_accumulation_steps 1 --dtype float32 --learning_rate 1e-3
		--weight_decay 0 --warmup_steps 50 --lr_scheduler_type cosine --allow duplicates,cut-answers,no-end-of-turn)
	trained=()
	rows=4000 epochs=3 cut=3
}

# A step of few tokens in four micro-batches, as boxes want several; the cut is in the middle, where box 1's head and box 2's take as long.
prepare_smollm2() {
	local smollm2=$dir/smollm2
	[ -f build/demo/SmolLM2-135M-Instruct.Q4_1.gguf ] || python3 examples/fetch-demo.py
	prepare_fortunes texts "$smollm2"
	head -n 250 "$smollm2/test.jsonl" >"$smollm2/held.jsonl"
	model=(--model_name_or_path build/demo/SmolLM2-135M-Instruct.Q4_1.gguf)
	data=(--train_file "$smollm2/train.jsonl")
	held=("$smollm2/held.jsonl" --max_length 128)
	keys=(--max_length 128 --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --dtype bfloat16 --weight_decay 0
		--warmup_steps 5 --lr_scheduler_type cosine --allow duplicates,cut-answers,no-end-of-turn)
	trained=(--use_peft false --learning_rate 5e-5)
	rows=400 epochs=2 cut=16
}

# The command line of a training run, for sh: its output_dir, and more keys.
command_line() {
	printf '%q ' "$roundhouse" train "${model[@]}" "${keys[@]}" "${trained[@]}" --max_samples "$rows" --num_train_epochs "$epochs" \
		--device cpu:1 --seed "$seed" --logging_steps 50 "${saves[@]}" --output_dir "$@"
	printf '2>%q.log ' "$1"
}

train() {
	rm -rf "$1"
	sh -c "$(command_line "$@")" || { tail -n 2 "$1.log" >&2; return 1; }
}

# Both boxes, over the line, if one is set.
train_boxes() {
	local port lower upper
	rm -rf "$dir"/boxes[12]
	lower="$(command_line "$dir/boxes1" "${data[@]}" --mode fluidpipe --boxes 2 --box 1 --box_cuts "$cut" "$@")--link_above listen:\$ABOVE"
	upper="$(command_line "$dir/boxes2" --mode fluidpipe --boxes 2 --box 2 --box_cuts "$cut" "$@")--link_below \$BELOW"
	if [ -n "$line" ]; then
		[ -x $network ] || make -s $network
		RH_RELAY=1 $network "$line" -- "$lower" "$upper" >&2
	else
		port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
		ABOVE=127.0.0.1:$port sh -c "$lower" &
		BELOW=127.0.0.1:$port sh -c "$upper" && wait $!
	fi || { tail -n 2 "$dir"/boxes[12].log >&2; return 1; }
}

# A model's evaluation on the held-out rows, as JSON.
evaluate() {
	if [ -f "$1/adapter_config.json" ]; then
		set -- "${model[@]}" --adapter_name_or_path "$1"
	else
		set -- --model_name_or_path "$1"
	fi
	$roundhouse eval "$@" --validation_file "${held[@]}" --device cpu:1 --json 2>"$dir/eval.log" || { tail -n 2 "$dir/eval.log" >&2; return 1; }
}

# A line of results: the run's name, NAME=JSON of its fields.
record() {
	python3 bench/acceptance/fluidpipe.py row task="\"$task\"" seed="$seed" run="\"$1\"" "${@:2}" | tee -a "$results"
}

is_recorded() {
	grep -qsF "\"seed\": $seed, \"run\": \"$1\"" "$results"
}

# Opportunistic steps of both boxes, up to a step.
count_opportunistic() {
	cat "$dir"/boxes[12]/opportunistic.jsonl 2>/dev/null |
		python3 -c 'import json, sys; print(sum(json.loads(row)["after"] <= int(sys.argv[1]) for row in sys.stdin))' "$1"
}

# What the directories of both boxes' parts know together, what box 1's partial model, a checkpoint, knows alone, and more fields. A whole
# adapter is in box 1's directory, and has no partial model.
judge() {
	local name=$1 part1=$2 part2=$3 partial=$4 whole=$2 alone=null
	if [ ! -f "$part1/adapter_config.json" ]; then
		whole=$dir/whole
		rm -rf "$whole"
		$roundhouse join --parts "$part1,$part2" --output_dir "$whole" 2>"$dir/join.log" || { tail -n 2 "$dir/join.log" >&2; return 1; }
		alone=$(evaluate "$partial")
	fi
	record "$name" eval="$(evaluate "$whole")" alone="$alone" opportunistic="$(count_opportunistic "${partial##*-}")" "${@:5}"
}

# Box 1's checkpoints, the oldest first.
checkpoints() {
	(cd "$dir/boxes1" && printf '%s\n' checkpoint-* | sort -V)
}

# The name of a run of both boxes, and its keys.
measure() {
	! is_recorded "$1" || return 0
	train_boxes "${@:2}"
	judge "$1" "$dir/boxes1" "$dir/boxes2" "$dir/boxes1/$(checkpoints | tail -n 1)"
}

# The name of a run of one box, and its keys.
measure_one() {
	! is_recorded "$1" || return 0
	train "$dir/sync" "${data[@]}" "${@:2}"
	record "$1" eval="$(evaluate "$dir/sync")"
}

measure_synchronous() {
	measure_one synchronous
}

measure_recipes() {
	local recipe top
	for recipe in ${RECIPES:-FP-ND FP-DT}; do
		top=()
		case $task-$recipe in
		language-FP-D* | smollm2-FP-D*) top=(--fluidpipe_top_k "${TOP_K:-32}") ;;
		esac
		measure "$recipe" --fluidpipe_recipe "$recipe" "${top[@]}"
	done
}

run_quality() {
	measure_synchronous
	measure "box 1 frozen" --fluidpipe_freeze true
	measure_recipes
}

run_splits() {
	local recipe
	measure_synchronous
	for cut in 2 3 4; do
		for recipe in FP-ND FP-ND-EL; do
			measure "$recipe, box 2 from layer $cut" --fluidpipe_recipe $recipe
		done
	done
}

run_alphas() {
	local alpha1 alpha2
	for alpha1 in 0.25 0.5 0.75 1; do
		for alpha2 in 0.25 0.5 0.75 1; do
			measure "alphas $alpha1 and $alpha2" --fluidpipe_alpha1 $alpha1 --fluidpipe_alpha2 $alpha2
		done
	done
}

# Opportunistic steps, as the paper has them: both losses whole.
opportunistic=(--fluidpipe_recipe FP-DB --fluidpipe_weighting sum)
random=("${opportunistic[@]}" --fluidpipe_idle_sampler random)

run_caps() {
	local cap line=25,20,20
	for cap in 0 8 16 32 64 -1; do
		measure "at most $cap" "${random[@]}" --fluidpipe_idle_steps $cap
	done
}

run_regularisers() {
	local task_scale distillation_scale dropout line=25,20,20
	for task_scale in 1 0.4; do
		for distillation_scale in 1 0.4; do
			for dropout in 0 0.1; do
				measure "task $task_scale, distillation $distillation_scale, dropout $dropout" "${random[@]}" \
					--fluidpipe_idle_task_scale $task_scale --fluidpipe_idle_distillation_scale $distillation_scale \
					--fluidpipe_idle_dropout $dropout
			done
		done
	done
}

# Both boxes save a checkpoint every fifth of the run; all are judged when the run is over. The time of a point is that of box 2's checkpoint.
run_samplers() {
	local trip sampler name began step seconds line idle saves=(--save_strategy steps --save_steps 0.2)
	for trip in 25 50; do
		line=$(python3 -c "print($trip / 2)"),20,20
		for sampler in none random difficulty eh-difficulty task-loss distillation-loss; do
			name="$sampler, $trip ms"
			! is_recorded "$name" || continue
			idle=()
			[ $sampler = none ] || idle=(--fluidpipe_idle_sampler $sampler)
			rm -f "$dir/points.jsonl"
			began=$(date +%s.%N)
			train_boxes "${opportunistic[@]}" "${idle[@]}"
			for step in $(checkpoints); do
				python3 bench/acceptance/fluidpipe.py part "$dir/boxes1/$step" "$dir/boxes1" "$dir/part"
				seconds=$(python3 -c "import os; print(round(os.path.getmtime('$dir/boxes2/$step/trainer_state.json') - $began, 2))")
				(results=$dir/points.jsonl && judge "$name" "$dir/part" "$dir/boxes2/$step" "$dir/boxes1/$step" seconds="$seconds")
			done
			cat "$dir/points.jsonl" >>"$results"
		done
	done
}

run_lora() {
	trained=(--lora_r 16 --lora_target_modules query,key,value --learning_rate 2e-3)
	measure_synchronous
	measure_recipes
}

run_clock() {
	local steps
	is_recorded untrained || record untrained eval="$(evaluate "${model[1]}")"
	measure_synchronous
	measure "box 1 frozen" --fluidpipe_freeze true
	measure_recipes
	steps=$($roundhouse plan "${model[@]}" "${data[@]}" "${keys[@]}" "${trained[@]}" --max_samples "$rows" --num_train_epochs "$epochs" \
		--mode fluidpipe --boxes 2 --box_cuts "$cut" --hardware "${HARDWARE:-rtx4090x1}" --link_latency_ms 12.5 --link_mbit_per_second 1000 \
		--eval_strategy no --json 2>"$dir/plan.log" | python3 bench/acceptance/fluidpipe.py steps "$epochs")
	measure_one "synchronous, $steps steps" --max_steps "$steps"
}

for part in "${@:-quality}"; do
	tasks=${TASKS:-images}
	[ "$part" != lora ] || tasks=${TASKS:-reviews}
	[ "$part" != clock ] || tasks=smollm2
	for task in $tasks; do
		"prepare_$task"
		[ "$part" = quality ] || [ "$task" = smollm2 ] || rows=1000
		[ "$part-$task" = quality-images ] || [ "$task" != images ] || epochs=20
		rows=${ROWS:-$rows} epochs=${EPOCHS:-$epochs} cut=${CUT:-$cut} line='' saves=(--save_strategy epoch --save_total_limit 1)
		results=$dir/$part-$task-${rows}x$epochs-cut$cut.jsonl
		for seed in ${SEEDS:-42}; do
			"run_$part"
		done
		python3 bench/acceptance/fluidpipe.py table "$results"
		[ "$part" != samplers ] || python3 bench/acceptance/fluidpipe.py draw "$results" >"$dir/samplers-$task.svg"
	done
done
