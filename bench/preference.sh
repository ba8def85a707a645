#!/usr/bin/env bash
# Does DPO of the demo's model end where TRL's does, and how fast is it? 1,000 pairs made from the demo's reviews (chosen: the true label; rejected:
# the other one), of which some are held out: the share of these whose chosen answer is the likelier one, before and after, within a point of TRL's on
# the same model, adapter, rows and rate; tokens/s of training and the reference's pass together, at least twice TRL's.
#   bench/preference.sh [--train 500] [--held-out 500] [--words 12] [--bf16]      WORDS: of a review, its first ones
# Needs the demo's files (build/demo; `make demo` fetches them) and build/venv (made here if it is missing). By default some 10 minutes of two cores, of
# which TRL takes most.
set -euo pipefail
cd "$(dirname "$0")/.."
model=build/demo/SmolLM2-135M-Instruct.Q4_1.gguf
for file in "$model" build/demo/train-full.jsonl; do
	[ -e "$file" ] || { echo "$file is missing: run \`make demo\` first" >&2; exit 1; }
done
tests/reference/make.sh none
directory=build/bench/$(basename "${model%.gguf}")-hf
if [ ! -e "$directory/tokenizer.json" ]; then # its last file
	mkdir -p "$directory"
	build/venv/run bench/train-cpu-peer.py convert "$model" "$directory"
fi
exec build/venv/bin/python bench/preference.py --directory "$directory" "$@"
