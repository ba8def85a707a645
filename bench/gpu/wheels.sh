#!/usr/bin/env bash
# Fetches the PyPI package roundpipe into build/gpu-wheels, for bench/gpu-check.sh to install beside what the GPU's machine has: with a
# transformers of its own, as it calls functions that transformers 5 has changed. 17 MB; torch and the rest are that machine's.
#   bench/gpu/wheels.sh [PYTHON-VERSION]     of that machine; 3.12
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 -m pip download -q --no-deps --only-binary=:all: --python-version "${1:-3.12}" --implementation cp --platform manylinux_2_28_x86_64 \
	--platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d build/gpu-wheels roundpipe==0.1.1 beartype==0.23.1 py-cpuinfo==9.0.0 ninja==1.13.0 \
	transformers==4.57.1 huggingface_hub==0.36.0 tokenizers==0.22.1
