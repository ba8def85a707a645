#!/usr/bin/env bash
# How far is `plan` from runs over a shaped network? Two boxes take 60 ms for a micro-batch, and a step has 8: GPipe and 1F1B at three
# latencies and three rates (bench/boxes.py). The bar is 5 % of a step's time, in the median of the repetitions.
#   bench/links-time.sh [REPETITIONS [ROUND_TRIP_MS:MBIT...]]
set -euo pipefail
cd "$(dirname "$0")/.."
make --no-print-directory -s all build/release/tests/link/network
exec python3 bench/boxes.py links-time "$@"
