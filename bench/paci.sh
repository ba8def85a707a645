#!/usr/bin/env bash
# How much faster is a pipeline without a flush over slow links, and does `plan` know? Four boxes take 30 ms each for a micro-batch, forward,
# recomputation and backward, and a step has 8; runs of 40 steps (bench/boxes.py). The bar is 1.6 times the better of GPipe and 1F1B.
#   bench/paci.sh [ROUND_TRIP_MS:MBIT[:UNIT_MS]...]
set -euo pipefail
cd "$(dirname "$0")/.."
make --no-print-directory -s all build/release/tests/link/network
exec python3 bench/boxes.py paci "$@"
