#!/usr/bin/env bash
# Is the planner's choice of what becomes of activations the fastest, or within 3 % of it? A paced CPU device over links of three rates
# (bench/fates.py).
#   bench/fates.sh [BYTES_PER_S...]
set -euo pipefail
cd "$(dirname "$0")/.."
make --no-print-directory -s build/release/roundhouse
exec python3 bench/fates.py "$@"
