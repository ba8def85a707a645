#!/usr/bin/env bash
# How long a sequence may be, by plans (exact accounting of memory; speeds from data sheets and assumed rates), beside the bars it is held to;
# and how much faster eight devices are on one sequence than one device is.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/longest.py "${1:-build/release/roundhouse}"
