#!/usr/bin/env bash
# `make reference`: makes the Python environment build/venv, then lets every script of this folder remake its references and compare them
# with the committed ones (--check). Names of scripts as arguments (models.py token.py) run only those; "none" makes the environment only.
# PYTHON says which python3 to start from. Exit 1 when a script finds a difference, or changes a committed file.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/reference
venv=$PWD/build/venv

toolkit=""
[ -e /usr/local/cuda/lib64/libcublas.so ] && toolkit=/usr/local/cuda/lib64

install() { "$venv/bin/pip" install --quiet --disable-pip-version-check -c "$here/requirements.txt" "$@"; }

make_venv() {
	echo "making build/venv (torch, transformers, peft: several GB)"
	rm -rf "$venv"
	"${PYTHON:-python3}" -m venv "$venv" || { echo "no virtual environment: install python3-venv, or set PYTHON to another python3" >&2; exit 1; }
	install transformers gguf scikit-learn psutil pillow pyarrow datasets
	if [ -n "$toolkit" ]; then # torch's own copies of the CUDA libraries are left out where the toolkit is installed
		install filelock typing-extensions sympy networkx jinja2 fsspec
		install --no-deps torch nvidia-cufile nvidia-cusparselt-cu13 nvidia-nvshmem-cu13 nvidia-nccl-cu13
	else
		install torch
	fi
	install --no-deps peft accelerate trl bitsandbytes tensorboard protobuf absl-py
	install --no-deps compressed-tensors nvidia-modelopt loguru
	install omegaconf pulp rich ninja nvidia-ml-py pydantic
	write_run
	sha256sum "$here/requirements.txt" >"$venv/made-from"
}

# build/venv/run SCRIPT...: that python with the libraries torch needs
write_run() {
	cat >"$venv/run" <<-EOF
		#!/usr/bin/env bash
		export LD_LIBRARY_PATH=\$(printf '%s:' "$venv"/lib/python3*/site-packages/nvidia/*/lib)$toolkit PYTHONDONTWRITEBYTECODE=1
		exec "$venv/bin/python" "\$@"
	EOF
	chmod +x "$venv/run"
}

[ -x "$venv/run" ] && sha256sum --check --status "$venv/made-from" 2>/dev/null || make_venv

state() { find "$here" -type f ! -path '*/__pycache__/*' -exec sha256sum {} + | sort -k2; }

if [ $# -eq 0 ]; then
	cd "$here"
	set -- $(grep -l '__main__' -- *.py | xargs grep -l -e '--check')
	for script in $(grep -l '__main__' -- *.py | xargs grep -L -e '--check'); do echo "not run, has no --check: $script"; done
	cd ../..
fi
[ "$1" != none ] || exit 0
bad=0
for script in "$@"; do
	before=$(state)
	echo "== $script --check"
	"$venv/run" "$here/$script" --check || bad=1
	changed=$(diff <(echo "$before") <(state) | sed -n 's/^[<>] [0-9a-f]*  //p' | sort -u || true)
	if [ -n "$changed" ]; then
		printf '%s changed committed files:\n%s\n' "$script" "$changed"
		bad=1
	fi
done
exit $bad
