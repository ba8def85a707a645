#!/usr/bin/env bash
# What does PACI's drift cost in the quality of a fine-tuned model? A small GPT-2 first learns, once and with flushes, the texts of Debian's
# package fortunes, except those about computers. From there each run trains all its weights on those about computers: the same rows, seeds,
# steps and learning rate with a flush, with drift 1, 2 and 15 of schedule paci, and with RoundPipe's optimizer_staleness: 1; drift 1 also with
# the forward's activations and with its weights in the backward. Schedule paci on N devices of one machine computes, bit for bit, what N boxes
# of mode paci do. The recipe is ordinary: three epochs, 5 % of them warm-up, a cosine to 0, AdamW as it is by default; no clipping, as schedule
# paci has none; fp32, no dropout, 8 blocks of 128 tokens a step, which cross documents. RATE is half of the learning rate with which the model
# was made. What drift costs grows with it: the results in bench/results have the rate with which the flushed run ends best, too, 2e-3.
# Prints the validation loss at the end, its distance from the flushed run of the same seed, and the steps to three perplexities. Exit 1
# where the means break a bar: drift 1 and staleness 0.3 %, drift 2 0.5 %, drift 15 (the control) more than 1 %.
#   [SEEDS="1 2 3"] [STEPS=320] [RATE=5e-4] [BASE_STEPS=3000] [RUNS="..."] bench/acceptance/paci.sh [DIR]
# needs apt and pip; some minutes of two cores a run. RUNS: some of the table's runs
set -euo pipefail
cd "$(dirname "$0")/../.."
. bench/acceptance/fetch.sh
dir=${1:-build/acceptance/paci}
seeds=${SEEDS:-1 2 3} steps=${STEPS:-320} rate=${RATE:-5e-4} base_steps=${BASE_STEPS:-3000}
runs=${RUNS-drift1 stored1 stash1 drift2 drift15 stale}
roundhouse=${ROUNDHOUSE:-build/release/roundhouse}
mkdir -p "$dir"/{base,tune,computers,"rate-$rate"}
fetch_fortunes "$dir"
[ -f "$dir/base/train.jsonl" ] || {
	[ -f "$dir/computers/perl" ] || mv "$fortunes"/{computers,debian,knghtbrd,linux,linuxcookie,perl} "$dir/computers"
	"$python" bench/acceptance/gpt2.py rows "$fortunes" "$dir/base"
	"$python" bench/acceptance/gpt2.py texts "$dir/computers" "$dir/tune"
}
# 16 layers, so that drift 15 has 16 stages; head and embedding apart, as stages that update themselves need it
python3 - "$dir/base/model" <<'PY'
import json, sys
path = sys.argv[1] + "/config.json"
config = json.load(open(path))
config.update(n_embd=64, n_layer=14, n_head=4, tie_word_embeddings=False)
json.dump(config, open(path, "w"))
PY
train() { # output, texts, seed, steps, learning rate, rows a micro-batch, micro-batches, more
	local out=$dir/$1 texts=$dir/$2 seed=$3 steps=$4 rate=$5 rows=$6 count=$7
	shift 7
	[ -f "$out/done" ] && return
	rm -rf "$out"
	"$roundhouse" train --train_file "$texts/train.jsonl" --validation_file "$texts/test.jsonl" --output_dir "$out" --use_peft false \
		--max_length 128 --packing --packing_strategy wrapped --max_steps "$steps" --per_device_train_batch_size "$rows" \
		--gradient_accumulation_steps "$count" --per_device_eval_batch_size 8 --learning_rate "$rate" --lr_scheduler_type cosine \
		--warmup_steps 0.05 --dtype float32 --seed "$seed" --data_seed "$seed" --save_strategy no --eval_strategy steps --eval_steps $((steps / 10)) \
		--logging_steps $((steps / 10)) --allow duplicates,cut-answers,no-end-of-turn,overlap "$@" 2>"$out.log" || { tail -3 "$out.log"; return 1; }
	touch "$out/done"
}
declare -A how=(
	[drift1]="2 4 --device cpu:4 --schedule paci" [stored1]="2 4 --device cpu:4 --schedule paci --paci_backward stored"
	[stash1]="2 4 --device cpu:4 --schedule paci --paci_backward stash" [drift2]="4 2 --device cpu:4 --schedule paci"
	[drift15]="8 1 --device cpu:16 --schedule paci" [stale]="8 1 --device cpu:1 --optimizer_staleness 1")
train trained base 1 "$base_steps" 1e-3 8 1 --config_name "$dir/base/model" --device cpu:1
run() { # name, seed, rows a micro-batch, micro-batches, more
	local name=$1 seed=$2 rows=$3 count=$4
	shift 4
	train "rate-$rate/$name-$seed" tune "$seed" "$steps" "$rate" "$rows" "$count" --model_name_or_path "$dir/trained" --max_grad_norm 0 "$@"
}
for seed in $seeds; do
	run flush $seed 8 1 --device cpu:1
	for name in $runs; do
		run $name $seed ${how[$name]}
	done
done
python3 - "$dir/rate-$rate" "$seeds" "$runs" <<'PY'
import json, math, statistics, sys
root, seeds, names = sys.argv[1], sys.argv[2].split(), sys.argv[3].split()
bars = dict(drift1=0.003, drift2=0.005, drift15=0.01, stale=0.003)

def evaluations(name, seed):
    rows = [json.loads(line) for line in open(f"{root}/{name}-{seed}/metrics.jsonl")]
    return [(r["step"], r["eval_loss"]) for r in rows if "eval_loss" in r], max((r.get("version_drift", 0) for r in rows), default=0)

flush = {s: evaluations("flush", s)[0] for s in seeds}
first, last = (statistics.mean(f[i][1] for f in flush.values()) for i in (0, -1))
marks = [last + (first - last) * share for share in (0.5, 0.2, 0.05)]
print(f"{len(seeds)} seeds; steps to perplexity {', '.join(f'{math.exp(m):.1f}' for m in marks)}")
print(f"{'run':8} {'drift':>5} {'loss':>8} {'spread':>8} {'from flush':>10}  steps")
fails = 0
for name in ["flush", *names]:
    runs = {s: evaluations(name, s) for s in seeds}
    ends = [r[0][-1][1] for r in runs.values()]
    apart = statistics.mean(runs[s][0][-1][1] / flush[s][-1][1] - 1 for s in seeds)
    steps = [statistics.mean(next((step for step, loss in r[0] if loss <= mark), math.inf) for r in runs.values()) for mark in marks]
    print(f"{name:8} {max(r[1] for r in runs.values()):5} {statistics.mean(ends):8.4f} {max(ends) - min(ends):8.4f} {apart:10.2%}  {', '.join(f'{s:.0f}' for s in steps)}")
    if name in bars:
        fails += apart <= bars[name] if name == "drift15" else apart > bars[name]
print(json.dumps(dict(bench="paci-quality", seeds=len(seeds), broken=fails)))
sys.exit(fails > 0)
PY
