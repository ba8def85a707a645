#!/usr/bin/env bash
# A small ViT from scratch on Fashion-MNIST (60,000 images, Debian's package dataset-fashion-mnist), judged on the 10,000 test images: accuracy
# of at least 0.88 in at most 30 minutes of processor time (15 minutes on two cores). Exit 1 otherwise.
#   bench/acceptance/vit.sh [DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:-build/acceptance/vit}
data=/usr/share/datasets/fashion-mnist
[ -f $data/train-images-idx3-ubyte.gz ] || tests/deps.sh dataset-fashion-mnist
mkdir -p "$dir/model"
rm -rf "$dir/out"
cat >"$dir/model/config.json" <<'JSON'
{"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
 "num_attention_heads": 2, "image_size": 28, "patch_size": 4, "num_channels": 1, "num_labels": 10}
JSON
cat >"$dir/model/preprocessor_config.json" <<'JSON'
{"image_processor_type": "ViTImageProcessor", "size": {"height": 28, "width": 28}, "image_mean": [0.286], "image_std": [0.353]}
JSON
cat >"$dir/run.yaml" <<YAML
config_name: $dir/model
train_file: $data/train-images-idx3-ubyte.gz
validation_file: $data/t10k-images-idx3-ubyte.gz
output_dir: $dir/out
num_train_epochs: 20
per_device_train_batch_size: 64
gradient_accumulation_steps: 1
per_device_eval_batch_size: 256
learning_rate: 1.0e-3
weight_decay: 0.05
warmup_steps: 200
lr_scheduler_type: cosine
eval_strategy: epoch
save_strategy: "no"
device: cpu:1
logging_steps: 100
dtype: float32
YAML
TIMEFORMAT='%U %S %R'
{ time build/release/roundhouse train "$dir/run.yaml" 2>&3; } 3>&2 2>"$dir/time"
eval=$(build/release/roundhouse eval --model_name_or_path "$dir/out" --validation_file "$data/t10k-images-idx3-ubyte.gz" \
	--per_device_eval_batch_size 256 --device cpu:1 --json)
python3 - "$eval" "$(tail -n 1 "$dir/time")" <<'PY'
import json, sys
accuracy = json.loads(sys.argv[1])["eval_accuracy"]
user, system, wall = map(float, sys.argv[2].split())
within = accuracy >= 0.88 and user + system <= 1800
print(json.dumps(dict(bench="vit", accuracy=accuracy, cpu_seconds=user + system, wall_seconds=wall, within=within)))
sys.exit(not within)
PY
