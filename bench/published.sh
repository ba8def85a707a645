#!/usr/bin/env bash
# What does `plan` say of models that others have published speeds of, beside what they published? Real configurations (examples/models),
# simulated machines (examples/hardware), the precision named. There is no bar and no knob: the profiles' rates are the data sheets' and what
# is assumed there, and a formula without a pipeline would come near these figures too.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/published.py "${1:-build/release/roundhouse}"
