#!/usr/bin/env bash
# Does `plan` know how long a step takes, and how much memory, on this machine's CPU devices once `doctor` has measured it? Twelve
# configurations that differ in model, LoRA or full, dtype, length, devices, schedule and caps; for each, round after round, `doctor`
# measures the machine, `plan` predicts, and a few steps are trained. Prints a table and, as the last line, a JSON object.
#   bench/plan-cpu.sh [--rounds 1] [--steps 5] [--measure 8] [--only NAME,NAME] [--under COMMAND] [--piece 35] [--keep FILE] [--show FILE]
# A machine that others share changes its speed from second to second. What counts is the prediction made before a run, of the medians over
# the rounds; "of both" is the mean of it and of one made by the measurement after the run, and "measured_again" how far the two lie apart.
# --measure: seconds that doctor times ops for. --under: what to run pieces of some --piece seconds under (such as nice -n -5). --keep
# writes what was found, --show prints such a file. Models are random; no download.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/plan-cpu.py "$@"
