#!/usr/bin/env bash
# How much faster are two boxes without gradients between them (mode fluidpipe) over slow links, and does `plan` know? A tiny model cut in the
# middle, so box 1's head of its own comes on top; runs of 40 steps (bench/boxes.py).
#   bench/fluidpipe.sh [ROUND_TRIP_MS:MBIT[:STAGE_MS[:MICRO_BATCHES]]...]
set -euo pipefail
cd "$(dirname "$0")/.."
make --no-print-directory -s all build/release/tests/link/network
exec python3 bench/boxes.py fluidpipe "$@"
