#!/usr/bin/env bash
# How fast and in how much memory does roundhouse fine-tune the demo model on this CPU, against PyTorch + transformers + PEFT?
# LoRA and full, same rows, model and precision, one after the other in one go; the last line of output is the result as JSON.
#   bench/train-cpu.sh [--modes lora,full] [--steps 10] [--bf16] [--repeat 1] [--peer-only] [--checkpointing]
# Needs the demo's files (build/demo; `make demo` fetches them) and build/venv (made here if it is missing).
# MODEL and ROWS name another GGUF file and another JSONL file of prompt/completion rows.
set -euo pipefail
cd "$(dirname "$0")/.."
model=${MODEL:-build/demo/SmolLM2-135M-Instruct.Q4_1.gguf}
rows=${ROWS:-build/demo/train.jsonl}
for file in "$model" "$rows"; do
	[ -e "$file" ] || { echo "$file is missing: run \`make demo\` first, or set MODEL and ROWS to a GGUF file and a JSONL file" >&2; exit 1; }
done
tests/reference/make.sh none
directory=build/bench/$(basename "${model%.gguf}")-hf
if [ ! -e "$directory/tokenizer.json" ]; then # its last file
	mkdir -p "$directory"
	build/venv/run bench/train-cpu-peer.py convert "$model" "$directory"
fi
exec build/venv/bin/python bench/train-cpu.py --model "$model" --rows "$rows" --directory "$directory" "$@"
