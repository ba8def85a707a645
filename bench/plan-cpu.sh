#!/usr/bin/env bash
# Does `plan` know how long a step takes, and how much memory, on this machine's CPU devices once `doctor` has measured it? Twelve configurations
# that differ in model, LoRA or full, dtype, length, devices, schedule and caps are planned, then trained for a few steps; prints a table and, as
# the last line, a JSON object.
#   bench/plan-cpu.sh [--profile FILE] [--steps 6] [--only NAME,NAME] [--measured FILE] [--keep FILE]
# --profile: a profile that `doctor --save` wrote earlier, instead of measuring now. --keep writes what was measured, --measured takes it from there.
# Models are random; no download.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/plan-cpu.py "$@"
