#!/usr/bin/env bash
# Does a small GPT-2 that is trained here from scratch reach the perplexity that PyTorch reaches? Same first weights, rows, order and optimizer
# (gpt2.py says more); the text is that of Debian's package fortunes. Exit 1 where the perplexities on held-out rows differ by more than 1 %.
#   bench/acceptance/gpt2.sh [DIR]     needs apt, make reference's build/venv, and some 15 minutes of two cores
set -euo pipefail
cd "$(dirname "$0")/../.."
. bench/acceptance/fetch.sh
dir=${1:-build/acceptance/gpt2}
[ -x build/venv/run ] || tests/reference/make.sh none
mkdir -p "$dir"
fetch_fortunes "$dir"
$python bench/acceptance/gpt2.py prepare "$fortunes" "$dir"
rm -rf "$dir/out"
TIMEFORMAT='roundhouse: %U s of processor time'
time build/release/roundhouse train --model_name_or_path "$dir/model" --train_file "$dir/train.jsonl" --output_dir "$dir/out" --use_peft false \
	--max_length 128 --per_device_train_batch_size 32 --gradient_accumulation_steps 1 --num_train_epochs 1 --learning_rate 1e-3 \
	--lr_scheduler_type cosine --warmup_steps 50 --weight_decay 0 --dtype float32 --device cpu:1 --train_sampling_strategy sequential \
	--save_strategy no --logging_steps 100 --allow duplicates,cut-answers,no-end-of-turn
ours=$(build/release/roundhouse eval --model_name_or_path "$dir/out" --validation_file "$dir/test.jsonl" --max_length 128 --device cpu:1 --json)
theirs=$($python bench/acceptance/gpt2.py train "$dir")
python3 - "$ours" "$theirs" <<'PY'
import json, math, sys
ours, theirs = math.exp(json.loads(sys.argv[1])["eval_loss"]), json.loads(sys.argv[2])
apart = abs(ours / theirs["perplexity"] - 1)
print(f"perplexity on held-out rows: {ours:.4f}; PyTorch {theirs['perplexity']:.4f} ({theirs['steps']} steps, {theirs['cpu_seconds']} s of processor time)")
print(json.dumps(dict(bench="gpt2", perplexity=ours, peer=theirs["perplexity"], apart=apart, within=apart <= 0.01)))
sys.exit(apart > 0.01)
PY
