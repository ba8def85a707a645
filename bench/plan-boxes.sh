#!/usr/bin/env bash
# Does `plan` know how long a step of two boxes takes over a slow line? Each box is one core of this machine, measured by `doctor` on both
# cores at once, as they share more than they show: with both at work a step takes 15 % more processor time. The model is random (11 M
# parameters), rows are 256 tokens, a step has 8. For each line the plan's step stands beside the measured one, over a network that is
# shaped (tests/link/network.h). The network's rate is that of packets. `plan` is told the rate of messages where both ways are busy,
# 1448 / 1526 of it: a packet of 1,500 bytes has 52 of headers, and every second one is acknowledged by 52 bytes on the other way. The
# errors' largest is the last line's value. On two cores all else, the shaped network too, takes time from the devices, which `plan` counts
# as if it had cores of its own: so steps are longer than planned, the more the faster the line is, as boxes then wait less for one
# another (0.1 ms: by 23 to 118 %, from run to run). What a line costs shows in the lines' differences.
#   bench/plan-boxes.sh [LATENCY_MS,MBIT...]
set -euo pipefail
cd "$(dirname "$0")/.."
make --no-print-directory -s all build/release/tests/link/network
rh=$PWD/build/release/roundhouse
dir=$(mktemp -d /tmp/rh-plan-boxes-XXXXXX)
trap 'rm -rf "$dir"' EXIT
export XDG_CONFIG_HOME=$dir
lines=${*:-25,1000 25,300 25,100 25,20}

mkdir "$dir/model"
cp tests/reference/interchange/tokenizer.json tests/reference/interchange/tokenizer_config.json "$dir/model/"
python3 - "$dir" <<'PY'
import json, random, sys
dir = sys.argv[1]
random.seed(1)
json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1024, "hidden_size": 384, "intermediate_size": 1024,
           "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
           "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}, open(dir + "/model/config.json", "w"))
with open(dir + "/rows.jsonl", "w") as rows:
    for _ in range(200):
        rows.write(json.dumps({"text": "".join(random.choice("abcdefgh ") for _ in range(900))}) + "\n")
PY
cat >"$dir/run.yaml" <<YAML
config_name: $dir/model
max_length: 256
max_steps: 6
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
logging_steps: 1
save_strategy: "no"
allow: [duplicates, cut-answers]
mode: sync-pp
boxes: 2
box_cuts: [5]
device: cpu:1
YAML
for box in 1 2; do "$rh" keys --link_identity "$dir/box$box.pem" >"$dir/hash$box" 2>/dev/null; done
for core in 0 1; do taskset -c $core "$rh" doctor --save core$core --device cpu:1 >/dev/null 2>&1 & done
wait

printf '%8s %8s %12s %12s %8s\n' ms Mbit/s 'plan ms' 'run ms' error
for line in $lines; do
	ms=${line%,*} mbit=${line#*,}
	"$rh" plan "$dir/run.yaml" --box 1 --train_file "$dir/rows.jsonl" --box_hardware '[core0,core1]' --link_latency_ms "$ms" \
		--link_mbit_per_second "$(python3 -c "print($mbit * 1448 / 1526)")" --json >"$dir/plan.json" 2>/dev/null
	run() { # box, core, keys
		echo "taskset -c $2 $rh train $dir/run.yaml --box $1 --output_dir $dir/out$1 --link_identity $dir/box$1.pem $3 >$dir/log$1 2>&1"
	}
	rm -rf "$dir"/out?
	timeout 300 build/release/tests/link/network "$ms,$mbit,$mbit" -- \
		"$(run 1 0 "--train_file $dir/rows.jsonl --link_above listen:\$ABOVE --link_peer_above $(tail -1 "$dir/hash2")")" \
		"$(run 2 1 "--link_below \$BELOW --link_peer_below $(tail -1 "$dir/hash1")")" || { tail -n 1 "$dir"/log?; exit 1; }
	python3 - "$dir" "$ms" "$mbit" <<'PY'
import json, statistics, sys
dir, ms, mbit = sys.argv[1:]
plan = json.load(open(dir + "/plan.json"))["step_seconds"]
steps = [json.loads(line) for line in open(dir + "/out1/metrics.jsonl")]
run = statistics.median(8 * 256 / step["tokens_per_second"] for step in steps[1:])
print(f"{ms:>8} {mbit:>8} {plan * 1e3:12.1f} {run * 1e3:12.1f} {100 * (run / plan - 1):7.1f} %")
with open(dir + "/errors", "a") as errors:
    errors.write(f"{abs(run / plan - 1)}\n")
PY
done
worst=$(sort -g "$dir/errors" | tail -1)
machine=$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs)
printf '{"bench": "plan-boxes", "value": %.4f, "unit": "largest error of a step of two boxes", "reference": 0.03, "ratio": %.3f, %s' \
	"$worst" "$(python3 -c "print(0.03 / $worst)")" "\"machine\": \"$machine\"}"
echo
