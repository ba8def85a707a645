#!/usr/bin/env bash
# What does `plan` say of the FluidPipe papers' own runs, beside the epochs that they published? ViT-Large on two boxes of two A100, BERT-Large
# on two of one, every row of their tables, in virtual time. There is no bar and no knob; what the papers leave open is named in the script.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/fluidpipe-papers.py "${1:-build/release/roundhouse}"
