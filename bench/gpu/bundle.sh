#!/usr/bin/env bash
# `make gpu-bundle`: what bench/gpu-check.sh needs where there are a GPU and a driver but none of Debian's libraries, a folder and a tarball.
#   bench/gpu/bundle.sh BUILD ARCHITECTURES PROGRAM...     BUILD: build/release; ARCHITECTURES: what nvcc compiled the kernels for
# build/gpu-bundle          mirrors the source tree; the programs stripped, for CUDA 13 and for CUDA 12, their libraries but glibc in build/release/lib
# build/gpu-bundle.tar.xz   the same, to be unpacked into an empty folder (tar -xJf; where xz is missing, python3 -m tarfile -e)
# build/gpu-demo            the demo's model in two pieces and its rows, where `make demo` fetched them: pieces that may travel in two calls
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1 architectures=$2 bundle=build/gpu-bundle most=$((64 << 20))
shift 2
programs=$*
export LD_LIBRARY_PATH=$PWD/build/cuda12/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} # of CUDA 12's runtime, which goes along

rm -rf "$bundle"
mkdir -p "$bundle/build/release/lib" "$bundle/build/release/lib-c++" "$bundle/bench/gpu" "$bundle/tests/reference" "$bundle/examples"
for program in $programs; do
	strip -o "$bundle/build/release/$program" "$build/$program"
done
for program in $programs; do ldd "$build/$program"; done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
	grep -v -E '/(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv)\.so' | xargs -I{} cp -L {} "$bundle/build/release/lib/"
mv "$bundle"/build/release/lib/lib{stdc++,gcc_s}.* "$bundle/build/release/lib-c++/" # that machine's own where it has them: newer ones serve older programs
cp bench/gpu-check.sh "$bundle/bench/"
cp -r bench/gpu/peers.py bench/gpu/wheels.sh bench/gpu/*/ "$bundle/bench/gpu/"
cp -r tests/reference/interchange "$bundle/tests/reference/"
cp examples/demo.yaml "$bundle/examples/"
[ ! -d build/gpu-wheels ] || cp -r build/gpu-wheels "$bundle/build/"
{
	echo "commit: $(git describe --always --dirty 2>/dev/null || echo unknown)"
	echo "glibc: $(find "$bundle"/build/release{,/lib} -maxdepth 1 -type f -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 | sed 's/GLIBC_//')"
	echo "architectures: $architectures$(! grep -a -q 'libcublasLt\.so\.13' "$build/roundhouse" || echo " (drivers from 580 on)")$([[ "$programs" != *cuda12* ]] || echo "; sm_80 sm_89 sm_90, PTX (drivers from 525 on: roundhouse-cuda12)")"
	echo "libraries: $(ls "$bundle/build/release/lib" | tr '\n' ' ')"
} >"$bundle/MANIFEST"
# Programs hold the same kernels: a dictionary as large as all of them keeps one copy.
tar -c -C "$bundle" . | xz -T1 --lzma2=preset=3,dict=192MiB >"$bundle.tar.xz"

if [ -e build/demo/SmolLM2-135M-Instruct.Q4_1.gguf ] && [ -e build/demo/train.jsonl ]; then
	mkdir -p build/gpu-demo
	split -n 2 -a 1 --numeric-suffixes=1 build/demo/SmolLM2-135M-Instruct.Q4_1.gguf build/gpu-demo/demo-model.
	cp build/demo/train.jsonl build/demo/test.jsonl build/gpu-demo/
fi
bytes=$(stat -c %s "$bundle.tar.xz") # what travels
echo "$bundle.tar.xz: $((bytes >> 20)) MiB, unpacked $(($(du -sb "$bundle" | cut -f1) >> 20)); needs glibc $(sed -n 's/^glibc: //p' "$bundle/MANIFEST"), a driver, and that machine's own cuBLASLt"
[ "$bytes" -le "$most" ] || { echo "$bundle.tar.xz is larger than 64 MiB" >&2; exit 1; }
