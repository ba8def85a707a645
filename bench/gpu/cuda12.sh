#!/usr/bin/env bash
# A toolkit of CUDA 12 for clang, in build/cuda12: nvcc 12 cannot be had whole from a package index, but clang needs only headers, ptxas, libdevice and a
# fatbinary. The last is the installed CUDA 13's, which takes images by another option than clang gives.
#   bench/gpu/cuda12.sh FATBINARY
set -euo pipefail
cd "$(dirname "$0")/../.."
fatbinary=$1 kit=build/cuda12 got=build/cuda12-wheels
[ ! "$kit/bin/ptxas" -nt bench/gpu/cuda12.sh ] || exit 0 # this script may have changed
command -v clang++-19 >/dev/null || { echo "cuda12: clang++-19 is not here; install clang-19 (apt)" >&2; exit 1; }
mkdir -p "$got"
python3 -m pip download -q --no-deps --only-binary=:all: --platform manylinux2014_x86_64 -d "$got" \
	nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cuda-runtime-cu12==12.4.127 nvidia-cublas-cu12==12.4.5.8
rm -rf "$kit.new"
mkdir -p "$kit.new"
python3 - "$got" "$kit.new" <<'PY'
import glob, os, sys, zipfile
got, kit = sys.argv[1:]
for wheel in glob.glob(got + "/*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            part = name.split("/", 2)
            if part[0] != "nvidia" or len(part) < 3 or name.endswith("/") or ("lib/" in name and "cudart" not in name):
                continue
            to = os.path.join(kit, part[2].replace("lib/", "lib64/", 1))
            os.makedirs(os.path.dirname(to), exist_ok=True)
            with archive.open(name) as source, open(to, "wb") as target:
                target.write(source.read())
PY
cat >"$kit.new/bin/fatbinary" <<SH
#!/usr/bin/env bash
# Nothing is compressed: what newer fatbinaries compress with, drivers before 550 cannot undo.
args=()
for a in "\$@"; do
	case \$a in
	--image=profile=sm_*) a=--image3=kind=elf,sm=\${a#--image=profile=sm_} ;;
	--image=profile=compute_*) a=--image3=kind=ptx,sm=\${a#--image=profile=compute_} ;;
	esac
	args+=("\$a")
done
exec $fatbinary --compress=false "\${args[@]}"
SH
chmod +x "$kit.new"/bin/*
ln -s libcudart.so.12 "$kit.new/lib64/libcudart.so"
rm -rf "$kit"
mv "$kit.new" "$kit"
